"""What a broker promises where the protocol's schemas are silent, one test for each promise, over the wire.

One broker serves the file. It has the keys that the test suites of clients set, so it must start with
all of them. Each test is named after its promise; of what is not served yet, the promise is how it is
refused. Many of these rules have finer tests beside their code (tests/unit); here they hold for a whole
broker, with one worker and with several.

Beware: `after_restart` stops and kills the broker, so what uses it stands at the end of the file.
"""

import re
import socket
import struct
import time
from types import SimpleNamespace

import pytest

from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.topic import TOPIC_KEYS
from kafkad.protocol import codec, errors, messages, records
from kafkad.testing import Broker
from tests.wire import Wire, batch, create_topic, high_watermark, produce, produce_request

CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}")
TOPIC, BROKER = 2, 4
SEND_BUFFER_BYTES, RECEIVE_BUFFER_BYTES = 50_000, 20_000
IDLE_MS = 3000
NODE_ID = 7

# What client suites set. offsets.topic.replication.factor and its like are not among them, on purpose.
SUITE_KEYS: dict[str, object] = {
    "auto.create.topics.enable": "true",
    "num.partitions": 3,
    "default.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 2,
    "share.coordinator.state.topic.min.isr": 1,
    "log.retention.check.interval.ms": 60_000,
    "message.max.bytes": 2 << 20,
    "broker.rack": "rack-1",
    "node.id": NODE_ID,
    "socket.send.buffer.bytes": SEND_BUFFER_BYTES,
    "socket.receive.buffer.bytes": RECEIVE_BUFFER_BYTES,
    "connections.max.idle.ms": IDLE_MS,
}


@pytest.fixture(scope="module")
def broker():
    with Broker(config=SUITE_KEYS) as broker:
        yield broker


@pytest.fixture
def wire(broker):
    with Wire(broker.bootstrap) as wire:
        yield wire


_numbers = iter(range(10_000))


def fresh(word: str) -> str:
    return f"{word}-{next(_numbers)}"


@pytest.fixture
def topic(wire):
    name = fresh("topic")
    create_topic(wire, name)
    return name


def frame(key: int, version: int, body: bytes = b"", client: str | None = "wire", flexible: bool = False):
    """A request by hand; `flexible` puts the empty tags behind the header."""
    name = struct.pack(">h", -1) if client is None else struct.pack(">h", len(client)) + client.encode()
    return struct.pack(">hhi", key, version, 77) + name + (b"\0" if flexible else b"") + body


def fetch(wire: Wire, topic: str, offset: int, max_bytes: int = 1 << 20, partition_max_bytes: int = 1 << 20):
    struct = messages.FetchRequest.Topics
    wanted = struct.Partitions(partition=0, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    request = messages.FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, topics=[struct(topic=topic, partitions=[wanted])]
    )
    answer = wire.ask(request, 4).responses[0].partitions[0]
    assert answer.error_code == 0
    return answer


def offsets_of(answer) -> list[int]:
    return [record.offset for each in records.read_batches(answer.records) for record in each.records()]


def metadata(wire: Wire, *names: str, create: bool = True):
    asked = [messages.MetadataRequest.Topics(name=name) for name in names]
    return wire.ask(messages.MetadataRequest(topics=asked, allow_auto_topic_creation=create), 9)


def exists(wire: Wire, name: str) -> bool:
    return name in {topic.name for topic in wire.ask(messages.MetadataRequest(topics=None), 9).topics}


def list_offset(wire: Wire, topic: str, timestamp: int, isolation_level: int = 0):
    struct = messages.ListOffsetsRequest.Topics
    asked = struct(name=topic, partitions=[struct.Partitions(partition_index=0, timestamp=timestamp)])
    request = messages.ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
    found = wire.ask(request, 8).topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset, found.timestamp


def describe(wire: Wire, kind: int, name: str, keys: list[str] | None = None, synonyms: bool = True):
    struct = messages.DescribeConfigsRequest.Resources
    asked = struct(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = messages.DescribeConfigsRequest(resources=[asked], include_synonyms=synonyms)
    (result,) = wire.ask(request, 4).results
    assert result.error_code == 0, result
    return {entry.name: entry for entry in result.configs}


def wait_for_coordinator(wire: Wire, group: str) -> None:
    deadline = time.monotonic() + 10
    while (found := wire.ask(messages.FindCoordinatorRequest(key=group), 2)).error_code:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def settled(look, wanted, within_s: float = 10):
    """Looks until it sees what is wanted."""
    deadline = time.monotonic() + within_s
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seen == wanted


# -- requests that are wrong


def test_a_wrong_request_closes_with_no_reply_and_one_line_in_the_log(broker):
    wrong = {
        "API key 29999": frame(29999, 0),
        "Metadata version 99 is not served": frame(3, 99),
        "Heartbeat v0 does not parse": frame(12, 0, b"\x7f\xff"),
    }
    for reason, bad in wrong.items():
        with Wire(broker.bootstrap) as wire:
            wire.send_frame(bad)
            assert wire.is_closed_by_broker()
        settled(lambda reason=reason: broker.log_file.read_text().count(reason), 1)


def test_an_array_of_more_elements_than_bytes_remain_closes(broker):
    """CVE-2022-34917, for an API with an array at every level."""
    for claimed in (2, 1000, 2**31 - 1):
        with Wire(broker.bootstrap) as wire:
            wire.send_frame(frame(20, 1, struct.pack(">i", claimed) + b"\0\1t"))  # DeleteTopics v1
            assert wire.is_closed_by_broker()


def test_api_versions_of_an_unknown_version_without_the_headers_tag_byte_closes(wire):
    wire.send_frame(frame(18, 99))
    assert wire.is_closed_by_broker()


def test_api_versions_of_an_unknown_version_lists_its_own_range_in_v0_and_reads_no_body(wire):
    wire.send_frame(frame(18, 32767, b"\xff" * 9, flexible=True))
    answer = wire.read_frame()
    assert answer == struct.pack(">ihihhh", 77, errors.UNSUPPORTED_VERSION, 1, 18, 0, 4)


@pytest.mark.parametrize("version", range(5))
def test_api_versions_responses_never_carry_header_tags(wire, version):
    """The error code stands right behind the correlation id, also in flexible versions."""
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    wire.send_frame(codec.encode_request(request, version, 77, "wire"))
    assert wire.read_frame()[:6] == struct.pack(">ih", 77, 0)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\n", "x-"])
def test_api_versions_with_a_bad_client_software_name_is_invalid_request(wire, name):
    request = messages.ApiVersionsRequest(client_software_name=name, client_software_version="1")
    for version in (3, 4):
        assert wire.ask(request, version).error_code == errors.INVALID_REQUEST


def test_a_null_client_id_is_legal(wire, topic):
    """For a native API, one of Python's, one of a coordinator, and old and flexible headers."""
    asked = [
        (produce_request(topic, batch(b"a")), (3, 9)),
        (messages.MetadataRequest(topics=[]), (1, 9)),
        (messages.FindCoordinatorRequest(key="g"), (0, 3)),
        (messages.HeartbeatRequest(group_id="g", member_id="m"), (0, 4)),
        (messages.ApiVersionsRequest(client_software_name="x", client_software_version="1"), (0, 3)),
    ]
    for request, versions in asked:
        for version in versions:
            wire.send_frame(codec.encode_request(request, version, 5, None))
            response_class = codec.response_class(type(request).API_KEY)
            assert codec.decode_response(response_class, version, wire.read_frame())[0] == 5


def test_acks_0_gets_no_response(wire, topic):
    for _ in range(3):
        wire.send(produce_request(topic, batch(b"quiet"), acks=0), 9)
    settled(lambda: high_watermark(wire, topic), 3)  # asked on the same connection: no answer stands before


@pytest.mark.parametrize("wrong", ["topic", "crc"])
def test_acks_0_with_errors_closes(broker, topic, wrong):
    data = batch(b"lost")
    if wrong == "crc":
        data[-2] ^= 1
    with Wire(broker.bootstrap) as wire:
        wire.send(produce_request("nosuch" if wrong == "topic" else topic, data, acks=0), 9)
        assert wire.is_closed_by_broker()


def test_a_next_request_on_a_connection_waits_for_the_answer_of_the_one_before(wire, topic):
    """Behind a Fetch that waits for data."""
    waiting = messages.FetchRequest.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=100)
    asked = messages.FetchRequest.Topics(topic=topic, partitions=[waiting])
    first = wire.send(messages.FetchRequest(max_wait_ms=200, min_bytes=1, max_bytes=100, topics=[asked]), 4)
    second = wire.send(messages.MetadataRequest(topics=[]), 9)
    got = [int.from_bytes(wire.read_frame()[:4], "big") for _ in range(2)]
    assert got == [first, second]


@pytest.mark.parametrize(
    ("name", "key", "highest"),
    [("LeaderAndIsr", 4, 7), ("StopReplica", 5, 4), ("UpdateMetadata", 6, 8), ("ControlledShutdown", 7, 3)],
)
def test_requests_between_brokers_with_zookeeper_close(broker, name, key, highest):
    for version in range(highest + 1):
        with Wire(broker.bootstrap) as wire:
            wire.send_frame(frame(key, version, bytes(64), flexible=version == highest))
            assert wire.is_closed_by_broker(), f"{name} v{version}"


# -- records


def answer_codes(wire: Wire, topic: str, *batches: bytearray) -> list[tuple[int, int]]:
    answers = [produce(wire, topic, bytes(each)) for each in batches]
    return [(answer.error_code, answer.base_offset) for answer in answers]


def sequenced(sequence: int, epoch: int = 1, count: int = 2) -> bytearray:
    return batch(*[b"v"] * count, producer_id=5000, producer_epoch=epoch, base_sequence=sequence)


def test_a_sequence_gap_is_out_of_order_and_a_duplicate_gets_its_first_offset(wire, topic):
    assert answer_codes(
        wire, topic, sequenced(0), sequenced(2), sequenced(5), sequenced(0), sequenced(4)
    ) == [
        (0, 0),
        (0, 2),
        (errors.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (0, 0),
        (0, 4),
    ]
    assert high_watermark(wire, topic) == 6


def test_an_old_producer_epoch_is_invalid_producer_epoch(wire, topic):
    assert answer_codes(wire, topic, sequenced(0, epoch=3), sequenced(2, epoch=2), sequenced(0, epoch=4)) == [
        (0, 0),
        (errors.INVALID_PRODUCER_EPOCH, -1),
        (0, 2),
    ]


@pytest.mark.parametrize("codec_id", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
def test_wrong_inner_deltas_of_a_compressed_batch_are_rebuilt(wire, topic, codec_id):
    """Records that say offsets 0, 3, 7 of a batch of three."""
    now = int(time.time() * 1000)
    gaps = [records.Record(None, b"%d" % n, [], timestamp=now, offset=n) for n in (0, 3, 7)]
    data = records.build_batch(gaps, compression=codec_id)
    data[23:27] = struct.pack(">i", 2)  # last offset delta: what the count says
    assert produce(wire, topic, recrc(data)).error_code == 0
    got = [r for each in records.read_batches(fetch(wire, topic, 0).records) for r in each.records()]
    assert [(r.offset, r.value) for r in got] == [(0, b"0"), (1, b"3"), (2, b"7")]


def recrc(data: bytearray) -> bytes:
    import crc32c

    data[17:21] = struct.pack(">I", crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def test_a_bad_timestamp_is_invalid_timestamp_and_named(wire, topic):
    now = int(time.time() * 1000)
    times = [now, now + 2 * 3_600_000, now]
    data = records.build_batch([records.Record(None, b"v", [], timestamp=each) for each in times])
    answer = produce(wire, topic, bytes(data))
    assert (answer.error_code, [e.batch_index for e in answer.record_errors]) == (
        errors.INVALID_TIMESTAMP,
        [1],
    )


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_keyless_record_on_a_compacted_topic_is_invalid_record_and_named_from_v8_on(wire, version):
    name = fresh("compacted")
    create_topic(wire, name, cleanup_policy="compact")
    now = int(time.time() * 1000)
    keys = [b"k", None, b"k", None]
    data = records.build_batch([records.Record(key, b"v", [], timestamp=now) for key in keys])
    answer = produce(wire, name, bytes(data), version=version)
    assert answer.error_code == errors.INVALID_RECORD
    assert [e.batch_index for e in answer.record_errors] == ([1, 3] if version >= 8 else [])
    assert high_watermark(wire, name) == 0


def test_fetch_returns_the_whole_batch_that_contains_the_offset(wire, topic):
    for _ in range(3):
        assert produce(wire, topic, bytes(batch(*[b"v"] * 5))).error_code == 0
    for offset in range(15):
        assert offsets_of(fetch(wire, topic, offset)) == list(range(offset - offset % 5, 15))


def test_fetch_returns_at_least_one_batch_whatever_the_limits_say(wire, topic):
    """KIP-74; and no second one."""
    for _ in range(2):
        assert produce(wire, topic, bytes(batch(b"x" * 10_000, b"y"))).error_code == 0
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
        first = fetch(wire, topic, 0, **limits)
        assert next(iter(records.read_batches(first.records))).base_offset == 0
        assert offsets_of(first) == [0, 1]


def test_produce_and_fetch_are_served_from_v0(broker, wire):
    """librdkafka turns compression off where Produce v0 is missing (KAFKA-18659)."""
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    told = {api.api_key: (api.min_version, api.max_version) for api in wire.ask(request, 3).api_keys}
    assert told[0][0] == 0 and told[1][0] == 0


def test_no_unstable_version_and_no_telemetry_is_advertised(wire):
    request = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    told = {api.api_key: api.max_version for api in wire.ask(request, 3).api_keys}
    assert told[22] == 5  # InitProducerId 6 is unstable
    assert not {71, 72} & told.keys()


def test_retention_by_size_is_off_and_by_time_is_a_week_by_default(wire, topic):
    told = describe(wire, TOPIC, topic, ["retention.bytes", "retention.ms"])
    assert {key: entry.value for key, entry in told.items()} == {
        "retention.bytes": "-1",
        "retention.ms": "604800000",
    }


def test_list_offsets_latest_is_the_high_watermark_and_the_last_stable_offset(wire, topic):
    assert produce(wire, topic, bytes(batch(b"a", b"b"))).error_code == 0
    assert list_offset(wire, topic, -1)[0] == 2
    assert list_offset(wire, topic, -1, isolation_level=1)[0] == 2
    answer = fetch(wire, topic, 0)
    assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)


@pytest.mark.parametrize("codec_id", [0, 4], ids=["plain", "zstd"])
def test_list_offsets_by_timestamp_is_exact_inside_the_batch(wire, topic, codec_id):
    now = int(time.time() * 1000)
    for times in ((0, 10, 20), (5, 40, 30)):
        rows = [records.Record(None, b"v", [], timestamp=now + ms) for ms in times]
        assert produce(wire, topic, bytes(records.build_batch(rows, compression=codec_id))).error_code == 0
    found = {ms: list_offset(wire, topic, now + ms) for ms in (-1, 0, 1, 11, 21, 40, 41)}
    assert found == {
        -1: (0, now),
        0: (0, now),
        1: (1, now + 10),
        11: (2, now + 20),
        21: (4, now + 40),
        40: (4, now + 40),
        41: (-1, -1),
    }
    assert list_offset(wire, topic, -3) == (4, now + 40)  # the largest timestamp


# -- topics, groups, configurations


def test_a_topic_is_created_by_metadata_that_allows_it(wire):
    wanted, unwanted = fresh("wanted"), fresh("unwanted")
    (made,) = metadata(wire, wanted).topics
    assert (made.error_code, len(made.partitions)) == (0, SUITE_KEYS["num.partitions"])
    (refused,) = metadata(wire, unwanted, create=False).topics
    assert refused.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert exists(wire, wanted) and not exists(wire, unwanted)


@pytest.mark.parametrize("name", ["#!", ".", "..", "x" * 250, "ä", "a/b"])
def test_names_of_topics_to_be_created_are_checked(wire, name):
    (refused,) = metadata(wire, name).topics
    assert refused.error_code == errors.INVALID_TOPIC_EXCEPTION
    assert not exists(wire, name)


def test_a_topic_name_of_249_characters_is_created(wire):
    assert metadata(wire, fresh("y" * 100).ljust(249, "z")).topics[0].error_code == 0


def test_a_topic_that_is_deleted_and_created_again_has_a_new_id_and_no_records(wire, topic):
    assert produce(wire, topic, bytes(batch(b"old"))).error_code == 0
    asked = messages.DeleteTopicsRequest.Topics(name=topic)
    (deleted,) = wire.ask(messages.DeleteTopicsRequest(topics=[asked], timeout_ms=10_000), 6).responses
    assert deleted.error_code == 0
    assert create_topic(wire, topic) not in (deleted.topic_id, bytes(16))
    assert high_watermark(wire, topic) == 0


def offset_fetch(wire: Wire, group: str, topic: str, *partitions: int):
    struct = messages.OffsetFetchRequest.Groups
    asked = struct(group_id=group, topics=[struct.Topics(name=topic, partition_indexes=list(partitions))])
    (answer,) = wire.ask(messages.OffsetFetchRequest(groups=[asked]), 8).groups
    assert answer.error_code == 0
    return answer.topics[0].partitions


def test_offset_fetch_for_an_unknown_group_is_minus_1_without_error_for_each_partition(wire, topic):
    group = fresh("unknown")
    wait_for_coordinator(wire, group)
    told = offset_fetch(wire, group, topic, 0, 3, 9)  # partitions that do not exist, too
    assert [(p.partition_index, p.committed_offset, p.error_code) for p in told] == [
        (index, -1, 0) for index in (0, 3, 9)
    ]


def test_commit_metadata_strings_come_back_as_sent(wire):
    """A null one comes back empty, as in Kafka."""
    name, group = fresh("topic"), fresh("group")
    sent = ["", "note", "ä € \U0001f600 \0 \n", "x" * 4096, None]
    create_topic(wire, name, partitions=len(sent))
    wait_for_coordinator(wire, group)
    struct = messages.OffsetCommitRequest.Topics
    partitions = [
        struct.Partitions(partition_index=index, committed_offset=index, committed_metadata=text)
        for index, text in enumerate(sent)
    ]
    request = messages.OffsetCommitRequest(group_id=group, topics=[struct(name=name, partitions=partitions)])
    assert {p.error_code for p in wire.ask(request, 8).topics[0].partitions} == {0}
    told = offset_fetch(wire, group, name, *range(len(sent)))
    assert [(p.committed_offset, p.metadata) for p in told] == [
        (index, text or "") for index, text in enumerate(sent)
    ]


def join(group: str, member: str = "", metadata: bytes = b"", rebalance_ms: int = 10_000):
    offered = messages.JoinGroupRequest.Protocols(name="sessioned", metadata=metadata)
    return messages.JoinGroupRequest(
        group_id=group,
        member_id=member,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type="connect",
        protocols=[offered],
    )


def stable_member(wire: Wire, group: str, metadata: bytes = b"") -> SimpleNamespace:
    """The leader of a group of one."""
    wait_for_coordinator(wire, group)
    joined = wire.ask(join(group, metadata=metadata), 3)
    assert joined.error_code == 0
    assignment = messages.SyncGroupRequest.Assignments(member_id=joined.member_id, assignment=metadata)
    request = messages.SyncGroupRequest(
        group_id=group, generation_id=1, member_id=joined.member_id, assignments=[assignment]
    )
    synced = wire.ask(request, 3)
    return SimpleNamespace(id=joined.member_id, joined=joined, assignment=synced.assignment)


def test_metadata_of_group_members_is_opaque(wire):
    """What Kafka Connect sends is no subscription of a consumer."""
    group, opaque = fresh("connect"), bytes(range(256)) + b"\xff" * 10
    member = stable_member(wire, group, opaque)
    assert [(m.member_id, m.metadata) for m in member.joined.members] == [(member.id, opaque)]
    assert member.assignment == opaque
    (told,) = wire.ask(messages.DescribeGroupsRequest(groups=[group]), 5).groups
    assert [(m.member_metadata, m.member_assignment) for m in told.members] == [(opaque, opaque)]


def heartbeat(wire: Wire, group: str, member: str) -> int:
    beat = messages.HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
    return wire.ask(beat, 3).error_code


def test_a_join_group_held_open_blocks_no_other_request_and_a_leave_answers_it_at_once(broker, wire, topic):
    group = fresh("held")
    old = stable_member(wire, group)
    with Wire(broker.bootstrap) as newcomer:
        held = newcomer.send(join(group), 3)
        settled(lambda: heartbeat(wire, group, old.id), errors.REBALANCE_IN_PROGRESS)
        assert produce(wire, topic, bytes(batch(b"meanwhile"))).error_code == 0
        assert metadata(wire, topic).topics[0].error_code == 0
        newcomer.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            newcomer.socket.recv(1)
        newcomer.socket.settimeout(5)  # half of what the rebalance may take
        wire.ask(messages.LeaveGroupRequest(group_id=group, member_id=old.id), 2)
        response_class = codec.response_class(messages.JoinGroupRequest.API_KEY)
        correlation, joined = codec.decode_response(response_class, 3, newcomer.read_frame())
    assert (correlation, joined.error_code, joined.generation_id) == (held, 0, 2)
    assert joined.leader == joined.member_id


def test_a_static_member_that_closes_makes_no_rebalance(broker, wire):
    """A client with group.instance.id does not send LeaveGroup; that its connection ends means nothing."""
    group = fresh("static")
    wait_for_coordinator(wire, group)
    with Wire(broker.bootstrap) as other:
        request = join(group)
        request.group_instance_id = "one"
        joined = other.ask(request, 5)
        assert joined.error_code == 0
        sync = messages.SyncGroupRequest(
            group_id=group, generation_id=1, member_id=joined.member_id, group_instance_id="one"
        )
        assert other.ask(sync, 3).error_code == 0
    assert heartbeat(wire, group, joined.member_id) == 0
    (told,) = wire.ask(messages.DescribeGroupsRequest(groups=[group]), 5).groups
    assert (told.group_state, [m.group_instance_id for m in told.members]) == ("Stable", ["one"])


def test_describe_configs_returns_every_key_with_source_type_sensitivity_and_synonyms(wire, topic):
    of_broker, of_topic = describe(wire, BROKER, str(NODE_ID)), describe(wire, TOPIC, topic)
    assert of_broker.keys() >= {name for name, key in BROKER_KEYS.items() if not key.internal}
    assert of_topic.keys() == {name for name, key in TOPIC_KEYS.items() if not key.internal}
    for entry in [*of_broker.values(), *of_topic.values()]:
        assert entry.config_type in range(1, 10) and entry.config_source in range(1, 7)
    assert of_broker["ssl.key.password"].is_sensitive and of_broker["ssl.key.password"].value is None
    rows = of_topic["max.message.bytes"]
    assert [(s.name, s.value, s.source) for s in rows.synonyms] == [
        ("message.max.bytes", str(2 << 20), 4),  # the file
        ("message.max.bytes", "1048588", 5),  # the default
    ]


def alter_topic(wire: Wire, name: str, value: str, whole: bool, validate_only: bool) -> int:
    """By AlterConfigs or IncrementalAlterConfigs."""
    request = messages.AlterConfigsRequest if whole else messages.IncrementalAlterConfigsRequest
    config = request.Resources.Configs(name="retention.ms", value=value)
    resource = request.Resources(resource_type=TOPIC, resource_name=name, configs=[config])
    answer = wire.ask(request(resources=[resource], validate_only=validate_only), 1)
    return answer.responses[0].error_code


@pytest.mark.parametrize("whole", [True, False], ids=["AlterConfigs", "IncrementalAlterConfigs"])
def test_a_bad_value_is_invalid_config_and_validate_only_changes_nothing(wire, topic, whole):
    for validate_only in (True, False):
        assert alter_topic(wire, topic, "soon", whole, validate_only) == errors.INVALID_CONFIG
    assert alter_topic(wire, topic, "1234", whole, validate_only=True) == 0
    entry = describe(wire, TOPIC, topic, ["retention.ms"])["retention.ms"]
    assert (entry.value, entry.config_source) == ("604800000", 5)
    assert alter_topic(wire, topic, "1234", whole, validate_only=False) == 0
    assert describe(wire, TOPIC, topic, ["retention.ms"])["retention.ms"].value == "1234"


def test_validate_only_makes_no_topic_and_no_partition(wire, topic):
    name = fresh("validated")
    asked = messages.CreateTopicsRequest.Topics(name=name, num_partitions=1, replication_factor=1)
    request = messages.CreateTopicsRequest(topics=[asked], timeout_ms=10_000, validate_only=True)
    assert wire.ask(request, 7).topics[0].error_code == 0
    assert not exists(wire, name)
    more = messages.CreatePartitionsRequest.Topics(name=topic, count=5, assignments=None)
    grown = messages.CreatePartitionsRequest(topics=[more], timeout_ms=10_000, validate_only=True)
    assert wire.ask(grown, 3).results[0].error_code == 0
    assert len(metadata(wire, topic).topics[0].partitions) == 1


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("offsets.topic.replication.factor", "__consumer_offsets"),
        ("transaction.state.log.replication.factor", "__transaction_state"),
        ("share.coordinator.state.topic.replication.factor", "__share_group_state"),
    ],
)
def test_internal_topics_have_no_more_replicas_than_there_are_brokers(wire, key, name):
    """The key is unset: 3, as in Kafka, which then makes no such topic with one broker."""
    entry = describe(wire, BROKER, str(NODE_ID), [key])[key]
    assert (entry.value, entry.config_source) == ("3", 5)
    (told,) = metadata(wire, name).topics
    assert (told.error_code, told.is_internal) == (0, True)
    assert [p.replica_nodes for p in told.partitions] == [[NODE_ID]] * 2


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001, 2**31 - 1])
def test_a_transaction_timeout_over_the_maximum_is_refused(wire, timeout_ms):
    """Without a transactional id it means nothing."""
    request = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=timeout_ms)
    assert wire.ask(request, 4).error_code == errors.INVALID_TRANSACTION_TIMEOUT
    request.transactional_id = None
    assert wire.ask(request, 4).error_code == 0


def test_a_transaction_of_an_empty_id_is_refused(wire):
    request = messages.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
    assert wire.ask(request, 4).error_code == errors.INVALID_REQUEST


def test_keys_that_client_suites_set_are_described_with_their_values(broker, wire):
    told = describe(wire, BROKER, str(NODE_ID))
    for key, value in SUITE_KEYS.items():
        assert (told[key].value, told[key].config_source) == (str(value), 4), key
    assert told["log.dirs"].value == str(broker.data_dir)
    (seen,) = metadata(wire).brokers
    assert (seen.node_id, seen.rack) == (NODE_ID, "rack-1")


# -- connections


def test_idle_connections_are_closed_after_connections_max_idle_ms(broker):
    with Wire(broker.bootstrap) as idle, Wire(broker.bootstrap) as busy:
        idle.socket.settimeout(0.1)
        began = time.monotonic()
        closed = False
        while not closed:
            assert metadata(busy).brokers
            try:
                closed = idle.is_closed_by_broker()
            except TimeoutError:
                assert time.monotonic() - began < 10 * IDLE_MS / 1000
        assert time.monotonic() - began > 0.9 * IDLE_MS / 1000
        assert metadata(busy).brokers


def test_socket_receive_buffer_bytes_applies(wire, topic):
    """The kernel takes twice the size; no more than that is ever offered to the sender."""
    big = bytes(batch(bytes(1 << 20)))
    for _ in range(3):
        assert produce(wire, topic, big).error_code == 0
    information = wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    (window,) = struct.unpack_from("=I", information, 228)  # tcpi_snd_wnd, since Linux 5.4
    assert 0 < window <= 2 * RECEIVE_BUFFER_BYTES


def test_socket_send_buffer_bytes_applies(broker, topic):
    """What the kernel holds of an answer that nobody reads."""
    with Wire(broker.bootstrap) as wire:
        for _ in range(2):
            assert produce(wire, topic, bytes(batch(bytes(1 << 20)))).error_code == 0
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", broker.port))
        asked = messages.FetchRequest.Topics.Partitions(
            partition=0, fetch_offset=0, partition_max_bytes=4 << 20
        )
        request = messages.FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=4 << 20,
            topics=[messages.FetchRequest.Topics(topic=topic, partitions=[asked])],
        )
        data = codec.encode_request(request, 4, 1, "slow")
        slow.sendall(len(data).to_bytes(4, "big") + data)
        held, before = 0, -1
        deadline = time.monotonic() + 10
        while held == 0 or held != before:  # until it grows no more
            assert time.monotonic() < deadline
            time.sleep(0.1)
            held, before = unsent_bytes(broker.port, slow.getsockname()[1]), held
    assert 0 < held <= 2 * SEND_BUFFER_BYTES  # the kernel takes twice the size


def unsent_bytes(port: int, peer_port: int) -> int:
    """The send queue of the broker's end of a connection, of /proc/net/tcp."""
    with open("/proc/net/tcp") as table:
        for row in list(table)[1:]:
            words = row.split()
            if words[1].endswith(f":{port:04X}") and words[2].endswith(f":{peer_port:04X}"):
                return int(words[4].split(":")[0], 16)
    return 0


# -- what a restart must not change: these come last


def facts(wire: Wire, topic: str) -> SimpleNamespace:
    answer = fetch(wire, topic, 3)
    return SimpleNamespace(
        cluster=wire.ask(messages.DescribeClusterRequest(), 0).cluster_id,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start=list_offset(wire, topic, -2)[0],
    )


@pytest.fixture(scope="module")
def after_restart(broker):
    """Facts before, after a clean stop, and after a kill."""
    topic = fresh("kept")
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, topic)
        for _ in range(5):
            assert produce(wire, topic, bytes(batch(b"v"))).error_code == 0
        struct = messages.DeleteRecordsRequest.Topics
        asked = struct(name=topic, partitions=[struct.Partitions(partition_index=0, offset=3)])
        deleted = wire.ask(messages.DeleteRecordsRequest(topics=[asked], timeout_ms=5000), 2)
        assert deleted.topics[0].partitions[0].low_watermark == 3
        found = [facts(wire, topic)]
    for end in (broker.stop, broker.kill):
        end()
        identity = (broker.data_dir / "meta.properties").read_text()
        broker.restart()
        with Wire(broker.bootstrap) as wire:
            found.append(facts(wire, topic))
            found[-1].identity = identity
    return found


def test_the_cluster_id_is_22_characters_kept_in_meta_properties_and_the_same_after_every_restart(
    after_restart,
):
    before, *after = after_restart
    assert CLUSTER_ID.fullmatch(before.cluster)
    for each in after:
        assert each.cluster == before.cluster
        assert f"cluster.id={before.cluster}\n" in each.identity


def test_high_watermark_last_stable_offset_and_log_start_never_move_backwards_over_a_restart(after_restart):
    marks = [(f.high_watermark, f.last_stable_offset, f.log_start) for f in after_restart]
    assert marks == [(5, 5, 3)] * 3
