"""The codec's own promises: every message there and back, bytes that lie are Malformed, and what a version
cannot say is refused.

Whether the bytes are Kafka's is asked in test_protocol_kio.py and tests/integration/test_protocol_jvm.py."""

import copy
import gc
import pickle
import random
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from kafkad._native.wire.codec import Message, Plan
from kafkad.api import table
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed
from kafkad.protocol.schema import parse
from kafkad.server.preload import preload
from tests.reference.random_messages import random_message

NAMES = messages.all_names()


def samples(name: str, count: int) -> list[tuple[int, Message]]:
    cls = messages.message_class(name)
    return [
        (version, random_message(cls, version, random.Random(f"{name} {version} {sample}")))
        for version in range(cls.MIN_VERSION, cls.LATEST_VERSION + 1)
        for sample in range(count)
    ]


# -- there and back ----------------------------------------------------------------------------------------


def test_every_api_has_its_request_and_its_response() -> None:
    assert sorted(messages.NAMES) == list(range(93))
    for key in messages.NAMES:
        request, response = codec.request_class(key), codec.response_class(key)
        assert request.API_KEY == response.API_KEY == key
        assert (request.MIN_VERSION, request.LATEST_VERSION) == (
            response.MIN_VERSION,
            response.LATEST_VERSION,
        )


def test_the_versions_that_kafka_4_dropped_are_there() -> None:
    for name in (
        "Produce",
        "Fetch",
        "ListOffsets",
        "OffsetFetch",
        "OffsetCommit",
        "CreateTopics",
        "StopReplica",
    ):
        assert messages.message_class(f"{name}Request").MIN_VERSION == 0
    assert messages.InitProducerIdRequest.MAX_VERSION == 5
    assert (
        messages.InitProducerIdRequest.LATEST_VERSION == messages.InitProducerIdResponse.LATEST_VERSION == 6
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_version_comes_back_as_it_was(name: str) -> None:
    for version, message in samples(name, 5):
        data = codec.encode(message, version)
        assert codec.decode(type(message), version, data) == (message, len(data))
        assert codec.decode(type(message), version, b"xyz" + data + b"rest", 3)[1] == len(data) + 3


def test_any_buffer_is_read_and_written() -> None:
    envelope = messages.EnvelopeRequest(
        request_data=memoryview(b"abc"), client_host_address=bytearray(b"\x7f\0\0\1")
    )
    data = codec.encode(envelope, 0)
    read, _ = codec.decode(messages.EnvelopeRequest, 0, memoryview(bytearray(data)))
    assert (read.request_data, read.client_host_address) == (b"abc", b"\x7f\0\0\1")


def test_messages_copy_pickle_and_compare() -> None:
    message = messages.MetadataResponse(topics=[messages.MetadataResponse.Topics(name="flights")])
    message.unknown_tags = {9: b"x"}
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == copy.copy(message) == message
    assert copy.copy(message).topics is message.topics
    assert copy.deepcopy(message).topics[0] is not message.topics[0]
    message.topics[0].name = "other"
    assert message != messages.MetadataResponse() and message != 1
    assert "name='other'" in repr(message)
    with pytest.raises(TypeError, match=r"MetadataResponse has no field nonsense"):
        messages.MetadataResponse(nonsense=1)
    with pytest.raises(AttributeError):
        message.nonsense = 1


def test_defaults_are_fresh() -> None:
    one, other = messages.FetchRequest(), messages.FetchRequest()
    one.topics.append(1)
    one.replica_state.replica_id = 5
    assert other.topics == [] and other.replica_state.replica_id == -1
    read, _ = codec.decode(messages.FetchRequest, 4, codec.encode(other, 4))
    assert read.replica_state is not other.replica_state and read.replica_state.replica_id == -1


# -- vectors checked by hand -------------------------------------------------------------------------------

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (
            messages.OffsetCommitKey(group="grp", topic="flights", partition=3),
            0,
            "0003 677270  0007 666c6967687473  00000003",
        ),
        (
            messages.OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=1 << 32),
            3,
            "0000000000000007  00000002  0001 6d  0000000100000000",
        ),
        (
            messages.GroupMetadataValue(
                protocol_type="consumer", generation=4, protocol=None, leader=None, current_state_timestamp=-1
            ),
            3,
            "0008 636f6e73756d6572  00000004  ffff  ffff  ffffffffffffffff  00000000",
        ),
        (
            messages.TopicRecord(name="flights", topic_id=TOPIC_ID),
            0,
            "08 666c6967687473  000102030405060708090a0b0c0d0e0f  00",
        ),
        (
            messages.PartitionRecord(
                partition_id=1, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, directories=[TOPIC_ID]
            ),
            1,
            "00000001  000102030405060708090a0b0c0d0e0f  02 00000001  02 00000001  01  01"
            "00000001  ffffffff  ffffffff  02 000102030405060708090a0b0c0d0e0f  00",
        ),
        (
            messages.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=2, isr=[2]),
            0,
            "00000001  000102030405060708090a0b0c0d0e0f  02  00 05 02 00000002  01 04 00000002",
        ),
        (
            messages.FeatureLevelRecord(name="metadata.version", feature_level=25),
            0,
            "11 6d657461646174612e76657273696f6e  0019  00",
        ),
        (
            messages.LeaderChangeMessage(
                leader_id=1,
                voters=[messages.LeaderChangeMessage.Voters(voter_id=1)],
                granting_voters=[messages.LeaderChangeMessage.GrantingVoters(voter_id=1)],
            ),
            0,
            "0000  00000001  02 00000001 00  02 00000001 00  00",
        ),
        (messages.SnapshotHeaderRecord(last_contained_log_timestamp=5), 0, "0000  0000000000000005  00"),
        (
            messages.TransactionLogValue(producer_id=9, transaction_partitions=None, next_producer_id=10),
            1,
            "0000000000000009  0000  00000000  00  00  0000000000000000  0000000000000000"
            "01 01 08 000000000000000a",
        ),
        (
            messages.ConsumerProtocolSubscription(topics=["flights"], user_data=None),
            0,
            "00000001  0007 666c6967687473  ffffffff",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else None,
)
def test_vectors(message: Message, version: int, data: str) -> None:
    expected = bytes.fromhex(data)
    assert codec.encode(message, version) == expected
    assert codec.decode(type(message), version, expected) == (message, len(expected))


# -- headers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "version", "request_header", "response_header"),
    [
        (3, 8, 1, 0),
        (3, 9, 2, 1),
        (18, 2, 1, 0),
        (18, 3, 2, 0),
        (18, 99, 2, 0),
        (7, 0, 0, 0),
        (7, 1, 1, 0),
        (7, 3, 2, 1),
    ],
)
def test_header_versions(key: int, version: int, request_header: int, response_header: int) -> None:
    assert codec.request_header_version(key, version) == request_header
    assert codec.response_header_version(key, version) == response_header


def test_a_request_with_its_header() -> None:
    request = messages.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    old = codec.encode_request(request, 0, 7, "cli")
    assert old == bytes.fromhex("000c 0000 00000007 0003 636c69  0001 67 00000001 0001 6d")
    new = codec.encode_request(request, 4, 7, None)  # the client id is never compact
    assert new == bytes.fromhex("000c 0004 00000007 ffff 00  02 67 00000001 02 6d 00 00")
    for frame, client_id in ((old, "cli"), (new, None)):
        header, body = codec.decode_request(frame)
        assert (header.correlation_id, header.client_id, body) == (7, client_id, request)
    shutdown = messages.ControlledShutdownRequest(broker_id=2)
    assert codec.encode_request(shutdown, 0, 7, "cli") == bytes.fromhex("0007 0000 00000007 00000002")


def test_a_response_with_its_header() -> None:
    response = messages.HeartbeatResponse(error_code=25)
    assert codec.encode_response(response, 0, 7) == bytes.fromhex("00000007 0019")
    assert codec.encode_response(response, 4, 7) == bytes.fromhex("00000007 00  00000000 0019 00")
    assert codec.encode_response(messages.ApiVersionsResponse(), 3, 7) == bytes.fromhex(
        "00000007 0000 01 00000000 00"
    )
    for version in (0, 4):
        frame = codec.encode_response(response, version, 7)
        assert codec.decode_response(messages.HeartbeatResponse, version, frame) == (7, response)


def test_bytes_after_a_request_are_ignored_as_kafka_does() -> None:
    frame = codec.encode_request(messages.HeartbeatRequest(), 4, 7, "cli")
    assert codec.decode_request(frame + b"more")[1] == messages.HeartbeatRequest()


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "00",
        "0003 00",
        "005d 0000" + "00" * 9,  # no such key
        "ffff 0000" + "00" * 9,
        "0003 0063" + "00" * 9,  # no such version
        "0003 ffff" + "00" * 9,
        "004c 0000" + "00" * 9,  # ShareGroupHeartbeat began with 1
        "0003 0000 00000007 7fff",  # a client id that is not there
        "0003 000c 00000007 0000",  # no tags
    ],
)
def test_requests_that_do_not_parse(frame: str) -> None:
    with pytest.raises(Malformed):
        codec.decode_request(bytes.fromhex(frame))


def test_the_header_of_an_unknown_version_parses() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0003 636c69 00")
    header, end = codec.decode_request_header(frame)
    assert (header.request_api_version, header.client_id, end) == (99, "cli", len(frame))


# -- bytes that lie ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_message_cut_anywhere_is_malformed(name: str) -> None:
    rng = random.Random(name)
    for version, message in samples(name, 2):
        data = codec.encode(message, version)
        cuts = range(len(data)) if len(data) <= 200 else sorted(rng.sample(range(len(data)), 200))
        for cut in cuts:
            with pytest.raises(Malformed):
                codec.decode(type(message), version, data[:cut])


@pytest.mark.parametrize("name", NAMES)
def test_a_garbled_message_is_malformed_or_another_message(name: str) -> None:
    rng = random.Random(name)
    for version, message in samples(name, 1):
        data = bytearray(codec.encode(message, version))
        for _ in range(60 if data else 0):
            garbled = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 5))):
                garbled[rng.randrange(len(garbled))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            try:
                read, end = codec.decode(type(message), version, garbled)
            except Malformed:
                continue
            assert end <= len(garbled)
            assert (
                codec.decode(type(message), version, codec.encode(read, version))[0] == read or read != read
            )


def malformed(cls: Any, version: int, data: str, trouble: str) -> None:
    with pytest.raises(Malformed, match=trouble):
        codec.decode(cls, version, bytes.fromhex(data))


def test_malformed_says_what_and_where() -> None:
    heartbeat, metadata = messages.HeartbeatRequest, messages.MetadataRequest
    malformed(heartbeat, 0, "ffff", r"HeartbeatRequest v0\.group_id: null where it may not be")
    malformed(heartbeat, 0, "fffe", r"group_id: a size of -2")
    malformed(heartbeat, 0, "0005 61", r"group_id: a string of 5 bytes where 1 remain")
    malformed(heartbeat, 0, "0001 61 0000", r"generation_id: ends early")
    malformed(heartbeat, 4, "00", r"group_id: null where it may not be")
    malformed(heartbeat, 4, "80808080808080", r"group_id: ends early")  # no end to the varint
    malformed(heartbeat, 4, "818002" + "61" * 40000, r"group_id: a string of 32768 bytes")
    malformed(metadata, 0, "ffffffff", r"topics: null where it may not be")
    malformed(metadata, 1, "fffffffe", r"topics: a size of -2")
    malformed(metadata, 1, "00000003 0000 0000", r"topics: 3 elements where 4 bytes remain")
    malformed(metadata, 9, "ffffffff07 00 00 00", r"topics: \d+ elements where 3 bytes remain")
    malformed(metadata, 9, "ffffffff0f 00 00 00", r"topics: a size of 4294967294")
    malformed(metadata, 1, "00000001 ffff", r"MetadataRequest.Topics v1\.name: null")
    malformed(metadata, 9, "00 01 00 00 05 00", r"MetadataRequest v9: tagged fields end early")


def test_text_that_is_not_utf_8_is_read_as_java_reads_it() -> None:
    heartbeat = messages.HeartbeatRequest
    for raw, text in (("0002 61ff", "a\ufffd"), ("0001 80", "\ufffd")):
        data = bytes.fromhex(raw) + bytes(6)
        assert codec.decode(heartbeat, 0, data)[0].group_id == text


def test_a_small_frame_cannot_claim_millions() -> None:
    fetch = codec.encode(messages.FetchRequest(), 4)
    lie = fetch[:-4] + (50_000_000).to_bytes(4, "big") + bytes(1 << 20)
    tracemalloc.start()
    with pytest.raises(Malformed):
        codec.decode(messages.FetchRequest, 4, lie)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_nothing_leaks() -> None:
    message = random_message(messages.FetchResponse, 16, random.Random(3))
    data = codec.encode(message, 16)

    def work(times: int) -> int:
        for cut in range(times):
            codec.decode(messages.FetchResponse, 16, codec.encode(message, 16))
            try:
                codec.decode(messages.FetchResponse, 16, data[: cut % len(data)])
            except Malformed:
                continue
            raise AssertionError("a cut message was read")
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = work(100)
    after = work(1000)
    tracemalloc.stop()
    assert after - before < 10_000


# -- tagged fields (KIP-482) -------------------------------------------------------------------------------


def test_unknown_tags_are_kept_and_written_in_order() -> None:
    message = messages.FetchRequest(cluster_id="c")
    message.unknown_tags = {300: b"later", 7: b"x"}
    data = codec.encode(message, 15)
    assert data.endswith(bytes.fromhex("03  00 02 02 63  07 01 78  ac02 05 6c61746572"))
    read, _ = codec.decode(messages.FetchRequest, 15, data)
    assert read == message and codec.encode(read, 15) == data


def test_an_unknown_tag_between_known_ones_keeps_its_place() -> None:
    response = messages.ApiVersionsResponse(finalized_features_epoch=1, zk_migration_ready=True)
    response.unknown_tags = {9: b""}
    assert codec.encode(response, 3).endswith(bytes.fromhex("03  01 08 0000000000000001  03 01 01  09 00"))


def test_a_known_tag_cannot_be_unknown() -> None:
    message = messages.FetchRequest()
    message.unknown_tags = {1: b""}
    with pytest.raises(ValueError, match="knows tag 1"):
        codec.encode(message, 15)
    assert codec.encode(message, 12).endswith(b"\x01\x01\x00")  # where it is unknown


def test_the_last_of_duplicate_tags_counts_and_order_does_not_matter_as_in_kafka() -> None:
    body = codec.encode(messages.ApiVersionsResponse(), 3)[:-1]
    read, _ = codec.decode(
        messages.ApiVersionsResponse,
        3,
        body + bytes.fromhex("04  03 01 01  01 08" + "00" * 8 + "03 01 00  03 01 01"),
    )
    assert read.zk_migration_ready is True and read.finalized_features_epoch == 0


def test_a_tagged_struct_that_may_be_null() -> None:
    value = messages.ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    data = codec.encode(value, 0)
    assert data.endswith(bytes.fromhex("01 00 01 00"))
    assert codec.decode(type(value), 0, data)[0].classic_member_metadata is None
    assert codec.encode(messages.ConsumerGroupMemberMetadataValue(), 0).endswith(b"\0")


def test_tags_where_there_are_none() -> None:
    message = messages.HeartbeatRequest()
    message.unknown_tags = {1: b""}
    with pytest.raises(ValueError, match="HeartbeatRequest v0 has no tagged fields"):
        codec.encode(message, 0)


# -- what a version cannot say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "version", "trouble"),
    [
        (messages.CreateTopicsRequest(validate_only=True), 0, "CreateTopicsRequest v0 has no validate_only"),
        (messages.MetadataRequest(topics=None), 0, "topics may not be null"),
        (messages.MetadataRequest(topics=3), 1, "MetadataRequest.topics: "),
        (messages.MetadataRequest(topics=["flights"]), 1, "a str where MetadataRequest.Topics belongs"),
        (messages.HeartbeatRequest(generation_id=1 << 31), 0, "2147483648 is out of range"),
        (messages.HeartbeatRequest(generation_id=1 << 70), 0, "is out of range"),
        (messages.HeartbeatRequest(generation_id="1"), 0, "HeartbeatRequest.generation_id: "),
        (messages.HeartbeatRequest(group_id=None), 0, "group_id may not be null"),
        (messages.HeartbeatRequest(group_id=b"g"), 0, "HeartbeatRequest.group_id: "),
        (messages.HeartbeatRequest(group_id="g" * 32768), 0, "group_id is longer than 32767 bytes"),
        (messages.HeartbeatRequest(group_id="\ud800"), 0, "surrogates not allowed"),
        (messages.TopicRecord(topic_id=b"short"), 0, "a uuid has 16 bytes"),
        (messages.FetchRequest(cluster_id=3), 12, "FetchRequest.cluster_id: "),
        (messages.HeartbeatRequest(), 5, "HeartbeatRequest has no version 5"),
        (messages.ShareFetchRequest(), 0, "ShareFetchRequest has no version 0"),
        (messages.HeartbeatRequest(), -1, "has no version -1"),
    ],
)
def test_what_cannot_be_encoded_is_a_value_error(message: Message, version: int, trouble: str) -> None:
    with pytest.raises(ValueError, match=trouble):
        codec.encode(message, version)


def test_ignorable_fields_are_dropped_in_silence() -> None:
    response = messages.MetadataResponse(cluster_id="c", throttle_time_ms=5)
    read, _ = codec.decode(messages.MetadataResponse, 0, codec.encode(response, 0))
    assert (read.cluster_id, read.throttle_time_ms) == (None, 0)


def test_a_deleted_field_is_said_so() -> None:
    message = messages.HeartbeatRequest()
    del message.group_id
    with pytest.raises(ValueError, match="group_id was deleted"):
        codec.encode(message, 0)


# -- schemas -----------------------------------------------------------------------------------------------


def test_importing_reads_no_schema() -> None:
    code = "from kafkad.protocol import codec, messages; print(len(messages._loaded))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_names_that_do_not_exist() -> None:
    with pytest.raises(AttributeError):
        _ = messages.NoSuchRequest
    with pytest.raises(KeyError):
        messages.message_class("Path")


def test_the_notation() -> None:
    text = """# a comment
Thing  record 4  versions 1-5  flexible 3+  unstable 5
  a    int32 = -7     2-3   ignorable
  b    []             nullable 4+
    c  string = "x"
    d  {}?            4+    tag 2
      e  []uuid?
"""
    (schema,) = parse(text)
    assert (schema.name, schema.record, schema.versions, schema.highest_stable) == ("Thing", 4, (1, 5), 4)
    a, b = schema.spec.fields
    assert (a.default, a.versions, a.ignorable) == (-7, (2, 3), True)
    assert b.struct is not None and (b.type, b.nullable, b.struct.path) == ("[]", (4, 5), "Thing.B")
    c, d = b.struct.fields
    assert d.struct is not None and (c.default, d.tag, d.tagged, d.nullable) == ("x", 2, (4, 5), (4, 5))
    assert (d.struct.fields[0].type, d.struct.fields[0].versions) == ("[]uuid", (4, 5))
    with pytest.raises(ValueError, match="means nothing"):
        parse("Thing  versions 0  flexible none\n  a  int8  0  never  mind\n")


def test_the_plans_of_all_that_is_served_are_made_before_the_first_request():
    """One that is made in the middle of a large request pins a mebibyte of Python's heap: 40 MB stayed."""

    def plans():
        gc.unfreeze()  # a test before this one may have started a worker, which freezes what there is
        return sum(type(it) is Plan for it in gc.get_objects())

    preload()
    before = plans()
    for row in table.ROWS:
        for cls in (messages.request_class(row.key), messages.response_class(row.key)):
            for version in range(row.low, row.high + 1):
                codec.encode(cls(), version)
    assert plans() == before > 300
    gc.collect()
    gc.freeze()  # the tests, again: see conftest.pytest_collection_finish


def test_threads_that_use_a_message_first_at_once_get_one_class() -> None:
    """In a process of its own, which has read no schema yet."""
    program = """
import sys, threading
from kafkad.protocol import messages

sys.setswitchinterval(1e-6)
for name in messages.NAMES.values():
    start, found = threading.Barrier(4), []

    def use():
        start.wait()
        found.append(getattr(messages, name + "Request"))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*found, getattr(messages, name + "Request")} == {found[0]}, name
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
