"""Clients, timers, the log and crashes of the broker in an order that a seed decides: what always holds.

A client here does what a consumer does: it joins, syncs, heartbeats, commits, leaves, loses answers and dies.
After each event, and when all has come to rest, the invariants are checked:

    every request is answered once                    no parked request outlives its member
    the generation never goes back                    a generation has one leader, and it is a member
    an assignment goes to those of its generation     what was acknowledged is found after a crash"""

import random

import pytest
from coordinator_world import GROUP, World, protocol, subscription

from kafkad.coordinator.group import State
from kafkad.protocol import errors, messages


class Consumer:
    def __init__(self, run, number):
        self.run = run
        self.number = number
        self.instance_id = f"static-{number}" if number % 3 == 0 else None
        self.version = run.random.choice([0, 3, 5, 9])
        self.forget()

    def forget(self):
        self.member_id = ""
        self.generation = -1
        self.phase = "out"  # out, joining, joined, syncing, stable
        self.leads_over = None
        self.life = object()  # answers to an earlier life are lost

    def step(self):
        chance = self.run.random.random()
        if chance < 0.03:
            self.forget()  # died: the broker does not know
        elif self.phase == "out":
            self.join()
        elif self.phase == "joined":
            self.sync()
        elif self.phase == "stable":
            if chance < 0.08:
                self.leave()
            elif chance < 0.15:
                self.join()
            elif chance < 0.5:
                self.commit()
            else:
                self.heartbeat()
        elif chance < 0.1:  # an impatient client asks again
            self.join() if self.phase == "joining" else self.sync()

    def answered(self, kind, act):
        ticket = self.run.ask(kind)
        life = self.life

        def reply(response):
            self.run.answer(ticket)
            if life is self.life:
                act(response)

        return reply

    def join(self):
        topics = ["t"] + (["u"] if self.run.random.random() < 0.2 else [])
        request = messages.JoinGroupRequest(
            group_id=GROUP,
            member_id=self.member_id,
            group_instance_id=self.instance_id if self.version >= 5 else None,
            protocol_type="consumer",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=self.run.random.choice([5_000, 20_000]),
            protocols=[protocol("range", subscription(*topics)), protocol("sticky", b"x")],
        )
        self.phase = "joining"
        self.run.coordinator.join(request, self.version, "c", "/h", self.answered("join", self.joined))

    def joined(self, response):
        code = response.error_code
        if code == errors.NONE:
            self.run.joined(response)
            self.member_id, self.generation = response.member_id, response.generation_id
            self.leads_over = [m.member_id for m in response.members] if response.members else None
            self.phase = "joined"
        else:
            self.refused(code)
            if code == errors.MEMBER_ID_REQUIRED:
                assert response.member_id
                self.member_id = response.member_id

    def sync(self):
        request = messages.SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if self.version >= 5 else None,
        )
        for other in self.leads_over or ():
            request.assignments.append(
                messages.SyncGroupRequest.Assignments(
                    member_id=other, assignment=f"{self.generation} {other}".encode()
                )
            )
        self.phase = "syncing"
        generation = self.generation

        def synced(response):
            if response.error_code:
                self.refused(response.error_code)
            elif self.generation == generation:
                self.phase = "stable"
                if response.assignment and self.instance_id is None:
                    assert bytes(response.assignment) == f"{generation} {self.member_id}".encode()

        self.run.coordinator.sync(request, self.answered("sync", synced))

    def heartbeat(self):
        instance_id = self.instance_id if self.version >= 5 else None
        code = self.run.coordinator.heartbeat(GROUP, self.member_id, instance_id, self.generation)
        if code:
            self.refused(code)

    def leave(self):
        reply = self.answered("leave", lambda outcome: None)
        self.run.coordinator.leave(GROUP, [(self.member_id, None)], reply)
        self.forget()

    def commit(self):
        offset = self.run.next_offset()
        topic = messages.OffsetCommitRequest.Topics(
            name="t",
            partitions=[
                messages.OffsetCommitRequest.Topics.Partitions(
                    partition_index=self.number, committed_offset=offset
                )
            ],
        )
        request = messages.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[topic],
        )
        number = self.number

        def committed(response):
            code = response.topics[0].partitions[0].error_code
            if code == errors.NONE:
                self.run.acknowledged[number] = max(offset, self.run.acknowledged.get(number, -1))

        ticket = self.run.ask("commit")

        def reply(response):
            self.run.answer(ticket)
            committed(response)

        self.run.coordinator.commit(request, 8, reply)

    def refused(self, code):
        if code in (errors.UNKNOWN_MEMBER_ID, errors.FENCED_INSTANCE_ID):
            self.forget()
        else:
            self.phase = "out"


class Run:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.world = World(group_max_size=self.random.choice([3, 100]))
        self.consumers = [Consumer(self, number) for number in range(6)]
        self.open = {}
        self.asked = 0
        self.offset = 0
        self.acknowledged = {}
        self.generation = -1
        self.leaders = {}

    @property
    def coordinator(self):
        return self.world.coordinator

    def ask(self, kind):
        self.asked += 1
        self.open[self.asked] = kind
        return self.asked

    def answer(self, ticket):
        assert ticket in self.open, "answered twice"
        del self.open[ticket]

    def next_offset(self):
        self.offset += 1
        return self.offset

    def joined(self, response):
        if response.members:
            assert response.member_id in [m.member_id for m in response.members]

    def event(self):
        chance = self.random.random()
        if chance < 0.6:
            self.random.choice(self.consumers).step()
        elif chance < 0.85:
            self.world.tick(self.random.choice([1, 100, 1_000, 3_000]))
        elif chance < 0.9:
            if self.world.storage.held is None:
                self.world.storage.hold()
        elif chance < 0.99:
            code = errors.NOT_ENOUGH_REPLICAS if self.random.random() < 0.1 else errors.NONE
            self.world.storage.release(code)
        else:
            self.crash()

    def crash(self):
        """What was not answered is lost; held batches may or may not have reached the log, in order."""
        self.open.clear()
        held, self.world.storage.held = self.world.storage.held or [], None
        for partition, batch, _ in held[: self.random.randrange(len(held) + 1)]:
            self.world.storage.logs.setdefault(partition, []).append(batch)
        for consumer in self.consumers:
            consumer.life = object()
            if consumer.phase in ("joining", "syncing"):
                consumer.phase = "out"
        self.world.reload()
        self.generation = -1
        self.leaders.clear()
        for number, offset in self.acknowledged.items():
            found = self.world.shard.offsets.get((GROUP, "t", number))
            assert found is not None
            assert found.offset >= offset

    def check(self):
        group = self.world.shard.groups.get(GROUP)
        if group is None:
            self.generation = -1
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        assert group.joining_count == sum(1 for m in group.members.values() if m.join_reply is not None)
        assert set(group.static_members.values()) <= set(group.members)
        assert len({m.instance_id for m in group.members.values() if m.instance_id}) == len(
            group.static_members
        )
        assert not group.pending_join & set(group.members)
        assert group.pending_sync <= set(group.members)
        if group.members:
            assert group.leader in group.members
        if group.state is State.EMPTY:
            assert not group.members
        if group.state is State.STABLE:
            assert group.members
            assert not [m for m in group.members.values() if m.sync_reply is not None]
            waiting = [m for m in group.members.values() if m.join_reply is not None]
            assert not waiting or self.world.shard.writes  # a static member whose return is being written
        if group.state is State.PREPARING_REBALANCE:
            assert not group.all_joined() or group.previous_state is State.EMPTY
        parked = sum((m.join_reply is not None) + (m.sync_reply is not None) for m in group.members.values())
        waiting_for_the_log = sum(len(write.waiting) for write in self.world.shard.writes)
        assert parked <= sum(kind in ("join", "sync") for kind in self.open.values())
        assert len(self.open) <= parked + waiting_for_the_log

    def come_to_rest(self):
        """Everybody is gone for good: every request has been answered, and the group is empty."""
        self.world.storage.release()
        for _ in range(200):
            self.world.tick(10_000)
        assert not self.open
        group = self.world.shard.groups.get(GROUP)
        assert group is None or group.state is State.EMPTY
        self.crash()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens(seed):
    run = Run(seed)
    for _ in range(400):
        run.event()
        run.check()
    run.come_to_rest()
