"""An observer of the metadata quorum: what it makes of a leader's answers, good and bad."""

import pytest
from log_world import ManualScheduler, topic_config
from metadata_world import DIR, maybe_snapshot

from kafkad.clock import ManualClock
from kafkad.log.log import Log
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.metadata.records import encode_record
from kafkad.metadata.replay import Loader
from kafkad.protocol import codec, errors, messages
from kafkad.raft.control_records import control_batch, leader_change
from kafkad.raft.observer import Leader, Observer
from kafkad.raft.single_voter import SnapshotPolicy, UnusableMetadata
from kafkad.raft.snapshots import build_snapshot, data_batch

HOST, PORT = "controller.example", 9093
LEVEL = 30


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class World:
    """An observer on a real log, and the words of a leader."""

    def __init__(self, path):
        self.path = path
        self.heard = []
        self.open()

    def open(self):
        directory = self.path / "__cluster_metadata-0"
        log = Log.open(
            str(directory), METADATA_TOPIC, 0, topic_config(cleanup_policy=(), retention_ms=-1), now_ms=1,
            clean=False, scheduler=ManualScheduler(), topic_id=METADATA_TOPIC_ID,
        )  # fmt: skip
        self.observer = Observer(
            node_id=7, directory_id=DIR, cluster_id="abc", log=log, files=MetadataFiles(str(self.path)),
            clock=ManualClock(now_ms=1_700_000_000_000),
        )  # fmt: skip
        self.observer.on_commit = lambda image, delta: self.heard.append(
            (image.offset, set(delta.topics_created))
        )
        self.observer.open()

    def reopen(self):
        self.observer.close()
        self.open()

    def fetched(self, *batches, high_watermark=-1, epoch=1, leader=100, code=0, **fields):
        """An answer to Fetch goes over the wire's form into the observer."""
        cls = messages.FetchResponse
        partition = cls.Responses.Partitions(
            partition_index=0,
            error_code=code,
            high_watermark=high_watermark,
            current_leader=cls.Responses.Partitions.CurrentLeader(leader_id=leader, leader_epoch=epoch),
            records=b"".join(map(bytes, batches)),
            **fields,
        )
        response = cls(
            responses=[cls.Responses(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            node_endpoints=[cls.NodeEndpoints(node_id=leader, host=HOST, port=PORT)] if leader >= 0 else [],
        )
        return self.observer.answered(codec.decode(cls, 17, codec.encode(response, 17))[0])

    def diverges(self, of_epoch, end_offset, **more):
        part = messages.FetchResponse.Responses.Partitions.DivergingEpoch(
            epoch=of_epoch, end_offset=end_offset
        )
        return self.fetched(diverging_epoch=part, **more)

    def offers(self, offset, of_epoch, **more):
        part = messages.FetchResponse.Responses.Partitions.SnapshotId(end_offset=offset, epoch=of_epoch)
        return self.fetched(snapshot_id=part, **more)

    def piece(self, snapshot, position, piece, size, *, epoch=1, leader=100, code=0):
        cls = messages.FetchSnapshotResponse
        partition = cls.Topics.Partitions(
            index=0,
            error_code=code,
            snapshot_id=cls.Topics.Partitions.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
            current_leader=cls.Topics.Partitions.CurrentLeader(leader_id=leader, leader_epoch=epoch),
            size=size,
            position=position,
            unaligned_records=bytes(piece),
        )
        response = cls(
            topics=[cls.Topics(name="__cluster_metadata", partitions=[partition])],
            node_endpoints=[cls.NodeEndpoints(node_id=leader, host=HOST, port=PORT)],
        )
        return self.observer.answered(codec.decode(cls, 1, codec.encode(response, 1))[0])

    def apply(self):
        while self.observer.apply():
            pass
        return sorted(self.observer.image.topics)

    @property
    def asked(self):
        """What stands in the next Fetch."""
        partition = self.observer.request().topics[0].partitions[0]
        return partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch

    @property
    def parts(self):
        return sorted(path.name for path in (self.path / "__cluster_metadata-0").glob("*.checkpoint*"))


def first(epoch=1, at=0):
    """What a leader begins its epoch with; metadata.version too where the log is empty."""
    change = control_batch([leader_change(100, [100])], base_offset=at, epoch=epoch, now_ms=5)
    if at:
        return [change]
    level = messages.FeatureLevelRecord(name="metadata.version", feature_level=LEVEL)
    return [change, data_batch([encode_record(level, LEVEL)], base_offset=1, epoch=epoch, now_ms=5)]


def topics(*names, at, epoch=1):
    records = [messages.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\1")) for name in names]
    values = [encode_record(record, LEVEL) for record in records]
    return data_batch(values, base_offset=at, epoch=epoch, now_ms=5)


def snapshot_of(*names, epoch=1):
    records = [messages.FeatureLevelRecord(name="metadata.version", feature_level=LEVEL)]
    records += [messages.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\1")) for name in names]
    values = [encode_record(record, LEVEL) for record in records]
    return b"".join(build_snapshot(values, epoch=epoch, timestamp_ms=5, now_ms=5))


def test_only_what_is_committed_reaches_the_image(world):
    assert world.asked == (0, 0, 0)
    assert world.fetched(*first(), topics("a", at=2), topics("b", at=3))
    assert world.observer.leader == Leader(100, HOST, PORT)
    assert world.apply() == [] and world.asked == (4, 1, 1)
    assert world.fetched(high_watermark=3) and world.apply() == ["a"]
    assert world.fetched(high_watermark=4000) and world.apply() == ["a", "b"]
    assert world.observer.high_watermark == 4
    assert world.heard[-1] == (3, {"b"})


def test_a_restart_reads_on_and_believes_nothing_until_a_leader_speaks(world):
    world.fetched(*first(epoch=3), topics("a", at=2, epoch=3), high_watermark=3, epoch=3)
    world.apply()
    world.reopen()
    assert world.asked == (3, 3, 3) and world.apply() == []
    assert world.observer.leader is None
    world.fetched(high_watermark=3, epoch=3)
    assert world.apply() == ["a"]


def test_a_leader_of_a_later_epoch_is_followed_and_written_down(world):
    world.fetched(*first())
    assert world.fetched(code=errors.FENCED_LEADER_EPOCH, epoch=4, leader=101)
    assert world.observer.leader == Leader(101, HOST, PORT) and world.asked == (2, 1, 4)
    assert (
        b'"leaderId":101,"leaderEpoch":4' in (world.path / "__cluster_metadata-0/quorum-state").read_bytes()
    )
    assert world.fetched(code=errors.NOT_LEADER_OR_FOLLOWER, epoch=6, leader=-1) is False  # nobody leads yet
    assert world.observer.leader is None and world.observer.epoch == 6
    assert world.fetched(*first(at=2), epoch=5, leader=102) is False  # one that is behind
    assert world.observer.end_offset == 2 and world.observer.epoch == 6
    world.reopen()
    assert world.observer.epoch == 6


def test_one_that_sends_us_to_itself_and_is_not_leader_does_not_keep_us_busy(world):
    world.fetched(*first())
    assert world.fetched(code=errors.NOT_LEADER_OR_FOLLOWER) is False
    assert world.fetched(code=errors.UNKNOWN_LEADER_EPOCH) is False


def test_an_epoch_with_two_leaders_is_refused(world, caplog):
    world.fetched(*first())
    assert world.fetched(topics("a", at=2), leader=101, high_watermark=3) is False
    assert "led by 100, and by 101" in caplog.text and world.observer.end_offset == 2


def test_the_log_is_cut_where_the_leaders_has_another_end(world):
    world.fetched(*first(), topics("a", at=2), topics("lost", "too", at=3), high_watermark=3)
    world.apply()
    assert world.diverges(1, 3, epoch=2, leader=101)
    assert world.asked == (3, 1, 2)
    assert world.fetched(
        *first(epoch=2, at=3), topics("b", at=4, epoch=2), high_watermark=5, epoch=2, leader=101
    )
    assert world.apply() == ["a", "b"]
    world.reopen()
    assert world.asked == (5, 2, 2)


def test_an_epoch_that_we_have_and_the_leader_has_not_goes(world):
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.fetched(*first(epoch=3, at=3), topics("lost", at=4, epoch=3), epoch=3)
    assert world.diverges(2, 3, epoch=5)  # of epoch 2 we have nothing: what we have of 1 stays
    assert world.asked == (3, 1, 5)


def test_committed_records_are_never_cut(world):
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    with pytest.raises(UnusableMetadata, match="below 3 were committed"):
        world.diverges(1, 2, epoch=2)
    assert world.observer.end_offset == 3


def test_a_cut_that_cuts_nothing_is_no_answer(world):
    world.fetched(*first(), topics("a", at=2))
    assert world.diverges(1, 9) is False and world.observer.end_offset == 3


@pytest.mark.parametrize(
    "batches",
    [
        [topics("a", at=3)],  # a gap
        [topics("a", at=1)],  # had already
        [topics("a", at=2, epoch=0)],  # an older epoch than the log's
        [topics("a", at=2)[:-1] + b"\2"],  # a wrong CRC
        [b"\0" * 80],  # no batch
    ],
)
def test_batches_that_cannot_follow_are_not_appended(world, batches):
    world.fetched(*first())
    assert world.fetched(*batches, high_watermark=9) is False
    assert world.asked == (2, 1, 1) and world.apply() == []


def test_a_batch_of_an_epoch_that_is_not_known_yet_waits(world):
    world.fetched(*first())
    assert world.fetched(topics("a", at=2), topics("b", at=3, epoch=2), high_watermark=4)
    assert world.asked == (3, 1, 1) and world.apply() == ["a"]


def test_a_batch_that_is_cut_off_is_fetched_again(world):
    world.fetched(*first())
    assert world.fetched(topics("a", at=2), topics("b", at=3)[:-5], high_watermark=4)
    assert world.asked == (3, 1, 1)


def test_a_snapshot_comes_in_pieces_and_the_log_goes_on_above_it(world):
    world.fetched(*first(), topics("gone", at=2), high_watermark=3)
    assert world.apply() == ["gone"]
    taken = []
    world.observer.on_snapshot = taken.append
    content, snapshot = snapshot_of("a", "b", epoch=2), (50, 2)
    assert world.offers(*snapshot, epoch=2)
    position = 0
    while position < len(content):
        (asked,) = world.observer.request().topics[0].partitions
        assert (asked.position, asked.snapshot_id.end_offset, asked.snapshot_id.epoch) == (position, 50, 2)
        assert world.piece(snapshot, position, content[position : position + 100], len(content), epoch=2)
        position += 100
    assert world.apply() == ["a", "b"] and taken == [world.observer.image]
    assert world.asked == (50, 2, 2) and world.parts == [f"{50:020d}-{2:010d}.checkpoint"]
    assert world.fetched(topics("c", at=50, epoch=2), high_watermark=51, epoch=2)
    assert world.apply() == ["a", "b", "c"]
    world.reopen()
    assert world.apply() == ["a", "b"] and world.asked == (51, 2, 2)


def test_a_snapshot_that_is_offered_again_keeps_its_pieces(world):
    """Another voter may be asked while a piece is on its way."""
    content, snapshot = snapshot_of("a", "b", epoch=2), (50, 2)
    assert world.offers(*snapshot, epoch=2)
    assert world.piece(snapshot, 0, content[:100], len(content), epoch=2)
    assert world.offers(*snapshot, epoch=2)
    assert world.piece(snapshot, 100, content[100:], len(content), epoch=2)
    assert world.apply() == ["a", "b"]


def test_half_a_snapshot_is_begun_again_after_a_restart_or_with_another_leader(world):
    content = snapshot_of("a")
    world.fetched(epoch=1)
    world.offers(50, 1)
    assert world.piece((50, 1), 0, content[:60], len(content))
    assert world.parts == [f"{50:020d}-{1:010d}.checkpoint.part"]
    assert world.piece((50, 1), 60, content[60:], len(content), epoch=2, leader=101)
    assert world.apply() == [] and world.asked == (0, 0, 2)
    world.reopen()
    assert world.parts == []
    world.offers(50, 1, epoch=2)
    assert world.piece((50, 1), 0, content, len(content), epoch=2) and world.apply() == ["a"]


def test_a_snapshot_that_is_gone_is_asked_for_no_more(world):
    world.offers(50, 1)
    assert world.piece((50, 1), 0, b"", 0, code=errors.SNAPSHOT_NOT_FOUND)
    assert world.asked == (0, 0, 1)


@pytest.mark.parametrize(
    ("snapshot", "position", "piece", "size"),
    [
        ((51, 1), 0, b"x" * 10, 100),  # another one
        ((50, 1), 5, b"x" * 10, 100),  # from its middle
        ((50, 1), 0, b"", 100),  # nothing, for ever
        ((50, 1), 0, b"x" * 10, 5),  # more than all
    ],
)
def test_pieces_that_lie_are_refused(world, snapshot, position, piece, size):
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.apply()
    world.offers(50, 1)
    assert world.piece(snapshot, position, piece, size) is False
    assert world.asked == (3, 1, 1) and world.apply() == ["a"]
    world.reopen()
    assert world.asked == (3, 1, 1)


@pytest.mark.parametrize("content", [b"x" * 100, snapshot_of("b")[:-20], b"\0" + snapshot_of("b")])
def test_a_snapshot_that_comes_damaged_is_set_aside_and_fetched_once_more(world, content):
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.apply()
    world.offers(50, 1)
    assert world.piece((50, 1), 0, content, len(content))
    assert world.apply() == ["a"] and world.asked == (3, 1, 1)
    assert world.parts == [f"{50:020d}-{1:010d}.checkpoint.corrupt"]
    assert world.offers(50, 1) is False  # not at once
    assert world.offers(50, 1)
    whole = snapshot_of("b")
    assert world.piece((50, 1), 0, whole, len(whole)) and world.apply() == ["b"]
    world.reopen()
    assert world.apply() == ["b"]


@pytest.mark.parametrize("snapshot", [(2, 1), (-1, 1), (50, -1)])
def test_a_snapshot_that_leads_nowhere_is_not_fetched(world, snapshot):
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.apply()
    assert world.offers(*snapshot) is False and world.asked == (3, 1, 1)


def test_a_cluster_that_is_not_ours_is_not_followed(world, caplog):
    response = messages.FetchResponse(error_code=errors.INCONSISTENT_CLUSTER_ID)
    assert world.observer.answered(response) is False
    assert "INCONSISTENT_CLUSTER_ID" in caplog.text
    assert world.observer.answered(messages.FetchResponse()) is False  # of no partition


def test_a_metadata_version_that_is_too_new_ends_it_with_a_sentence(world):
    newer = data_batch(
        [encode_record(messages.FeatureLevelRecord(name="metadata.version", feature_level=99), LEVEL)],
        base_offset=2, epoch=1, now_ms=5,
    )  # fmt: skip
    world.fetched(*first(), newer, high_watermark=3)
    with pytest.raises(UnusableMetadata, match="metadata"):
        world.apply()


def longest(world):
    """(steps of `apply`, the longest of them in records that reached the loader)"""
    fed, loader_step = [0], Loader._feed_one

    def count(self, record):
        fed[-1] += 1
        loader_step(self, record)

    Loader._feed_one = count
    try:
        while world.observer.apply():
            fed.append(0)
    finally:
        Loader._feed_one = loader_step
    return len(fed), max(fed)


def test_a_large_batch_and_a_large_snapshot_are_applied_in_short_steps(world):
    names = [f"t{number}" for number in range(5000)]
    world.fetched(*first(), topics(*names, at=2), high_watermark=5002)
    steps, most = longest(world)
    assert steps > 20 and most <= 200 and len(world.observer.image.topics) == 5000
    content = snapshot_of(*names, "one more")
    world.offers(6000, 1)
    assert world.piece((6000, 1), 0, content, len(content))
    steps, most = longest(world)
    assert steps > 40 and most <= 200 and len(world.observer.image.topics) == 5001


def test_a_large_log_is_applied_in_steps(world):
    world.fetched(*first())
    at = 2
    for _ in range(40):
        names = [f"{at + number}".rjust(10, "t") for number in range(100)]
        world.fetched(topics(*names, at=at))
        at += 100
    world.fetched(high_watermark=at)
    steps = 1
    while world.observer.apply():
        steps += 1
    assert steps > 2 and len(world.observer.image.topics) == 4000


def test_it_makes_snapshots_of_its_own_and_lets_the_log_below_go(world):
    """As every node of a quorum does (Kafka: SnapshotGenerator)."""
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.apply()
    world.observer._policy = SnapshotPolicy(new_bytes_max=1, retention_bytes=0)
    assert maybe_snapshot(world.observer)
    assert not maybe_snapshot(world.observer)  # nothing new
    assert world.observer.last_snapshot == (3, 1)
    world.fetched(topics("b", at=3), topics("waits", at=4), high_watermark=4)
    world.apply()
    assert maybe_snapshot(world.observer) and world.observer.last_snapshot == (4, 1)
    assert world.parts == [f"{4:020d}-{1:010d}.checkpoint"]
    assert world.observer._log.log_start_offset == 4
    world.reopen()
    assert world.apply() == ["a", "b"] and world.asked == (5, 1, 1)
    assert world.fetched(high_watermark=5) and world.apply() == ["a", "b", "waits"]


def test_a_snapshot_of_ours_that_is_late_does_not_replace_a_newer_one_of_the_leader(world):
    """It is written in a thread. Meanwhile the leader's is fetched, and the log begins there."""
    world.fetched(*first(), topics("a", at=2), high_watermark=3)
    world.apply()
    observer = world.observer
    image, ours = observer.image, observer.begin_snapshot(observer.image)
    content = snapshot_of("a", "b", epoch=4)
    assert world.offers(9, 4, epoch=4)
    assert world.piece((9, 4), 0, content, len(content), epoch=4)
    world.apply()
    assert observer.last_snapshot == (9, 4)
    observer.write_snapshot(image)
    observer.end_snapshot(ours)
    assert observer.last_snapshot == (9, 4) and world.asked == (9, 4, 4)
    assert world.parts == [f"{9:020d}-{4:010d}.checkpoint"]
