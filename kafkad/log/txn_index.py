"""The index of aborted transactions: `<base offset>.txnindex`, created with the first abort (Kafka's
TransactionIndex).

An entry has 34 bytes: version i16 = 0, then producer id, first offset, last offset (of the marker) and last
stable offset at that time, i64 each. A consumer that reads committed data skips the records of the entries
for its range."""

import struct
from typing import NamedTuple

from kafkad.log.checkpoints import write_file

_ENTRY = struct.Struct(">hqqqq")
assert _ENTRY.size == 34


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_entry(txn: AbortedTxn) -> bytes:
    return _ENTRY.pack(0, *txn)


def read_txn_index(path: str) -> list[AbortedTxn]:
    """Return the complete entries; empty if there is no such file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    whole = data[: len(data) // _ENTRY.size * _ENTRY.size]
    return [AbortedTxn(*entry[1:]) for entry in _ENTRY.iter_unpack(whole)]


def write_txn_index(path: str, entries: list[AbortedTxn]) -> None:
    """Replace the file atomically: another worker may be reading it."""
    write_file(path, b"".join(map(encode_entry, entries)), sync=False)
