"""The native cleaner against its slow twin (tests/reference/slow_cleaner.py), and by rules of its own."""

import random
import struct
from collections import Counter

import pytest

from kafkad._native.log.cleaned_transactions import CleanedTransactions
from kafkad._native.log.cleaner import Cleaning, Mapping
from kafkad._native.log.offset_map import OffsetMap
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Batch, Record, build_batch, read_batches
from tests.reference import slow_cleaner
from tests.unit.cleaner_world import NOW, Log

RETENTION = 1000
SLOT = 24


def chunked(log: bytes, random: random.Random, feed, feed_plain) -> None:
    """Hands out the log in chunks of random size, and decompresses where that is asked for."""
    position = 0
    size = 200
    while position < len(log):
        chunk = log[position : position + size]
        taken = feed(chunk, 0)
        if taken < len(chunk) and len(chunk) - taken >= 61 and batch_size(chunk, taken) <= len(chunk) - taken:
            batch = Batch(chunk, taken)
            if not batch.compression:
                return
            plain = codecs.decompress(batch.compression, batch.bytes[61:], 1 << 20)
            if feed_plain(chunk, taken, plain, batch) is False:
                return
            taken += batch.size
        size = random.choice((61, 200, 5000)) if taken else size * 2
        position += taken


def batch_size(chunk: bytes, position: int) -> int:
    return 12 + struct.unpack_from(">i", chunk, position + 8)[0]


def mapped(log: Log, start: int, keys_max: int, random: random.Random) -> tuple[OffsetMap, Mapping]:
    offsets = OffsetMap((keys_max + 50) * SLOT, keys_max / (keys_max + 50) + 1e-9)
    assert offsets.size_max == keys_max
    if random.random() < 0.7:
        offsets.follow(start, random.choice((log.end, log.end, log.end // 2)))
    mapping = Mapping(offsets, CleanedTransactions(log.aborted), start)

    def plain(chunk, position, data, batch):
        return mapping.feed_plain(chunk, position, data) != position

    chunked(bytes(log.data), random, mapping.feed, plain)
    return offsets, mapping


def cleaned(cleaning: Cleaning, data: bytes, random: random.Random) -> bytes:
    out = []

    def plain(chunk, position, data, batch):
        kept = cleaning.feed_plain(chunk, position, data)
        if kept is not None:
            cleaning.put_compressed(codecs.compress(batch.compression, kept))

    def feed(chunk, position):
        taken = cleaning.feed(chunk, position)
        out.append(cleaning.take())
        return taken

    chunked(data, random, feed, plain)
    return b"".join(out) + cleaning.take()


@pytest.mark.parametrize("seed", range(300))
def test_a_cleaning_is_what_the_slow_twin_makes(seed):
    chance = random.Random(seed)
    log = Log(chance)
    for _ in range(chance.choice((3, 20, 60))):
        log.step()
    data = bytes(log.data)
    batches = list(read_batches(data))
    last = {key: value for key, value in log.last.items() if chance.random() < 0.7}
    upper = batches[-1].last_offset + 1 if chance.random() < 0.7 else log.end + 9
    start = chance.choice((0, 0, log.end // 2))
    keys_max = chance.choice((5, 20, 1000))

    offsets, mapping = mapped(log, start, keys_max, chance)
    keys, latest, full = slow_cleaner.keys(batches, log.aborted, start, keys_max)
    assert (offsets.latest_offset, len(offsets), mapping.full) == (latest, len(keys), full)
    assert {key: offsets.get(key) for key in keys} == keys
    assert offsets.get(b"in no log") == -1

    transactions = CleanedTransactions(log.aborted)
    cleaning = Cleaning(offsets, transactions, upper, NOW, RETENTION, 100)
    cleaning.begin(0, last)
    got = cleaned(cleaning, data, chance)
    slow = slow_cleaner.Transactions(log.aborted)
    expected = slow_cleaner.clean(batches, slow, keys, latest, last, upper, NOW, RETENTION)
    for ours, theirs in zip(read_batches(got), expected, strict=True):
        assert bytes(ours.bytes).hex() == theirs.hex()
    assert transactions.take_kept() == b"".join(struct.pack(">hqqqq", 0, *entry) for entry in slow.kept)
    assert cleaning.size == len(got)
    assert cleaning.bytes_read == len(data)
    check_indexes(got, cleaning)


def check_indexes(data: bytes, cleaning: Cleaning) -> None:
    """An entry of both indexes at a batch that more than 100 bytes lie before, since the last entry."""
    index: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    since = position = 0
    largest = (-1, 0)
    for batch in read_batches(data):
        largest = max(largest, (batch.max_timestamp, batch.last_offset), key=lambda each: each[0])
        if since > 100:
            index.append((batch.last_offset, position))
            times.append(largest)
            since = 0
        since += batch.size
        position += batch.size
    times.append(largest)
    got, got_times = cleaning.finish()
    assert list(struct.iter_unpack(">ii", got)) == index
    assert list(struct.iter_unpack(">qi", got_times)) == sorted({each for each in times if each[0] >= 0})
    assert cleaning.max_timestamp == largest[0]


def test_the_fuzz_meets_every_rule():
    """What the seeds above go through: none of the rules is there for nothing."""
    met: Counter[str] = Counter()
    for seed in range(60):
        chance = random.Random(seed)
        log = Log(chance)
        for _ in range(60):
            log.step()
        batches = list(read_batches(bytes(log.data)))
        keys, latest, full = slow_cleaner.keys(batches, log.aborted, 0, 20)
        met["full"] += full
        slow = slow_cleaner.Transactions(log.aborted)
        out = slow_cleaner.clean(batches, slow, keys, latest, log.last, log.end, NOW, RETENTION)
        kept = {Batch(each).base_offset: Batch(each) for each in out}
        met["aborts kept"] += len(slow.kept)
        for batch in batches:
            after = kept.get(batch.base_offset)
            kind = "control " if batch.is_control else "data "
            if after is None:
                met[kind + "gone"] += 1
            elif after.records_count == 0:
                met[kind + "emptied"] += 1
            elif after.records_count < batch.records_count:
                met[kind + "thinned"] += 1
                met[f"codec {batch.compression}"] += 1
            elif (after.attributes ^ batch.attributes) & 0x40:
                met[kind + "horizon set"] += 1
            else:
                met[kind + "as it was"] += 1
    wanted = {
        kind + what
        for kind in ("data ", "control ")
        for what in ("gone", "emptied", "horizon set", "as it was")
    }
    wanted |= {"data thinned", "full", "aborts kept", *(f"codec {codec}" for codec in range(5))}
    assert not {what for what in wanted if not met[what]}


def simple(*records: tuple[bytes | None, bytes | None], base: int = 0, **more) -> bytes:
    return bytes(
        build_batch([Record(key, value, timestamp=NOW) for key, value in records], base_offset=base, **more)
    )


def once(data: bytes, now: int = NOW, upper: int = 1 << 40) -> bytes:
    offsets = OffsetMap(1000 * SLOT)
    assert Mapping(offsets, CleanedTransactions(), 0).feed(data) == len(data)
    cleaning = Cleaning(offsets, CleanedTransactions(), upper, now, RETENTION)
    assert cleaning.feed(data) == len(data)
    return cleaning.take()


def test_a_tombstone_goes_after_its_horizon_which_is_set_once():
    log = simple((b"a", b"1"), (b"b", b"1")) + simple((b"a", None), base=2)
    first = once(log)
    again = once(first, NOW + RETENTION - 1)
    assert again == first != log
    assert [record.key for batch in read_batches(first) for record in batch.records()] == [b"b", b"a"]
    gone = once(again, NOW + RETENTION)
    assert [record.key for batch in read_batches(gone) for record in batch.records()] == [b"b"]
    assert [record.timestamp for batch in read_batches(first) for record in batch.records()] == [NOW, NOW]


def test_the_batch_at_the_end_of_the_pass_stays_without_records():
    log = simple((b"a", b"1")) + simple((b"a", b"2"), base=1) + simple((None, b"keyless"), base=2)
    out = list(read_batches(once(log, upper=3)))
    assert [(batch.base_offset, batch.records_count) for batch in out] == [(1, 1), (2, 0)]


def test_damage_is_refused_and_nothing_is_taken():
    log = bytearray(simple((b"a", b"1")) + simple((b"a", b"2"), base=1))
    log[-3] ^= 1
    offsets = OffsetMap(1000 * SLOT)
    cleaning = Cleaning(offsets, CleanedTransactions(), 9, NOW, RETENTION)
    with pytest.raises(Malformed, match="the batch at offset 1 does not have the CRC of its bytes"):
        cleaning.feed(bytes(log))


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_lie_are_malformed_or_cut_off(seed):
    """With the CRC made right again, which both passes check first."""
    chance = random.Random(seed)
    log = Log(chance)
    for _ in range(4):
        log.step()
    for batch in list(read_batches(bytes(log.data))):
        for _ in range(30):
            data = bytearray(batch.bytes)
            data[chance.randrange(16, len(data))] = chance.randrange(256)
            data = bytearray(slow_cleaner.sealed(data))
            offsets = OffsetMap(1000 * SLOT)
            offsets.follow(0, 100)
            try:
                Mapping(offsets, CleanedTransactions(), 0).feed(data)
            except Malformed:
                pass
            cleaning = Cleaning(offsets, CleanedTransactions(), 9, NOW, RETENTION)
            try:
                cleaning.feed(chance.choice((data, bytes(batch.bytes))))
            except (Malformed, OverflowError):
                pass
            assert len(cleaning.take()) <= len(data) * 2 + 61


@pytest.mark.parametrize("seed", range(30))
def test_batches_that_are_skipped_leave_what_reading_them_leaves(tmp_path, seed):
    """Large batches, of which many lose all records, others none or some; with transactions between them."""
    chance = random.Random(seed)
    log = Log(chance)
    for _ in range(40):
        if chance.random() < 0.6:
            keys = [b"k%d" % n for n in range(chance.choice((0, 40)), 50)]
            records = [
                Record(key, b"v" * chance.choice((100, 700)), timestamp=NOW, offset=log.end + n)
                for n, key in enumerate(keys)
            ]
            producer = chance.choice((-1, 11, 12))
            log.last[producer] = (log.end + len(records) - 1, 3)
            log.add(bytes(build_batch(records, base_offset=log.end, producer_id=producer, producer_epoch=3)))
        else:
            log.step()
    data = bytes(log.data)
    path = tmp_path / "log"
    path.write_bytes(data)
    log.last.pop(chance.choice((11, 12)), None)
    results = []
    skipped = 0
    for skips in (False, True):
        offsets = OffsetMap(5000 * SLOT)
        offsets.follow(0, log.end)
        mapping = Mapping(offsets, CleanedTransactions(log.aborted), 0)
        if seed % 3:
            mapping.begin(0)  # with the headers that it notes
        position = 0
        while position < len(data):
            position = mapping.feed(data, position)
            if position < len(data):  # a compressed one
                batch = Batch(data, position)
                plain = codecs.decompress(batch.compression, batch.bytes[61:], 1 << 20)
                position = mapping.feed_plain(data, position, plain)
        transactions = CleanedTransactions(log.aborted)
        cleaning = Cleaning(offsets, transactions, log.end, NOW, RETENTION, 100)
        cleaning.begin(0, log.last)
        position = 0
        mode = "ab" if seed % 2 else "wb"  # sendfile refuses a file that is open for appending
        with path.open("rb") as file, (tmp_path / f"to {skips}").open(mode, buffering=0) as to:
            while position < len(data):
                if skips:
                    behind = cleaning.skip(file.fileno(), position, len(data), to.fileno(), 0)
                    skipped += behind - position
                    position = behind
                if position < len(data):
                    size = batch_size(data, position)
                    to.write(cleaned(cleaning, data[position : position + size], chance))
                    position += size
            cleaning.write_to(to.fileno())
        out = (tmp_path / f"to {skips}").read_bytes()
        figures = (cleaning.bytes_read, cleaning.records_read, cleaning.records_kept, cleaning.size)
        results.append((out, transactions.take_kept(), figures, cleaning.finish()))
    assert results[0] == results[1]
    assert skipped > len(data) / 10


def large_batches(tmp_path):
    """A file of a batch without records that stay, one of which some stay, one of which all stay, and a small
    one. Return its bytes, its path and the map."""
    large = [(b"%d" % n, bytes(1000)) for n in range(20)]
    other = [(b"other %d" % n, bytes(1000)) for n in range(20)]
    log = simple(*large) + simple(*large, base=20) + simple(*other, base=40) + simple((b"0", b"1"), base=60)
    offsets = OffsetMap(1000 * SLOT)
    offsets.follow(0, 61)
    mapping = Mapping(offsets, CleanedTransactions(), 0)
    mapping.begin(0)
    mapping.feed(log)
    path = tmp_path / "log"
    path.write_bytes(log)
    return log, path, offsets


def test_a_batch_is_skipped_only_if_it_is_whole_large_and_all_or_none_of_its_records_stay(tmp_path):
    log, path, offsets = large_batches(tmp_path)
    size = batch_size(log, 0)
    with path.open("rb") as file, (tmp_path / "to").open("w+b", buffering=0) as to:

        def skipped(start: int = 0, end: int = len(log)) -> int:
            cleaning = Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION)
            return cleaning.skip(file.fileno(), start, end, to.fileno())

        assert skipped() == size  # some records of the second one stay
        assert skipped(size) == size
        assert to.tell() == 0
        behind = skipped(2 * size)  # the last one is small
        assert (tmp_path / "to").read_bytes() == log[2 * size : behind]
        assert behind == 2 * size + batch_size(log, 2 * size) < len(log)
        assert skipped(0, size - 1) == 0
        assert skipped(len(log)) == skipped(0, 3) + len(log) == len(log)
        path.write_bytes(log[:30])  # the file is shorter than it was
        assert skipped() == 0
    with pytest.raises(OSError, match="Bad file"):
        Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION).skip(9999, 0, 100, 9999)


def test_headers_that_the_map_noted_are_not_read_again(tmp_path):
    log, path, offsets = large_batches(tmp_path)
    size = batch_size(log, 0)
    path.write_bytes(bytes(len(log)))
    with path.open("rb") as file, (tmp_path / "to").open("wb") as to:

        def skipped(start: int, segment: int) -> int:
            cleaning = Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION)
            return cleaning.skip(file.fileno(), start, len(log), to.fileno(), segment)

        assert [skipped(0, segment) for segment in (-1, 0)] == [0, size]
        assert [skipped(start, 0) for start in (size, 2 * size)] == [
            size,
            2 * size + batch_size(log, 2 * size),
        ]
        assert [skipped(2 * size, segment) for segment in (-1, 5)] == [2 * size] * 2
        assert skipped(0, 0) == 0  # they are passed once, in order


def test_the_map_notes_headers_in_little_memory():
    """Those behind are read."""
    large = simple(*[(b"%d" % n, bytes(1000)) for n in range(9)])
    offsets = OffsetMap(1000 * SLOT)
    offsets.follow(0, 1 << 20)
    mapping = Mapping(offsets, CleanedTransactions(), 0)
    mapping.begin(0)
    for number in range(40_000):
        mapping.feed((9 * number).to_bytes(8, "big") + large[8:])
    assert offsets.heads_count == 1 << 15
    offsets.close()
    assert offsets.heads_count == 0


def test_a_copy_counts_what_it_reads_and_writes_and_reports_what_fails(tmp_path):
    log, path, offsets = large_batches(tmp_path)
    start = 2 * batch_size(log, 0)
    size = batch_size(log, start)

    def copied(to: int) -> int:
        cleaning = Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION)
        with path.open("rb") as file:
            assert cleaning.skip(file.fileno(), start, len(log), to) == start + size
        assert cleaning.write_to(to) == 2 * size
        return cleaning.write_to(to)

    with (tmp_path / "to").open("wb") as to:
        assert copied(to.fileno()) == 0
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match="No space"):
        copied(full.fileno())
    with path.open("rb") as unwritable, pytest.raises(OSError, match="Bad file"):
        copied(unwritable.fileno())
    path.write_bytes(log[: start + 100])  # the file is shorter than it was
    for mode in ("wb", "ab"):
        with (tmp_path / "to").open(mode) as to, pytest.raises(Malformed, match="ends at position"):
            copied(to.fileno())


def test_damage_is_found_before_keys_are_taken():
    log = bytearray(simple((b"a", b"1")) + simple((b"b", b"2"), base=1))
    log[-3] ^= 1
    offsets = OffsetMap(1000 * SLOT)
    with pytest.raises(Malformed, match="the batch at offset 1 does not have the CRC of its bytes"):
        Mapping(offsets, CleanedTransactions(), 0).feed(bytes(log))
    assert offsets.get(b"b") == -1


def packed(base: int, *pairs: tuple[bytes, bytes | None]) -> bytes:
    records = [Record(key, value, timestamp=NOW, offset=base + n) for n, (key, value) in enumerate(pairs)]
    return bytes(build_batch(records, base_offset=base, compression=codecs.LZ4))


@pytest.mark.parametrize("follow", [True, False])
def test_only_a_batch_of_which_some_records_stay_is_decompressed_again(follow):
    goes = packed(0, (b"a", b"1"), (b"b", b"1"))
    stays = packed(2, (b"c", b"1"), (b"d", b"1"))
    loses_one = packed(4, (b"a", b"2"), (b"e", b"1"))
    tombstone = packed(6, (b"b", None), (b"f", b"1"))
    last = packed(8, (b"a", b"3"))
    log = goes + stays + loses_one + tombstone + last
    offsets = OffsetMap(1000 * SLOT)
    if follow:
        offsets.follow(0, 9)
    mapping = Mapping(offsets, CleanedTransactions(), 0)
    position = 0
    for batch in read_batches(log):
        assert mapping.feed(log, position) == position  # compressed
        plain = codecs.decompress(codecs.LZ4, batch.bytes[61:], 1 << 20)
        position = mapping.feed_plain(log, position, plain)
    cleaning = Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION)
    asked: list[int] = []

    def feed_plain(chunk, position, data, batch):
        asked.append(batch.base_offset)
        kept = cleaning.feed_plain(chunk, position, data)
        if kept is not None:
            cleaning.put_compressed(codecs.compress(batch.compression, kept))

    chunked(log, random.Random(0), cleaning.feed, feed_plain)
    left = {
        record.offset: record.key for batch in read_batches(cleaning.take()) for record in batch.records()
    }
    assert left == {2: b"c", 3: b"d", 5: b"e", 6: b"b", 7: b"f", 8: b"a"}
    assert asked == ([4, 6] if follow else [0, 2, 4, 6, 8])
    assert cleaning.records_read == 9


@pytest.mark.parametrize("second", [0, 1, 3])
def test_a_map_does_not_follow_offsets_that_do_not_grow(second):
    """Batches that overlap: a bit says nothing about whose record it is."""
    log = packed(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1")) + packed(second, (b"a", b"2"), (b"x", b"1"))
    offsets = OffsetMap(1000 * SLOT)
    offsets.follow(0, 9)
    mapping = Mapping(offsets, CleanedTransactions(), 0)
    position = 0
    for batch in read_batches(log):
        plain = codecs.decompress(codecs.LZ4, batch.bytes[61:], 1 << 20)
        position = mapping.feed_plain(log, position, plain)
    cleaning = Cleaning(offsets, CleanedTransactions(), 99, NOW, RETENTION)
    behind = len(log) - batch.size
    assert cleaning.feed(log, behind) == (behind if second < 3 else len(log))


def test_a_marker_that_says_it_has_two_thousand_million_records_takes_no_memory():
    marker = build_batch([Record(b"\0\0\0\2", b"", timestamp=NOW)], producer_id=1, control=True)
    struct.pack_into(">i", marker, 57, (1 << 31) - 1)
    cleaning = Cleaning(OffsetMap(1000), CleanedTransactions(), 9, NOW, RETENTION)
    with pytest.raises(Malformed, match="has fewer records than it says"):
        cleaning.feed(slow_cleaner.sealed(marker))


def test_old_formats_are_the_callers_and_unknown_ones_are_refused_by_name():
    data = bytearray(simple((b"a", b"1")))
    for magic in (0, 1):
        data[16] = magic
        assert Mapping(OffsetMap(1000), CleanedTransactions(), 0).feed(data) == 0
        assert Cleaning(OffsetMap(1000), CleanedTransactions(), 9, NOW, RETENTION).feed(data) == 0
    for magic in (3, 255):
        data[16] = magic
        with pytest.raises(Malformed, match=f"magic {magic}, and there is none above 2"):
            Mapping(OffsetMap(1000), CleanedTransactions(), 0).feed(data)


def test_an_offset_map_fills_up_and_gives_its_memory_back():
    offsets = OffsetMap(1000 * SLOT, 0.9)
    known = {}
    for offset in range(900):
        assert offsets.put(b"%d" % offset, offset)
        known[b"%d" % offset] = offset
    assert not offsets.put(b"one more", 900)
    assert not offsets.put(b"0", 900)
    assert {key: offsets.get(key) for key in known} == known
    assert (offsets.slots, len(offsets), offsets.latest_offset) == (1000, 900, 899)
    offsets.close()
    with pytest.raises(ValueError, match="closed"):
        offsets.get(b"0")
    with pytest.raises(ValueError, match="hold no slot"):
        OffsetMap(23)
