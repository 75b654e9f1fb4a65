"""Quotas of request time, of new connections, and of a SASL user, on a broker of one worker and of four."""

import socket
import threading
import time

import pytest

from kafkad.protocol import codec, messages
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.integration.test_quotas import (
    LIMIT,
    PRODUCE,
    QUICK,
    Named,
    achieved,
    alter,
    fetch_once,
    produce_once,
)
from tests.integration.test_sasl import SECURED, log_in
from tests.wire import Wire, create_topic

PERCENT, CREATION = "request_percentage", "connection_creation_rate"
RATE = "max.connection.creation.rate"


@pytest.fixture(scope="module", params=[1, 4])
def broker(request):
    with Broker(workers=request.param, config=QUICK) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "t", 4)
            for partition in range(4):
                produce_once(wire, partition=partition)
        yield broker


# -- request time ------------------------------------------------------------------------------------------


def metadata_once(wire):
    return wire.ask(messages.MetadataRequest(topics=None), 12).throttle_time_ms


def groups_once(wire):
    return wire.ask(messages.ListGroupsRequest(), 4).throttle_time_ms


def fetched_once(wire):
    return fetch_once(wire)[1]


def versions_once(wire):
    return wire.ask(
        messages.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
    ).throttle_time_ms


ASKS = (produce_once, fetched_once, metadata_once, groups_once, versions_once)


def test_a_client_whose_requests_take_too_long_is_paused(broker):
    with Wire(broker.bootstrap) as wire, Named(broker.bootstrap, "slow") as slow:
        assert [ask(slow) for ask in ASKS] == [0] * len(ASKS)
        assert alter(wire, PERCENT, 0.01, client="slow") == 0  # 0.1 ms a second
        while (pause_ms := groups_once(slow)) == 0:
            pass
        assert pause_ms <= 1000  # one window at most
        slow.send(messages.ListGroupsRequest(), 4)
        for ask in ASKS:  # whatever it asks, and whichever worker its connection is with
            with Named(broker.bootstrap, "slow") as again:
                assert ask(again) > 0
        assert [ask(wire) for ask in ASKS] == [0] * len(ASKS)
        assert alter(wire, PERCENT, None, client="slow") == 0
        slow.read_frame()  # its pause ends
        assert [ask(slow) for ask in ASKS] == [0] * len(ASKS)
    assert "Traceback" not in broker.log


def test_a_fetch_of_a_paused_client_has_no_data_and_its_session_goes_on(broker):
    with Wire(broker.bootstrap) as wire, Named(broker.bootstrap, "reader") as reader:
        cls = messages.FetchRequest
        wanted = cls.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=20_000)
        first = cls(session_epoch=0, topics=[cls.Topics(topic="t", partitions=[wanted])])
        session = reader.ask(first, 12)
        assert session.session_id
        assert alter(wire, PERCENT, 0.01, client="reader") == 0
        paused = epoch = 0
        while paused < 2:
            epoch += 1
            answer = reader.ask(cls(session_id=session.session_id, session_epoch=epoch), 12)
            assert answer.error_code == 0
            assert not (answer.throttle_time_ms and answer.responses)
            paused += answer.throttle_time_ms > 0
        assert alter(wire, PERCENT, None, client="reader") == 0


def test_requests_without_an_answer_and_logins_do_not_count(broker):
    """As with Kafka: acks=0 is exempt from request quotas."""
    from tests.wire import batch, produce_request

    with Wire(broker.bootstrap) as wire, Named(broker.bootstrap, "quiet") as quiet:
        assert alter(wire, PERCENT, 1e-6, client="quiet") == 0
        frame = codec.encode_request(produce_request("t", batch(b"x"), acks=0), 9, 1, "quiet")
        for _ in range(200):
            quiet.send_frame(frame)
        assert versions_once(quiet) >= 0
        assert alter(wire, PERCENT, None, client="quiet") == 0


# -- new connections ---------------------------------------------------------------------------------------


def connect(bootstrap, source=None):
    host, port = bootstrap.rsplit(":", 1)
    wire = Wire.__new__(Wire)
    wire.socket = socket.create_connection((host, int(port)), timeout=60, source_address=source)
    wire.correlation = 0
    return wire


def arrivals(bootstrap, seconds=0.0, threads=4, at_most=None):
    """When connections were served: each asks once, and is closed."""
    times, stop, troubles = [], threading.Event(), []

    def run():
        try:
            while not stop.is_set() and (at_most is None or len(times) < at_most):
                with connect(bootstrap) as wire:
                    assert versions_once(wire) == 0
                    times.append(time.monotonic())
        except Exception as trouble:
            troubles.append(trouble)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    if at_most is None:
        time.sleep(seconds)
        stop.set()
    for thread in running:
        thread.join()
    assert troubles == []
    return times


def set_rate(wire, value, listener=""):
    cls = messages.IncrementalAlterConfigsRequest.Resources
    name = f"listener.name.{listener}.{RATE}" if listener else RATE
    change = cls.Configs(name=name, config_operation=1 if value is None else 0, value=value)
    request = messages.IncrementalAlterConfigsRequest(
        resources=[cls(resource_type=4, resource_name="1", configs=[change])]
    )
    answer = wire.ask(request, 1)
    assert answer.responses[0].error_code == 0, answer


@pytest.mark.parametrize("listener", ["", "plaintext"])
def test_connections_beyond_the_rate_wait(broker, listener):
    with Wire(broker.bootstrap) as wire:
        set_rate(wire, "10", listener)
        began = time.monotonic()
        # four windows' worth at once, whatever was counted before; the others later
        times = arrivals(broker.bootstrap, threads=1, at_most=50)
        assert times[49] - began >= 0.5
        assert "max.connection.creation.rate is reached" in broker.log
        assert versions_once(wire) == 0  # who is there is served meanwhile
        set_rate(wire, None, listener)
    for _ in range(40):
        with connect(broker.bootstrap) as wire:
            assert versions_once(wire) == 0


def test_connections_of_an_address_beyond_its_rate_are_closed(broker):
    with connect(broker.bootstrap, ("127.0.0.2", 0)) as wire:
        assert alter(wire, CREATION, 3.0, ip="127.0.0.1") == 0

        def closed(source):
            with connect(broker.bootstrap, (source, 0)) as tried:
                tried.send(messages.ApiVersionsRequest(), 0)
                return tried.is_closed_by_broker()

        wait_until(lambda: closed("127.0.0.1"), 30)
        assert not closed("127.0.0.3")
        assert alter(wire, CREATION, 1e6, ip="127.0.0.1") == 0
        assert alter(wire, CREATION, 3.0, ip=None) == 0  # of all others
        assert not closed("127.0.0.1")
        wait_until(lambda: closed("127.0.0.3"), 30)
        for address in ("127.0.0.1", None):
            assert alter(wire, CREATION, None, ip=address) == 0
        assert not any(closed("127.0.0.3") for _ in range(10))
    assert "Traceback" not in broker.log


def test_a_rate_of_the_file_and_of_zero_still_lets_somebody_in():
    """As with Kafka, whose acceptor waits for one window at most."""
    with Broker(workers=2, config={**QUICK, RATE: 0}) as broker, connect(broker.bootstrap) as wire:
        assert versions_once(wire) == 0
        set_rate(wire, None)


# -- held for long, and users ------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_rate_of_connections_is_held_within_a_tenth(broker, rounds):
    seconds, settle = rounds(3, 30), 3  # three windows, in which bursts are made up for
    with Wire(broker.bootstrap) as wire:
        set_rate(wire, "40")
        began = time.monotonic()
        times = arrivals(broker.bootstrap, seconds + settle)
        set_rate(wire, None)
    counted = sum(began + settle <= at < began + settle + seconds for at in times)
    if seconds < 30:  # a burst more or less
        assert 0 < counted / seconds <= 40 * 1.5
    else:
        assert counted / seconds == pytest.approx(40, rel=0.1)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 4])
def test_a_users_quota_holds_for_all_connections_of_that_user(tmp_path, workers, rounds):
    given = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "log.dirs": tmp_path / "data", **QUICK, **SECURED}
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))

    class LoggedIn(Named):
        def __init__(self, bootstrap, client_id, user=("PLAIN", "alice", "alice-secret")):
            super().__init__(bootstrap, client_id)
            log_in(self, *user)

    with Broker(workers=workers, properties=properties) as broker:
        with LoggedIn(broker.bootstrap, "c", ("PLAIN", "admin", "admin-secret")) as admin:
            create_topic(admin, "t", 4)
            assert alter(admin, PRODUCE, LIMIT, user="alice") == 0
            seconds = rounds(3, 30)
            rate = achieved(broker.bootstrap, PRODUCE, connections=4, seconds=seconds, make=LoggedIn)
            if seconds < 30:  # a burst more or less
                assert 0 < rate <= LIMIT * 1.5
            else:
                assert rate == pytest.approx(LIMIT, rel=0.1)
            assert produce_once(admin) == 0  # another user, the same address and client id
        assert "Traceback" not in broker.log
