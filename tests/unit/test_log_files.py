"""Kafka's small files, to the byte, and damaged ones."""

import json
import os

import pytest

from kafkad.log import checkpoints
from kafkad.log.clean_marks import take_mark, write_mark
from kafkad.log.filenames import left_directory, offset_of, parse_directory, segment_file
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.txn_index import AbortedTxn, encode_entry, read_txn_index, write_txn_index
from kafkad.protocol.errors import Malformed


def test_offsets_are_written_as_kafka_does(tmp_path):
    path = str(tmp_path / checkpoints.RECOVERY_POINTS)
    assert checkpoints.read_offsets(path) == {}
    offsets = {("a", 0): 5, ("with-dash.x", 12): 1 << 40}
    checkpoints.write_offsets(path, offsets)
    with open(path) as file:
        text = file.read()
    assert text == f"0\n2\na 0 5\nwith-dash.x 12 {1 << 40}\n"
    assert checkpoints.read_offsets(path) == offsets
    assert os.listdir(tmp_path) == [checkpoints.RECOVERY_POINTS]


@pytest.mark.parametrize(
    "text",
    [b"1\n0\n", b"x", b"0\n1\n", b"0\n0\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na 0 -1\n", b"0\n1\na x 1\n",
     b"0\n1\na 0 1 2\n", "0\n²\na 0 1\nb 0 1\n".encode(), b"0\n" + b"1" * 5000 + b"\n",
     b"\xff\xfe", b"0\n-1\n", b"0\n1\na 0 99999999999999999999\n"],
)  # fmt: skip
def test_a_damaged_checkpoint_is_malformed(tmp_path, text):
    path = tmp_path / "c"
    path.write_bytes(text)
    with pytest.raises(Malformed):
        checkpoints.read_offsets(str(path))


@pytest.mark.parametrize("text", [b"", b"0\n"])
def test_an_empty_checkpoint_has_no_entries(tmp_path, text):
    path = tmp_path / "c"
    path.write_bytes(text)
    assert checkpoints.read_offsets(str(path)) == {}


def test_the_clean_shutdown_mark_is_taken_once(tmp_path):
    directory = str(tmp_path)
    assert take_mark(directory)[:2] == (False, -1)
    write_mark(directory, 17)
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 17}
    assert take_mark(directory)[:2] == (True, 17)
    assert take_mark(directory)[:2] == (False, -1)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")  # before 3.7
    assert take_mark(directory)[:2] == (True, -1)
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"[" * 4096)
    assert take_mark(directory)[:2] == (True, -1)


@pytest.mark.parametrize(
    "text", [b"", b"version: 1\ntopic_id: x", b"version: 0\ntopic_id: short", b"\xff" * 99]
)
def test_a_damaged_partition_metadata_is_malformed(tmp_path, text):
    (tmp_path / "partition.metadata").write_bytes(text)
    with pytest.raises(Malformed):
        checkpoints.read_partition_metadata(str(tmp_path))


def test_names():
    assert segment_file("/d", 42, ".log") == "/d/00000000000000000042.log"
    assert offset_of("00000000000000000042.log") == 42
    assert offset_of("leader-epoch-checkpoint") is None
    assert offset_of("0000000000000000004x.log") is None
    assert parse_directory("a-b-3") == ("a-b", 3, "")
    for wrong in ("a", "a-", "-1", "a-x", "a-1-delete", "a-1.deadbeef-delete", "lost+found", "a-99999999999"):
        assert parse_directory(wrong) is None
    unique = "0123456789abcdef" * 2
    assert left_directory("a", 1, unique, "-delete") == f"a-1.{unique}-delete"
    assert parse_directory(f"a.b-1.{unique}-stray") == ("a.b", 1, "-stray")
    assert len(left_directory("t" * 249, 1, unique, "-delete")) == 255


def test_leader_epochs_ascend_and_survive(tmp_path):
    epochs = LeaderEpochs.load(str(tmp_path))
    assert (epochs.latest, epochs.epoch_for(0), epochs.end_offset_for(0, 9)) == (None, None, (-1, -1))
    epochs.assign(1, 0)
    epochs.assign(3, 10)
    epochs.assign(3, 20)
    epochs.assign(7, 30)
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n3 10\n7 30\n"
    assert LeaderEpochs.load(str(tmp_path)).entries == [(1, 0), (3, 10), (7, 30)]
    assert [epochs.epoch_for(offset) for offset in (0, 9, 10, 29, 30, 99)] == [1, 1, 3, 3, 7, 7]
    ends = {0: (0, 0), 1: (1, 10), 2: (1, 10), 3: (3, 30), 6: (3, 30), 7: (7, 50), 8: (-1, -1), -1: (-1, -1)}
    assert {epoch: epochs.end_offset_for(epoch, 50) for epoch in ends} == ends
    epochs.assign(8, 30)
    assert epochs.entries == [(1, 0), (3, 10), (8, 30)]
    epochs.truncate_from_start(12)
    assert epochs.entries == [(3, 12), (8, 30)]
    epochs.truncate_from_end(30)
    assert epochs.entries == [(3, 12)]
    assert LeaderEpochs.load(str(tmp_path)).entries == [(3, 12)]


def test_aborted_transactions_are_34_bytes(tmp_path):
    path = str(tmp_path / "x.txnindex")
    assert read_txn_index(path) == []
    entries = [AbortedTxn(1, 2, 3, 4), AbortedTxn(5, 6, 7, 8)]
    write_txn_index(path, entries)
    assert encode_entry(entries[0]) == b"\0\0" + b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4))
    assert read_txn_index(path) == entries
    with open(path, "ab") as file:
        file.write(b"half")
    assert read_txn_index(path) == entries
