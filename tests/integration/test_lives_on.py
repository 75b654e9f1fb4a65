"""A shortage costs one request or one connection, at worst one worker that comes back; never the broker.
An exception that nobody has foreseen, in the code for one client, costs that client its request or its
connection, and no worker.

What serving needs from files beside the data is there before the first connection, so that a broker at its
descriptor limit answers requests of any kind."""

import os
import resource
import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count

import psutil
import pytest
from confluent_kafka import Producer

from kafkad.api.table import ROWS
from kafkad.protocol import errors, messages, records
from kafkad.testing import Broker, BrokerFailed
from tests.clients import python_path, wait_until
from tests.faults import OBSERVED, Faults
from tests.integration.test_workers import MARK, read_values, retried
from tests.secured_broker import SecuredBroker
from tests.small_disk import small_disk as small_file_system
from tests.tls_wire import TlsWire, trusting
from tests.wire import Wire, batch, create_topic, produce, produce_request

PARTITIONS = 4
NAME = "named"  # what all requests of `every_request` are about: a topic, a group, a member


def filled(cls, version):
    """A message with one element in each of its arrays, about NAME."""
    message = cls()
    for field in cls.SPEC.fields:
        if not field.versions[0] <= version <= field.versions[1]:
            continue
        nested = getattr(cls, messages.camel_case(field.name)) if field.struct is not None else None
        match field.type:
            case "[]":
                setattr(message, field.name, [filled(nested, version)])
            case "{}":
                setattr(message, field.name, filled(nested, version))
            case "string":
                setattr(message, field.name, NAME)
            case "[]string":
                setattr(message, field.name, [NAME])
            case "[]int32":
                setattr(message, field.name, [0])
    for name, value in {"acks": 1, "session_timeout_ms": 6000, "rebalance_timeout_ms": 100}.items():
        if hasattr(message, name):
            setattr(message, name, value)
    return with_known_words(message)


def with_known_words(message):
    """An ACL, or a filter of ACLs, with what no client could name otherwise; else the message as it is."""
    if hasattr(message, "permission_type"):
        for name in ("resource_type", "resource_type_filter", "operation", "permission_type"):
            if hasattr(message, name):
                setattr(message, name, 3)
    return message


def every_request():
    """(request, version): each API and version that is served, with defaults and with all arrays filled."""
    for row in ROWS:
        cls = messages.request_class(row.key)
        for version in range(row.low, row.high + 1):
            empty = cls()
            if hasattr(empty, "acks"):
                empty.acks = 1  # else there is no answer
            yield with_known_words(empty), version
            yield filled(cls, version), version


def lowest_free(pid, looks=50):
    """The descriptor that a process would be given next; one that it has for a moment only is free."""

    def found():
        used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
        time.sleep(0.01)
        return next(fd for fd in count() if fd not in used)

    return min(found() for _ in range(looks))


def assert_serves(broker, topic="kept"):
    """Every partition takes and gives, and a group of consumers finds its coordinator."""
    with Wire(broker.bootstrap, timeout=20) as wire:
        for partition in range(PARTITIONS):
            answer = retried(partial(produce, wire, topic, batch(b"after"), partition))
            assert answer.error_code == 0, answer
        find = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["some group"])
        retried(lambda: wire.ask(find, 4).coordinators[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_any_request_may_be_the_first_of_its_kind_at_the_descriptor_limit(tmp_path, workers):
    """HUNTS W2: schema files and modules were read at an API's first use; EMFILE there ended the broker."""
    requests = list(every_request())
    with Broker(workers=workers, data_dir=tmp_path / "data") as broker, ExitStack() as stack:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "kept", PARTITIONS)
            create_topic(wire, NAME, PARTITIONS)
        wires = [stack.enter_context(Wire(broker.bootstrap, timeout=20)) for _ in requests]
        for wire in wires[:: len(wires) // 20]:
            wire.ask(messages.ApiVersionsRequest(), 0)  # all before it are accepted, too
        wires[-1].ask(messages.ApiVersionsRequest(), 0)
        pids = broker.worker_pids
        served = [psutil.Process(pid) for pid in pids.values()]
        limits = served[0].rlimit(resource.RLIMIT_NOFILE)
        for process in served:
            process.rlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        for wire, (request, version) in zip(wires, requests, strict=True):
            assert wire.ask(request, version) is not None
            assert broker.worker_pids == pids, f"{request.NAME} v{version}\n{broker.log}"
        for process in served:
            process.rlimit(resource.RLIMIT_NOFILE, limits)
        assert_serves(broker)
        assert broker.worker_pids == pids, broker.log


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_imported_and_no_file_of_our_own_is_opened_while_serving(tmp_path, workers):
    """HUNTS W2: what cannot be opened when descriptors are short was opened before."""
    watched = tmp_path / "watched"
    watched.mkdir()
    env = python_path(OBSERVED) | {"KAFKAD_WATCHED": str(watched)}
    config = {"group.initial.rebalance.delay.ms": 0}
    broker = Broker(workers=workers, data_dir=tmp_path / "data", env=env, config=config)
    with broker, Wire(broker.bootstrap, timeout=20) as wire:
        (watched / "now").touch()
        create_topic(wire, "kept", PARTITIONS)
        for codec in range(5):
            data = records.build_batch(
                [records.Record(key=b"k", value=bytes(1000), headers=[], timestamp=7)], compression=codec
            )
            create_topic(wire, f"made-{codec}", compression_type="uncompressed" if codec else "zstd")
            answer = produce(wire, f"made-{codec}", data)
            assert answer.error_code == 0, answer
        for request, version in every_request():
            wire.ask(request, version)
        assert_serves(broker)
        if workers > 1:
            broker.kill_worker(1)
            assert_serves(broker)
    noted = [line for path in watched.iterdir() for line in path.read_text().splitlines()]
    assert any(line.startswith(f"open {broker.data_dir}") for line in noted), "nothing was watched"
    others = [line for line in noted if not line.startswith((f"open {tmp_path}", "open /proc/"))]
    assert not others, sorted(set(others))


# -- a shortage while a client writes ----------------------------------------------------------------------


class Writer:
    """A client that writes numbers with acks=all in the background, retrying as clients do. At the end, what
    was acknowledged must be in the log, once and in order."""

    def __init__(self, broker):
        self.broker = broker
        self.acked = [[] for _ in range(PARTITIONS)]
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "kept", PARTITIONS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self):
        self._thread.start()
        wait_until(lambda: all(self.acked))
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if exception[0] is None:
            self._check()

    def _write(self):
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": 30_000,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 1,
            }
        )

        def delivered(partition, number, error):
            if error is None:
                self.acked[partition].append(number)

        for number in count():
            for partition in range(PARTITIONS):
                note = partial(lambda p, n, error, _: delivered(p, n, error), partition, number)
                value = b"n%d " % number + bytes(4000)
                try:
                    producer.produce("kept", value, partition=partition, on_delivery=note)
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0.005)
            if self._ended.is_set():
                break
        assert producer.flush(40) == 0

    def goes_on(self):
        """Waits until each partition has taken more than now."""
        before = [len(acked) for acked in self.acked]
        wait_until(lambda: all(len(acked) > n for acked, n in zip(self.acked, before, strict=True)))

    def _check(self):
        with Wire(self.broker.bootstrap, timeout=20) as wire:
            for partition, acked in enumerate(self.acked):
                end = retried(lambda p=partition: latest(wire, p)).offset
                values = read_values(wire, "kept", partition, end)
                numbers = [int(value[1:].split()[0]) for value in values if value.startswith(b"n")]
                assert numbers == sorted(set(numbers)), "doubled or reordered"
                assert not set(acked) - set(numbers), "acknowledged and lost"


def latest(wire, partition):
    topics = messages.ListOffsetsRequest.Topics
    asked = topics.Partitions(partition_index=partition, timestamp=-1)
    request = messages.ListOffsetsRequest(replica_id=-1, topics=[topics(name="kept", partitions=[asked])])
    return wire.ask(request, 6).topics[0].partitions[0]


ROLLING = {"log.segment.bytes": 1 << 20, "offsets.topic.num.partitions": 4}


def test_connections_that_take_all_descriptors_cost_no_record(tmp_path):
    """At the limit logs roll, connections come and nobody can be accepted."""
    with Broker(workers=2, data_dir=tmp_path / "data", config=ROLLING) as broker, Writer(broker) as writer:
        pids = broker.worker_pids
        limits = psutil.Process(broker.pid).rlimit(resource.RLIMIT_NOFILE)
        for pid in pids.values():
            psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE, (lowest_free(pid) + 10, limits[1]))
        with ExitStack() as crowd:
            for _ in range(100):
                connecting = crowd.enter_context(socket.socket())
                connecting.setblocking(False)  # once the backlog is full a connect waits
                connecting.connect_ex((broker.host, broker.port))
            time.sleep(1.5)
            assert "Too many open files" in broker.log, "there was no shortage"
            assert broker.worker_pids == pids, broker.log
        for pid in pids.values():
            psutil.Process(pid).rlimit(resource.RLIMIT_NOFILE, limits)
        writer.goes_on()
        assert_serves(broker)
        assert broker.worker_pids == pids, broker.log


def test_a_worker_without_memory_costs_no_record(tmp_path):
    """HUNTS W8: requests that it has no room for; at worst the worker dies and comes back."""
    with Broker(workers=2, data_dir=tmp_path / "data", config=ROLLING) as broker, Writer(broker) as writer:
        for pid in broker.worker_pids.values():
            process = psutil.Process(pid)
            room = process.memory_info().vms + (24 << 20)
            process.rlimit(resource.RLIMIT_AS, (room, process.rlimit(resource.RLIMIT_AS)[1]))
        names = [messages.MetadataRequest.Topics(name=f"no-such-{n}") for n in range(200_000)]
        hungry = [
            (messages.MetadataRequest(topics=names, allow_auto_topic_creation=False), 9),
            (produce_request("kept", bytes(40 << 20)), 9),
            (messages.DescribeGroupsRequest(groups=["g" * 1000] * 30_000), 5),
        ]
        for request, version in hungry * 2:
            with suppress(ConnectionError, TimeoutError), Wire(broker.bootstrap, timeout=10) as wire:
                wire.ask(request, version)
            assert broker.running, broker.log
        for pid in broker.worker_pids.values():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                process.rlimit(resource.RLIMIT_AS, (process.rlimit(resource.RLIMIT_AS)[1],) * 2)
        writer.goes_on()
        assert_serves(broker)
        assert broker.running
        assert "no memory was left" in broker.log or "has died" in broker.log, "there was no shortage"


@pytest.fixture
def small_disk(tmp_path):
    with small_file_system(tmp_path / "small", 64 << 20) as where:
        yield where


def test_a_disk_that_fills_and_empties_costs_no_record(small_disk):
    with Broker(workers=2, data_dir=small_disk / "data", config=ROLLING) as broker, Writer(broker) as writer:
        pids = broker.worker_pids
        ballast = small_disk / "ballast"
        with open(ballast, "wb", buffering=0) as filling, suppress(OSError):  # the writer takes some, too
            while filling.write(bytes(1 << 20)):
                pass
        with Wire(broker.bootstrap) as wire:
            wait_until(lambda: refused(wire))
            topics = messages.CreateTopicsRequest.Topics(name="more", num_partitions=4, replication_factor=1)
            wire.ask(messages.CreateTopicsRequest(topics=[topics], timeout_ms=5000), 7)
        time.sleep(1)
        assert broker.worker_pids == pids, broker.log
        ballast.unlink()
        writer.goes_on()
        assert_serves(broker)
        assert broker.worker_pids == pids, broker.log


def refused(wire):
    return produce(wire, "kept", batch(os.urandom(400_000))).error_code == errors.KAFKA_STORAGE_ERROR


# -- workers that die --------------------------------------------------------------------------------------

# While the file $NO_FORKS is there the system has no process for anybody.
NO_FORKS = """
import errno, os

def fork_or_fail():
    if os.path.exists(os.environ["NO_FORKS"]):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

fork, os.fork = os.fork, fork_or_fail
"""


def test_a_fork_that_the_system_refuses_is_tried_again(tmp_path):
    """HUNTS W6: EAGAIN at a pids limit ended the supervisor, and with it all workers."""
    (tmp_path / "sitecustomize.py").write_text(NO_FORKS)
    no_forks = tmp_path / "no-forks"
    env = python_path(tmp_path) | {"NO_FORKS": str(no_forks)}
    with Broker(workers=2, data_dir=tmp_path / "data", env=env) as broker, Writer(broker) as writer:
        other = broker.worker_pids[0]
        no_forks.touch()
        broker.kill_worker(1)
        wait_until(lambda: broker.log.count("worker 1 cannot be started: [Errno 11]") >= 2)
        assert broker.worker_pids == {0: other}
        no_forks.unlink()
        wait_until(lambda: 1 in broker.worker_pids)
        writer.goes_on()
        assert_serves(broker)


def test_a_supervisor_without_descriptors_forks_when_it_has_some_again(tmp_path):
    """HUNTS W6: EMFILE for the pipe to the new worker ended the supervisor, and with it all workers."""
    with Broker(workers=2, data_dir=tmp_path / "data") as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "kept", PARTITIONS)
        supervisor = psutil.Process(broker.pid)
        limits = supervisor.rlimit(resource.RLIMIT_NOFILE)
        for victim in (1, 0):
            supervisor.rlimit(resource.RLIMIT_NOFILE, (lowest_free(broker.pid), limits[1]))
            broker.kill_worker(victim)
            wait_until(lambda k=victim: f"worker {k} cannot be started: [Errno 24]" in broker.log)
            supervisor.rlimit(resource.RLIMIT_NOFILE, limits)
            wait_until(lambda k=victim: k in broker.worker_pids)
        assert_serves(broker)
        assert broker.stop() == 0


def test_a_first_fork_that_the_system_refuses_is_one_sentence(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_FORKS)
    (tmp_path / "no-forks").touch()
    env = python_path(tmp_path) | {"NO_FORKS": str(tmp_path / "no-forks")}
    broker = Broker(workers=2, data_dir=tmp_path / "data", env=env)
    with pytest.raises(BrokerFailed, match="exited with 1 ") as failed, broker:
        pass
    assert "worker 0 of 2 cannot be started" in str(failed.value) and "Traceback" not in str(failed.value)


# A worker finds itself wrong when it serves a Heartbeat of the group "wrong".
WRONG = """
from kafkad.api import groups

def heartbeat(services, context, request):
    assert request.group_id != "wrong"
    return served(services, context, request)

served, groups.heartbeat = groups.heartbeat, heartbeat
"""


def test_a_worker_that_finds_itself_wrong_is_restarted(tmp_path):
    """HUNTS W8: exit code 70 of one worker ended the broker; a kill of it costs that worker's connections."""
    (tmp_path / "sitecustomize.py").write_text(WRONG)
    env = python_path(tmp_path)
    with Broker(workers=2, data_dir=tmp_path / "data", env=env) as broker:
        with Wire(broker.bootstrap, timeout=20) as wire:
            create_topic(wire, "kept", PARTITIONS)
            for partition in range(PARTITIONS):
                assert produce(wire, "kept", batch(b"before"), partition).error_code == 0
        assert_serves(broker)
        for deaths in (1, 2, 3):
            with Wire(broker.bootstrap, timeout=20) as wire, suppress(ConnectionError):
                wire.ask(messages.HeartbeatRequest(group_id="wrong"), 4)
            wait_until(lambda deaths=deaths: broker.log.count("has died: exit code 70") == deaths)
            assert_serves(broker)
            # It answers the others before it is ready, and a start that is cut short leaves no mark.
            wait_until(lambda deaths=deaths: broker.log.count("serves again") == deaths)
            with Wire(broker.bootstrap, timeout=20) as wire:
                for partition in range(PARTITIONS):
                    values = read_values(wire, "kept", partition, 2 + deaths)
                    assert values == [b"before"] + [b"after"] * (1 + deaths)
        assert "died 2 times in a row; next start in 0.1 s" in broker.log
        assert broker.stop() == 0, broker.log
        assert (broker.data_dir / MARK).exists()


# -- exceptions that nobody has foreseen -------------------------------------------------------------------

POINTS = (
    "kafkad.security.sasl:Authenticator.frame",
    "kafkad.server.authentication:Authentication.takes",
    "kafkad.server.authentication:Authentication._fail",
    "kafkad.server.authentication:subject_of",
    "kafkad.protocol.codec:decode_request",
    "kafkad.protocol.codec:decode_request_in_steps",
    "kafkad.protocol.codec:encode_narrow_response",
    "kafkad.server.dispatch:_context",
    "kafkad.server.dispatch:pause_of",
    "kafkad.server.guard:Gate.split",
    "kafkad.security.authorizer:Subject.may",
    "kafkad.security.authorizer:Authorizer.subject",
    "kafkad.server.client_quotas:FollowedQuotas.resolve",
    "kafkad.coordinator.runtime:GroupCoordinator.join",
    "kafkad.coordinator.runtime:GroupCoordinator.heartbeat",
    "kafkad.coordinator.runtime:GroupCoordinator.commit_steps",
    "kafkad.coordinator.group:ClassicGroup.expire_pending_sync",
    "kafkad.coordinator.transactions:TransactionCoordinator.init_producer_id",
    "kafkad.controller.controller:Controller.create_topics",
    "kafkad.coordinator.runtime:GroupCoordinator.heartbeat kafkad.server.dispatch:error_response",
)
BETWEEN_WORKERS = (
    "kafkad.server.routing:Router.route",
    "kafkad.server.routing:Router._forwarded",
    "kafkad.server.routing:unpack",
)


def asked(make, request, version):
    """The answer to the request on a new connection; None if the broker closes it instead."""
    try:
        with make() as wire:
            return wire.ask(request, version)
    except (ConnectionError, ssl.SSLError):
        return None


def requests_of_clients(topic):
    """(request, version) of each kind of work: native, here, in another worker, in the controller."""
    fetched = messages.FetchRequest.Topics
    fetch = messages.FetchRequest(
        max_wait_ms=0,
        max_bytes=1 << 20,
        topics=[fetched(topic=topic, partitions=[fetched.Partitions(partition=0, partition_max_bytes=1000)])],
    )
    created = messages.CreateTopicsRequest.Topics(name="made", num_partitions=1, replication_factor=1)
    yield produce_request(topic, batch(b"a record")), 9
    yield fetch, 11
    yield messages.MetadataRequest(topics=None), 9
    yield messages.CreateTopicsRequest(topics=[created], timeout_ms=10_000), 7
    yield messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="n" * 20_000)]), 9
    for name in ("a", "b", "c"):  # on all workers
        protocol = messages.JoinGroupRequest.Protocols(name="range", metadata=b"")
        yield (
            messages.JoinGroupRequest(
                group_id=f"group {name}",
                session_timeout_ms=6_000,
                rebalance_timeout_ms=100,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,
        )
        yield messages.HeartbeatRequest(group_id=f"group {name}", generation_id=1, member_id="m"), 3
        committed = messages.OffsetCommitRequest.Topics(name=topic)
        committed.partitions = [committed.Partitions(partition_index=0, committed_offset=1)]
        yield messages.OffsetCommitRequest(group_id=f"other {name}", topics=[committed]), 7
        yield (
            messages.InitProducerIdRequest(transactional_id=f"id {name}", transaction_timeout_ms=60_000),
            4,
        )


@pytest.mark.parametrize("kind", ["kafkad", "kafkad-2"])
def test_an_exception_in_the_code_for_one_client_ends_no_worker(tmp_path, kind):
    points = POINTS if kind == "kafkad" else POINTS + BETWEEN_WORKERS
    faults = Faults(tmp_path / "faults", points)
    secured = SecuredBroker(kind, tmp_path / "broker")
    secured.broker.env |= faults.env
    with secured:
        broker, trust = secured.broker, trusting(secured.stores, "client")
        plain = secured.plain
        port, certified = (int(each.rpartition(":")[2]) for each in (secured.sasl, secured.tls))
        secured.topic("kept", PARTITIONS)
        quota = messages.AlterClientQuotasRequest.Entries
        limited = quota(
            entity=[quota.Entity(entity_type="client-id", entity_name=None)],
            ops=[quota.Ops(key=key, value=1e9) for key in ("producer_byte_rate", "consumer_byte_rate")],
        )
        with Wire(plain) as wire:
            assert (
                wire.ask(messages.AlterClientQuotasRequest(entries=[limited]), 1).entries[0].error_code == 0
            )
        requests = list(requests_of_clients("kept"))
        for kind_of_key in (0, 1):
            find = messages.FindCoordinatorRequest(key_type=kind_of_key, coordinator_keys=["a"])
            wait_until(lambda f=find: not asked(partial(Wire, plain), f, 4).coordinators[0].error_code)
        for request, version in requests:  # all are served, and the groups and ids are there
            answer = asked(partial(Wire, plain), request, version)
            code = getattr(answer, "error_code", 0)
            assert answer is not None and code in (0, errors.UNKNOWN_MEMBER_ID), (request, answer)
        pids = broker.worker_pids
        for name in points:
            with faults.failing(name):
                for request, version in requests:
                    asked(partial(Wire, plain), request, version)
                asked(partial(TlsWire, port, trust), messages.SaslHandshakeRequest(mechanism="PLAIN"), 1)
                asked(partial(TlsWire, port, trust), messages.SaslHandshakeRequest(mechanism="NONE"), 1)
                asked(partial(TlsWire, certified, trust), messages.MetadataRequest(topics=None), 9)
            assert broker.running and broker.worker_pids == pids, f"{name}\n{broker.log[-3000:]}"
        for request, version in requests:
            assert asked(partial(Wire, plain), request, version) is not None, request
        assert broker.worker_pids == pids
        assert broker.log.count("Traceback") < 3 * len(points), "a traceback is logged once in a while"
