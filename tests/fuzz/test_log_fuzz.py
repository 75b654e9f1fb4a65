"""A partition's directory with anything in it: loading keeps what is whole, and nothing crashes.

Every round damages random files of a closed log (flipped bits, cut, lengthened, zeroed, swapped, missing),
opens it clean or not, and uses it. After an unclean start everything that can be read is intact, whatever was
done. A round's seed is its failure's name. All of it takes 20 seconds, and five minutes in `make soak`."""

import logging
import os
import random
import shutil
import time

import pytest

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers, scan_segment
from kafkad.log.txn_index import read_txn_index
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.records import Batch, build_batch, end_marker
from tests.unit.log_world import LogWorld, batch, idempotent, topic_config

SECONDS = 20, 300


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    world = LogWorld(
        tmp_path_factory.mktemp("template"), topic_config(segment_bytes=1_500, index_interval_bytes=150)
    )
    for i in range(30):
        world.append(batch(2, timestamp=1_000 + i, size=20))
        world.append(idempotent(i, 1, timestamp=1_000 + i))
        if i % 10 == 9:
            world.log.append(batch(1, producer_id=50, producer_epoch=0, transactional=True), 1_000)
            world.log.append(
                build_batch(
                    [end_marker(i // 10 % 2, 1, timestamp=1_000)],
                    producer_id=50, producer_epoch=0, transactional=True, control=True,
                ),
                1_000,
            )  # fmt: skip
    world.log.close()
    return world.directory


def damage(chance: random.Random, data: bytes) -> bytes:
    size = len(data)
    at = chance.randrange(size) if size else 0
    match chance.randrange(7):
        case 0:
            changed = bytearray(data or b"\0")
            for _ in range(chance.choice((1, 1, 3, 30))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            return bytes(changed)
        case 1:
            return data[:at]
        case 2:
            return data + chance.randbytes(chance.choice((1, 8, 61, 500)))
        case 3:
            return data + bytes(chance.choice((1, 12, 4096)))
        case 4:
            return data[:at] + bytes(min(100, size - at)) + data[at + 100 :]
        case 5:
            return data[:at] + data[at + chance.choice((1, 4, 100)) :]
        case _:
            return chance.randbytes(size)


def use(world: LogWorld, chance: random.Random, strict: bool) -> None:
    log = world.log
    assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.end_offset
    asks = [
        lambda: log.native.try_read(chance.randrange(log.end_offset + 2), chance.randrange(1, 5_000)),
        lambda: log.offset_for_timestamp(chance.randrange(900, 1_100)),
        log.offset_for_max_timestamp,
        lambda: log.append_client(batch(2), 1_000),
        lambda: log.append_client(idempotent(chance.randrange(60), 1), 1_000),
        lambda: log.delete_records(chance.randrange(log.high_watermark + 1)),
        lambda: log.apply_retention(chance.choice((0, 1 << 50))) if chance.random() < 0.2 else None,
        lambda: log.truncate_to(chance.randrange(log.log_start_offset, log.end_offset + 1)),
        log.flush,
        log.release_idle,
        lambda: log.aborted_transactions(0, log.end_offset),
        world.scheduler.settle,
    ]
    for _ in range(12):
        try:
            chance.choice(asks)()
        except (KafkaError, Malformed) as e:
            assert not strict or not isinstance(e, KafkaError) or e.code in (1, 45, 47, 87), e
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.end_offset
    if strict:
        expected = None
        for data in log.batches(log.log_start_offset, log.end_offset):
            found = Batch(data)
            assert found.is_intact()
            assert expected is None or found.base_offset >= expected
            expected = found.last_offset + 1


def one_round(template, root, seed: int) -> None:
    chance = random.Random(seed)
    directory = root / "t-0"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(template, directory)
    clean = chance.random() < 0.4
    for _ in range(chance.choice((1, 1, 2, 5))):
        path = chance.choice(sorted(path for path in directory.iterdir() if path.is_file()))
        if path.name == "partition.metadata":
            continue
        what = chance.random()
        if what < 0.1:
            path.unlink()
        elif what < 0.2:
            other = chance.choice(sorted(directory.iterdir()))
            path.write_bytes(other.read_bytes())
        elif what < 0.25:
            path.rename(str(path) + chance.choice((".swap", ".cleaned", ".deleted")))
        else:
            path.write_bytes(damage(chance, path.read_bytes()))
    world = LogWorld(root, topic_config(segment_bytes=1_500, index_interval_bytes=150), log=object())
    world.open(clean=clean, recovery_point=0 if not clean else chance.randrange(200))
    use(world, chance, strict=not clean)
    world.log.close()
    world.crash()
    use(world, chance, strict=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_damaged_directory_is_loaded_and_used(template, tmp_path, rounds):
    logging.getLogger("kafkad.log").setLevel(logging.CRITICAL)
    first = int(os.environ.get("KAFKAD_FUZZ_SEED", "1"))
    seed, end = first, time.monotonic() + rounds(*SECONDS)
    try:
        while time.monotonic() < end:
            one_round(template, tmp_path, seed)
            seed += 1
    except BaseException as e:
        raise AssertionError(f"KAFKAD_FUZZ_SEED={seed}") from e
    finally:
        logging.getLogger("kafkad.log").setLevel(logging.NOTSET)
    assert seed > first


def test_noise_is_no_segment(tmp_path):
    chance = random.Random(11)
    path = tmp_path / "00000000000000000000.log"
    txns = tmp_path / "00000000000000000000.txnindex"
    for _ in range(300):
        path.write_bytes(chance.randbytes(chance.randrange(3_000)))
        scan = scan_segment(str(tmp_path), 0, ProducerTable())
        assert scan.valid_size == 0
        replay_producers(str(path), ProducerTable(), 0, 1 << 62)
        txns.write_bytes(path.read_bytes())
        read_txn_index(str(txns))
