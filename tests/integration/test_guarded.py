"""The brokers of `pytest --secured` refuse whoever does not log in, and what no ACL allows. Otherwise the
tests of clients would show nothing there."""

import contextlib
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests import guarded
from tests.clients import WAIT_S, admin_client, create_topic, produce, wait_until
from tests.logins import librdkafka, login_of

pytestmark = pytest.mark.secured(short=True)


@pytest.fixture(scope="module")
def served(broker_kind, tmp_path_factory):
    with guarded.guarded(broker_kind, tmp_path_factory.mktemp("guarded") / "data", {}) as broker:
        create_topic(broker, "theirs")
        yield broker


def test_the_option_decides_what_the_fixtures_give(broker, pytestconfig):
    assert (login_of(broker) is not None) == pytestconfig.getoption("secured")


def refused(run):
    with pytest.raises(KafkaException) as told:
        run().result(WAIT_S)
    return told.value.args[0].code()


def test_the_user_of_the_tests_has_no_right_of_an_operator(served):
    admin = admin_client(served)
    user = UserScramCredentialUpsertion(
        "x", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"secret"
    )
    key = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[key])
    (acl, *_) = guarded.acls_of(guarded.admin_of(served))
    for run in (
        lambda: admin.create_acls([acl])[acl],
        lambda: admin.alter_user_scram_credentials([user])["x"],
        lambda: admin.incremental_alter_configs([change])[change],
    ):
        assert refused(run) == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_a_user_without_acls_is_refused(served):
    stranger = SimpleNamespace(
        bootstrap=served.bootstrap, login=guarded.add_user(served, "stranger", "stranger-secret", {})
    )
    told = []
    client = Producer(librdkafka(stranger))
    client.produce("theirs", b"x", on_delivery=lambda error, _: told.append(error.code()))
    assert client.flush(WAIT_S) == 0
    assert told == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert not admin_client(stranger).list_topics(timeout=WAIT_S).topics
    produce(served, "theirs", [(None, b"x")])


@pytest.mark.parametrize(
    ("changes", "awaited"),
    [
        ({"sasl.password": "another"}, KafkaError._AUTHENTICATION),
        ({"security.protocol": "SSL"}, KafkaError._ALL_BROKERS_DOWN),
        ({"security.protocol": "PLAINTEXT"}, KafkaError._ALL_BROKERS_DOWN),
        ({"security.protocol": "SASL_PLAINTEXT"}, KafkaError._ALL_BROKERS_DOWN),
    ],
    ids=str,
)
def test_a_client_that_does_not_log_in_over_tls_is_not_served(served, changes, awaited):
    errors = []
    client = Producer({**librdkafka(served), **changes, "error_cb": errors.append, "log_level": 0})
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=0.5)
    wait_until(lambda: client.poll(0.1) is not None and awaited in [error.code() for error in errors])
