"""A member of a classic group, its two requests that may be parked, and how votes of members are counted."""

from collections.abc import Callable, Sequence
from typing import Any

Reply = Callable[[Any], object]


class Member:
    """One member; `protocols` are (name, metadata) pairs in the member's order of preference."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = list(protocols)
        self.assignment = assignment
        self.is_new = False
        self.join_reply: Reply | None = None
        self.sync_reply: Reply | None = None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support the chosen protocol {protocol}")

    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def vote(self, candidates: set[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    def needs_no_heartbeat(self) -> bool:
        """Return whether the member waits for an answer, and so is alive. This does not hold for a new
        member, whose client may be gone."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)


def first_in_java(names: list[str], size: int) -> str:
    """Return the first name in a Java HashMap of `size` names, with which Kafka breaks a tie of votes
    (ClassicGroup.selectProtocol)."""
    buckets = 16
    while size > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        units = name.encode("utf-16-be", "surrogatepass")
        hashed = 0
        for high, low in zip(units[::2], units[1::2], strict=True):
            hashed = (hashed * 31 + (high << 8 | low)) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (buckets - 1)

    return min(names, key=bucket)
