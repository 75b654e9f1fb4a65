"""Placement: which brokers get a new partition's replicas (Kafka: StripedReplicaPlacer).

Racks take turns, and brokers take turns within a rack. Each round starts one further than the last, from a
random start, so leaders and replicas spread evenly over racks first and brokers second. Active brokers come
before fenced ones, and the first replica, the future leader, is always on an active broker.

The random numbers are an argument; the same seed gives the same placement.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError


class UsableBroker(NamedTuple):
    broker_id: int
    rack: str | None
    fenced: bool


def place(
    brokers: Iterable[UsableBroker], partition_count: int, replication_factor: int, random: Any
) -> list[list[int]]:
    """Return the replicas for each of `partition_count` partitions. Raises
    KafkaError(INVALID_REPLICATION_FACTOR)."""
    usable = list(brokers)
    if replication_factor <= 0:
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            f"Invalid replication factor {replication_factor}: the replication factor must be positive.",
        )
    if all(broker.fenced for broker in usable):
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            "All brokers are currently fenced, or have all their log directories cordoned.",
        )
    if replication_factor > len(usable):
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            f"The target replication factor of {replication_factor} cannot be reached because only"
            f" {len(usable)} broker(s) are registered"
            " or some brokers have all their log directories cordoned.",
        )
    racks = _Racks(usable, random)
    return [racks.place(replication_factor) for _ in range(partition_count)]


class _Ring:
    """Brokers of one kind in one rack; each round starts one broker further."""

    def __init__(self, brokers: list[int], random: Any) -> None:
        self.brokers = sorted(brokers)
        self.start = random.randrange(len(brokers)) if brokers else 0
        self.round = -1
        self.taken = 0

    def next(self, round_number: int) -> int | None:
        if self.round != round_number:
            self.round, self.taken = round_number, 0
            self.start = (self.start + 1) % max(len(self.brokers), 1)
        if self.taken == len(self.brokers):
            return None
        self.taken += 1
        return self.brokers[(self.start + self.taken - 1) % len(self.brokers)]


class _Racks:
    def __init__(self, brokers: list[UsableBroker], random: Any) -> None:
        self.random = random
        names = sorted({broker.rack for broker in brokers}, key=lambda rack: (rack is not None, rack or ""))
        self.racks = [
            tuple(
                _Ring([b.broker_id for b in brokers if b.rack == name and b.fenced is fenced], random)
                for fenced in (False, True)
            )
            for name in names
        ]
        self.up_count = sum(not broker.fenced for broker in brokers)
        self.start = random.randrange(len(self.racks))
        self.round = 0

    def place(self, replication_factor: int) -> list[int]:
        if self.round == self.up_count and self.up_count > 1:
            self._shuffle()  # every assignment of this order was used
        self.start %= len(self.racks)
        order = self.racks[self.start :] + self.racks[: self.start]
        replicas: list[int] = []
        leader_rack = None
        for position, (up, _) in enumerate(order):
            leader = up.next(self.round)
            if leader is not None:
                replicas.append(leader)
                leader_rack = position
                break
        assert leader_rack is not None  # there is an active broker: place() has checked it
        position = 0
        while len(replicas) < replication_factor:
            if position == leader_rack:
                leader_rack = None  # this rack had its turn in the first lap
            else:
                up, fenced = order[position % len(order)]
                found = up.next(self.round)
                if found is None:
                    found = fenced.next(self.round)
                if found is not None:
                    replicas.append(found)
            position += 1
        self.round += 1
        self.start += 1
        return replicas

    def _shuffle(self) -> None:
        self.random.shuffle(self.racks)
        for rings in self.racks:
            for ring in rings:
                self.random.shuffle(ring.brokers)
                ring.round = -1
        self.round = 0
