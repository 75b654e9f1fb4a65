"""A metadata directory that JVM Kafka 4.3.1 wrote (tests/unit/kafka_metadata), on the real log.

Kafka formatted it with static voters, ran once with a snapshot every 6,000 bytes, created alpha (3
partitions, configs), beta.one (1, then 4), gone (deleted) and __consumer_offsets, a quota and a SCRAM user,
and was stopped.
"""

import random
import shutil
from pathlib import Path

import pytest
from log_world import ManualScheduler, topic_config
from metadata_world import LISTENERS, AtOnce, create, maybe_snapshot, new_topic

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.controller.brokers import Registration
from kafkad.controller.controller import Controller
from kafkad.log.log import Log
from kafkad.log.metadata_files import METADATA_TOPIC, METADATA_TOPIC_ID, MetadataFiles
from kafkad.metadata.image import TOPIC, MetadataImage
from kafkad.metadata.uuids import random_uuid, uuid_bytes
from kafkad.raft.single_voter import SingleVoter, SnapshotPolicy, UnusableMetadata

WRITTEN_BY_KAFKA = Path(__file__).parent / "kafka_metadata"
DIRECTORY_ID = uuid_bytes("BeaT1VE6-HbZn44P4g3vzg")
NEWEST = "00000000000000000507-0000000001.checkpoint"
LOG = "00000000000000000000.log"


class Node:
    """The voter and controller of one directory; `controller` once it leads."""

    def __init__(self, path, policy=None, **log_config):
        self.path = path
        self.clock = ManualClock(now_ms=1_800_000_000_000)
        self.log = Log.open(
            str(path / "__cluster_metadata-0"),
            METADATA_TOPIC,
            0,
            topic_config(cleanup_policy=("delete",), retention_ms=-1, **log_config),
            now_ms=self.clock.now_ms(),
            clean=False,
            scheduler=ManualScheduler(),
            topic_id=METADATA_TOPIC_ID,
        )
        self.voter = SingleVoter(
            node_id=1,
            directory_id=DIRECTORY_ID,
            cluster_id="AAAAAAAAQACAAAAAAAAAAA",
            log=self.log,
            files=MetadataFiles(str(path)),
            clock=self.clock,
            policy=policy,
            static_voters=[1],
        )
        self.voter.open()

    def lead(self, previous_epoch=-1):
        chance = random.Random(1)
        self.voter.lead()
        self.controller = AtOnce(Controller(self.voter, self.clock, chance, BrokerConfig()))
        registration = Registration(
            1, random_uuid(chance), LISTENERS, (DIRECTORY_ID,), previous_epoch=previous_epoch
        )
        self.controller.register_broker(registration)
        return self

    @property
    def image(self):
        return self.voter.image

    def files(self):
        return sorted(p.name for p in (self.path / "__cluster_metadata-0").iterdir())


@pytest.fixture
def path(tmp_path):
    return Path(shutil.copytree(WRITTEN_BY_KAFKA, tmp_path / "data"))


def damage(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 0xFF
    file.write_bytes(content)


def test_everything_that_kafka_wrote_is_there(path):
    image = Node(path).image
    assert image.offset == 576
    assert {name: len(topic.partitions) for name, topic in image.topics.items()} == {
        "alpha": 3,
        "beta.one": 4,
        "__consumer_offsets": 5,
    }
    assert image.configs[TOPIC, "alpha"] == {"cleanup.policy": "compact,delete", "retention.ms": "123456"}
    assert image.configs[TOPIC, "beta.one"] == {"max.message.bytes": "222222"}
    assert image.next_producer_id == 1000
    assert [record.value for record in image.client_quotas.values()] == [1024.0]
    assert list(image.scram_credentials) == [(1, "bob")]
    assert image.brokers[1].fenced
    assert image.brokers[1].directories == (DIRECTORY_ID,)


def test_snapshot_and_log_say_the_same_as_the_log_alone(path, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(path, alone, ignore=shutil.ignore_patterns("*.checkpoint"))
    first, second = Node(path).image, Node(alone).image
    for part in MetadataImage.PARTS:
        assert getattr(first, part) == getattr(second, part), part


def test_partitions_are_led_again_and_what_is_added_stays(path):
    node = Node(path).lead(previous_epoch=12)  # the epoch that Kafka's broker had: it stopped cleanly
    assert node.voter.epoch == 2
    for topic in node.image.topics.values():
        for state in topic.partitions.values():
            # Kafka took the leader away at its stop (epoch 1); it is given back (epoch 2)
            assert (state.leader, state.isr, state.elr, state.leader_epoch) == (1, (1,), (), 2)
    assert create(node, new_topic("ours", 2))["ours"].error_code == 0
    node.voter.close()
    again = Node(path)
    assert again.image.topics == node.image.topics
    assert again.image.configs == node.image.configs


def test_without_the_newest_snapshot_the_one_before_is_taken(path):
    expected = Node(path).image.topics
    damage(path / "__cluster_metadata-0" / NEWEST, 1000)
    node = Node(path)
    assert node.image.topics == expected
    assert NEWEST + ".corrupt" in node.files()


def test_a_log_that_ends_in_rubbish_goes_on_from_its_last_whole_batch(path):
    log = path / "__cluster_metadata-0" / LOG
    whole = log.read_bytes()
    log.write_bytes(whole + b"\0" * 50)
    node = Node(path)
    assert node.image.offset == 576
    node.lead()
    node.voter.close()
    assert Node(path).image.brokers[1].active


def test_a_log_that_is_damaged_below_the_newest_snapshot_goes_on_from_there(path):
    """Its tail is cut off at the first batch that is not whole; the snapshot knows more."""
    damage(path / "__cluster_metadata-0" / LOG, 20_000)
    node = Node(path)
    assert node.image.offset == 506
    assert node.log.log_start_offset == node.log.end_offset == 507
    node.lead()
    create(node, new_topic("ours"))
    node.voter.close()
    again = Node(path)
    assert again.image.topics == node.image.topics
    assert again.log.log_start_offset == 507


def test_a_log_that_lost_its_beginning_and_has_no_snapshot_is_refused(path):
    for checkpoint in path.glob("*/*.checkpoint"):
        checkpoint.unlink()
    log = path / "__cluster_metadata-0" / LOG
    content = log.read_bytes()
    size = int.from_bytes(content[8:12], "big") + 12
    (path / "__cluster_metadata-0" / "00000000000000000001.log").write_bytes(content[size:])
    log.unlink()
    with pytest.raises(UnusableMetadata, match="begins at offset 1"):
        Node(path)


def test_old_segments_and_snapshots_go_after_a_new_snapshot(path):
    policy = SnapshotPolicy(new_bytes_max=1, retention_bytes=10_000)
    node = Node(path, policy, segment_bytes=15_000).lead()
    create(node, new_topic("ours"))
    assert maybe_snapshot(node.voter)
    names = node.files()
    assert sum(name.endswith(".checkpoint") for name in names) == 1
    assert LOG not in names
    assert node.log.log_start_offset == node.voter.next_offset
    create(node, new_topic("after"))
    node.voter.close()
    again = Node(path, policy)
    assert set(again.image.topics) == {"alpha", "beta.one", "__consumer_offsets", "ours", "after"}
    assert again.image.client_quotas == node.image.client_quotas
    assert again.image.scram_credentials == node.image.scram_credentials
