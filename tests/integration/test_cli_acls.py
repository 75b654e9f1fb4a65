"""`kafkad acls` beside Kafka's kafka-acls.sh, each on kafkad and on JVM Kafka: the same words make the same
ACLs."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from kafkad.testing import Broker
from tests.integration.test_acls import STANDARD, delete, describe
from tests.jvm import NEWEST, ZOOKEEPER_LINE, JvmKafka, ToolFailed, run_tool
from tests.wire import Wire

SCRIPT = [
    "--add --allow-principal User:anna --producer --topic flights",
    "--add --allow-principal User:anna --producer --idempotent --transactional-id tx --topic f --topic g",
    "--add --allow-principal User:bob --allow-host 10.0.0.1 --allow-host 10.0.0.2 --consumer --topic flights"
    " --group loaders",
    "--add --allow-principal User:bob --producer --consumer --topic both --group * --transactional-id t",
    "--add --deny-principal User:eve --deny-host 10.0.0.3 --allow-principal User:* --operation Read"
    " --operation DESCRIBECONFIGS --topic secret- --resource-pattern-type prefixed",
    "--add --allow-principal User:anna --operation All --cluster --topic *",
    "--add --allow-principal User:anna --producer --idempotent --topic p --resource-pattern-type PREFIXED",
    "--add --allow-principal User:CN=x,O=y --operation CreateTokens --user-principal User:bob",
    "--add --allow-principal Group:g --operation Describe --delegation-token abc",
    "--remove --force --allow-principal User:bob --allow-host 10.0.0.1 --consumer --topic flights"
    " --group loaders",
    "--remove --force --topic secret-x --resource-pattern-type match",
    "--remove --force --topic flights --resource-pattern-type any",
    "--remove --force --allow-principal User:anna --operation Write --topic f",
    "--remove --force --cluster",
]  # fmt: skip


@pytest.fixture(scope="module")
def broker():
    with Broker(config=STANDARD) as broker:
        yield broker


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    with JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=STANDARD) as kafka:
        yield kafka


def run(*arguments, stdin=b""):
    """(exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", "acls", *arguments],
        input=stdin, capture_output=True, timeout=30, env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def ours(broker, words):
    code, _, err = run("--bootstrap-server", broker.bootstrap, *words.split())
    assert code == 0, err


def theirs(broker, words):
    run_tool(NEWEST, "kafka-acls", "--bootstrap-server", broker.bootstrap, *words.split())


@pytest.fixture
def clean(broker):
    with Wire(broker.bootstrap, timeout=20) as wire:
        delete(wire, {})


@pytest.mark.java
@pytest.mark.timeout(400)
def test_the_same_words_make_the_same_acls(broker, jvm, clean):
    """After each line of the script, done by kafka-acls and then by `kafkad acls`, on either broker."""
    stories = []
    for tool, target in ((theirs, jvm), (theirs, broker), (ours, broker), (ours, jvm)):
        story = []
        with Wire(target.bootstrap, timeout=30) as wire:
            for words in SCRIPT:
                tool(target, words)
                story.append((words, describe(wire)))
            delete(wire, {})
        stories.append(story)
    for story in stories[1:]:
        for mine, expected in zip(story, stories[0], strict=True):
            assert mine == expected
    counts = [len(acls) for _, acls in stories[0]]
    assert counts == sorted(counts[:9]) + counts[9:] and counts[8] > 35
    assert all(before > after for before, after in pairwise(counts[8:]))


@pytest.mark.java
@pytest.mark.parametrize("version", [NEWEST, ZOOKEEPER_LINE])
def test_kafka_acls_of_either_version_lists_what_is_there(broker, clean, version):
    words = ("--bootstrap-server", broker.bootstrap)
    added = run_tool(version, "kafka-acls", *words, "--add", "--allow-principal", "User:anna", "--topic", "t")
    assert "(principal=User:anna, host=*, operation=ALL, permissionType=ALLOW)" in added.stdout
    listed = run_tool(version, "kafka-acls", *words, "--list", "--principal", "User:anna")
    assert "ACLs for principal `User:anna`" in listed.stdout
    assert "ResourcePattern(resourceType=TOPIC, name=t, patternType=LITERAL)" in listed.stdout
    with pytest.raises(ToolFailed, match="expected a string in format principalType:principalName"):
        run_tool(version, "kafka-acls", *words, "--add", "--allow-principal", "anna", "--topic", "t")


def test_lists_and_removes(broker, clean):
    at = ("--bootstrap-server", broker.bootstrap)
    add = ("--add", "--operation", "Read", "--topic", "t", "--allow-principal")
    code, out, err = run(*at, *add, "User:anna")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"],
        ["TOPIC", "t", "literal", "User:anna", "*", "Read", "allow"],
    ]
    code, out, err = run(*at, *add, "User:anna", "--allow-principal", "User:bob", "--json")
    assert (code, err) == (0, "1 ACL existed already.\n")
    [bob] = json.loads(out)
    assert bob["principal"] == "User:bob" and bob["operation"] == "Read"
    for words, count in (
        ((), 2),
        (("--principal", "User:bob"), 1),
        (("--topic", "t"), 2),
        (("--topic", "u"), 0),
        (("--group", "t"), 0),
        (("--topic", "t", "--resource-pattern-type", "prefixed"), 0),
        (("--topic", "t", "--resource-pattern-type", "match"), 2),
    ):
        code, out, err = run(*at, "--list", *words, "--json")
        assert (code, err, len(json.loads(out))) == (0, "", count), words
    code, out, err = run(*at, "--remove", "--topic", "t")
    assert code == 1 and "use --force" in err
    code, out, err = run(
        *at, "--remove", "--force", "--topic", "t", "--allow-principal", "User:bob", "--json"
    )
    assert (code, err) == (0, "Removed 0 ACLs.\n")  # the ACL is of Read, not of All
    code, out, err = run(*at, "--remove", "--force", "--topic", "t", "--json")
    assert (code, err, len(json.loads(out))) == (0, "Removed 2 ACLs.\n", 2)


def test_what_the_broker_refuses_is_one_sentence(broker, clean):
    at = ("--bootstrap-server", broker.bootstrap)
    code, out, err = run(*at, "--add", "--allow-principal", "User:anna", "--topic", "")
    assert (code, out) == (1, "")
    assert err == "kafkad: INVALID_REQUEST: Invalid empty resource name.\n"
    with Broker() as plain:
        code, out, err = run("--bootstrap-server", plain.bootstrap, "--list")
    assert (code, out) == (1, "")
    assert err == "kafkad: SECURITY_DISABLED: No Authorizer is configured on the broker.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "give one of --add, --remove, --list"),
        ("--add --list", "give only one of"),
        ("--add --topic t", "--add needs --allow-principal or --deny-principal"),
        ("--add --allow-principal User:a", "give at least one resource"),
        ("--add --allow-principal anna --topic t", "anna has no type: write User:anna"),
        ("--add --allow-principal User:a --topic t --operation Eat", "Eat is none of All, Read, Write"),
        ("--add --allow-principal User:a --group g --operation Write", "GROUP only supports operations All"),
        ("--add --allow-principal User:a --topic t --resource-pattern-type match", "match is not for --add"),
        ("--add --allow-principal User:a --topic t --principal User:a", "--principal is for --list"),
        ("--add --allow-principal User:a --producer", "--producer needs a --topic"),
        ("--add --allow-principal User:a --topic t --idempotent", "--idempotent is for --producer"),
        ("--add --allow-principal User:a --consumer --topic t", "--consumer needs a --topic and a --group"),
        ("--add --allow-principal User:a --consumer --topic t --group g --cluster", "--consumer cannot be"),
        ("--add --deny-principal User:a --producer --topic t", "cannot be used with --deny-principal"),
        ("--list --producer", "--list cannot be used with --producer"),
        ("--list --allow-principal User:a", "--list cannot be used with --allow-principal"),
        ("--remove --force", "give at least one resource"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_sentence(words, told):
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert told in err and err.count("\n") == 1
