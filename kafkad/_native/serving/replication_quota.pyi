from kafkad._native.shared.quota_table import QuotaTable

LEADER: int
FOLLOWER: int

class ReplicationQuota:
    """`table` has at least two rows, and this process has entered it."""

    def __init__(self, table: QuotaTable) -> None: ...
    def limit(self, side: int, rate: float | None) -> None:
        """Bytes a second that LEADER serves, or FOLLOWER fetches; None: as many as there are."""
    def is_exceeded(self, side: int, now_ms: int) -> bool: ...
    def add(self, side: int, size: int, now_ms: int) -> None:
        """For tests."""
