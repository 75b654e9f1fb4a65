"""`kafkad dump-log`: kafka-dump-log. Reads files only; needs no broker, and does no harm to a running one.

Understands .log and .checkpoint (batches; with --print-data-log records), .index, .timeindex, .snapshot, and
the text checkpoints. `--index-sanity-check` holds indexes against their segment.
"""

import json
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kafkad.cli.output import CONTEXT, fail
from kafkad.protocol import codec, errors, messages, records

INDEX_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
BATCH_OVERHEAD = 12
CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@click.command(context_settings=CONTEXT)
@click.option("--files", required=True, metavar="F[,F...]", help="The files to print.")
@click.option("--print-data-log", is_flag=True, help="Print records too.")
@click.option("--deep-iteration", is_flag=True, help="The same as --print-data-log, without keys and values.")
@click.option("--offsets-decoder", is_flag=True, help="Decode records of __consumer_offsets.")
@click.option("--cluster-metadata-decoder", is_flag=True, help="Decode records of __cluster_metadata.")
@click.option("--index-sanity-check", is_flag=True, help="Only say whether indexes agree with their segment.")
@click.option("--max-messages", type=int, help="Stop after so many records of a file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    files: str,
    print_data_log: bool,
    deep_iteration: bool,
    offsets_decoder: bool,
    cluster_metadata_decoder: bool,
    index_sanity_check: bool,
    max_messages: int | None,
    as_json: bool,
) -> None:
    """Print what is in segment, index, snapshot and checkpoint files.

    \b
      kafkad dump-log --files data/flights-0/00000000000000000000.log --print-data-log
      kafkad dump-log --files data/flights-0/00000000000000000000.index --index-sanity-check
      kafkad dump-log --files data/__cluster_metadata-0/00000000000000000000.log --cluster-metadata-decoder
    """
    decoder = None
    if offsets_decoder:
        decoder = decode_offsets_record
    elif cluster_metadata_decoder:
        decoder = decode_metadata_record
    with_records = print_data_log or deep_iteration or decoder is not None
    bad = False
    for name in files.split(","):
        path = Path(name)
        if not path.is_file():
            fail(f"{name} is not a file")
        if not as_json:
            print(f"Dumping {path}")
        try:
            rows: Iterator[dict[str, Any]]
            if path.suffix in (".index", ".timeindex"):
                rows = check_index(path) if index_sanity_check else dump_index(path)
            elif path.suffix in (".log", ".checkpoint") and path.stem[:20].isdigit():
                rows = dump_batches(path, with_records, print_data_log, decoder, max_messages)
            elif path.suffix == ".snapshot":
                rows = dump_snapshot(path)
            else:
                rows = ({"line": line} for line in path.read_text(errors="backslashreplace").splitlines())
            for row in rows:
                bad = bad or "trouble" in row
                print(
                    json.dumps(row) if as_json else "  ".join(f"{key}: {value}" for key, value in row.items())
                )
        except BrokenPipeError:
            return
        except errors.Malformed as lie:
            bad = True
            print(f"{path}: {lie}", file=sys.stderr)
    sys.exit(1 if bad else 0)


def whole_batches(path: Path) -> Iterator[tuple[int, memoryview]]:
    """(position, bytes) of each batch. Malformed where the file does not go on with a whole one."""
    size = path.stat().st_size
    if size == 0:
        return
    with open(path, "rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    position = 0
    while position < size:
        if size - position < BATCH_OVERHEAD:
            raise errors.Malformed(f"{size - position} bytes are left over at position {position}")
        length = BATCH_OVERHEAD + int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        if length < 61 or length > size - position:
            raise errors.Malformed(f"no whole batch at position {position}: it claims {length} bytes")
        yield position, view[position : position + length]
        position += length


def dump_batches(
    path: Path, with_records: bool, with_data: bool, decoder: Any, max_messages: int | None
) -> Iterator[dict[str, Any]]:
    seen = 0
    for position, data in whole_batches(path):
        for batch in records.read_batches(data):
            valid = batch.crc_is_valid()
            row = {
                "baseOffset": batch.base_offset,
                "lastOffset": batch.last_offset,
                "count": batch.records_count,
                "baseSequence": batch.base_sequence,
                "producerId": batch.producer_id,
                "producerEpoch": batch.producer_epoch,
                "partitionLeaderEpoch": batch.leader_epoch,
                "isTransactional": batch.is_transactional,
                "isControl": batch.is_control,
                "position": position,
                "maxTimestamp": batch.max_timestamp,
                "size": len(data),
                "magic": 2,
                "compresscodec": CODECS.get(batch.compression, batch.compression),
                "crc": batch.crc,
                "isvalid": valid,
            }
            if not valid:
                row["trouble"] = "the CRC is wrong"
            yield row
            if not with_records or not valid:
                continue
            for record in batch.records():
                if max_messages is not None and seen >= max_messages:
                    return
                seen += 1
                yield record_row(record, batch.is_control, with_data, decoder)


def record_row(record: Any, control: bool, with_data: bool, decoder: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "| offset": record.offset,
        "timestamp": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if control:
        kind = int.from_bytes(record.key[2:4], "big")
        row["controlType"] = CONTROL_TYPES.get(kind, kind)
    elif decoder is not None:
        row["payload"] = decoder(record)
    elif with_data:
        row["headerKeys"] = [name for name, _ in record.headers]
        row["key"] = text(record.key)
        row["payload"] = text(record.value)
    return row


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def decode_metadata_record(record: Any) -> str:
    from kafkad.metadata.records import decode_record

    return repr(decode_record(record.value))


def decode_offsets_record(record: Any) -> str:
    kind = int.from_bytes(record.key[:2], "big")
    names = {0: "OffsetCommit", 1: "OffsetCommit", 2: "GroupMetadata"}
    if kind not in names:
        return f"type {kind}, {len(record.key)} + {len(record.value or b'')} bytes"
    key, _ = codec.decode(getattr(messages, f"{names[kind]}Key"), 0, record.key, 2)
    if record.value is None:
        return f"{key!r}: tombstone"
    version = int.from_bytes(record.value[:2], "big")
    value, _ = codec.decode(getattr(messages, f"{names[kind]}Value"), version, record.value, 2)
    return f"{key!r}: {value!r}"


def index_entries(path: Path) -> Iterator[tuple[int, int]]:
    """(offset, position) of an offset index, (timestamp, offset) of a time index; the unused end is left
    out.
    """
    base = int(path.stem)
    data = path.read_bytes()
    entry = INDEX_ENTRY if path.suffix == ".index" else TIME_ENTRY
    if len(data) % entry.size:
        raise errors.Malformed(f"{len(data)} bytes are no multiple of {entry.size}")
    for number, (first, second) in enumerate(entry.iter_unpack(data)):
        if first == 0 and second == 0 and number:
            return  # preallocated
        yield (base + first, second) if entry is INDEX_ENTRY else (first, base + second)


def dump_index(path: Path) -> Iterator[dict[str, Any]]:
    names = ("offset", "position") if path.suffix == ".index" else ("timestamp", "offset")
    for pair in index_entries(path):
        yield dict(zip(names, pair, strict=True))


def check_index(path: Path) -> Iterator[dict[str, Any]]:
    """A row of trouble for each entry that its segment does not bear out, and one that counts them all."""
    spans: dict[int, tuple[int, int]] = {}
    by_offset: list[tuple[int, int, int]] = []
    for position, data in whole_batches(path.with_suffix(".log")):
        for batch in records.read_batches(data):
            spans[position] = (batch.base_offset, batch.last_offset)
            by_offset.append((batch.base_offset, batch.last_offset, batch.max_timestamp))
    count = 0
    previous = (-1, -1)
    for first, second in index_entries(path):
        count += 1
        if path.suffix == ".index":
            low, high = spans.get(second, (1, 0))
            if first == int(path.stem) and second == 0:
                continue  # an index that was never written to
            if not low <= first <= high:
                yield {
                    "offset": first,
                    "position": second,
                    "trouble": "no batch with this offset starts there",
                }
        elif first < previous[0] or second < previous[1]:
            yield {"timestamp": first, "offset": second, "trouble": "the entries do not rise"}
        elif not any(low <= second <= high and first <= stamp for low, high, stamp in by_offset):
            yield {
                "timestamp": first,
                "offset": second,
                "trouble": "no batch with this offset has this timestamp",
            }
        previous = (first, second)
    yield {"file": str(path), "entries": count}


def dump_snapshot(path: Path) -> Iterator[dict[str, Any]]:
    from kafkad.log.producer_state import read_snapshot

    for producer in read_snapshot(path):
        yield {
            "producerId": producer.producer_id,
            "producerEpoch": producer.producer_epoch,
            "lastSequence": producer.last_sequence,
            "lastOffset": producer.last_offset,
            "timestamp": producer.timestamp,
        }
