"""A broker with several workers: forked processes with real logs, groups and a controller. What carries the
metadata from one to another is left out. `Client` asks one of them over TCP."""

import asyncio
import os
import signal
import socket
import sys
import traceback
import uuid
from contextlib import suppress
from types import SimpleNamespace

from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.serving.reactor import Reactor
from kafkad.api import table
from kafkad.api.context import Services
from kafkad.clock import Clock
from kafkad.config import loggers
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.runtime import GroupCoordinator
from kafkad.coordinator.transactions import TransactionCoordinator
from kafkad.log.log_dirs import LogDirs
from kafkad.protocol import codec, messages
from kafkad.replication.partitions import Partitions
from kafkad.server.dispatch import Dispatcher
from kafkad.server.event_loop import EventLoop
from kafkad.server.group_loader import GroupLoader
from kafkad.server.group_storage import OFFSETS_TOPIC, GroupStorage
from kafkad.server.marker_transport import MarkerTransport
from kafkad.server.producer_ids import ProducerIds
from kafkad.server.scheduler import LoopScheduler
from kafkad.server.transaction_gate import TransactionGate
from kafkad.server.transaction_storage import TRANSACTION_TOPIC, TransactionStorage
from kafkad.server.turns import Turns
from kafkad.server.worker_links import Peers, make_sockets
from tests.unit.log_world import batch, begin_metadata
from tests.unit.metadata_world import Cluster, create, new_topic

LEVEL = 90  # a kind of this test: what a worker logs
WAIT_S = 30
TOPICS = {"a": 6, "b": 3, "c": 1}
LOGGER = "kafkad.server.routing"

m = messages


class Registered(Cluster):
    """The metadata as each worker of these tests has it: the same topics, each with its own directory."""

    def __init__(self, path, settings, directories):
        (path / "metadata").mkdir(exist_ok=True)
        self.directories = tuple(directories)
        super().__init__(path / "metadata", **settings)

    def start(self):
        super().start(self.directories)


class Asked:
    """The controller as handlers see it (AnsweringController): they say who asks."""

    def __init__(self, controller):
        self._controller = controller

    def __getattr__(self, name):
        return getattr(self._controller, name)

    def incremental_alter_configs(self, changes, validate_only, context):
        return self._controller.incremental_alter_configs(changes, validate_only)


class Blocks:
    """The controller of a worker that has none, for producer ids: those that only this worker gives."""

    def __init__(self, me):
        self.first = 1_000_000 * me

    def allocate_producer_ids(self):
        self.first += 1_000
        return self.first - 1_000, 1_000


class Site:
    """One worker: everything but what carries the metadata from one to another."""

    def __init__(self, me, count, directory, loop, sockets, addresses):
        path = directory / f"of-{count}-{me}"
        path.mkdir(exist_ok=True)
        settings = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": str(path / "logs"),
            "offsets.topic.num.partitions": "6",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "6",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # a question waits for long at the coordinator, and is not asked a second time
            "add.partitions.to.txn.retry.backoff.max.ms": "30000",
            "add.partitions.to.txn.retry.backoff.ms": "30000",
        }
        config = BrokerConfig(settings)
        clock, scheduler = Clock(), LoopScheduler(loop)
        scheduler.begin()
        log_dirs = LogDirs(config, clock, scheduler)
        log_dirs.open()
        begin_metadata(path / "logs")
        self.cluster = Registered(path, settings, log_dirs.directory_ids())
        create(self.cluster, *(new_topic(name, partitions) for name, partitions in TOPICS.items()))
        self.cluster.controller.auto_create([OFFSETS_TOPIC])
        self.cluster.controller.auto_create([TRANSACTION_TOPIC])
        metadata = SimpleNamespace(image=self.cluster.image)

        self.loop = loop
        log_dirs.load(lambda topic: self.partitions.topic_config(metadata.image, topic), {})
        native = PartitionTable()
        self.partitions = Partitions(1, config, log_dirs, native, me=me, workers=count)
        self.partitions.apply(metadata.image)
        for log in self.partitions:
            fill(log)

        def on_change(delta, image):
            metadata.image = image
            self.partitions.apply_delta(delta, image)

        self.cluster.controller.subscribe(on_change)
        storage = GroupStorage(config, self.partitions, metadata, clock, scheduler)
        self.groups = GroupCoordinator(config, clock, scheduler, storage, lambda: str(uuid.uuid4()))
        loader = GroupLoader(self.groups, self.partitions, scheduler)
        for index in range(storage.partition_count()):
            loader.load(index)

        def owner_of(topic, index):
            owner = self.partitions.owner_of(topic, index)
            return me if owner is None else owner

        self.peers = Peers(me, sockets, addresses, loop) if count > 1 else None
        controller = Asked(self.cluster.controller) if me == 0 else None  # who else asks it fails
        self.services = Services(
            config=config,
            static_config=config,
            clock=clock,
            metadata=metadata,
            controller=controller,
            partitions=self.partitions,
            log_dirs=log_dirs,
            groups=self.groups,
            producer_ids=ProducerIds(controller or Blocks(me)),
            api_versions=table.TOLD,
            me=me,
            peers=self.peers,
            owner_of=owner_of,
            group_owner=lambda group: owner_of(OFFSETS_TOPIC, self.groups.partition_for(group)),
            transaction_owner=lambda name: owner_of(
                TRANSACTION_TOPIC, self.services.transactions.partition_for(name)
            ),
        )
        self.load_transactions()
        rows = dict(table.BY_KEY)
        rows[47] = rows[47]._replace(handler=stumbling(rows[47].handler))
        self.dispatcher = Dispatcher(self.services, rows, fatal, Turns(loop))
        self.reactor = Reactor(native, self.dispatcher, on_fatal=fatal)
        loop.add_reader(self.reactor.fileno(), self.reactor.poll)

    def load_transactions(self):
        services = self.services
        storage = TransactionStorage(
            self.partitions, services.metadata, services.clock, self.groups.scheduler
        )
        transport = MarkerTransport(services, self.loop)
        services.transactions = TransactionCoordinator(
            services.config, services.clock, self.groups.scheduler, storage, transport,
            services.producer_ids.take, lambda: 2,
        )  # fmt: skip
        services.transaction_gate = TransactionGate(services, services.transaction_owner, self.loop)
        loader = GroupLoader(services.transactions, self.partitions, self.groups.scheduler, TRANSACTION_TOPIC)
        for index in range(storage.partition_count()):
            loader.load(index)

    def connect(self):
        """A client's socket; the reactor has the other end."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
        assert self.reactor.adopt(accepted.detach(), "PLAINTEXT") is not None
        return client


def fatal(trouble):
    traceback.print_exception(trouble, file=sys.stderr)
    os._exit(70)


def stumbling(handler):
    def offset_delete(services, context, request):
        if request.group_id.startswith("broken"):
            raise ValueError(request.group_id)
        return handler(services, context, request)

    return offset_delete


def fill(log):
    """The same in every broker of these tests."""
    if log.topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC):
        return
    log.set_leader_epoch(0)
    for number in range(log.partition + 1):
        written = batch(
            2, timestamp=1_000 + 10 * number, producer_id=50 + log.partition, producer_epoch=0,
            base_sequence=2 * number,
        )  # fmt: skip
        log.append_client(memoryview(written), 5_000)


def run_worker(me, count, directory, sockets, addresses):
    loop = EventLoop()
    asyncio.set_event_loop(loop)
    site = Site(me, count, directory, loop, sockets, addresses)
    site.peers.handle(LEVEL, lambda sender, payload: loggers.levels()[LOGGER].encode())
    loop.run_forever()


class World:
    """This process is worker `me`; the others are forked."""

    def __init__(self, directory, count, me=0):
        self.directory, self.count, self.me = directory, count, me
        self.sockets, self.addresses = make_sockets(count)
        self.pids = {}
        for k in range(count):
            if k != me:
                self.fork(k)
        self.loop = EventLoop()
        asyncio.set_event_loop(self.loop)
        own = [each.dup() for each in self.sockets]
        self.site = Site(me, count, directory, self.loop, own, self.addresses)
        self.peers = self.site.peers
        for k in self.pids:
            self.loop.run_until_complete(self.peers.wait_up(k, WAIT_S))

    def fork(self, k):
        pid = os.fork()
        if pid == 0:
            try:
                run_worker(k, self.count, self.directory, self.sockets, self.addresses)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(1)
        self.pids[k] = pid

    def kill(self, k):
        os.kill(self.pids[k], signal.SIGKILL)
        os.waitpid(self.pids.pop(k), 0)

    def run(self, scenario):
        return self.loop.run_until_complete(asyncio.wait_for(scenario, WAIT_S))

    async def client(self):
        return Client(*await asyncio.open_connection(sock=self.site.connect()))

    def owner(self, topic, index):
        return self.site.services.owner_of(topic, index)

    def group_of(self, worker, prefix="g"):
        """A group that `worker` coordinates."""
        names = (f"{prefix}{number}" for number in range(1000))
        return next(name for name in names if self.site.services.group_owner(name) == worker)

    def close(self):
        if self.loop.is_closed():
            return
        for k in list(self.pids):
            with suppress(ProcessLookupError):
                self.kill(k)
        if self.peers is not None:
            self.peers.close()
        self.loop.remove_reader(self.site.reactor.fileno())
        self.site.reactor.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        self.site.groups.close()
        self.site.services.transactions.close()
        self.site.services.log_dirs.close(clean=False)
        self.loop.close()
        for each in self.sockets:
            each.close()


class Client:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.correlation_id = 0

    def send(self, request, version, client_id="test"):
        self.correlation_id += 1
        frame = codec.encode_request(request, version, self.correlation_id, client_id)
        self.writer.write(len(frame).to_bytes(4, "big") + frame)
        return self.correlation_id

    async def receive(self, request, version, correlation_id):
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        frame = await self.reader.readexactly(size)
        answered, response = codec.decode_response(codec.response_class(request.API_KEY), version, frame)
        assert answered == correlation_id
        return response

    async def ask(self, request, version=None, client_id="test"):
        version = table.BY_KEY[request.API_KEY].high if version is None else version
        return await self.receive(request, version, self.send(request, version, client_id))
