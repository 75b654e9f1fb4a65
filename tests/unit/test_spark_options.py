"""Options of format("kafkad"): the connector's names and refusals, ours beyond them, each error one
sentence.
"""

import logging
import pickle

import pytest

from kafkad.spark.options import EARLIEST, LATEST, Bound, read_options

BASE = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}


def read(streaming=False, **options):
    return read_options(
        BASE | {name.replace("__", "."): value for name, value in options.items()}, streaming=streaming
    )


def test_defaults_are_the_connectors():
    options = read()
    assert (options.start, options.end) == (
        Bound("startingOffsets", EARLIEST),
        Bound("endingOffsets", LATEST),
    )
    assert read(streaming=True).start == Bound("startingOffsets", LATEST)
    assert options.fail_on_data_loss and not options.headers and not options.latest_on_no_match
    assert (options.timeout_s, options.retries, options.retry_pause_s) == (120.0, 3, 1.0)
    assert options.trigger_delay_s == 900.0
    assert options.offsets_max is options.offsets_min is options.partitions_min is None


def test_names_are_known_in_any_case():
    options = read_options(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SUBSCRIBE": "a, b,", "MinPartitions": "4"}, streaming=True
    )
    assert (options.subscribe, options.partitions_min) == (("a", "b"), 4)


def test_options_travel_to_tasks():
    options = read(
        startingOffsets='{"t":{"0":5}}', valueFormat="json", valueSchema="a int", columns="a,offset"
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_one_time_goes_before_times_and_times_before_offsets():
    given = {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"t":{"0":2000}}',
        "startingOffsets": '{"t":{"0":7}}',
    }
    assert read(**given).start.time == 1000
    del given["startingTimestamp"]
    assert read(**given).start.times == ((("t", 0), 2000),)
    del given["startingOffsetsByTimestamp"]
    assert read(**given).start.at == ((("t", 0), 7),)
    assert read(startingOffsets=" Earliest ").start.word == EARLIEST


REFUSALS = [
    (
        False,
        {"subscribe": None},
        "say one of the options subscribe, subscribePattern, assign: they name what is read",
    ),
    (False, {"assign": '{"t":[0]}'}, "say only one of the options subscribe, subscribePattern, assign"),
    (False, {"kafka.bootstrap.servers": None}, "option kafka.bootstrap.servers is missing"),
    (False, {"subscribe": " , "}, "option subscribe must name at least one"),
    (
        False,
        {"startingOffset": "earliest"},
        "option startingoffset is not known (did you mean startingOffsets?)",
    ),
    (False, {"maxOffsetPerTrigger": "1"}, "(did you mean maxOffsetsPerTrigger?)"),
    (False, {"wholly-other": "1"}, "option wholly-other is not known"),
    (False, {"path": "x"}, "format kafkad reads topics, not a path"),
    (False, {"startingOffsets": "latest"}, "option startingOffsets must not be latest in a batch query"),
    (False, {"startingOffsets": '{"t":{"0":-1}}'}, "must not be -1 (latest) in a batch query, as for t-0"),
    (False, {"endingOffsets": "earliest"}, "option endingOffsets must not be earliest in a batch query"),
    (False, {"endingOffsets": '{"t":{"0":-2}}'}, "must not be -2 (earliest) in a batch query, as for t-0"),
    (False, {"startingOffsets": "{"}, "must be earliest, latest or JSON such as"),
    (False, {"startingOffsets": '{"t":[0]}'}, "must be earliest, latest or JSON such as"),
    (False, {"startingOffsets": '{"t":{"0":1.5}}'}, "must be earliest, latest or JSON such as"),
    (False, {"startingOffsets": '{"t":{"x":1}}'}, "must be earliest, latest or JSON such as"),
    (False, {"startingOffsets": '{"t":{"0":-3}}'}, "must be earliest, latest or JSON such as"),
    (
        False,
        {"startingOffsets": '{"t":{"0":9}}', "endingOffsets": '{"t":{"0":5}}'},
        "option startingOffsets is behind endingOffsets for t-0: 9 and 5",
    ),
    (
        False,
        {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":5,"1":5}}'},
        "options startingOffsets and endingOffsets must name the same partitions",
    ),
    (
        False,
        {"startingTimestamp": "yesterday"},
        "option startingTimestamp must be one time in milliseconds since 1970",
    ),
    (True, {"endingOffsets": "latest"}, "option endingOffsets is for batch queries: a stream has no end"),
    (True, {"endingTimestamp": "1"}, "option endingTimestamp is for batch queries: a stream has no end"),
    (
        True,
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
        "minOffsetsPerTrigger (9) must not be above",
    ),
    (
        True,
        {"maxOffsetsPerTrigger": "0"},
        "option maxOffsetsPerTrigger must be a whole number, 1 or more, not '0'",
    ),
    (False, {"minPartitions": "-1"}, "option minPartitions must be a whole number, 1 or more"),
    (False, {"minPartitions": "9" * 19}, "option minPartitions must be a whole number"),
    (True, {"maxTriggerDelay": "soon"}, "option maxTriggerDelay must be a time such as 500ms, 10s or 15m"),
    (
        True,
        {"maxBytesPerTrigger": "0"},
        "option maxBytesPerTrigger must be a size such as 134217728, 128m or 1g",
    ),
    (False, {"failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not 'no'"),
    (False, {"startingOffsetsByTimestampStrategy": "x"}, "must be error or latest, not 'x'"),
    (False, {"subscribe": None, "subscribePattern": "("}, "must be a regular expression that Python reads"),
    (False, {"subscribe": None, "assign": "t-0"}, 'option assign must be JSON such as {"topicA":[0,1]'),
    (False, {"subscribe": None, "assign": '{"t":[-1]}'}, "option assign must be JSON such as"),
    (False, {"topic": "t"}, "option topic names the topic of a writer"),
    (
        False,
        {"valueFormat": "jsn"},
        "raw, json, avro, confluent-avro, protobuf, csv (did you mean json?), not 'jsn'",
    ),
    (
        False,
        {"valueFormat": "json"},
        "option valueSchema is missing: it says what is in a value of format json",
    ),
    (False, {"badRecords": "null"}, "option badRecords needs a valueFormat: raw values are never bad"),
    (
        False,
        {"valueFormat": "json", "valueSchema": "a int", "badRecords": "dlq:"},
        "option badRecords must be fail, null, column or dlq:",
    ),
    *(
        (
            True,
            {
                "valueFormat": "json",
                "valueSchema": "a int",
                "subscribe": None,
                **read,
                "badRecords": "dlq:t-bad",
            },
            "option badRecords names t-bad, which the stream reads: it would never end",
        )
        for read in (
            {"subscribe": "t, t-bad"},
            {"subscribePattern": "^t.*"},
            {"assign": '{"t": [0], "t-bad": [0]}'},
        )
    ),
    (False, {"kafka.auto.offset.reset": "latest"}, "is not supported: say startingOffsets instead"),
    (False, {"kafka.enable.auto.commit": "true"}, "is not supported: offsets are in the query's checkpoint"),
    (False, {"kafka.key.deserializer": "x"}, "is not supported: keys arrive as bytes"),
    (False, {"kafka.isolaton.level": "x"}, "that this source knows (did you mean kafka.isolation.level?)"),
    (False, {"kafka.isolation.level": "strict"}, "must be read_committed or read_uncommitted, not 'strict'"),
]


@pytest.mark.parametrize("streaming,options,sentence", REFUSALS)
def test_what_is_wrong_is_said_in_one_sentence(streaming, options, sentence):
    given = {name: value for name, value in (BASE | options).items() if value is not None}
    with pytest.raises(ValueError) as refused:
        read_options(given, streaming=streaming)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sizes_and_times_are_written_as_in_spark():
    options = read(
        streaming=True, maxBytesPerTrigger="64m", targetPartitionBytes="1gb", maxTriggerDelay="2min"
    )
    assert (options.bytes_max, options.partition_bytes, options.trigger_delay_s) == (64 << 20, 1 << 30, 120.0)
    assert read(streaming=True, maxTriggerDelay="1500").trigger_delay_s == 1.5


def test_settings_without_effect_are_told(caplog):
    with caplog.at_level(logging.WARNING, "kafkad.spark"):
        options = read(
            kafka__max__poll__records="20000",
            kafka__isolation__level="READ_COMMITTED",
            minOffsetsPerTrigger="1",
        )
    assert options.read_committed and "max.poll.records" not in options.client_config
    assert [record.getMessage() for record in caplog.records] == [
        "option kafka.max.poll.records has no effect: this source does without it",
        "option minOffsetsPerTrigger has no effect in a batch query",
    ]


def test_a_dead_letter_topic_keeps_its_case():
    options = read(valueFormat="json", valueSchema="a int", badRecords="DLQ:Flights-Bad")
    assert (options.bad_records, options.dlq_topic) == ("dlq", "Flights-Bad")


def test_a_directory_takes_the_place_of_brokers():
    options = read_options({"logDir": "/data", "topic": "t"}, streaming=False)
    assert (options.log_dir, options.subscribe, options.bootstrap) == ("/data", ("t",), "")
