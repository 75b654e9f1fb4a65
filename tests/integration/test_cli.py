"""The commands as people and programs use them: a subprocess each, against a real broker."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.transactions import Transactions
from tests.clients import create_topic, produce, wait_until
from tests.reference.message_sets import message_set, wrapper

SECONDS = 30
JSON_KEYS = {
    "topics --list": {"topic", "topic_id", "partitions", "internal"},
    "topics --describe": {
        *("topic", "topic_id", "partition", "leader", "leader_epoch", "replicas", "isr", "configs"),
    },
    "offsets": {"topic", "partition", "earliest", "latest", "span"},
    "offsets --time 0": {"topic", "partition", "offset"},
    "configs --describe --all --broker 1": {
        *("type", "name", "key", "value", "source", "read_only", "sensitive"),
    },
    "cluster api-versions": {"broker", "key", "api", "lowest", "highest", "usable"},
    "cluster log-dirs": {
        "broker",
        "directory",
        "topic",
        "partition",
        "size",
        "offset_lag",
        "future",
        "error",
    },
}


class Cli:
    """`kafkad COMMAND` with the broker's address in the environment."""

    def __init__(self, bootstrap="127.0.0.1:1"):
        self.environment = {**os.environ, "KAFKAD_BOOTSTRAP_SERVER": bootstrap, "PYTHONWARNINGS": "error"}

    def start(self, *arguments, **how):
        return subprocess.Popen(
            [sys.executable, "-m", "kafkad", *map(str, arguments)],
            stdin=how.pop("stdin", subprocess.PIPE), stdout=how.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE, env=self.environment, **how,
        )  # fmt: skip

    def run(self, *arguments, stdin=b"", **how):
        process = self.start(*arguments, **how)
        out, err = process.communicate(stdin, timeout=SECONDS)
        assert b"Traceback" not in err, err.decode()
        return process.returncode, out, err.decode()

    def __call__(self, *arguments, stdin=b""):
        """stdout of a command that succeeds."""
        code, out, err = self.run(*arguments, stdin=stdin)
        assert code == 0, err
        return out.decode()

    def json(self, *arguments, stdin=b""):
        return json.loads(self(*arguments, "--json", stdin=stdin))

    def fails(self, code, *arguments, stdin=b""):
        """The error message of a command that fails."""
        got, _, err = self.run(*arguments, stdin=stdin)
        assert got == code, err
        assert re.fullmatch(r"kafkad: [^\n]+\.?\n", err), err
        return err


@pytest.fixture(scope="module")
def cli(broker):
    return Cli(broker.bootstrap)


@pytest.fixture
def topic(cli, unique):
    name = unique("cli")
    cli("topics", "--create", "--topic", name, "--partitions", 2)
    return name


# -- topics, offsets, configs, cluster ---------------------------------------------------------------------


def test_a_topic_from_its_creation_to_its_end(cli, unique):
    name = unique("life")
    made = cli.json(
        *(
            "topics",
            "--create",
            "--topic",
            name,
            "--partitions",
            2,
            "--config",
            "cleanup.policy=compact,delete",
        )
    )
    assert made == [{"topic": name, "partitions": 2, "replication_factor": 1}]
    assert "already exists" in cli.fails(1, "topics", "--create", "--topic", name)
    assert cli("topics", "--create", "--topic", name, "--if-not-exists") == ""
    assert name in cli("topics", "--list").splitlines()
    first, second = cli.json("topics", "--describe", "--topic", name)
    assert (first["partition"], second["partition"], first["leader"], first["isr"]) == (0, 1, 1, [1])
    assert first["configs"] == {"cleanup.policy": "compact,delete"}
    (by_id,) = {row["topic"] for row in cli.json("topics", "--describe", "--topic-id", first["topic_id"])}
    assert by_id == name
    table = cli("topics", "--describe", "--topic", name).splitlines()
    assert table[0].split()[:3] == ["TOPIC", "PARTITION", "LEADER"]
    assert len(table) == 3
    assert cli.json("topics", "--alter", "--topic", name, "--partitions", 5) == [
        {"topic": name, "partitions": 5}
    ]
    assert "5" in cli.fails(1, "topics", "--alter", "--topic", name, "--partitions", 5)
    assert cli.json("topics", "--delete", "--topic", name[:-1] + ".") == [{"topic": name}]
    assert "no topic" in cli.fails(1, "topics", "--describe", "--topic", name)
    assert cli.json("topics", "--delete", "--topic", name, "--if-exists") == []


def test_a_replica_assignment_is_taken(cli, unique):
    name = unique("assigned")
    cli("topics", "--create", "--topic", name, "--replica-assignment", "1,1,1")
    assert [row["replicas"] for row in cli.json("topics", "--describe", "--topic", name)] == [[1], [1], [1]]
    assert "INVALID_REPLICA_ASSIGNMENT" in cli.fails(
        1, "topics", "--create", "--topic", unique("x"), "--replica-assignment", "1:99"
    )


@pytest.mark.parametrize("command", JSON_KEYS)
def test_json_has_its_documented_keys(cli, topic, command):
    rows = cli.json(*command.split())
    assert rows
    assert all(row.keys() == JSON_KEYS[command] for row in rows)


def test_cluster(cli):
    told = cli.json("cluster", "metadata")
    assert told.keys() == {"cluster_id", "controller_id", "brokers", "topics", "partitions"}
    assert told["brokers"][0].keys() == {"broker", "host", "port", "rack"}
    assert cli.json("cluster", "cluster-id") == {"cluster_id": told["cluster_id"]}
    assert told["cluster_id"] in cli("cluster", "metadata")
    assert "Produce" in cli("cluster", "api-versions")


def test_offsets_and_deleting_records(cli, topic):
    cli("produce", "--topic", topic, "--partition", 1, stdin=b"a\nb\nc\n")
    rows = cli.json("offsets", "--topic", topic)
    assert [(r["earliest"], r["latest"]) for r in rows] == [(0, 0), (0, 3)]
    at = {r["partition"]: r["offset"] for r in cli.json("offsets", "--topic", topic, "--time", "2020-01-01")}
    assert at == {0: None, 1: 0}
    assert cli.json("offsets", "--topic", topic, "--time", "latest", "--partitions", "1")[0]["offset"] == 3
    deleted = cli.json("offsets", "--topic", topic, "--partitions", 1, "--delete-before", 2)
    assert deleted == [{"topic": topic, "partition": 1, "earliest": 2}]
    assert "OFFSET_OUT_OF_RANGE" in cli.fails(1, "offsets", "--topic", topic, "--delete-before", 99)
    cli.fails(2, "offsets", "--topic", topic, "--delete-before", "x")
    cli.fails(2, "offsets", "--time", "never")
    cli.fails(1, "offsets", "--topic", "nope")


def test_configs(cli, topic, tmp_path):
    alter = ("configs", "--alter", "--topic", topic)
    changed = cli.json(*alter, "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]")
    assert changed[0]["set"] == {"retention.ms": "3600000", "cleanup.policy": "compact,delete"}
    rows = cli.json("configs", "--describe", "--topic", topic)
    own = {row["key"]: row["value"] for row in rows if row["source"] == "topic"}
    assert own == {"cleanup.policy": "compact,delete", "retention.ms": "3600000"}
    cli(*alter, "--delete-config", "retention.ms,cleanup.policy")
    rows = cli.json("configs", "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
    value = {row["key"]: (row["value"], row["source"]) for row in rows}["retention.ms"]
    assert value == ("604800000", "default")
    file = tmp_path / "more.properties"
    file.write_text("max.message.bytes = 5000\n")
    cli(*alter, "--add-config-file", file)
    assert "max.message.bytes" in cli("configs", "--describe", "--topic", topic)
    assert "retention.ms" in cli.fails(1, *alter, "--add-config", "retention.ms=soon")
    assert "INVALID_CONFIG" in cli.fails(1, *alter, "--add-config", "no.such.key=1")
    assert "topics have no retention.msec" in cli.fails(1, *alter, "--delete-config", "retention.msec")
    cli.fails(1, "configs", "--describe", "--topic", "nope")
    cli.fails(2, *alter)
    cli.fails(2, *alter, "--add-config", "x")
    cli.fails(2, "configs", "--describe")
    cli.fails(2, "configs", "--describe", "--broker", "one")


# -- produce and consume -----------------------------------------------------------------------------------


def consume(cli, topic, *arguments):
    return cli("consume", "--topic", topic, "--from-beginning", "--until-end", *arguments)


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_lines_keys_headers_and_nulls(cli, topic):
    reader = [
        f"--reader-property={pair}"
        for pair in ("parse.key=true", "key.separator=:", "parse.headers=true", "null.marker=NULL")
    ]
    lines = b"a:1,b:NULL\tk1:v1\n\tNULL:v2\r\nNULL\tk3:NULL\n"
    assert cli.json("produce", "--topic", topic, "--partition", 0, *reader, stdin=lines) == [
        {"topic": topic, "records": 3}
    ]
    rows = objects(consume(cli, topic, "--json"))
    assert [(r["key"], r["value"], r["headers"]) for r in rows] == [
        ("k1", "v1", [["a", "1"], ["b", None]]),
        (None, "v2", []),
        ("k3", None, []),
    ]
    shown = [f"--property=print.{what}=true" for what in ("key", "offset", "partition", "headers")]
    assert consume(cli, topic, *shown, "--formatter-property", "null.literal=-").splitlines() == [
        "Partition:0\tOffset:0\ta:1,b:-\tk1\tv1",
        "Partition:0\tOffset:1\tNO_HEADERS\t-\tv2",
        "Partition:0\tOffset:2\tNO_HEADERS\tk3\t-",
    ]
    failed = cli.run("produce", "--topic", topic, "--key-separator", ":", stdin=b"x:y\nz\n")
    assert failed[0] == 1 and "line 2 has no key separator ':'" in failed[2]


def test_bytes_that_are_no_text(cli, topic):
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    cli("produce", "--topic", topic, stdin=data + b"\n")
    code, out, _ = cli.run("consume", "--topic", topic, "--from-beginning", "--max-messages", 1)
    assert (code, out) == (0, data + b"\n")
    (row,) = objects(consume(cli, topic, "--json"))
    assert row["value"].keys() == {"base64"}


def test_one_record_is_no_plural(cli, topic, tmp_path):
    (tmp_path / "line").write_text("one\n")
    assert cli.run("produce", "--topic", topic, "--file", tmp_path / "line")[2] == (
        f"1 record written to {topic}.\n"
    )


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_file_with_every_codec(cli, topic, tmp_path, codec):
    file = tmp_path / "lines"
    file.write_text("".join(f"line {n}\n" for n in range(3000)) + "the last has no end")
    _, _, err = cli.run("produce", "--topic", topic, "--file", file, "--compression-codec", codec)
    assert err == f"3,001 records written to {topic}.\n"
    assert sorted(consume(cli, topic).splitlines()) == sorted(file.read_text().splitlines())


def test_slow_input_is_sent_when_it_pauses(cli, topic):
    process = cli.start("produce", "--topic", topic)
    process.stdin.write(b"one\ntwo\nhal")
    process.stdin.flush()
    wait_until(lambda: sum(r["span"] for r in cli.json("offsets", "--topic", topic)) == 2, timeout=10)
    _, err = process.communicate(b"f\n", timeout=SECONDS)
    assert process.returncode == 0, err
    assert sorted(consume(cli, topic).split()) == ["half", "one", "two"]


def test_settings_of_kafkas_own_tools_are_taken(cli, topic):
    cli(
        "produce",
        "--topic",
        topic,
        "--producer-property",
        "acks=1",
        "--property",
        "parse.key=false",
        stdin=b"x",
    )
    cli("produce", "--topic", topic, "--acks", 0, "--compression-codec", "--sync", stdin=b"y")
    wait_until(lambda: len(consume(cli, topic).split()) == 2, timeout=5)
    _, out, err = cli.run(
        *(
            "consume",
            "--topic",
            topic,
            "--timeout-ms",
            500,
            "--consumer-property",
            "auto.offset.reset=earliest",
        ),
        *("--consumer-property", "fetch.min.bytes=1"),
    )
    assert len(out.split()) == 2 and "ignored: fetch.min.bytes" in err


def test_where_to_start_and_stop(cli, topic):
    cli("produce", "--topic", topic, "--partition", 1, stdin=b"a\nb\nc\nd\n")
    at = ("consume", "--topic", topic, "--partition", 1, "--until-end")
    assert cli(*at, "--offset", 2).split() == ["c", "d"]
    assert cli(*at, "--offset", "earliest", "--max-messages", 1).split() == ["a"]
    assert cli(*at, "--offset", "latest") == cli(*at, "--offset", 4) == ""
    assert "holds offsets 0 to 4, not 5" in cli.fails(1, *at, "--offset", 5)
    assert "no partition 7, only 0 to 1" in cli.fails(1, "consume", "--topic", topic, "--partition", 7)
    assert cli("consume", "--topic", topic, "--timeout-ms", 100) == ""
    cli.fails(2, *at, "--offset", "x")
    cli.fails(2, "consume", "--topic", topic, "--offset", 1)
    cli.fails(2, "consume", "--topic", topic, "--formatter-property", "print.colour=true")
    cli.fails(1, "consume", "--topic", "nope", "--partition", 0)


def test_the_end_of_a_topic_that_is_not_there_is_an_error_and_makes_none(cli, unique):
    """HUNTS U7: consume --until-end made the topic and ended with 0."""
    missing = unique("missing")
    assert missing in cli.fails(1, "consume", "--topic", missing, "--until-end")
    assert missing not in cli("topics", "--list").split()


def test_lines_before_a_bad_one_are_written(cli, topic):
    """HUNTS U3: 3,000 good lines before one without a key separator were dropped, and nothing said."""
    good = b"".join(b"k:%d\n" % number for number in range(3000))
    code, _, err = cli.run("produce", "--topic", topic, "--key-separator", ":", stdin=good + b"bad\nk:late\n")
    assert code == 1
    assert "3,000 records reached" in err and "line 3001 has no key separator" in err
    assert len(cli("consume", "--topic", topic, "--from-beginning", "--until-end").split()) == 3000


def test_a_reader_that_goes_away_and_a_full_disk(cli, topic):
    cli("produce", "--topic", topic, stdin=b"x" * 1000 + b"\n" + b"line\n" * 100_000)
    process = cli.start("consume", "--topic", topic, "--from-beginning")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr.read() == b""
    with open("/dev/full", "wb") as full:
        code, _, err = cli.run("consume", "--topic", topic, "--from-beginning", "--until-end", stdout=full)
    assert (code, "No space left" in err) == (1, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_member_commits_what_it_printed_and_leaves(cli, topic, unique, number, code):
    group = unique("interrupted")
    cli("produce", "--topic", topic, "--partition", 0, stdin=b"a\nb\n")
    process = cli.start("consume", "--topic", topic, "--group", group, "--from-beginning")
    assert [process.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (code, b"Processed a total of 2 messages\n")  # HUNTS U9
    (state,) = cli.json("groups", "--describe", "--group", group, "--state")
    assert (state["state"], state["members"]) == ("Empty", 0)
    rows = cli.json("groups", "--describe", "--group", group)
    assert {r["partition"]: r["current_offset"] for r in rows}[0] == 2


def test_a_group_continues_where_it_was(cli, topic, unique):
    group = unique("continues")
    cli("produce", "--topic", topic, "--partition", 0, stdin=b"a\nb\nc\n")
    reading = ("consume", "--topic", topic, "--group", group, "--from-beginning", "--timeout-ms", 1500)
    assert cli(*reading, "--max-messages", 2).split() == ["a", "b"]
    assert cli(*reading, "--max-messages", 1).split() == ["c"]
    assert cli(*reading) == ""


# -- groups ------------------------------------------------------------------------------------------------


def test_groups(cli, topic, unique, tmp_path):
    group = unique("group")
    cli("produce", "--topic", topic, "--partition", 0, stdin=b"a\nb\nc\n")
    process = cli.start("consume", "--topic", topic, "--group", group, "--from-beginning")
    assert process.stdout.readline() == b"a\n"
    (member,) = cli.json("groups", "--describe", "--group", group, "--members")
    assert member["partitions"] == [f"{topic}-0", f"{topic}-1"]
    assert "stop its consumers first" in cli.fails(1, "groups", "--delete", "--group", group)
    reset = ("groups", "--reset-offsets", "--group", group, "--topic", topic)
    assert "stop its consumers first" in cli.fails(1, *reset, "--to-earliest", "--execute")
    process.terminate()
    process.communicate(timeout=SECONDS)

    assert group in cli("groups", "--list").splitlines()
    assert {"group": group, "state": "Empty", "protocol_type": "consumer"} in cli.json("groups", "--list")
    rows = cli.json("groups", "--describe", "--group", group)
    assert [(r["current_offset"], r["log_end_offset"], r["lag"]) for r in rows] == [(3, 3, 0), (0, 0, 0)]

    def offsets(*arguments):
        rows = cli.json(*reset, *arguments)
        assert all(row.keys() == {"group", "topic", "partition", "new_offset"} for row in rows)
        return [row["new_offset"] for row in rows]

    assert offsets("--to-earliest") == [0, 0]
    assert offsets("--to-latest") == offsets("--to-current") == [3, 0]
    assert offsets("--to-offset", 2) == [2, 0]
    assert offsets("--shift-by", -2) == [1, 0]
    assert offsets("--by-duration", "PT1H") == [0, 0]
    assert offsets("--to-datetime", "2999-01-01T00:00:00.000") == [3, 0]
    plan = cli(*reset, "--shift-by", "-1", "--export")
    assert plan == f"{group},{topic},0,2\n{group},{topic},1,0\n"
    (tmp_path / "plan.csv").write_text(plan)
    from_file = ("groups", "--reset-offsets", "--group", group, "--from-file", tmp_path / "plan.csv")
    cli(*from_file, "--execute")
    assert cli.json("groups", "--describe", "--group", group)[0]["current_offset"] == 2
    cli("groups", "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert len(cli.json("groups", "--describe", "--group", group)) == 1
    assert cli.json("groups", "--delete", "--group", group) == [{"group": group}]
    assert "GROUP_ID_NOT_FOUND" in cli.fails(1, "groups", "--describe", "--group", group)


def test_a_group_that_cannot_be_deleted_does_not_keep_the_others(cli, topic, unique):
    names = [unique("one"), unique("two")]
    for name in names:
        cli("groups", "--reset-offsets", "--group", name, "--topic", topic, "--to-earliest", "--execute")
    chosen = [part for name in ("none", names[0], "nothing", names[1]) for part in ("--group", name)]
    code, out, err = cli.run("groups", "--delete", *chosen)
    assert code == 1 and out == b""
    assert [line.split(":")[0] for line in err.splitlines()] == [
        f"Deleted group {names[0]}.", f"Deleted group {names[1]}.", "kafkad", "kafkad",
    ]  # fmt: skip
    assert not {*names} & {*cli("groups", "--list").split()}


def test_groups_are_asked_for_properly(cli, topic):
    reset = ("groups", "--reset-offsets", "--group", "g", "--topic", topic)
    for wrong in (
        ("groups",),
        ("groups", "--list", "--delete"),
        ("groups", "--describe"),
        ("groups", "--reset-offsets", "--group", "g"),
        reset,
        (*reset, "--to-earliest", "--to-latest"),
        (*reset, "--to-datetime", "tomorrow"),
        (*reset, "--by-duration", "P"),
        (*reset, "--to-earliest", "--execute", "--dry-run"),
    ):
        assert "--help" in cli.fails(2, *wrong)
    cli.fails(1, "groups", "--reset-offsets", "--group", "g", "--topic", f"{topic}:9", "--to-earliest")
    cli.fails(1, "groups", "--reset-offsets", "--group", "g", "--topic", "nope", "--to-earliest")


# -- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics",),
        ("topics", "--list", "--describe"),
        ("topics", "--create"),
        ("topics", "--alter", "--topic", "x"),
        ("topics", "--create", "--topic", "x", "--partitions", "many"),
        ("topics", "--create", "--topic", "x", "--partitions", "0"),
        ("topics", "--create", "--topic", "x", "--config", "novalue"),
        ("topics", "--describe", "--topic", "("),
        ("topics", "--list", "--no-such-flag"),
        ("topics", "--list", "--bootstrap-server", "host:port"),
        ("topics", "--list", "--command-config", "/nonexistent"),
        ("nonsense",),
        ("produce",),
        ("produce", "--topic", "x", "--file", "/nonexistent"),
        ("produce", "--topic", "x", "--acks", "2"),
        ("produce", "--topic", "x", "--reader-property", "parse.kee=true"),
        ("produce", "--topic", "x", "--producer-property", "security.protocol=TLS"),
        ("produce", "--topic", "x", "--producer-property", "security.protocol=SASL_SSL"),
        ("consume", "--topic", "x", "--group", "g", "--partition", "0"),
        ("dump-log",),
        ("cluster", "nonsense"),
        ("serve", "--workers", "0"),
        ("serve", "--override", "num.partitions"),
        ("serve", "--override", "num.partitions=many"),
        ("serve", "--listen", "nowhere"),
        ("serve", "/nonexistent.properties"),
        ("consume", "--topic", "x", "--partition", "0", "--offset", "²"),
        ("cluster", "log-dirs", "--broker-list", "1;2"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(arguments, tmp_path):
    cli = Cli()
    process = cli.start(*arguments, cwd=tmp_path)
    _, err = process.communicate(b"", timeout=SECONDS)
    assert process.returncode == 2
    assert re.fullmatch(r"kafkad: [^\n]+\.\n", err.decode()), err.decode()
    assert list(tmp_path.iterdir()) == []


def test_numbers_and_times_that_no_request_can_have(cli, topic):
    for arguments in (
        ("topics", "--create", "--topic", "x", "--partitions", 1 << 31),
        ("topics", "--create", "--topic", "x", "--replication-factor", 1 << 15),
        ("offsets", "--topic", topic, "--delete-before", 1 << 63),
        ("transactions", "list", "--duration-filter", 1 << 63),
    ):
        assert "is out of range" in cli.fails(2, *arguments)
    for moment in ("--by-duration P999999999D", "--to-datetime 0001-01-01T00:00:00"):
        asked = ("groups", "--reset-offsets", "--group", "g", "--topic", topic, "--export", *moment.split())
        assert cli(*asked).splitlines()[0] == f"g,{topic},0,0"


def test_an_argument_that_is_not_utf_8(cli, topic):
    for arguments in (("groups", "--describe", "--group"), ("consume", "--until-end", "--topic")):
        assert cli.fails(2, *arguments, os.fsdecode(b"\xff")) == "kafkad: an argument is not UTF-8.\n"


def test_what_does_not_exist_is_an_error_and_not_an_empty_table(cli, topic):
    assert "does not have these partitions" in cli.fails(1, "offsets", "--topic", topic, "--partitions", "99")
    assert "broker 99 is not" in cli.fails(1, "cluster", "log-dirs", "--broker-list", "99")
    assert "broker 99 is not" in cli.fails(1, "transactions", "find-hanging", "--broker-id", "99")


def test_configurations_that_may_not_be_seen_are_told(make_broker):
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    cli = Cli(make_broker(config=config).bootstrap)
    cli("topics", "--create", "--topic", "t", "--config", "retention.ms=5")
    may = ("--allow-principal", "User:ANONYMOUS", "--operation", "Describe")
    cli("acls", "--add", *may, "--topic", "t")
    code, out, err = cli.run("topics", "--describe", "--topic", "t", "--json")
    assert code == 0 and json.loads(out)[0]["configs"] is None
    assert err == (
        "kafkad: the configurations of 1 topic cannot be seen:"
        " TOPIC_AUTHORIZATION_FAILED: Topic authorization failed.\n"
    )
    cli.fails(1, "topics", "--describe", "--topics-with-overrides")


def test_standard_streams_may_be_closed(cli, topic):
    """As cron and daemons start programs."""
    kafkad = f"{sys.executable} -m kafkad"
    for command, streams, expected in (
        ("topics --list", ">&-", ("", "")),
        (f"consume --topic {topic} --timeout-ms 10", ">&-", ("", "Processed a total of 0 messages\n")),
        (f"produce --topic {topic}", "<&-", ("", f"0 records written to {topic}.\n")),
        (f"topics --alter --topic {topic} --partitions 9", "2>&-", ("", "")),
        ("topics --list", "<&- >&- 2>&-", ("", "")),
    ):
        done = subprocess.run(
            ["sh", "-c", f"exec {kafkad} {command} {streams}"],
            env=cli.environment, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, *expected), command


@pytest.mark.parametrize(
    "command",
    [
        "topics --list",
        "groups --list",
        "cluster metadata",
        "offsets",
        "consume --topic x",
        "produce --topic x",
    ],
)
def test_without_a_broker(command):
    began = time.monotonic()
    said = Cli().fails(1, *command.split())
    assert "no broker answers on 127.0.0.1:1" in said and "kafkad serve" in said
    assert time.monotonic() - began < 5


def test_help_teaches_and_needs_no_broker():
    cli = Cli()
    told = cli("--help")
    for command in (
        "serve",
        "topics",
        "configs",
        "groups",
        "offsets",
        "produce",
        "consume",
        "cluster",
        "dump-log",
    ):
        assert re.search(rf"^  {command} ", told, re.MULTILINE)
        assert f"kafkad {command}" in cli(command, "--help")
    assert cli() == told
    assert cli("--version").startswith("kafkad, version ")


def test_listing_topics_takes_little(cli):
    """Of the CPU, since the clock of a busy machine says little of a command."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        cli("topics", "--list")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(took) < 0.25


# -- serve -------------------------------------------------------------------------------------------------


def ready(process):
    line = process.stdout.readline().decode()
    assert line.startswith("kafkad is ready on "), process.stderr.read().decode()
    return line.split()[4]


def stop(process):
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return err.decode()


def test_serve_with_a_properties_file_and_listen(tmp_path):
    """--listen moves the clients' listener and leaves the controller's alone."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:19999\n"
        "listeners=PLAINTEXT://127.0.0.1:19998,CONTROLLER://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        "advertised.listeners=PLAINTEXT://elsewhere:19998\nlog.dirs=%s\nno.such.key=1\nneither.this=2\n"
        % (tmp_path / "data")
    )
    process = Cli().start("serve", properties, "--listen", "127.0.0.1:0", "--override", "num.partitions=3")
    address = ready(process)
    cli = Cli(address)
    (broker,) = cli.json("cluster", "metadata")["brokers"]
    assert f"{broker['host']}:{broker['port']}" == address
    assert cli.json("topics", "--create", "--topic", "t")[0]["partitions"] == 3
    err = stop(process)
    (warning,) = (line for line in err.splitlines() if "unknown configuration" in line)
    assert "neither.this, no.such.key" in warning


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_serve_names_listeners_that_are_open_to_anyone(tmp_path, host, workers):
    process = Cli().start("serve", "--data-dir", tmp_path, "--listen", f"{host}:0", "--workers", str(workers))
    line = process.stdout.readline().decode()
    port = line.split()[4].rpartition(":")[2]
    said = stop(process)
    shown = host if host == "127.0.0.1" else ""  # every interface
    assert line.endswith(f" ms; open to anyone: PLAINTEXT://{shown}:{port})\n"), line
    assert ("is open to anyone who can reach it" in said) == (host == "0.0.0.0"), said


def test_serve_on_a_port_and_on_data_that_are_taken(broker, tmp_path):
    cli = Cli()
    taken = cli.run("serve", "--data-dir", tmp_path, "--listen", broker.bootstrap)
    assert taken[0] == 1 and "in use" in taken[2].splitlines()[-1]
    taken = cli.run("serve", "--data-dir", broker.data_dir, "--listen", "127.0.0.1:0")
    assert taken[0] == 1 and "in use by another broker" in taken[2].splitlines()[-1]


def test_producing_a_file_over_kill_9_of_the_broker(make_broker, tmp_path):
    broker = make_broker()
    cli = Cli(broker.bootstrap)
    file = tmp_path / "lines"
    count = 250_000
    file.write_text("".join(f"k{n % 7}:{n:08d}\n" for n in range(count)))
    cli("topics", "--create", "--topic", "t", "--partitions", 3)
    process = cli.start("produce", "--topic", "t", "--file", file, "--key-separator", ":")
    log = Path(broker.data_dir) / "t-0" / ("0" * 20 + ".log")
    wait_until(lambda: log.exists() and log.stat().st_size > 200_000)
    broker.kill()
    assert process.poll() is None
    broker.restart()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    by_key = {}
    for line in consume(cli, "t", "--property", "print.key=true").splitlines():
        key, value = line.split("\t")
        by_key.setdefault(key, []).append(int(value))
    assert by_key == {f"k{k}": list(range(k, count, 7)) for k in range(7)}


# -- dump-log ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A data directory that was closed: every kind of file, written by librdkafka through a broker."""
    from kafkad.testing import Broker

    with Broker(
        data_dir=tmp_path_factory.mktemp("dump") / "data",
        config={"log.segment.bytes": 1 << 20, "log.index.interval.bytes": 1,
                "offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 0},
    ) as broker:  # fmt: skip
        create_topic(broker, "t")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            produce(
                broker, "t", [(b"k%d" % n, b"v%d" % n * 30) for n in range(20)],
                **{"compression.type": codec, "enable.idempotence": codec == "zstd", "batch.size": 500},
            )  # fmt: skip
        cli = Cli(broker.bootstrap)
        cli("consume", "--topic", "t", "--group", "g", "--from-beginning", "--max-messages", 100)
        create_topic(broker, "once")
        with Cluster(broker.bootstrap) as cluster:
            transactions = Transactions(cluster, "größe")
            transactions.producer("once").send(b"committed")
            transactions.commit()
        broker.stop()
        yield Path(broker.data_dir)


SEGMENT = "0" * 20


def dump(*arguments):
    return Cli()("dump-log", "--files", *arguments)


def test_dump_log_json(files):
    rows = objects(dump(files / "t-0" / f"{SEGMENT}.log", "--print-data-log", "--json"))
    batches = [row for row in rows if row["kind"] == "batch"]
    records = [row for row in rows if row["kind"] == "record"]
    assert {b["compresscodec"] for b in batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert all(b["isvalid"] for b in batches)
    assert [r["offset"] for r in records] == list(range(100))
    assert (records[99]["key"], records[99]["payload"]) == ("k19", "v19" * 30)
    assert (
        len(
            objects(dump(files / "t-0" / f"{SEGMENT}.log", "--max-messages", 3, "--deep-iteration", "--json"))
        )
        < 20
    )


def test_dump_log_of_kafkas_own_topics(files):
    offsets = dump(files / "__consumer_offsets-0" / f"{SEGMENT}.log", "--offsets-decoder")
    assert '"group":"g","topic":"t","partition":0' in offsets
    assert '"offset":100' in offsets
    assert '"topics":["t"]' in offsets
    metadata = dump(files / "__cluster_metadata-0" / f"{SEGMENT}.log", "--cluster-metadata-decoder")
    assert '{"type":"TOPIC_RECORD"' in metadata and '"name":"t"' in metadata
    assert "LeaderChange: {" in metadata


def test_dump_log_of_the_small_files(files):
    for name in ("recovery-point-offset-checkpoint", "meta.properties", "replication-offset-checkpoint"):
        rows = objects(dump(files / name, "--json"))
        assert len(rows) > 1 and "trouble" not in {row["kind"] for row in rows}
    assert "topic: t partition: 0 offset: 100" in dump(files / "replication-offset-checkpoint")
    assert "epoch: 0 startOffset: 0" in dump(files / "t-0" / "leader-epoch-checkpoint")


def test_dump_log_finds_what_is_wrong(files, tmp_path):
    for suffix in (".log", ".index", ".timeindex"):
        (tmp_path / f"{SEGMENT}{suffix}").write_bytes((files / "t-0" / f"{SEGMENT}{suffix}").read_bytes())
    log, index = tmp_path / f"{SEGMENT}.log", tmp_path / f"{SEGMENT}.index"
    assert Cli().run("dump-log", "--files", f"{log},{index}")[0] == 0
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data + b"\0\0\0garbage" * 10)
    code, out, err = Cli().run("dump-log", "--files", log)
    assert code == 1 and b"isvalid: false" in out and b"Found 100 invalid bytes" in out
    assert "the CRC of the batch at position 0 is wrong" in err
    index.write_bytes(index.read_bytes() + b"\0\1\0\0\0\0\0\7")
    assert "no batch begins there" in Cli().run("dump-log", "--files", index)[2]
    index.write_bytes(b"123")
    assert "multiple of 8" in Cli().run("dump-log", "--files", index, "--index-sanity-check")[2]
    log.unlink()
    assert "segment" in Cli().run("dump-log", "--files", tmp_path / f"{SEGMENT}.timeindex")[2]
    Cli().fails(1, "dump-log", "--files", "/nonexistent.log")
    (tmp_path / "x.snapshot").write_bytes(b"no snapshot")
    assert Cli().run("dump-log", "--files", tmp_path / "x.snapshot")[0] == 1


OLD = [(b"k", b"v", 5), (None, b"v", 6), (b"k", None, 7)]


def test_dump_log_of_a_producer_without_a_last_batch(files):
    """A marker with the next epoch ended its transaction."""
    (snapshot,) = (files / "once-0").glob("*.snapshot")
    (row,) = (row for row in objects(dump(snapshot, "--json")) if row["kind"] == "producer")
    assert row["lastOffset"] is None and row["firstSequence"] is None and row["lastTimestamp"] > 0
    assert "Sequence" not in dump(snapshot)


def test_dump_log_of_metadata_and_of_names_that_are_not_ascii(files):
    log = files / "__cluster_metadata-0" / f"{SEGMENT}.log"
    assert '{"type":"TOPIC_RECORD","version":0,"data":{"name":"t",' in dump(log, "--cluster-metadata-decoder")
    (snapshot,) = log.parent.glob("*.checkpoint")
    assert "Snapshot end offset: 0, epoch: 0" in dump(snapshot)
    assert "KRaft bootstrap snapshot" in dump(files / "bootstrap.checkpoint")
    logs = ",".join(map(str, files.glob("__transaction_state-*/*.log")))
    assert '"transactionalId":"größe"' in dump(logs, "--transaction-log-decoder")


@pytest.mark.java
def test_dump_log_prints_what_kafkas_tool_prints(files, tmp_path):
    from tests.jvm import NEWEST, run_tool

    names = [files / "t-0" / f"{SEGMENT}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    names += sorted((files / "t-0").glob("*.snapshot"))
    names += sorted((files / "once-0").glob("*.*"))
    for magic in (0, 1):
        names.append(tmp_path / str(magic) / f"{SEGMENT}.log")
        names[-1].parent.mkdir()
        packed = wrapper(magic, 1, message_set(magic, OLD), offset=5, timestamp=7)
        names[-1].write_bytes(message_set(magic, OLD) + packed)
    metadata = [files / "__cluster_metadata-0" / f"{SEGMENT}.log", files / "bootstrap.checkpoint"]
    metadata += metadata[0].parent.glob("*.checkpoint")
    for option, chosen in (
        ("--print-data-log", [name for name in names if name.suffix != ".metadata"]),
        ("--cluster-metadata-decoder", metadata),
        ("--transaction-log-decoder", files.glob("__transaction_state-*/*.log")),
    ):
        joined = ",".join(map(str, chosen))
        theirs = run_tool(NEWEST, "kafka-dump-log", option, "--files", joined)
        assert dump(joined, option).splitlines() == theirs.lines
