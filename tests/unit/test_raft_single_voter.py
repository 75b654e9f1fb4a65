"""A quorum of one: what it writes, what it finds again, and what it refuses."""

import random

import pytest
from metadata_world import DIR, MemoryLog, maybe_snapshot

from kafkad.clock import ManualClock
from kafkad.log.metadata_files import MetadataFiles
from kafkad.metadata.records import UnknownRecord
from kafkad.metadata.replay import ReplayError
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.records import read_batches
from kafkad.raft.control_records import read_control, read_voters
from kafkad.raft.election_state import ElectionState
from kafkad.raft.single_voter import SingleVoter, SnapshotPolicy, UnusableMetadata
from kafkad.raft.snapshots import data_batch, read_snapshot


@pytest.fixture
def clock():
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture
def start(tmp_path, clock):
    """Starts a voter on a log; without one, on a fresh one."""

    def _start(log=None, **settings):
        files = MetadataFiles(str(tmp_path))
        base = {"node_id": 1, "directory_id": DIR, "cluster_id": "abc", "files": files, "clock": clock}
        log = MemoryLog(files.directory) if log is None else log
        voter = SingleVoter(log=log, **(base | settings))
        voter.open()
        voter.lead()
        return voter

    return _start


def topic(name, number=0):
    topic_id = name.encode().ljust(16, b"\1")
    return [
        messages.TopicRecord(name=name, topic_id=topic_id),
        messages.PartitionRecord(
            partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1, leader_epoch=0,
            partition_epoch=0, directories=[DIR],
        ),
    ]  # fmt: skip


def log_of(voter):
    return voter._log


def controls(log):
    return [
        m
        for raw in log.stored
        for batch in read_batches(raw)
        if batch.is_control
        for m in read_control(batch)
    ]


def test_a_fresh_directory_is_formatted_with_the_features_that_are_served(start):
    """As `kafka-storage format`, without group, share and streams versions (HUNTS U10)."""
    voter = start(static_voters=[1])
    assert voter.image.features == {
        "metadata.version": 30,
        "eligible.leader.replicas.version": 1,
        "transaction.version": 2,
    }
    assert voter.image.configs == {(4, ""): {"min.insync.replicas": "1"}}
    # leader change, begin, three features, one config, end: in the order of Kafka's own first records
    assert voter.next_offset == 7
    assert voter.image.offset == 6
    assert voter.epoch == 1


def test_with_static_voters_there_is_no_voter_set_in_the_log(start, tmp_path):
    voter = start(static_voters=[1])
    assert [type(m).__name__ for m in controls(log_of(voter))] == ["LeaderChangeMessage"]
    text = (tmp_path / "__cluster_metadata-0" / "quorum-state").read_text()
    assert text == (
        '{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_without_static_voters_the_voter_set_is_in_snapshot_and_log(start, tmp_path):
    endpoints = {"CONTROLLER": ("127.0.0.1", 9093)}
    voter = start(endpoints=endpoints)
    kinds = [type(m).__name__ for m in controls(log_of(voter))]
    assert kinds == ["LeaderChangeMessage", "KRaftVersionRecord", "VotersRecord"]
    path = tmp_path / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
    snapshot = read_snapshot(path.read_bytes())
    assert snapshot.kraft_version == 1
    assert snapshot.voters == read_voters(controls(log_of(voter))[2])
    assert snapshot.voters[0].endpoints == endpoints
    state = (tmp_path / "__cluster_metadata-0" / "quorum-state").read_text()
    assert state == (
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )


def test_a_voter_that_listens_elsewhere_says_so_once(start):
    voter = start(endpoints={"CONTROLLER": ("127.0.0.1", 9093)})
    voter = start(log_of(voter).crash(), endpoints={"CONTROLLER": ("127.0.0.1", 9094)})
    assert len(controls(log_of(voter))) == 6
    voter = start(log_of(voter).crash(), endpoints={"CONTROLLER": ("127.0.0.1", 9094)})
    voter = start(log_of(voter).crash())  # no controller listener: what is recorded stays
    assert len(controls(log_of(voter))) == 8
    assert voter._voters[0].endpoints == {"CONTROLLER": ("127.0.0.1", 9094)}


def test_each_start_begins_a_new_epoch_with_a_leader_change(start):
    voter = start(static_voters=[1])
    for expected in (2, 3):
        voter = start(log_of(voter).crash(), static_voters=[1])
        assert voter.epoch == expected
        (last,) = read_batches(log_of(voter).stored[-1])
        assert last.is_control
        assert last.leader_epoch == expected
    assert voter.image.offset == voter.next_offset - 1


def test_the_epoch_rises_even_if_nothing_of_the_last_one_reached_the_disk(start):
    voter = start(static_voters=[1])
    voter._log.failing = "append"
    voter._files.write_quorum_state(ElectionState(leader_epoch=7, leader_id=1).encode(0))
    assert start(log_of(voter).crash(), static_voters=[1]).epoch == 8


def test_what_append_returned_survives_a_crash(start):
    voter = start()
    deltas = []
    voter.on_commit = lambda appended: deltas.append(appended.delta)
    voter.append(topic("flights"))
    assert [delta.topics_created for delta in deltas] == [{"flights"}]
    again = start(log_of(voter).crash())
    assert again.image.topics == voter.image.topics


def test_a_record_that_cannot_follow_never_reaches_the_log(start):
    voter = start()
    before, image = voter.next_offset, voter.image
    with pytest.raises(ReplayError):
        voter.append([messages.RemoveTopicRecord(topic_id=b"x" * 16)])
    assert voter.next_offset == before
    assert voter.image is image
    voter.append(topic("flights"))
    assert "flights" in voter.image.topics


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(start):
    voter = start()
    voter.append(topic("flights"))
    image, end = voter.image, voter.next_offset
    log_of(voter).failing = "append"
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            voter.append(topic("later"))
        assert caught.value.code == errors.KAFKA_STORAGE_ERROR
    assert voter.image is image
    assert voter.next_offset == end
    log_of(voter).failing = None
    voter.append(topic("later"))
    assert set(start(log_of(voter).crash()).image.topics) == {"flights", "later"}


def test_a_snapshot_that_cannot_be_written_is_tried_again(start, clock, monkeypatch):
    voter = start()
    clock.advance(3_600_000)
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert not maybe_snapshot(voter)
    clock.advance(3_600_000)
    assert maybe_snapshot(voter)


def test_after_a_failed_flush_nothing_is_appended_any_more(start):
    voter = start()
    voter.append(topic("flights"))
    image = voter.image
    log_of(voter).failing = "flush"
    told = []
    voter.append(topic("lost"))
    voter.await_committed(voter.next_offset - 1, told.append)
    assert [trouble.code for trouble in told] == [errors.KAFKA_STORAGE_ERROR]
    assert "may or may not be there" in told[0].message
    log_of(voter).failing = None
    with pytest.raises(KafkaError) as caught:
        voter.append(topic("refused"))
    assert caught.value.code == errors.KAFKA_STORAGE_ERROR
    assert voter.image is image
    assert voter.snapshot_due() is None
    assert set(start(log_of(voter).crash()).image.topics) == {"flights"}


def test_records_that_do_not_fit_one_batch_are_split_unless_they_must_not(start, monkeypatch):
    voter = start()
    monkeypatch.setattr("kafkad.raft.snapshots.BATCH_SIZE_MAX", 400)
    records = topic("a") + topic("b") + topic("c") + topic("d")
    with pytest.raises(KafkaError):
        voter.append(records)
    count = len(log_of(voter).stored)
    voter.append(records, atomic=False)
    assert set(voter.image.topics) == {"a", "b", "c", "d"}
    assert len(log_of(voter).stored) > count + 1
    assert set(start(log_of(voter).crash()).image.topics) == {"a", "b", "c", "d"}


def test_a_transaction_that_a_dead_leader_left_open_is_aborted(start):
    voter = start()
    voter.append([messages.BeginTransactionRecord(name="x"), *topic("half")])
    with pytest.raises(ReplayError):  # the open transaction outlives a refused append
        voter.append([messages.EndTransactionRecord(), messages.RemoveTopicRecord(topic_id=b"x" * 16)])
    assert "half" not in voter.image.topics
    again = start(log_of(voter).crash())
    assert "half" not in again.image.topics
    again.append(topic("whole"))
    assert set(again.image.topics) == {"whole"}


def test_a_bootstrap_that_was_cut_off_is_done_again(start):
    voter = start()
    log = log_of(voter)
    bootstrap = log.stored.pop()
    first = [record.value for record in next(read_batches(bootstrap)).records()][:4]  # begin, and no end
    log.stored.append(bytes(data_batch(first, base_offset=log.end_offset, epoch=1, now_ms=0)))
    log.flush()
    again = start(log.crash())
    assert again.image.metadata_version == 30
    assert again.image.configs == voter.image.configs


def test_a_bootstrap_that_is_damaged_is_refused(start, tmp_path):
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"rubbish")
    with pytest.raises(UnusableMetadata, match=r"bootstrap\.checkpoint"):
        start()


# -- snapshots ---------------------------------------------------------------------------------------------


def test_a_snapshot_is_made_after_enough_bytes_and_the_next_start_reads_it(start, tmp_path):
    policy = SnapshotPolicy(new_bytes_max=2000)
    voter = start(policy=policy)
    assert not maybe_snapshot(voter)
    for number in range(20):
        voter.append(topic(f"t{number}"))
    voter.append([UnknownRecord(77, b"\x01\x4d\x00kept")])
    assert maybe_snapshot(voter)
    assert not maybe_snapshot(voter)
    offset = voter.next_offset
    assert f"{offset:020d}-0000000001.checkpoint" in [p.name for p in tmp_path.glob("*/*.checkpoint")]
    voter.append(topic("later"))
    log = log_of(voter).crash()
    log.delete_records(offset)
    log.apply_retention(0)
    again = start(log, policy=policy)
    assert again.image.topics == voter.image.topics
    assert [kept.value for kept in again.image.unknown.values()] == [b"\x01\x4d\x00kept"]


def test_a_snapshot_is_made_after_an_hour_if_there_is_news(start, clock):
    voter = start()
    assert voter.snapshot_due() is None
    clock.advance(3_600_000)
    assert maybe_snapshot(voter)
    clock.advance(3_600_000)
    assert voter.snapshot_due() is None
    voter.append(topic("news"))
    assert maybe_snapshot(voter)


def test_old_snapshots_and_the_log_below_the_next_go_when_they_are_too_old(start, clock, tmp_path):
    voter = start(static_voters=[1], policy=SnapshotPolicy(retention_ms=86_400_000))
    for number in range(4):
        voter.append(topic(f"t{number}"))
        clock.advance(40_000_000)
        assert maybe_snapshot(voter)
    # the newest always stays, and the one whose age is still within the limit
    names = sorted(p.name for p in tmp_path.glob("*/*.checkpoint"))
    assert len(names) == 2
    assert log_of(voter).log_start_offset == int(names[0][:20])
    again = start(log_of(voter).crash(), static_voters=[1])
    assert set(again.image.topics) == {"t0", "t1", "t2", "t3"}


def test_a_damaged_snapshot_is_set_aside_and_an_older_one_taken(start, clock, tmp_path, caplog):
    voter = start()
    for number in range(2):
        voter.append(topic(f"t{number}"))
        clock.advance(3_600_000)
        assert maybe_snapshot(voter)
    newest = max(tmp_path.glob("*/*.checkpoint"))
    content = bytearray(newest.read_bytes())
    content[150] ^= 1
    newest.write_bytes(content)
    again = start(log_of(voter).crash())
    assert set(again.image.topics) == {"t0", "t1"}
    assert "damaged" in caplog.text
    assert newest.with_name(newest.name + ".corrupt").exists()


def test_with_no_whole_snapshot_and_a_log_that_begins_later_it_refuses(start, clock, tmp_path):
    voter = start(static_voters=[1])
    clock.advance(3_600_000)
    assert maybe_snapshot(voter)
    log_of(voter).delete_records(voter.next_offset)
    for path in tmp_path.glob("*/*.checkpoint"):
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UnusableMetadata, match="no whole snapshot"):
        start(log_of(voter).crash(), static_voters=[1])


def test_a_log_that_lost_its_tail_below_the_snapshot_goes_on_from_the_snapshot(start, clock):
    voter = start(static_voters=[1])
    voter.append(topic("a"))
    clock.advance(3_600_000)
    assert maybe_snapshot(voter)
    end = voter.next_offset
    log = MemoryLog(log_of(voter).directory, log_of(voter).stored[:1])
    again = start(log, static_voters=[1])
    assert set(again.image.topics) == {"a"}
    assert again.epoch == 2
    assert again.next_offset == end + 1  # its leader change


@pytest.mark.parametrize("seed", range(30))
def test_no_single_flipped_bit_in_a_snapshot_goes_unseen(start, clock, tmp_path, seed):
    voter = start()
    voter.append(topic("a"))
    clock.advance(3_600_000)
    assert maybe_snapshot(voter)
    whole = max(tmp_path.glob("*/*.checkpoint")).read_bytes()
    chance = random.Random(seed)
    damaged = bytearray(whole)
    damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    try:
        again = read_snapshot(bytes(damaged))
    except Malformed:
        return
    # what no CRC covers: base offset, leader epoch. They are not taken from here.
    assert again == read_snapshot(whole)


# -- what it refuses ---------------------------------------------------------------------------------------


def test_a_quorum_of_several_is_not_taken_over(start):
    with pytest.raises(UnusableMetadata, match=r"\[1, 2, 3\]"):
        start(static_voters=[1, 2, 3])


def test_the_voter_of_another_directory_is_not_taken_over(start):
    voter = start()
    with pytest.raises(UnusableMetadata, match=r"meta\.properties"):
        start(log_of(voter).crash(), directory_id=b"e" * 16)


def test_a_metadata_version_above_ours_is_refused(start):
    voter = start()
    voter.append([messages.FeatureLevelRecord(name="metadata.version", feature_level=31)])
    with pytest.raises(UnusableMetadata, match=r"metadata\.version at level 31"):
        start(log_of(voter).crash())


def written_blindly(voter, *records):
    """Records that a faulty controller wrote."""
    feed = voter._loader._feed_one
    voter._loader._feed_one = lambda record: None
    voter.append(records)
    voter._loader._feed_one = feed


UNKNOWN = b"x" * 16


@pytest.mark.parametrize(
    "record",
    [
        messages.RemoveTopicRecord(topic_id=UNKNOWN),
        messages.PartitionChangeRecord(partition_id=0, topic_id=UNKNOWN, leader=1),
        messages.PartitionChangeRecord(partition_id=9, topic_id=topic("kept")[0].topic_id, leader=1),
        messages.UnfenceBrokerRecord(id=5, epoch=1),
        messages.UnregisterBrokerRecord(broker_id=5, broker_epoch=1),
        messages.BrokerRegistrationChangeRecord(broker_id=5, broker_epoch=1, fenced=1),
        messages.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
        messages.EndTransactionRecord(),
        messages.AbortTransactionRecord(reason=""),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_cannot_be_applied_and_hides_nothing_is_left_out(start, caplog, clock, record):
    """Issue 15, part 4. It ended this start and all that followed."""
    voter = start()
    voter.append(topic("kept"))
    voter.append([messages.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=5000)])
    image = voter.image
    written_blindly(voter, record, *topic("behind"))
    again = start(log_of(voter).crash())
    assert set(again.image.topics) == {"kept", "behind"}
    assert again.image.topics["kept"] == image.topics["kept"]
    assert again.image.next_producer_id == 5000
    assert "a metadata record is left out" in caplog.text
    assert "1 metadata records were left out" in caplog.text
    caplog.clear()
    clock.advance(3_600_000)
    assert maybe_snapshot(again)
    assert start(log_of(again).crash()).image.topics == again.image.topics
    with pytest.raises(ReplayError):  # nobody who leads writes one
        voter.append([record])


@pytest.mark.parametrize(
    "records",
    [
        [topic("lost")[1]],
        [messages.TopicRecord(name="kept", topic_id=UNKNOWN)],
        [messages.BeginTransactionRecord(name="a"), messages.BeginTransactionRecord(name="b")],
    ],
    ids=["a partition without its topic", "a topic under another id", "a transaction inside another"],
)
def test_a_log_that_would_lose_partitions_is_refused_with_its_offset(start, records):
    voter = start()
    voter.append(topic("kept"))
    offset = voter.next_offset
    written_blindly(voter, *records)
    with pytest.raises(UnusableMetadata, match=f"offset {offset} on: .* Without it partitions could be lost"):
        start(log_of(voter).crash())


def test_a_partition_with_the_wrong_number_of_directories_is_looked_for_in_all(start, caplog):
    voter = start()
    name, partition = topic("kept")
    partition.directories = [DIR, DIR]
    with pytest.raises(ReplayError):
        voter.append([name, partition])
    written_blindly(voter, name, partition)
    again = start(log_of(voter).crash())
    assert again.image.topics["kept"].partitions[0].directories == (bytes(16),)
    assert "2 directories for 1 replicas" in caplog.text


def test_a_damaged_quorum_state_is_written_anew(start, tmp_path):
    voter = start()
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text("{nonsense")
    again = start(log_of(voter).crash())
    assert again.epoch == 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data_version":9}',
        b'{"leaderEpoch":1,"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":"x","votedId":-1,"data_version":0}',
    ],
)
def test_an_election_state_that_lies_is_malformed(text):
    with pytest.raises(Malformed):
        ElectionState.decode(text)


def test_leftovers_of_a_crash_are_deleted(start, tmp_path):
    voter = start()
    directory = tmp_path / "__cluster_metadata-0"
    (directory / "00000000000000000009-0000000001-123.checkpoint.part").write_bytes(b"x")
    (directory / "00000000000000000009-0000000001.checkpoint.deleted").write_bytes(b"x")
    start(log_of(voter).crash())
    assert not list(directory.glob("*.part")) + list(directory.glob("*.deleted"))
