"""Three brokers, one partition, one controller, from one seed: who leads, who follows, what is committed.

The leaders are the real thing: a log with its native replica set, replication/isr and replication/replicas.
Followers and the controller are models of a page: a follower fetches by Kafka's rules (it truncates where
the leader tells it that the logs part), and the controller elects from the ISR and judges AlterPartition by
epochs. Metadata, answers and proposals arrive late, in any order between brokers, or not at all; brokers are
killed, and come back with their log and an older high watermark. Or only a worker dies: its successor finds
the shared row, in the same broker epoch, and what the dead one sent to the controller may still arrive.

`World.step` does one thing at random, and then checks what must hold:

    what was acknowledged by all is in the log of each later leader, at its offset
    the logs of two brokers say the same below the lower of their high watermarks
    a high watermark is not above the end of any member of the ISR that the controller has

`World.settle` ends the troubles: then all must be in the ISR before long, with the same log."""

import random
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.log.log import Log
from kafkad.metadata.image import PartitionState
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from kafkad.replication.isr import Answer
from kafkad.replication.replicas import Replicas
from tests.unit.log_world import ManualScheduler, batch, topic_config

BROKERS = (1, 2, 3)
INSYNC_MIN = 2
LAG_MS = 1_000
SETTLED_IN = 200  # rounds
LATE = 0.7  # the chance that a proposal of a dead process does not arrive yet
TOPIC_ID = bytes(range(16))
EPOCH_AT = struct.Struct(">i")


def run_through(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


class Registered(NamedTuple):
    """The controller's view of a broker. No log directory fails here."""

    epoch: int
    active: bool

    def has_online(self, directory: bytes) -> bool:
        return True


class Broker:
    def __init__(self, world: "World", me: int):
        self.world, self.me = world, me
        self.up = True
        self.epoch = 0  # of its registration
        self.checkpoint = 0  # the high watermark that a restart finds
        self.brokers: dict[int, Any] = {}  # as its metadata has them
        self.metadata: list[tuple[PartitionState, dict[int, Any]]] = []  # on its way
        self.answers: list[Any] = []  # of its Fetch: at most one
        self.waits: list[tuple[int, int, int]] = []  # (number, end offset, term)
        self.told: list[Callable[[], None]] = []  # the controller's answers on their way
        self.life = 0  # of the process that owns the log
        self.table = WatermarkTable(1 << 10, shared=True)
        self.start()

    def start(self) -> None:
        self.row = self.table.allocate()
        self.open()
        self.log.native.adopt_row(self.row)
        self.known: tuple[PartitionState, dict[int, Any]] | None = None

    def open(self, **options: Any) -> None:
        self.life += 1
        self.log = Log.open(
            f"{self.world.directory}/{self.me}/t-0",
            "t",
            0,
            topic_config(min_insync_replicas=INSYNC_MIN),
            now_ms=1_000,
            clean=False,
            scheduler=ManualScheduler(),
            topic_id=TOPIC_ID,
            high_watermark=self.checkpoint,
            **options,
        )
        image: Any = SimpleNamespace(brokers=self.brokers)
        self.replicas = Replicas(self.me, self.send, lambda: image, lambda: self.world.now_ms)
        self.replicas.lag_ms_max = LAG_MS

    def send(self, topic_id: bytes, index: int, proposal: Any, done: Any) -> None:
        self.world.proposals.append((self, self.epoch, self.life, proposal, done))

    def succeed(self) -> None:
        """The owner of the log is killed; another process takes it over."""
        known = self.known
        self.open(left=self.row)
        self.answers.clear()
        self.told.clear()
        if known is not None:
            self.replicas.inherits = True
            self.metadata.insert(0, known)
            self.learn()
            self.replicas.inherits = False

    @property
    def leads(self) -> bool:
        return self.up and bool(self.log.native.open)

    def learn(self) -> None:
        self.known = state, brokers = self.metadata.pop(0)
        self.brokers.clear()
        self.brokers.update(brokers)
        native = self.log.native
        if state.leader == self.me:
            self.log.set_leader_epoch(state.leader_epoch, self.me, state.partition_epoch, alone=False)
        else:
            self.log.follow(state.leader_epoch, state.leader, state.partition_epoch)
        if native.leader_epoch != state.leader_epoch or state.leader == self.me:
            self.answers.clear()
        self.replicas.on_role(self.log, state)
        run_through(self.replicas.follow_brokers())

    def content(self) -> list[tuple[int, int]]:
        """(epoch, timestamp, which is its number) by offset."""
        found: list[tuple[int, int]] = []
        for each in self.log.batches(0, self.log.end_offset):
            assert int.from_bytes(each[:8], "big") == len(found)
            found.append((EPOCH_AT.unpack_from(each, 12)[0], int.from_bytes(each[27:35], "big")))
        return found


class World:
    def __init__(self, seed: int, directory: str):
        self.chance = random.Random(seed)
        self.directory = directory
        self.now_ms = 10_000
        self.number = 0
        self.acked: dict[int, int] = {}  # number: offset
        self.proposals: list[Any] = []
        self.registered: dict[int, Any] = {}
        self.broker_epoch = 100
        self.trace: list[str] = []
        self.state = PartitionState(1, 0, BROKERS, BROKERS, (bytes(16),) * 3, 0)
        self.brokers = {me: Broker(self, me) for me in BROKERS}
        for broker in self.brokers.values():
            self.register(broker)
        self.publish()

    # -- the controller --------------------------------------------------------------------------------------

    def register(self, broker: Broker) -> None:
        self.broker_epoch += 1
        broker.epoch = self.broker_epoch
        self.registered[broker.me] = Registered(broker.epoch, active=True)

    def publish(self) -> None:
        known = dict(self.registered)
        for broker in self.brokers.values():
            if broker.up:
                broker.metadata.append((self.state, known))

    def change(self, *, leader: int | None = None, isr: tuple[int, ...] | None = None) -> None:
        """`leader`: elected anew, even if it is the same."""
        state = self.state
        self.state = state._replace(
            leader=state.leader if leader is None else leader,
            leader_epoch=state.leader_epoch + (leader is not None),
            isr=state.isr if isr is None else isr,
            partition_epoch=state.partition_epoch + 1,
        )
        self.publish()

    def elect(self) -> int:
        return next((each for each in self.state.isr if self.registered[each].active), -1)

    def fence(self, me: int) -> None:
        self.registered[me] = Registered(self.registered[me].epoch, active=False)
        isr = tuple(each for each in self.state.isr if each != me) or self.state.isr
        self.state = self.state._replace(isr=isr)
        self.change(leader=self.elect() if self.state.leader == me else None)

    def judge(self) -> None:
        """One AlterPartition."""
        sender, epoch, life, proposal, done = self.proposals.pop(self.chance.randrange(len(self.proposals)))
        if life != sender.life and self.chance.random() < LATE:
            self.proposals.append((sender, epoch, life, proposal, done))
            return
        state, code = self.state, 0
        if epoch != self.registered[sender.me].epoch or not sender.up:
            return  # its connection is gone with it
        if state.leader != sender.me or proposal.leader_epoch != state.leader_epoch:
            code = errors.FENCED_LEADER_EPOCH
        elif proposal.partition_epoch != state.partition_epoch:
            code = errors.INVALID_UPDATE_VERSION
        elif any(
            not self.registered[each].active or known not in (-1, self.registered[each].epoch)
            for each, known in proposal.isr
        ):
            code = errors.INELIGIBLE_REPLICA
        isr = tuple(each for each, _ in proposal.isr)
        if code == 0 and isr != self.state.isr:
            self.change(isr=isr)
        state = self.state
        if self.chance.random() < 0.2:
            code, state = errors.NETWORK_EXCEPTION, state  # committed, and the answer lost
        answer = Answer(state.leader, state.leader_epoch, state.isr, state.partition_epoch)
        if life == sender.life and self.chance.random() < 0.3:  # the metadata may come first
            sender.told.append(lambda: done(code, None if code else answer))
        elif life == sender.life:
            done(code, None if code else answer)

    # -- one thing at random ---------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.chance.random()
        broker = self.brokers[self.chance.choice(BROKERS)]
        self.now_ms += self.chance.randrange(60)
        if chance < 0.30:
            self.fetch(broker)
        elif chance < 0.50:
            self.take_answer(broker)
        elif chance < 0.65:
            self.produce(broker)
        elif chance < 0.80:
            if broker.up and broker.metadata:
                broker.learn()
        elif chance < 0.90:
            if broker.told:
                broker.told.pop(0)()
            elif self.proposals:
                self.judge()
        elif chance < 0.93:
            if broker.leads:
                run_through(broker.replicas.tick())
        elif chance < 0.945:
            self.now_ms += 2 * LAG_MS
        elif chance < 0.96:
            broker.checkpoint = broker.log.high_watermark if broker.up else broker.checkpoint
        elif chance < 0.97:
            leader = self.elect()  # the same, or another one
            if leader >= 0:
                self.change(leader=self.chance.choice([leader, self.state.isr[-1]]))
                if not self.registered[self.state.leader].active:
                    self.change(leader=leader)
        elif chance < 0.985:
            if broker.up:
                self.kill(broker)
        elif not broker.up:
            self.restart(broker)
        elif chance < 0.995:
            self.trace.append(f"a worker of {broker.me} dies")
            broker.succeed()
        self.acknowledge()

    def kill(self, broker: Broker) -> None:
        self.trace.append(f"kill {broker.me}")
        broker.up = False
        broker.log.close(clean=False)
        broker.metadata.clear()
        broker.answers.clear()
        broker.told.clear()
        broker.waits.clear()
        self.proposals = [each for each in self.proposals if each[0] is not broker]
        self.fence(broker.me)

    def restart(self, broker: Broker) -> None:
        self.trace.append(f"start {broker.me}")
        broker.up = True
        broker.start()
        self.register(broker)
        self.change(leader=broker.me if self.state.leader < 0 and broker.me in self.state.isr else None)

    def produce(self, broker: Broker) -> None:
        native = broker.log.native
        isr = broker.replicas.isr("t", 0)
        if not broker.leads or isr is None or len(isr.committed) < INSYNC_MIN:
            return
        self.number += 1
        base = broker.log.append_client(batch(1, timestamp=self.number), 1_000).base_offset
        broker.waits.append((self.number, base + 1, native.led_since))

    def acknowledge(self) -> None:
        for broker in self.brokers.values():
            native = broker.log.native
            still = []
            for number, end, term in broker.waits:
                if not broker.up or native.led_since != term:
                    continue  # its client is told NOT_LEADER_OR_FOLLOWER
                if native.high_watermark < end:
                    still.append((number, end, term))
                else:
                    self.acked[number] = end - 1
            broker.waits = still

    # -- followers -------------------------------------------------------------------------------------------

    def fetch(self, broker: Broker) -> None:
        """Ask the leader that its metadata names; the answer is taken later, or never."""
        native = broker.log.native
        leader = self.brokers.get(native.leader_id)
        if not broker.up or leader is None or leader is broker or broker.answers or not leader.leads:
            return
        if leader.log.native.leader_epoch != native.leader_epoch:
            return
        offset, latest = broker.log.end_offset, broker.log.leader_epochs.latest
        at = (native.leader_epoch, offset)
        if latest is not None:
            epoch, end = leader.log.end_offset_for_epoch(latest)
            if epoch < 0:
                return  # OFFSET_OUT_OF_RANGE: its leader has not heard of that epoch; it asks again
            if epoch < latest or end < offset:
                broker.answers.append((at, "diverging", epoch, end))
                return
        if offset > leader.log.end_offset:
            return
        leader_end = leader.log.end_offset
        data = leader.log.read(offset, self.chance.randrange(1, 400), below="end")
        code = leader.log.native.note_fetch(broker.me, broker.epoch, offset, 0, self.now_ms, leader_end)
        if code == 0 and self.chance.random() < 0.9:
            broker.answers.append((at, "records", data, leader.log.high_watermark))

    def take_answer(self, broker: Broker) -> None:
        if not broker.up or not broker.answers:
            return
        at, kind, first, second = broker.answers.pop()
        log = broker.log
        if log.native.role != 1 or at != (log.native.leader_epoch, log.end_offset):
            return
        if kind == "diverging":
            epoch, end = log.end_offset_for_epoch(first)
            log.truncate_to(min(second, end if epoch >= 0 else second, log.end_offset))
            return
        place = 0
        while place < len(first):
            size = EPOCH_AT.unpack_from(first, place + 8)[0] + 12
            log.append(bytearray(first[place : place + size]), 1_000, origin="replica")
            place += size
        log.advance_high_watermark(min(second, log.end_offset))

    # -- what must hold --------------------------------------------------------------------------------------

    def check(self) -> None:
        contents = {broker.me: broker.content() for broker in self.brokers.values() if broker.up}
        leader = self.state.leader
        for me, content in contents.items():
            if me == leader or me in self.state.isr:
                for number, offset in self.acked.items():
                    assert offset < len(content) and content[offset][1] == number, (
                        f"{number} at {offset} is lost on {me}: leader {leader}, ISR {self.state.isr}"
                    )
        for one, content in contents.items():
            for other, theirs in contents.items():
                low = min(self.brokers[each].log.high_watermark for each in (one, other))
                assert content[:low] == theirs[:low], f"{one} and {other} differ below {low}"
        for me in contents:
            high = self.brokers[me].log.high_watermark
            for each in self.state.isr:
                if each in contents:
                    assert high <= len(contents[each]), f"HW {high} of {me} is above the end of {each}"

    # -- an end of all troubles ------------------------------------------------------------------------------

    def settle(self) -> None:
        """All run, and what is sent arrives."""
        for broker in self.brokers.values():
            if not broker.up:
                self.restart(broker)
        for _ in range(SETTLED_IN):
            if self.is_settled():
                return
            self.now_ms += 50
            while self.proposals:
                self.judge()
            for broker in self.brokers.values():
                while broker.metadata:
                    broker.learn()
                while broker.told:
                    broker.told.pop(0)()
            for broker in self.brokers.values():
                self.fetch(broker)
                self.take_answer(broker)
        ends = {me: broker.log.end_offset for me, broker in self.brokers.items()}
        epochs = {me: broker.log.leader_epochs.entries for me, broker in self.brokers.items()}
        raise AssertionError(f"they do not settle: {self.state}, ends {ends}, epochs {epochs}")

    def is_settled(self) -> bool:
        one, *others = (broker.content() for broker in self.brokers.values())
        return set(self.state.isr) == set(BROKERS) and all(each == one for each in others)


def run(seed: int, directory: str, steps: int) -> World:
    world = World(seed, directory)
    for number in range(steps):
        try:
            world.step()
        except KafkaError as trouble:
            raise AssertionError(f"seed {seed}, step {number}: {trouble}") from trouble
        if number % 10 == 0 or number == steps - 1:
            world.check()
    try:
        world.settle()
    except KafkaError as trouble:
        raise AssertionError(f"seed {seed}, settling: {trouble}") from trouble
    world.check()
    for broker in world.brokers.values():
        if broker.up:
            broker.log.close(clean=False)
    return world
