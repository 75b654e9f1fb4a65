"""Snapshots: all metadata below an offset in one file, in the format of log batches.

    control batch   SnapshotHeader [KRaftVersion, Voters]
    data batches    the image's records (Kafka: RecordsSnapshotWriter)
    control batch   SnapshotFooter

Offsets count up from 0 in the file. All batches carry the epoch of the snapshot's name.
`bootstrap.checkpoint`, with the initial records of a fresh cluster, has the same format (Kafka:
BatchFileWriter), in epoch 0.

A snapshot is used whole or not at all: a missing footer, a wrong CRC or a record that does not parse makes it
corrupt.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

from kafkad.metadata.records import decode_record
from kafkad.protocol import messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.raft.control_records import Voter, control_batch, read_control, read_voters, voters_record

BATCH_SIZE_MAX: Final = 8 << 20  # bytes of one batch; Kafka: KafkaRaftClient.MAX_BATCH_SIZE_BYTES
_BATCH_RECORDS: Final = 1024  # Kafka: RaftSnapshotWriter's batch
_RECORD_OVERHEAD: Final = 32  # more than the frame of a record


class Snapshot(NamedTuple):
    """The contents of a snapshot; `timestamp_ms` is the append time of the last log record in it."""

    records: list[Any]
    timestamp_ms: int
    kraft_version: int
    voters: tuple[Voter, ...]


def build_snapshot(
    values: Iterable[bytes],
    *,
    epoch: int,
    timestamp_ms: int,
    now_ms: int,
    kraft_version: int = 0,
    voters: Iterable[Voter] = (),
) -> Iterator[bytearray]:
    """Yield the batches of a snapshot of these encoded records."""
    header: list[Any] = [messages.SnapshotHeaderRecord(last_contained_log_timestamp=timestamp_ms)]
    if kraft_version > 0:
        header.append(messages.KRaftVersionRecord(k_raft_version=kraft_version))
        header.append(voters_record(voters))
    yield control_batch(header, base_offset=0, epoch=epoch, now_ms=now_ms)
    offset = len(header)
    for group in group_records(values, count_max=_BATCH_RECORDS):
        yield data_batch(group, base_offset=offset, epoch=epoch, now_ms=now_ms)
        offset += len(group)
    yield control_batch([messages.SnapshotFooterRecord()], base_offset=offset, epoch=epoch, now_ms=now_ms)


def read_snapshot(content: bytes, decode: Callable[[bytes], Any] = decode_record) -> Snapshot:
    """Parse a snapshot. Raises Malformed: the snapshot is not whole."""
    steps = read_snapshot_steps(content, decode, len(content))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            snapshot: Snapshot = end.value
            return snapshot


def read_snapshot_steps(
    content: bytes, decode: Callable[[bytes], Any], step: int
) -> Generator[None, None, Snapshot]:
    """Do `read_snapshot`, with this many records per step."""
    header: Any = None
    footer = False
    kraft_version = 0
    voters: tuple[Voter, ...] = ()
    records: list[Any] = []
    for batch in read_batches(content):
        if footer:
            raise Malformed("the snapshot goes on after its footer")
        if not batch.is_intact():
            raise Malformed(f"the snapshot's batch at offset {batch.base_offset} has a wrong CRC")
        if not batch.is_control:
            if header is None:
                raise Malformed("the snapshot does not begin with its header")
            for number, record in enumerate(batch.records(), 1):
                if record.value is None:
                    raise Malformed("the snapshot has a record without a value")
                records.append(decode(record.value))
                if number % step == 0:
                    yield
            yield
            continue
        for message in read_control(batch):
            kind = type(message)
            if kind is messages.SnapshotHeaderRecord:
                header = message
            elif kind is messages.SnapshotFooterRecord:
                footer = True
            elif kind is messages.KRaftVersionRecord:
                kraft_version = message.k_raft_version
            elif kind is messages.VotersRecord:
                voters = read_voters(message)
    if header is None or not footer:
        raise Malformed("the snapshot has no footer: it was cut off")
    return Snapshot(records, header.last_contained_log_timestamp, kraft_version, voters)


def read_timestamp(content: bytes) -> int:
    """Return the append time of the last log record in a snapshot, from its header. Raises Malformed."""
    for batch in read_batches(content):
        for message in read_control(batch) if batch.is_control else ():
            if type(message) is messages.SnapshotHeaderRecord:
                return int(message.last_contained_log_timestamp)
        break
    raise Malformed("the snapshot does not begin with its header")


def data_batch(values: list[bytes], *, base_offset: int, epoch: int, now_ms: int) -> bytearray:
    steps = data_batch_steps(values, len(values), base_offset=base_offset, epoch=epoch, now_ms=now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            batch: bytearray = end.value
            return batch


def data_batch_steps(
    values: list[bytes], step: int, *, base_offset: int, epoch: int, now_ms: int
) -> Generator[None, None, bytearray]:
    """Do `data_batch`, with this many records per step."""
    records: list[Record] = []
    for first in range(0, len(values), step):
        records += [Record(key=None, value=value, timestamp=now_ms) for value in values[first : first + step]]
        yield
    return build_batch(records, base_offset=base_offset, leader_epoch=epoch)


def group_records(values: Iterable[bytes], *, count_max: int = 1 << 30) -> Iterator[list[bytes]]:
    """Yield encoded records in groups, each of which fits in one batch."""
    group: list[bytes] = []
    size = 0
    for value in values:
        cost = len(value) + _RECORD_OVERHEAD
        if group and (size + cost > BATCH_SIZE_MAX or len(group) == count_max):
            yield group
            group, size = [], 0
        group.append(value)
        size += cost
    if group:
        yield group
