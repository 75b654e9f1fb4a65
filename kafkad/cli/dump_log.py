"""`kafkad dump-log`: kafka-dump-log. It only reads files, so it needs no broker and does not disturb a
running one.

The lines are those of Kafka's tool, word for word. With --json, each line is an object whose "kind" is one of
file, batch, record, index, timeindex, producer, transaction, checkpoint, line, or trouble for an error.

Errors (a batch whose CRC does not match, bytes after the last complete batch, an index that contradicts its
segment) are printed at the end on stderr, too. The exit code is 1 then.
"""

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kafkad.cli.decode_records import (
    Decoder,
    as_text,
    coordinator_decoder,
    decode_control,
    metadata_decoder,
    plain_decoder,
)
from kafkad.cli.output import CONTEXT, Progress, Refused, as_json_bytes, say
from kafkad.log import checkpoints
from kafkad.log.clean_marks import CLEAN_SHUTDOWN
from kafkad.log.filenames import CLEANED, DELETED, LEADER_EPOCHS, SWAP, offset_of
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.offset_index import read_offset_index
from kafkad.log.producer_state import decode_snapshot
from kafkad.log.time_index import read_time_index
from kafkad.log.txn_index import read_txn_index
from kafkad.protocol import compression
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry
from kafkad.protocol.records import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC_AT, Batch, Record

CODECS = {
    compression.NONE: "none",
    compression.GZIP: "gzip",
    compression.SNAPPY: "snappy",
    compression.LZ4: "lz4",
    compression.ZSTD: "zstd",
}
DELETE_HORIZON = 0x40
LEGACY_SIZE_MIN = 26
SEQUENCES = 1 << 31
OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY = 8, 12, 34
SNAPSHOT, BOOTSTRAP = re.compile(r"(\d{20})-(\d{10})\.checkpoint"), "bootstrap.checkpoint"  # of metadata
PROGRESS_BYTES = 16 << 20
LAST_BATCH = ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")  # of a producer
OFFSET_CHECKPOINTS = {
    checkpoints.RECOVERY_POINTS,
    checkpoints.LOG_START_OFFSETS,
    checkpoints.HIGH_WATERMARKS,
    checkpoints.CLEANER_OFFSETS,
}
TEXT = {"meta.properties", "partition.metadata", "quorum-state", CLEAN_SHUTDOWN}

Row = dict[str, Any]


@click.command(context_settings=CONTEXT)
@click.option("--files", required=True, metavar="F[,F...]", help="The files to print.")
@click.option("--print-data-log", is_flag=True, help="Print records with keys and values.")
@click.option("--deep-iteration", is_flag=True, help="Print records without keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only keys and values of records.")
@click.option("--offsets-decoder", "family", flag_value="group", help="Decode __consumer_offsets.")
@click.option(
    "--transaction-log-decoder", "family", flag_value="transaction", help="Decode __transaction_state."
)
@click.option("--share-group-state-decoder", "family", flag_value="share", help="Decode __share_group_state.")
@click.option(
    "--cluster-metadata-decoder", "family", flag_value="metadata", help="Decode __cluster_metadata."
)
@click.option("--index-sanity-check", is_flag=True, help="Check indexes like a broker does at its start.")
@click.option(
    "--verify-index-only", is_flag=True, help="Print only index entries that contradict the segment."
)
@click.option("--max-bytes", type=click.IntRange(0), help="Print at most this many bytes of each segment.")
@click.option(
    "--max-messages", type=click.IntRange(0), help="Print at most this many records of each segment."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(
    files: str,
    print_data_log: bool,
    deep_iteration: bool,
    skip_record_metadata: bool,
    family: str | None,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_bytes: int | None,
    max_messages: int | None,
    as_json: bool,
) -> None:
    """Print the contents of segment, index, snapshot and checkpoint files.

    \b
      kafkad dump-log --files data/flights-0/00000000000000000000.log --print-data-log
      kafkad dump-log --files data/flights-0/00000000000000000000.index --index-sanity-check
      kafkad dump-log --files data/__cluster_metadata-0/00000000000000000000.log --cluster-metadata-decoder
    """
    decoder: Decoder | None = None
    if family == "metadata":
        decoder = metadata_decoder
    elif family is not None:
        decoder = coordinator_decoder(family)
    elif print_data_log:
        decoder = plain_decoder
    paths = [Path(name) for name in files.split(",") if name.strip()]
    for path in paths:
        if not path.is_file():
            raise Refused(f"{path} is not a file")
    troubles: list[str] = []
    for path in paths:
        if as_json:
            emit({"kind": "file", "file": str(path)})
        else:
            print(f"Dumping {path}")
        try:
            for row in rows_of(
                path,
                decoder=decoder,
                deep=deep_iteration or decoder is not None,
                sanity=index_sanity_check,
                verify=verify_index_only,
                max_bytes=max_bytes,
                max_records=max_messages,
            ):
                if row["kind"] == "trouble":
                    troubles.append(f"{path}: {row['trouble']}")
                if as_json:
                    emit(row)
                else:
                    text = TEXT_OF[row["kind"]](row, skip_record_metadata)
                    if text and not (verify_index_only and row["kind"] in ("index", "timeindex")):
                        print(text)
        except Malformed as lie:
            troubles.append(f"{path}: {lie}")
            if as_json:
                emit({"kind": "trouble", "trouble": str(lie)})
    sys.stdout.flush()
    for trouble in troubles:
        say(f"kafkad: {trouble}.")
    sys.exit(1 if troubles else 0)


def emit(row: Row) -> None:
    print(json.dumps({key: as_json_bytes(v) if isinstance(v, bytes) else v for key, v in row.items()}))


def rows_of(
    path: Path,
    *,
    decoder: Decoder | None,
    deep: bool,
    sanity: bool,
    verify: bool,
    max_bytes: int | None,
    max_records: int | None,
) -> Iterator[Row]:
    """Yield the rows of one file; its name decides the format. Raise Malformed."""
    name = path.name
    for suffix in (DELETED, CLEANED, SWAP):
        name = name.removesuffix(suffix)
    kind, base = Path(name).suffix, offset_of(name)
    if kind == ".log" and base is not None:
        yield {"kind": "heading", "startOffset": base}
        yield from dump_segment(path, decoder, deep, max_bytes, max_records)
    elif kind == ".checkpoint":
        if found := SNAPSHOT.fullmatch(name):
            yield {"kind": "heading", "endOffset": int(found[1]), "epoch": int(found[2])}
        elif name == BOOTSTRAP:
            yield {"kind": "line", "line": "KRaft bootstrap snapshot"}
        yield from dump_segment(path, decoder or metadata_decoder, deep, max_bytes, max_records)
    elif kind in (".index", ".timeindex") and base is not None:
        entry_size = OFFSET_ENTRY if kind == ".index" else TIME_ENTRY
        if path.stat().st_size % entry_size:
            raise Malformed(f"its size of {path.stat().st_size} bytes is not a multiple of {entry_size}")
        entries = (read_offset_index if kind == ".index" else read_time_index)(str(path), base)
        if not entries:
            yield {"kind": "line", "line": f"{path} is empty."}
        elif sanity:
            yield from check_sanity(path, entries, base)
        elif kind == ".index":
            yield from dump_offset_index(path, entries)
        else:
            yield from dump_time_index(path, entries)
    elif kind == ".snapshot":
        yield from dump_producers(path)
    elif kind == ".txnindex":
        if path.stat().st_size % TXN_ENTRY:
            raise Malformed(f"its size of {path.stat().st_size} bytes is not a multiple of {TXN_ENTRY}")
        for txn in read_txn_index(str(path)):
            producer_id, first, last, stable = txn
            yield {"kind": "transaction", "version": 0, "producerId": producer_id, "firstOffset": first,
                   "lastOffset": last, "lastStableOffset": stable}  # fmt: skip
    elif name in OFFSET_CHECKPOINTS:
        for (topic, partition), offset in checkpoints.read_offsets(str(path)).items():
            yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}
    elif name == LEADER_EPOCHS:
        for epoch, start in LeaderEpochs.load(str(path.parent)).entries:
            yield {"kind": "checkpoint", "epoch": epoch, "startOffset": start}
    elif name in TEXT:
        for line in path.read_text(errors="backslashreplace").splitlines():
            yield {"kind": "line", "line": line}
    else:
        yield {"kind": "trouble", "trouble": "this is no kind of Kafka file that dump-log can print"}


# -- segments and metadata snapshots -----------------------------------------------------------------------


def entries_of(file: io.BufferedReader) -> Iterator[tuple[int, Batch | LegacyEntry]]:
    """Yield (position, batch) or, in old segments, (position, message), up to the last complete one. Raise
    Malformed for an invalid one.
    """
    position = 0
    while len(head := file.read(MAGIC_AT + 1)) == MAGIC_AT + 1:
        size = LENGTH_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
        magic = head[MAGIC_AT]
        if magic > 2 or size < (HEADER_SIZE if magic == 2 else LEGACY_SIZE_MIN):
            return
        data = head + file.read(size - len(head))
        if len(data) < size:
            return
        yield position, Batch(data) if magic == 2 else LegacyEntry(data)
        position += size


def dump_segment(
    path: Path, decoder: Decoder | None, deep: bool, max_bytes: int | None, max_records: int | None
) -> Iterator[Row]:
    size = path.stat().st_size
    end, seen = 0, 0
    whole = not sys.stdout.isatty() and size > PROGRESS_BYTES
    with open(path, "rb") as file, Progress(f"reading {path.name}", size, wanted=whole) as bar:
        for position, entry in entries_of(file):
            if max_bytes is not None and position + entry.size > max_bytes:
                return
            end = position + entry.size
            bar.advance(entry.size)
            intact = entry.is_intact()
            yield batch_row(entry, position, intact)
            if not intact:
                yield {"kind": "trouble", "trouble": f"the CRC of the batch at position {position} is wrong"}
            elif deep:
                for row in record_rows(entry, decoder):
                    if max_records is not None and seen >= max_records:
                        return
                    seen += 1
                    yield row
    if end < size:
        yield {
            "kind": "trouble",
            "trouble": f"Found {size - end} invalid bytes at the end of {path.name}",
            "position": end,
        }


def batch_row(entry: Batch | LegacyEntry, position: int, intact: bool) -> Row:
    common = {"position": position, "timestampType": timestamp_type(entry)}
    tail = {
        "size": entry.size,
        "magic": 2 if isinstance(entry, Batch) else entry.magic,
        "compresscodec": CODECS.get(entry.compression, str(entry.compression)),
        "crc": entry.crc,
        "isvalid": intact,
    }
    if isinstance(entry, LegacyEntry):
        return {"kind": "message", "offset": entry.offset, **common, "timestamp": entry.timestamp, **tail}
    last_sequence = -1
    if entry.base_sequence >= 0:
        last_sequence = (entry.base_sequence + entry.last_offset_delta) % SEQUENCES
    return {
        "kind": "batch",
        "baseOffset": entry.base_offset,
        "lastOffset": entry.last_offset,
        "count": entry.records_count,
        "baseSequence": entry.base_sequence,
        "lastSequence": last_sequence,
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "partitionLeaderEpoch": entry.leader_epoch,
        "isTransactional": entry.is_transactional,
        "isControl": entry.is_control,
        "deleteHorizonMs": entry.base_timestamp if entry.attributes & DELETE_HORIZON else None,
        **common,
        "timestamp": entry.max_timestamp,
        **tail,
    }


def timestamp_type(entry: Batch | LegacyEntry) -> str:
    if isinstance(entry, LegacyEntry) and entry.magic == 0:
        return "NoTimestampType"
    return "LogAppendTime" if entry.timestamp_type else "CreateTime"


def record_rows(entry: Batch | LegacyEntry, decoder: Decoder | None) -> Iterator[Row]:
    messages = entry.messages() if isinstance(entry, LegacyEntry) else []
    for number, record in enumerate(entry.records()):
        row: Row = {
            "kind": "record",
            "offset": record.offset,
            "timestampType": timestamp_type(entry),
            "timestamp": record.timestamp,
            "keySize": -1 if record.key is None else len(record.key),
            "valueSize": -1 if record.value is None else len(record.value),
        }
        if isinstance(entry, Batch):
            row["sequence"] = sequence_of(entry, record)
            row["headerKeys"] = [name for name, _ in record.headers or ()]
            if entry.is_control:
                row["control"], row["data"] = decode_control(record)
        else:
            row["isValid"], row["crc"] = messages[number].is_intact(), messages[number].crc
        if decoder is not None and not (isinstance(entry, Batch) and entry.is_control):
            row["key"], row["payload"] = decoder(record)
        yield row


def sequence_of(batch: Batch, record: Record) -> int:
    if batch.base_sequence < 0:
        return -1
    return (batch.base_sequence + record.offset - batch.base_offset) % SEQUENCES


# -- indexes -----------------------------------------------------------------------------------------------


def segment_of(path: Path) -> Path:
    segment = path.with_name(path.name.partition(".")[0] + ".log")
    if not segment.is_file():
        raise Malformed(f"its segment {segment.name} is missing")
    return segment


def check_sanity(path: Path, entries: list[tuple[int, int]], base: int) -> Iterator[Row]:
    """Check what a broker checks before it trusts an index: it ascends, and does not end below its base
    offset."""
    offset_at = 0 if path.name.partition(".")[2].startswith("index") else 1
    before = (-1, -1)
    for number, entry in enumerate(entries):
        if entry < before or entry[1] < before[1]:
            yield {"kind": "trouble", "trouble": f"entry {number} is smaller than the one before it"}
            return
        before = entry
    if entries[-1][offset_at] < base:
        yield {"kind": "trouble", "trouble": f"its last offset is below its base offset {base}"}
        return
    yield {"kind": "line", "line": f"{path} passed sanity check."}


def dump_offset_index(path: Path, entries: list[tuple[int, int]]) -> Iterator[Row]:
    """Check that each entry has the position of a batch and its last offset."""
    with open(segment_of(path), "rb") as file:
        batches = {position: last_offset(entry) for position, entry in entries_of(file)}
    for offset, position in entries:
        yield {"kind": "index", "offset": offset, "position": position}
        found = batches.get(position)
        if found != offset:
            told = "no batch begins there" if found is None else f"the batch there ends with offset {found}"
            yield {"kind": "trouble", "trouble": f"index offset {offset}, position {position}: {told}"}


def dump_time_index(path: Path, entries: list[tuple[int, int]]) -> Iterator[Row]:
    """Check that each entry has the last offset of a batch and its largest timestamp, and that timestamps
    ascend."""
    with open(segment_of(path), "rb") as file:
        batches = {last_offset(entry): largest_timestamp(entry) for _, entry in entries_of(file)}
    before = -1
    for timestamp, offset in entries:
        yield {"kind": "timeindex", "timestamp": timestamp, "offset": offset}
        found = batches.get(offset)
        told = None
        if found is None:
            told = "no batch ends with that offset"
        elif found != timestamp:
            told = f"the batch's largest timestamp is {found}"
        elif before >= timestamp:
            told = f"the entry before it has {before}"
        if told:
            yield {"kind": "trouble", "trouble": f"index timestamp {timestamp}, offset {offset}: {told}"}
        before = timestamp


def last_offset(entry: Batch | LegacyEntry) -> int:
    return entry.last_offset if isinstance(entry, Batch) else entry.offset


def largest_timestamp(entry: Batch | LegacyEntry) -> int:
    return entry.max_timestamp if isinstance(entry, Batch) else entry.timestamp


def dump_producers(path: Path) -> Iterator[Row]:
    """A producer has no last batch after a marker with a new epoch, which ends each transaction in Kafka
    4."""
    for row in decode_snapshot(path.read_bytes()):
        producer_id, epoch, last_sequence, last, delta, timestamp, coordinator_epoch, started = row
        first = (last_sequence - delta) % SEQUENCES if last_sequence >= 0 else -1
        batch = (first, last_sequence, last, delta, timestamp) if last >= 0 else [None] * len(LAST_BATCH)
        yield {
            "kind": "producer",
            "producerId": producer_id,
            "producerEpoch": epoch,
            "coordinatorEpoch": coordinator_epoch,
            "currentTxnFirstOffset": started if started >= 0 else None,
            "lastTimestamp": timestamp,
            **dict(zip(LAST_BATCH, batch, strict=True)),
        }


# -- rows as Kafka's tool prints them ----------------------------------------------------------------------


def words(row: Row, skip: frozenset[str] = frozenset()) -> str:
    """Return a row as `name: value` pairs; the timestamp has the name of its type."""
    shown = []
    for name, value in row.items():
        if name in ("kind", "timestampType") or name in skip:
            continue
        if name == "timestamp" and "timestampType" in row:
            name = row["timestampType"]
        shown.append(f"{name}: {as_word(name, value)}")
    return " ".join(shown)


def as_word(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if name in ("deleteHorizonMs", "currentTxnFirstOffset"):
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return as_text(value)


def batch_text(row: Row, _skip: bool) -> str:
    return words(row)


def producer_text(row: Row, _skip: bool) -> str:
    return words(row, frozenset(LAST_BATCH) if row["lastOffset"] is None else frozenset())


def record_text(row: Row, skip_metadata: bool) -> str:
    absent = {name for name in ("key", "payload") if row.get(name) is None}
    shown = {name: value for name, value in row.items() if name not in absent}
    control, data = shown.pop("control", None), shown.pop("data", None)
    if skip_metadata:
        shown = {name: value for name, value in shown.items() if name in ("key", "payload")}
    text = words(shown)
    if control is not None and not skip_metadata:
        if control in ("ABORT", "COMMIT"):
            text += f" endTxnMarker: {control} coordinatorEpoch: {data['coordinatorEpoch']}"
        else:
            text += f" {control}{':' if control == 'LeaderChange' else ''} {as_text(data)}"
    return f"| {text}" if text else ""


def heading_text(row: Row, _skip: bool) -> str:
    if "startOffset" in row:
        return f"Log starting offset: {row['startOffset']}"
    return f"Snapshot end offset: {row['endOffset']}, epoch: {row['epoch']}"


def trouble_text(row: Row, _skip: bool) -> str:
    return str(row["trouble"]) if row["trouble"].startswith("Found ") else ""


TEXT_OF = {
    "batch": batch_text,
    "message": batch_text,
    "index": batch_text,
    "timeindex": batch_text,
    "producer": producer_text,
    "transaction": batch_text,
    "checkpoint": batch_text,
    "record": record_text,
    "heading": heading_text,
    "line": lambda row, _skip: str(row["line"]),
    "trouble": trouble_text,
}
