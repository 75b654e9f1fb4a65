"""Fetch answers read in place, against the codec that makes them."""

import pytest

from kafkad.client.fetch import VERSION_BY_NAME_MAX, VERSION_MAX, VERSION_MIN, read_answer
from kafkad.protocol import codec, messages
from kafkad.protocol.errors import Malformed

RECORDS = bytes(range(200))
VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)


def answer(version, *, error=0, records=RECORDS, aborted=((1, 5), (2, 6)), topics=1, partitions=1):
    response = messages.FetchResponse
    topic, partition = response.Responses, response.Responses.Partitions
    rows = [
        partition(
            partition_index=3,
            error_code=error,
            high_watermark=100,
            last_stable_offset=90,
            log_start_offset=4 if version >= 5 else -1,
            aborted_transactions=None
            if aborted is None
            else [partition.AbortedTransactions(producer_id=p, first_offset=o) for p, o in aborted],
            records=records,
        )
    ] * partitions
    named = {"topic_id": bytes(range(16))} if version > VERSION_BY_NAME_MAX else {"topic": "flights"}
    made = response(throttle_time_ms=7, responses=[topic(partitions=rows, **named)] * topics)
    if version >= 12 and topics and partitions:
        made.responses[0].partitions[0].current_leader.leader_id = 9  # tagged fields, behind the records
    return codec.encode_response(made, version, 42)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_versions(version):
    got = read_answer(memoryview(answer(version)), version)
    start = 4 if version >= 5 else -1
    assert got[:5] == (0, 100, 90, start, [(1, 5), (2, 6)]) and got.records == RECORDS
    for records, aborted in ((b"", ()), (None, None)):
        got = read_answer(memoryview(answer(version, error=1, records=records, aborted=aborted)), version)
        assert got[:5] == (1, 100, 90, start, []) and got.records == b""


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_at_each_byte_is_malformed_or_whole(version):
    whole = answer(version)
    complete = read_answer(memoryview(whole), version)
    for size in range(len(whole)):
        try:
            assert read_answer(memoryview(whole)[:size], version) == complete
        except Malformed:
            continue
        assert whole.index(RECORDS) + len(RECORDS) <= size


@pytest.mark.parametrize("version", VERSIONS)
def test_each_flipped_bit_is_malformed_or_within_the_answer(version):
    whole = answer(version)
    refused = 0
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            try:
                found = read_answer(memoryview(damaged), version)
            except Malformed:
                refused += 1
            else:
                assert bytes(found.records) in bytes(damaged)
    assert refused


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", [{"topics": 0}, {"topics": 2}, {"partitions": 0}, {"partitions": 2}])
def test_one_partition_was_asked_for(version, shape):
    with pytest.raises(Malformed, match="partition"):
        read_answer(memoryview(answer(version, **shape)), version)


@pytest.mark.parametrize("version", range(7, VERSION_MAX + 1))
def test_an_error_of_the_whole_answer(version):
    refused = codec.encode_response(messages.FetchResponse(error_code=71), version, 42)
    assert read_answer(memoryview(refused), version).error_code == 71
