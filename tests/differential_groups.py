"""Groups of several members for tests/differential.py: who joins, leaves and waits, on a connection each.

A seed makes rounds. Each begins with a member that comes, goes, or joins again as the leader. Then all
others join again, and all get their assignment. In between come heartbeats, commits and descriptions, right
and wrong. JoinGroup and SyncGroup wait for the other members, so they are sent on all connections before one
is read. The next request goes out when both brokers are in the state in which the answer is certain.

Beware: when a leader leaves, Kafka takes whichever member its hash map has first. So only the last two do."""

import random
import time
from typing import Any

from kafkad.protocol import messages
from tests.differential import Request, Run, Side, Symbol

SECONDS = 20.0


class Group:
    """The members of one group, as both brokers see them."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.rng = random.Random(seed)
        self.name = f"several{seed}"
        self.sides: dict[int, list[Side]] = {}  # by member
        self.protocols: dict[int, list[str]] = {}
        self.made = 0
        self.leader = -1
        self.answers = 0

    def close(self) -> None:
        for sides in self.sides.values():
            for side in sides:
                side.wire.socket.close()

    # -- requests

    def member(self, number: int) -> Symbol:
        return Symbol("member", (self.name, number), "")

    @property
    def generation(self) -> Symbol:
        return Symbol("generation", self.name, -1)

    def send(self, number: int, request: Request) -> tuple[int, Request, list[int]]:
        return number, request, [side.send(request) for side in self.sides[number]]

    def receive(self, pending: tuple[int, Request, list[int]]) -> list[Any]:
        number, request, sent = pending
        pairs = zip(self.sides[number], sent, strict=True)
        answers = [side.receive(request, correlation) for side, correlation in pairs]
        self.run.note(request, self.sides[number], answers)
        self.answers += 1
        return answers

    def ask(self, number: int, message: Any, versions: tuple[int, int]) -> list[Any]:
        return self.receive(self.send(number, Request(message, self.rng.randint(*versions))))

    def join(self, number: int) -> tuple[int, Request, list[int]]:
        """Sends a JoinGroup, and before it the one that gives a new member its id."""
        cls = messages.JoinGroupRequest
        protocols = [cls.Protocols(name=name, metadata=b"%d" % number) for name in self.protocols[number]]
        message = cls(
            group_id=self.name,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
            member_id=self.member(number),
            protocol_type="consumer",
            protocols=protocols,
        )
        if ("member", (self.name, number)) not in self.run.kafkad.known:
            for side, answer in zip(self.run.sides, self.ask(number, message, (4, 9)), strict=True):
                assert answer.error_code == 79, answer
                side.learn("member", (self.name, number), answer.member_id)
        return self.send(number, Request(message, self.rng.randint(0, 9)))

    def sync(self, number: int) -> tuple[int, Request, list[int]]:
        cls = messages.SyncGroupRequest
        assignments = [
            cls.Assignments(member_id=self.member(each), assignment=b"for %d" % each)
            for each in self.sides
            if number == self.leader and self.rng.random() < 0.9
        ]
        message = cls(
            group_id=self.name,
            generation_id=self.generation,
            member_id=self.member(number),
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=assignments,
        )
        return self.send(number, Request(message, self.rng.randint(0, 5)))

    def wait_until(self, state: str) -> None:
        """Both brokers say that the group is in `state`."""
        asked = messages.DescribeGroupsRequest(groups=[self.name])
        deadline = time.monotonic() + SECONDS
        for side in self.run.sides:
            while side.ask(asked, 4).groups[0].group_state != state:
                assert time.monotonic() < deadline, (side.name, state, side.ask(asked, 4))
                time.sleep(0.01)

    # -- a round

    def round(self) -> None:
        rng = self.rng
        pending = []
        kind = rng.choice(("come", "come", "go", "lead")) if len(self.sides) < 5 else "go"
        if kind == "come" or not self.sides:
            number = self.made
            self.made += 1
            self.sides[number] = [Side.beside(side) for side in self.run.sides]
            self.protocols[number] = rng.choice((["range"], ["range", "sticky"], ["sticky", "range"]))
            pending.append(self.join(number))
        elif kind == "go":
            number = rng.choice([each for each in self.sides if each != self.leader or len(self.sides) < 3])
            cls = messages.LeaveGroupRequest
            self.ask(
                number,
                cls(
                    group_id=self.name,
                    member_id=self.member(number),
                    members=[cls.Members(member_id=self.member(number))],
                ),
                (0, 5),
            )
            for side in self.sides.pop(number):
                side.wire.socket.close()
            self.others(number)
            if not self.sides:
                return
        else:
            pending.append(self.join(self.leader))
        joined = {number for number, _, _ in pending}
        missing = [number for number in self.sides if number not in joined]
        rng.shuffle(missing)
        if missing:
            self.wait_until("PreparingRebalance")
            self.others(missing[0])
            pending += [self.join(number) for number in missing]
        for each in pending:
            answers = self.receive(each)
            for side, answer in zip(self.run.sides, answers, strict=True):
                assert answer.error_code == 0, answer
                side.learn("generation", self.name, answer.generation_id)
                side.symbols.pop(answer.generation_id, None)
            self.leader = next(
                number
                for number in self.sides
                if self.run.kafkad.known["member", (self.name, number)] == answers[0].leader
            )
            self.protocol = answers[0].protocol_name
        self.others(self.leader)
        followers = [number for number in self.sides if number != self.leader]
        rng.shuffle(followers)
        first = followers[: rng.randint(0, len(followers))]
        pending = [self.sync(number) for number in first] + [self.sync(self.leader)]
        for each in pending[-1:] + pending[:-1]:
            self.receive(each)
        for number in followers[len(first) :]:
            self.receive(self.sync(number))
        self.others(self.leader)

    def others(self, number: int) -> None:
        """What does not change the group's members."""
        rng = self.rng
        asking = number if number in self.sides else next(iter(self.sides), None)
        if asking is None:
            return
        for _ in range(rng.randint(1, 4)):
            member = rng.choice((self.member(asking), self.member(number), "nobody", ""))
            generation = rng.choice((self.generation, self.generation, 0, -1, 99))
            kind = rng.randrange(5)
            if kind == 0:
                self.ask(
                    asking,
                    messages.HeartbeatRequest(group_id=self.name, generation_id=generation, member_id=member),
                    (0, 4),
                )
            elif kind == 1:
                cls = messages.OffsetCommitRequest
                part = cls.Topics.Partitions(partition_index=0, committed_offset=rng.randrange(9))
                self.ask(
                    asking,
                    cls(
                        group_id=self.name,
                        generation_id_or_member_epoch=generation,
                        member_id=member,
                        topics=[cls.Topics(name="t0", partitions=[part])],
                    ),
                    (2, 9),
                )
            elif kind == 2:
                self.ask(asking, messages.DescribeGroupsRequest(groups=[self.name]), (0, 6))
            elif kind == 3:
                self.ask(asking, messages.DeleteGroupsRequest(groups_names=[self.name]), (0, 2))
            elif generation != self.generation or member in ("nobody", ""):
                cls = messages.SyncGroupRequest
                message = cls(
                    group_id=self.name,
                    generation_id=generation,
                    member_id=member,
                    protocol_type=rng.choice(("consumer", "x")),
                    protocol_name=rng.choice((self.protocol, "x")),
                )
                if member in ("nobody", "") or generation in (0, 99, -1):
                    self.ask(asking, message, (5, 5))

    protocol = "range"
