"""Messages that are read, written and freed in steps: the same as in one go, and no step is long.

Issue 15, "what can one client make the others wait for": 100,000 elements in one request."""

import gc
import random
import struct
import sys

import pytest

from kafkad._native.wire.codec import TooWide
from kafkad._native.wire.codec_steps import Decoding, Encoding, Remains
from kafkad.api import table
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed
from tests.reference.random_messages import random_message
from tests.unit.steps import finish

NAMES = messages.all_names()
Topics = messages.OffsetCommitRequest.Topics
Groups = messages.OffsetFetchRequest.Groups


def decoded(cls, version, data, offset=0, values=1, values_max=1 << 40):
    """(message, steps)."""
    decoding, steps = Decoding(cls, version, data, offset, values_max), 1
    while not decoding.step(values):
        steps += 1
    return decoding.message, steps


def encoded(message, version, prefix=b"", values=1):
    """The pieces."""
    encoding = Encoding(message, version, prefix)
    pieces = [encoding.step(values)]
    while not encoding.ended:
        pieces.append(encoding.step(values))
    return pieces


def freed(message_in_a_list, values=100):
    """How many steps it takes."""
    remains, steps = Remains(message_in_a_list.pop()), 1
    while not remains.step(values):
        steps += 1
    return steps


def samples(name):
    cls = messages.message_class(name)
    for version in range(cls.MIN_VERSION, cls.LATEST_VERSION + 1):
        yield version, random_message(cls, version, random.Random(f"steps {name} {version}"))


def commit(topics, partitions):
    """A request of two levels of arrays."""
    return messages.OffsetCommitRequest(
        group_id="g",
        topics=[
            Topics(
                name=f"t{i}",
                partitions=[
                    Topics.Partitions(partition_index=j, committed_offset=1 << 40) for j in range(partitions)
                ],
            )
            for i in range(topics)
        ],
    )


# -- the slow twin is the codec that does it in one go ------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_in_steps_it_is_what_it_is_in_one_go(name):
    for version, message in samples(name):
        data = codec.encode(message, version, b"abc")
        for values in (1, 7, 1 << 40):
            assert b"".join(encoded(message, version, b"abc", values)) == data
            assert decoded(type(message), version, data + b"rest", 3, values)[0] == message


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_lie_are_malformed_in_steps_exactly_when_in_one_go(name):
    chance = random.Random(f"lies {name}")
    for version, message in samples(name):
        data = bytearray(codec.encode(message, version))
        for _ in range(8):
            lie = bytearray(data[: chance.randrange(len(data) + 1)])
            for _ in range(chance.randrange(3)):
                if lie:
                    lie[chance.randrange(len(lie))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            for values_max in (5, 1 << 40):
                try:
                    wanted, trouble = codec.decode(type(message), version, bytes(lie), 0, values_max)[0], None
                except Malformed as error:
                    wanted, trouble = None, str(error)
                try:
                    assert decoded(type(message), version, bytes(lie), 0, 3, values_max)[0] == wanted
                    assert trouble is None
                except Malformed as error:
                    assert str(error) == trouble


@pytest.mark.parametrize("name", NAMES)
def test_what_a_version_cannot_say_is_refused_in_steps_exactly_when_in_one_go(name):
    chance = random.Random(f"refused {name}")
    for version, message in samples(name):
        for field in message.SPEC.fields:
            was = getattr(message, field.name)
            setattr(
                message, field.name, chance.choice((None, "x", 1 << 70, [None], ["x"], [1 << 70], message))
            )
            try:
                wanted, trouble = codec.encode(message, version), None
            except ValueError as error:
                wanted, trouble = None, str(error)
            try:
                assert b"".join(encoded(message, version)) == wanted
            except ValueError as error:
                assert str(error) == trouble
            setattr(message, field.name, was)


# -- no step is long ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics, partitions", [(1, 3000), (3000, 1), (50, 60), (3000, 0)])
def test_each_step_has_its_share(topics, partitions):
    message = commit(topics, partitions)
    data = codec.encode(message, 8)
    pieces = encoded(message, 8, values=100)
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) < 100 * 8
    assert len(pieces) * 100 < 8 * (topics + topics * partitions) + 200
    read, steps = decoded(type(message), 8, data, values=100)
    assert read == message
    assert steps == len(pieces)
    held = [read]
    del read
    assert freed(held) * 25 >= topics


def test_a_message_is_nobodys_before_it_is_whole():
    data = codec.encode(commit(100, 1), 8)
    decoding = Decoding(messages.OffsetCommitRequest, 8, data)
    assert not decoding.step(10)
    with pytest.raises(ValueError, match="to its end"):
        _ = decoding.message


def test_a_list_that_changes_between_steps_is_noticed():
    message = commit(1, 1000)
    encoding = Encoding(message, 8)
    encoding.step(100)
    del message.topics[0].partitions[500:]
    with pytest.raises(ValueError, match="partitions changed while it was encoded"):
        encoding.step(1 << 40)


def test_a_wide_answer_is_not_encoded_in_one_go():
    wide = messages.DescribeGroupsResponse(
        groups=[messages.DescribeGroupsResponse.Groups() for _ in range(2000)]
    )
    with pytest.raises(TooWide):
        codec.encode(wide, 5, b"", codec.NARROW_VALUES)
    assert codec.encode_narrow_response(wide, 5, 1) is None
    pieces = []
    steps = len(list(codec.encode_response_in_steps(wide, 5, 1, pieces.append)))
    assert b"".join(pieces) == codec.encode_response(wide, 5, 1)
    assert steps > 10
    assert codec.encode_narrow_response(messages.DescribeGroupsResponse(), 5, 1) is not None


def test_nobody_waits_for_an_answer_whose_connection_is_closed():
    wide = messages.DescribeGroupsResponse(
        groups=[messages.DescribeGroupsResponse.Groups() for _ in range(2000)]
    )
    pieces = []
    assert (
        sum(1 for _ in codec.encode_response_in_steps(wide, 5, 1, lambda piece: bool(pieces.append(piece))))
        == 0
    )
    assert len(pieces) == 1


# -- freeing ------------------------------------------------------------------------------------------------


def test_what_others_hold_stays_as_it_is():
    shared = [Topics.Partitions(partition_index=j) for j in range(1000)]
    kept = Topics(name="kept", partitions=[Topics.Partitions(partition_index=j) for j in range(1000)])
    wide = [messages.OffsetCommitRequest(topics=[Topics(partitions=shared), kept, Topics(partitions=shared)])]
    assert freed(wide) > 0
    assert len(shared) == 1000
    assert [each.partition_index for each in kept.partitions] == list(range(1000))
    held = commit(1, 1000)
    assert freed([held]) == 1
    assert len(held.topics[0].partitions) == 1000


@pytest.mark.parametrize("topics, partitions", [(1, 20_000), (20_000, 1)])
def test_freeing_gives_all_memory_back(topics, partitions):
    before = sys.getallocatedblocks()
    wide = [
        decoded(messages.OffsetCommitRequest, 8, codec.encode(commit(topics, partitions), 8), values=1000)[0]
    ]
    held = sys.getallocatedblocks() - before
    assert held > 20_000
    assert freed(wide) > 100
    assert sys.getallocatedblocks() - before < held / 100


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("topics, partitions", [(1, 20_000), (20_000, 1), (100, 200)])
def test_what_was_read_of_a_malformed_message_is_freed_in_steps(topics, partitions, left):
    data = codec.encode(commit(topics, partitions), 8)
    cut = data[: int(len(data) * left)] + b"\xff" * (len(data) - int(len(data) * left))
    before = sys.getallocatedblocks()
    decoding = Decoding(messages.OffsetCommitRequest, 8, cut)
    with pytest.raises(Malformed):
        while not decoding.step(1_000):
            pass
    read = sys.getallocatedblocks() - before
    remains = decoding.remains()
    with pytest.raises(ValueError):
        decoding.message  # noqa: B018
    most, blocks = 0, sys.getallocatedblocks()
    ended = False
    while not ended:
        ended = remains.step(1_000)
        now = sys.getallocatedblocks()
        most, blocks = max(most, blocks - now), now
    del decoding, remains
    assert most < 6_000
    assert sys.getallocatedblocks() - before < 200 < read


def test_the_garbage_collector_does_not_look_at_messages():
    """It stopped everybody for as long as decoding took, each time that it walked them."""
    wide, _ = codec.decode(messages.OffsetCommitRequest, 8, codec.encode(commit(50, 50), 8))
    for message in (wide, commit(50, 50)):
        inside = [*message.topics, *(each for topic in message.topics for each in topic.partitions)]
        assert not any(map(gc.is_tracked, inside))
    assert not any(gc.is_tracked(topic.partitions) for topic in wide.topics)
    assert not gc.is_tracked(messages.OffsetCommitRequest().topics)


# -- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", table.ROWS, ids=lambda row: row.name)
def test_no_request_that_is_served_has_tagged_arrays(row):
    """Those are read in one go."""

    def arrays(spec):
        for field in spec.fields:
            if field.tagged[0] <= field.tagged[1] and row.handler is not None:
                assert not field.type.startswith("[]"), field.name
            if field.struct is not None:
                arrays(field.struct)

    arrays(codec.request_class(row.key).SPEC)


def test_unknown_tags_count_for_what_they_cost():
    """600,000 of them parsed, in one go of 0.2 s."""
    many = b"\x80\x89\x03" + b"".join(b"\xff\xff\x7f\0" for _ in range(50_304))
    frame = struct.pack(">hhih", 18, 3, 1, -1) + b"\0" + b"\1\1" + many
    with pytest.raises(Malformed, match="more values than one message may have"):
        codec.decode_request(frame)
    header = struct.pack(">hhih", 18, 3, 1, -1) + many + b"\1\1\0"
    with pytest.raises(Malformed, match="more values than one message may have"):
        codec.decode_request(header)


def test_requests_and_responses_in_steps():
    request = commit(100, 100)
    frame = codec.encode_request(request, 8, 7, "me")
    assert finish(codec.encode_request_in_steps(request, 8, 7, "me")) == frame
    header, read = finish(codec.decode_request_in_steps(frame))
    assert (header.correlation_id, header.client_id, read) == (7, "me", request)
    fetched = messages.OffsetFetchResponse(
        groups=[messages.OffsetFetchResponse.Groups(group_id=str(i)) for i in range(5000)]
    )
    answer = codec.encode_response(fetched, 8, 9)
    assert finish(codec.decode_response_in_steps(type(fetched), 8, answer)) == (9, fetched)
    with pytest.raises(Malformed, match="has no version 99"):
        finish(codec.decode_request_in_steps(struct.pack(">hhih", 9, 99, 1, -1) + b"\0"))
