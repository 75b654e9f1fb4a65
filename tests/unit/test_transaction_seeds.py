"""Transactions in an order that a seed decides: producers, the coordinator, partitions, crashes, time.

A producer here does what a client does: it initializes, adds partitions, produces, commits, aborts, loses
answers, asks again, and dies; another instance of its id may come at any time. Appends to the log fail, time
out or take long; markers fail, are lost, written twice and late; the coordinator dies, and its log, of which
the end may be missing, is read back. What always holds:

    a request has one answer                          an epoch is given to one instance only
    all of a transaction is committed, or nothing     a commit that was answered is committed
    what was not committed is never read              no transaction is left open when all is quiet"""

import random

import pytest
from transaction_world import StateStorage, TransactionWorld, Transport

from kafkad.coordinator.transaction import AT_REST
from kafkad.protocol import errors

IDS = ("a", "b")
RETRIED = {
    errors.CONCURRENT_TRANSACTIONS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.NOT_COORDINATOR,
}
STEPS = 300


class ChaoticStorage(StateStorage):
    """Records are in the log at once; that they are durable is heard later, in their order, or never."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance
        self.calm = False
        self.late = {index: [] for index in range(3)}  # (callback, place in the log)
        self.durable = dict.fromkeys(range(3), 0)  # how many batches a crash cannot take

    def append(self, partition, batch, callback, timeout_ms):
        chance = self.chance.random()
        if not self.calm and chance < 0.04:
            callback(errors.NOT_ENOUGH_REPLICAS, -1)
            return
        log = self.logs.setdefault(partition, [])
        log.append(bytes(batch))
        if not self.calm and chance < 0.07:
            callback(errors.REQUEST_TIMED_OUT, -1)
        elif self.late[partition] or (not self.calm and chance < 0.35):
            self.late[partition].append((callback, len(log)))
        else:
            self.durable[partition] = len(log)
            callback(errors.NONE, len(log) - 1)

    def catch_up(self, everything=False):
        for partition, late in self.late.items():
            while late and (everything or self.chance.random() < 0.7):
                callback, place = late.pop(0)
                self.durable[partition] = place
                callback(errors.NONE, place - 1)

    def crash(self):
        for partition, log in self.logs.items():
            kept = self.chance.randint(self.durable[partition], len(log))
            del log[kept:]
            self.durable[partition] = kept
            self.late[partition].clear()


class ChaoticTransport(Transport):
    def __init__(self, chance):
        super().__init__()
        self.chance = chance
        self.calm = False
        self.late = []

    def write_markers(self, marker, partitions, done):
        if not self.calm and self.chance.random() < 0.4:
            self.late.append((marker, partitions, done))
        else:
            self.deliver(marker, partitions, done)

    def deliver(self, marker, partitions, done):
        codes = {}
        for partition in partitions:
            chance = 1 if self.calm else self.chance.random()
            codes[partition] = errors.NOT_LEADER_OR_FOLLOWER
            if chance >= 0.1:
                codes[partition] = self.write(marker, partition)
                assert codes[partition] in (errors.NONE, errors.TRANSACTION_COORDINATOR_FENCED), codes
            if chance < 0.2:
                codes[partition] = errors.REQUEST_TIMED_OUT  # and it may be written all the same
        done(codes)

    def catch_up(self, everything=False):
        self.chance.shuffle(self.late)
        while self.late and (everything or self.chance.random() < 0.7):
            self.deliver(*self.late.pop())


class ChaoticWorld(TransactionWorld):
    def __init__(self, chance):
        self.chance = chance
        self.epochs_rise = chance.random() < 0.5  # else what a former coordinator sent is dropped
        super().__init__(
            chance.choice((1, 2)),
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1_000,
            transactional_id_expiration_ms=chance.choice((30_000, 604_800_000)),
            transaction_remove_expired_transaction_cleanup_interval_ms=5_000,
        )

    def start(self):
        if not isinstance(self.storage, ChaoticStorage):
            self.storage, self.transport = ChaoticStorage(self.chance), ChaoticTransport(self.chance)
        super().start()
        self.coordinator.start_timers()

    def restart(self):
        self.coordinator.close()
        self.storage.crash()
        if self.epochs_rise:
            self.storage.epochs = {index: self.storage.leader_epoch(index) + 1 for index in range(3)}
        else:
            self.transport.late.clear()
        self.start()


class Producer:
    """One process at a time that uses a transactional id; `instance` is another one after each death."""

    def __init__(self, run, number):
        self.run = run
        self.name = IDS[number % len(IDS)]
        self.version = 2 if run.world.version == 2 and run.chance.random() < 0.7 else 0
        self.transactions = self.asked = 0
        self.die()

    def die(self):
        self.instance = object()
        self.who = None
        self.expected = None
        self.phase = "out"
        self.busy = False
        self.begin()

    def begin(self):
        self.transactions += 1
        self.token = (id(self), self.transactions)
        self.added = set()
        self.written = []
        self.is_open = False  # something was sent that may have begun a transaction
        self.failed = False

    def ask(self, call, act):
        """Send a request. Its answer may be lost; another instance does not hear it, nor one that has given
        up waiting and sent another request."""
        instance, run = self.instance, self.run
        self.asked += 1
        number = self.asked
        ticket = run.ticket()
        self.busy = True

        def reply(*answer):
            run.answered(ticket)
            if instance is not self.instance or number != self.asked:
                return
            if run.chance.random() < 0.05 and not run.quiet:
                return  # lost: `step` asks again in time
            self.busy = False
            act(*answer)

        call(reply)

    def step(self):
        chance = self.run.chance.random()
        if chance < 0.02:
            self.die()
        elif self.busy:
            if chance < 0.15:  # it has waited long enough
                self.busy = False
                self.failed = self.failed or self.phase == "open"
        elif self.phase == "out":
            self.init()
        elif self.phase == "ending":
            self.end()
        elif self.failed or (self.is_open and chance < 0.15):
            self.phase, self.commit = "ending", False
        elif self.written and chance < 0.4:
            self.phase, self.commit = "ending", True
            self.run.outcomes[self.token] = "asked"
        else:
            self.produce()

    # -- requests

    def init(self):
        coordinator = self.run.world.coordinator
        timeout_ms, expected = self.run.chance.choice((2_000, 20_000)), self.expected
        self.ask(
            lambda reply: coordinator.init_producer_id(self.name, timeout_ms, expected, reply), self.has_begun
        )

    def has_begun(self, code, *who):
        if code == errors.NONE:
            self.run.gave(self.name, who, self.instance)
            self.who, self.phase, self.expected = who, "open", None
            self.begin()
        elif code not in RETRIED:
            self.die()

    def produce(self):
        index = self.run.chance.randrange(4)
        partition = self.run.world.transport.partitions["t", index]
        coordinator = self.run.world.coordinator
        self.is_open = True
        if self.version < 2 and index not in self.added:

            def added(code):
                if code == errors.NONE:
                    self.added.add(index)
                elif code not in RETRIED:
                    self.has_failed(code)

            self.ask(
                lambda reply: coordinator.add_partitions(self.name, *self.who, [("t", index)], 0, reply),
                added,
            )
            return
        guard, who = partition.ask(*self.who), self.who
        self.run.values += 1
        value = (self.token, self.run.values)
        written = self.written

        def append(code):
            if code == errors.NONE:
                code = partition.append(*who, value, guard)
                if code == errors.NONE:
                    self.run.appended.append(value)
            return code

        def produced(code):
            if code == errors.NONE:
                written.append(value)
            elif code not in RETRIED:
                self.has_failed(code)

        def gate(reply):
            def admitted(code):
                code = code if isinstance(code, int) else code["t", index]
                if self.run.chance.random() < 0.3:  # the append comes later, whatever happens meanwhile
                    self.run.later.append(lambda: reply(append(code)))
                else:
                    reply(append(code))

            if self.version == 2:
                coordinator.add_partitions(self.name, *who, [("t", index)], 2, admitted)
            else:
                coordinator.verify_partitions(self.name, *who, [("t", index)], admitted)

        self.ask(gate if guard else lambda reply: reply(append(errors.NONE)), produced)

    def has_failed(self, code):
        if code in (
            errors.PRODUCER_FENCED,
            errors.INVALID_PRODUCER_EPOCH,
            errors.INVALID_PRODUCER_ID_MAPPING,
        ):
            self.die()
        else:
            self.failed = True

    def end(self):
        coordinator, commit = self.run.world.coordinator, self.commit
        if self.version < 2 and not self.added and not self.written:
            self.phase = "open"
            self.begin()
            return
        self.ask(
            lambda reply: coordinator.end(self.name, *self.who, commit, self.version, reply), self.has_ended
        )

    def has_ended(self, code, *who):
        if code == errors.NONE:
            self.run.outcomes[self.token] = "committed" if self.commit else "aborted"
            if self.commit:
                self.run.owed.update(self.written)
            if self.version == 2:
                self.run.gave(self.name, who, self.instance)
                self.who = who
            self.phase = "open"
            if self.failed and self.run.chance.random() < 0.5:
                self.phase, self.expected = "out", self.who  # a new epoch, for the sequences (KIP-360)
            self.begin()
        elif code not in RETRIED:
            self.die()


class Run:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.world = ChaoticWorld(self.chance)
        self.quiet = False
        self.tickets = set()
        self.count = 0
        self.given = {}  # (transactional id, producer id, epoch) -> instance
        self.outcomes = {}  # token -> asked, committed or aborted; none: nobody asked to commit it
        self.owed = set()  # values of commits that were answered
        self.appended = []
        self.later = []
        self.values = 0
        self.producers = [Producer(self, number) for number in range(3)]

    def ticket(self):
        self.count += 1
        self.tickets.add(self.count)
        return self.count

    def answered(self, ticket):
        assert ticket in self.tickets, "a request was answered twice"
        self.tickets.remove(ticket)

    def gave(self, name, who, instance):
        assert self.given.setdefault((name, *who), instance) is instance, "two instances in one epoch"

    def step(self):
        chance = self.chance.random()
        if chance < 0.6:
            self.chance.choice(self.producers).step()
        elif chance < 0.7:
            self.world.scheduler.advance(self.chance.choice((1, 20, 100, 1_000, 5_000)))
        elif chance < 0.99:
            self.catch_up()
        else:
            self.crash()
        self.check()

    def catch_up(self, everything=False):
        self.world.storage.catch_up(everything)
        self.world.transport.catch_up(everything)
        self.chance.shuffle(self.later)
        while self.later and (everything or self.chance.random() < 0.7):
            self.later.pop()()

    def crash(self):
        self.world.restart()

    def settle(self):
        """No more faults; all who are under way arrive, and the producers are gone."""
        self.quiet = True
        self.world.storage.calm = self.world.transport.calm = True
        for producer in self.producers:
            producer.die()
        for _ in range(3):
            self.catch_up(everything=True)
            self.world.scheduler.advance(30_000)
            self.check()

    def check(self):
        read = set()
        for partition in self.world.transport.partitions.values():
            read.update(partition.committed())
        for token, _ in read:
            assert self.outcomes.get(token) in ("asked", "committed"), "what was not committed is read"

    def check_end(self):
        self.check()
        assert not self.tickets or self.world.storage.epochs or not self.world.epochs_rise
        read = set()
        for partition in self.world.transport.partitions.values():
            values = partition.committed()
            assert len(values) == len(set(values))
            read.update(values)
            for producer in partition.producers.values():
                assert producer.open_at is None, "a transaction is left open"
        for shard in self.world.coordinator.shards.values():
            assert all(each.state in AT_REST and not each.is_settling for each in shard.transactions.values())
        assert self.owed <= read, "an answered commit is not committed"
        decided = {}
        for token, number in self.appended:
            is_read = (token, number) in read
            assert decided.setdefault(token, is_read) == is_read, "a transaction is half committed"


def play(seed):
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    run.settle()
    run.check_end()
    return run


@pytest.mark.soak
def test_invariants_hold_for_every_seed(seeds):
    committed, aborted, wanted = 0, 0, seeds(300, 10_000)
    for seed in wanted:
        try:
            run = play(seed)
        except BaseException as trouble:
            raise AssertionError(f"seed {seed}: {trouble!r}") from trouble
        committed += sum(outcome == "committed" for outcome in run.outcomes.values())
        aborted += sum(outcome == "aborted" for outcome in run.outcomes.values())
    assert committed > len(wanted)
    assert aborted > len(wanted)
