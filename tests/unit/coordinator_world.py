"""A group coordinator alone in the world: the clock, timers, member ids and the log are the test's.

`play` runs a transcript. A line at the margin is a command, the indented lines below it are all that came
of it:

    join A
      A: MEMBER_ID_REQUIRED
    join A
    tick 3000
      A: joined 1 as leader, members A

Commands: join, sync, heartbeat, leave, commit, fetch, tick, hold and release (the log), reload, expire,
delete, describe, log. Clients are named by capital letters and remember their member id and generation."""

import heapq
import itertools
import shlex
import textwrap

from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.coordinator import records
from kafkad.coordinator.runtime import GroupCoordinator, at_once
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Batch, build_batch, end_marker, read_batches

GROUP = "g"
START_MS = 1_700_000_000_000
STABLE = """
    join A
      A: MEMBER_ID_REQUIRED
    join A
    tick 3000
      A: joined 1 as leader, members A
    sync A A=t0
      A: assigned t0
"""  # a group of one member


class Timer:
    def __init__(self, function):
        self.function = function

    def cancel(self):
        self.function = None


class ManualScheduler:
    """Timers that fire when the test moves the clock, in the order in which they are due."""

    def __init__(self, clock):
        self.clock = clock
        self._queue = []
        self._order = itertools.count()

    def call_later(self, delay_ms, function):
        timer = Timer(function)
        heapq.heappush(self._queue, (self.clock.monotonic_ms() + delay_ms, next(self._order), timer))
        return timer

    def advance(self, ms):
        end_ms = self.clock.monotonic_ms() + ms
        while self._queue and self._queue[0][0] <= end_ms:
            due_ms, _, timer = heapq.heappop(self._queue)
            self.clock.advance(max(0, due_ms - self.clock.monotonic_ms()))
            if timer.function is not None:
                timer.function()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def armed(self):
        return sum(1 for _, _, timer in self._queue if timer.function is not None)


class MemoryStorage:
    """`__consumer_offsets` in memory. Held, an append is answered by `release`, else before it returns."""

    def __init__(self, partitions=50):
        self.partitions = partitions
        self.logs = {}
        self.held = None
        self.appends = 0
        self.admitted = (0, 0)  # of the last append
        self.open = set()  # (partition, producer id, epoch) whose transaction needs no coordinator's word
        self.guard_error = errors.NONE
        self.size_max = 1 << 20
        self.topic_ids = {}  # of topics whose id is known; None: there is no such topic

    def topic_id(self, topic):
        return self.topic_ids.get(topic, bytes(16))

    def partition_count(self):
        return self.partitions

    def batch_size_max(self, partition):
        return self.size_max

    def ask_guard(self, partition, admission, producer_id, epoch):
        if self.guard_error:
            raise KafkaError(self.guard_error)
        return 0 if (partition, producer_id, epoch) in self.open else 7

    def append(self, partition, batch, callback, admitted=(0, 0)):
        self.appends += 1
        self.admitted = admitted
        if len(batch) > self.size_max:
            callback(errors.MESSAGE_TOO_LARGE, -1)
            return
        if self.held is None:
            callback(errors.NONE, self._write(partition, bytes(batch)))
        else:
            self.held.append((partition, bytes(batch), callback))

    def append_marker(self, partition, of, *, commit, version, callback):
        producer_id, epoch, coordinator_epoch = of
        marker = end_marker(int(commit), coordinator_epoch, timestamp=START_MS)
        fields = {"producer_id": producer_id, "producer_epoch": epoch, "transactional": True}
        self.append(partition, build_batch([marker], control=True, **fields), callback)

    def _write(self, partition, batch):
        log = self.logs.setdefault(partition, [])
        base = Batch(log[-1]).last_offset + 1 if log else 0
        log.append(base.to_bytes(8, "big") + batch[8:])
        return base

    def hold(self):
        self.held = []

    def release(self, code=errors.NONE, *, keep_holding=False):
        waiting, self.held = self.held or [], [] if keep_holding else None
        for partition, batch, callback in waiting:
            callback(code, -1 if code else self._write(partition, batch))


def subscription(*topics):
    return b"\0\0" + codec.encode(messages.ConsumerProtocolSubscription(topics=list(topics)), 0)


def protocol(name, metadata):
    return messages.JoinGroupRequest.Protocols(name=name, metadata=metadata)


class Client:
    def __init__(self, name):
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id = None
        self.protocol_name = None


class World:
    def __init__(self, **config):
        self.clock = ManualClock(START_MS, 5_000)
        self.scheduler = ManualScheduler(self.clock)
        self.storage = MemoryStorage()
        self.overrides = config
        self.names = {}
        self.clients = {}
        self.heard = []
        self._uuids = itertools.count(1)
        self.start()

    @property
    def config(self):
        return BrokerConfig.load(
            None, {key.replace("_", "."): str(value) for key, value in self.overrides.items()}
        )

    def start(self):
        self.coordinator = GroupCoordinator(
            self.config, self.clock, self.scheduler, self.storage, lambda: str(next(self._uuids))
        )
        for partition in range(self.storage.partitions):
            self.coordinator.load(partition, self.storage.logs.get(partition, []))

    @property
    def group(self):
        return self.shard.groups[GROUP]

    @property
    def shard(self):
        return self.coordinator.shards[self.coordinator.partition_for(GROUP)]

    def client(self, name):
        return self.clients.setdefault(name, Client(name))

    def name(self, member_id):
        """Who has this id; of those that were not answered yet, by the client id."""
        member = self.group.members.get(member_id) if GROUP in self.shard.groups else None
        return self.names.get(member_id) or (member.client_id.upper() if member else "?")

    def say(self, line):
        self.heard.append(line)

    # -- commands

    def join(
        self,
        who,
        version=9,
        instance=None,
        type="consumer",
        range="t",
        also=None,
        session=10_000,
        rebalance=60_000,
        id=None,
    ):
        client = self.client(who)
        client.instance_id = instance or client.instance_id
        protocols = [protocol("range", subscription(*str(range).split(",")))] if range else []
        if also:
            protocols.append(protocol(also, subscription("t")))
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            member_id=client.member_id if id is None else id,
            group_instance_id=client.instance_id,
            protocol_type=type,
            protocols=protocols,
            session_timeout_ms=int(session),
            rebalance_timeout_ms=int(rebalance),
        )

        def reply(response):
            if response.error_code:
                if response.error_code == errors.MEMBER_ID_REQUIRED:
                    client.member_id = response.member_id
                    self.names[response.member_id] = who
                elif response.error_code in (errors.UNKNOWN_MEMBER_ID, errors.FENCED_INSTANCE_ID):
                    client.member_id = ""
                self.say(f"{who}: {errors.NAMES[response.error_code]}")
                return
            client.member_id, client.generation = response.member_id, response.generation_id
            client.protocol_name = response.protocol_name
            self.names[response.member_id] = who
            leads = response.leader == response.member_id
            members = " ".join(sorted(self.name(m.member_id) for m in response.members))
            words = [f"{who}: joined {response.generation_id}"]
            words.append(
                f"as leader, members {members}" if members else f"after {self.name(response.leader)}"
            )
            if response.skip_assignment:
                words.append("(skip assignment)")
            assert bool(members) == leads
            self.say(" ".join(words))

        self.coordinator.join(request, int(version), who.lower(), "/127.0.0.1", reply)

    def sync(self, who, generation=None, type="consumer", protocol=None, **shares):
        client = self.client(who)
        request = messages.SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation if generation is None else int(generation),
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type=type,
            protocol_name=protocol or client.protocol_name,
            assignments=[
                messages.SyncGroupRequest.Assignments(
                    member_id=self.client(other).member_id, assignment=share.encode()
                )
                for other, share in shares.items()
            ],
        )

        def reply(response):
            if response.error_code:
                self.say(f"{who}: {errors.NAMES[response.error_code]}")
            else:
                self.say(f"{who}: assigned {bytes(response.assignment).decode() or 'nothing'}")

        self.coordinator.sync(request, reply)

    def heartbeat(self, who, generation=None):
        client = self.client(who)
        generation = client.generation if generation is None else int(generation)
        code = self.coordinator.heartbeat(GROUP, client.member_id, client.instance_id, generation)
        self.say(f"{who}: {errors.NAMES[code]}")

    def leave(self, who=None, instance=None):
        identity = (
            ("", instance) if who is None else (self.client(who).member_id, self.client(who).instance_id)
        )

        def reply(outcome):
            code, codes = outcome
            self.say(f"{who or instance}: left, {errors.NAMES[code or codes[0]]}")

        self.coordinator.leave(GROUP, [identity], reply)

    def commit(self, who="-", version=9, generation=None, retention=-1, metadata=None, id=None, **offsets):
        client = self.client(who)
        simple = who == "-"
        request = messages.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=(-1 if simple else client.generation)
            if generation is None
            else int(generation),
            member_id=client.member_id if id is None else id,
            group_instance_id=client.instance_id,
            retention_time_ms=int(retention),
        )
        for place, offset in offsets.items():
            topic, index = place.rsplit("_", 1)
            request.topics.append(
                messages.OffsetCommitRequest.Topics(
                    name=topic,
                    partitions=[
                        messages.OffsetCommitRequest.Topics.Partitions(
                            partition_index=int(index),
                            committed_offset=int(offset),
                            committed_metadata=metadata,
                        )
                    ],
                )
            )

        def reply(response):
            codes = [p.error_code for topic in response.topics for p in topic.partitions]
            self.say(f"{who}: " + " ".join(errors.NAMES[code] for code in codes))

        self.coordinator.commit(request, int(version), reply)

    def fetch(self, *places, stable=False):
        asked = messages.OffsetFetchRequest.Groups(group_id=GROUP, topics=[] if places else None)
        for place in places:
            topic, index = place.rsplit("_", 1)
            asked.topics.append(
                messages.OffsetFetchRequest.Groups.Topics(name=topic, partition_indexes=[int(index)])
            )

        def reply(answer):
            found = [
                f"{topic.name}_{p.partition_index}={p.committed_offset}"
                + (f" {errors.NAMES[p.error_code]}" if p.error_code else "")
                for topic in answer.topics
                for p in topic.partitions
            ]
            self.say(errors.NAMES[answer.error_code] if answer.error_code else " ".join(found) or "nothing")

        at_once(self.coordinator.fetch(asked, stable == "yes", reply))

    def tick(self, ms):
        self.scheduler.advance(int(ms))

    def hold(self):
        self.storage.hold()

    def release(self, code="NONE"):
        self.storage.release(errors.CODES[code])

    def reload(self):
        """The broker dies and comes back with what was in the log."""
        self.coordinator = None
        self.scheduler._queue.clear()
        self.start()

    def expire(self):
        self.shard.expire()

    def delete(self, place=None):
        if place is None:
            self.coordinator.delete_group(GROUP, lambda code: self.say(f"deleted: {errors.NAMES[code]}"))
            return
        topic, index = place.rsplit("_", 1)
        request = messages.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                messages.OffsetDeleteRequest.Topics(
                    name=topic,
                    partitions=[messages.OffsetDeleteRequest.Topics.Partitions(partition_index=int(index))],
                )
            ],
        )

        def reply(response):
            code = response.error_code or response.topics[0].partitions[0].error_code
            self.say(f"deleted: {errors.NAMES[code]}")

        self.coordinator.delete_offsets(request, reply)

    def describe(self):
        found = self.coordinator.describe(GROUP, 6)
        members = " ".join(sorted(self.name(m.member_id) for m in found.members))
        self.say(f"{found.group_state} {members}".strip())

    def log(self):
        """What stands in the log since the last time, tombstones as -."""
        for batch in self.storage.logs.get(self.shard.index, [])[getattr(self, "_told", 0) :]:
            for stored in read_batches(batch):
                for record in stored.records():
                    found = records.read(record.key, record.value)
                    if isinstance(found, records.OffsetRecord):
                        value = "-" if found.value is None else found.value.offset
                        self.say(f"offset {found.topic}_{found.partition} {value}")
                    elif found.value is None:
                        self.say("group -")
                    else:
                        members = " ".join(sorted(self.name(m.member_id) for m in found.value.members))
                        self.say(f"group {found.value.generation} {members}".strip())
        self._told = len(self.storage.logs.get(self.shard.index, []))

    def take_heard(self):
        heard, self.heard = self.heard, []
        return heard


def play(transcript, world=None, **config):
    """Runs a transcript and asserts that exactly this came of it."""
    world = world or World(**config)
    expected = textwrap.dedent(transcript).strip("\n")
    actual = []
    for line in expected.splitlines():
        if not line.strip() or line.startswith("#"):
            actual.append(line)
        elif not line.startswith(" "):
            actual.append(line)
            word, *rest = shlex.split(line)
            given = [part for part in rest if "=" not in part]
            named = dict(part.split("=", 1) for part in rest if "=" in part)
            getattr(world, word)(*given, **named)
            actual.extend(f"  {heard}" for heard in world.take_heard())
    assert "\n".join(actual) == expected, "what came of it:\n" + "\n".join(actual)
    return world
