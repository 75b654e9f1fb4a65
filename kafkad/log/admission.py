"""How an append relates to transactions, and the exception for an append whose coordinator must be asked
first.

The first batch of a transaction in a partition is refused with NeedTransaction, which has a guard. The caller
asks the transaction's coordinator, and appends again with that guard (_native/log/guards.pyx)."""

from enum import IntEnum
from typing import Final

NEED_TRANSACTION: Final = -1001


class Admission(IntEnum):
    """How the request of an append relates to transactions; Admission in _native/log/guards.pxd."""

    PLAIN = 0  # nothing: a transactional batch is refused
    ADDED = 1  # TV0, TV1: the client adds partitions itself; the coordinator verifies it
    IMPLICIT = 2  # TV2: the coordinator is asked to add the partition
    UNVERIFIED = 3  # as ADDED, but not verified: transaction.partition.verification.enable is off


class NeedTransaction(Exception):
    """Ask the coordinator, then append again with `guard`."""

    def __init__(self, guard: int) -> None:
        super().__init__(f"the transaction's coordinator must be asked first (guard {guard})")
        self.guard = guard
