"""Count each host's connections per worker, for max.connections.per.ip.

    shared memory, created before the fork: one table per worker | slot × SLOTS: host, 16 bytes | count u32 |
    zero u32; and per worker and page of its table a byte: 1 if the page was written to

A worker writes only its own table, and reads the other tables when it looks up a host. A slot belongs to the
first host that needs it. When its count is zero, another host may take it. A host's slot is one of the PROBES
slots from the position of its hash. If these are all taken, the other workers do not see the host's
connections, and the limit applies per worker.

Beware: two workers that accept at the same moment may both find the last place free."""

import mmap
import struct

from kafkad._native.wire.crc32c import checksum

SLOT = struct.Struct("<16sII")
SLOTS = 16384  # a power of two; the system provides the memory at the first access, also if that is a read
PROBES = 32
COUNT = struct.Struct("<I")
TABLE = SLOTS * SLOT.size
PAGES = TABLE // mmap.PAGESIZE
assert PAGES * mmap.PAGESIZE == TABLE


class HostCounts:
    """The tables of all `workers`. Each worker calls `enter` first, also the successor of a dead one."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.me = -1
        self._map = mmap.mmap(-1, workers * TABLE)
        self._written = mmap.mmap(-1, workers * PAGES)

    def enter(self, me: int) -> None:
        self.me = me
        self.forget(me)

    def forget(self, worker: int) -> None:
        """Clear the table of a worker that starts or has died."""
        for page in range(worker * PAGES, (worker + 1) * PAGES):
            if self._written[page]:
                first = page * mmap.PAGESIZE
                self._map[first : first + mmap.PAGESIZE] = bytes(mmap.PAGESIZE)
                self._written[page] = 0

    def set(self, host: bytes, count: int) -> None:
        """Set the number of this worker's connections from a host (16 bytes)."""
        free = -1
        for place in self._places(self.me, host):
            there, held, _ = SLOT.unpack_from(self._map, place)
            if there == host:
                COUNT.pack_into(self._map, place + 16, count)
                return
            if held == 0 and free < 0:
                free = place
        if free >= 0 and count:
            for byte in (free, free + SLOT.size - 1):  # a slot may begin on one page and end on the next
                self._written[byte // mmap.PAGESIZE] = 1
            self._map[free : free + 16] = host
            COUNT.pack_into(self._map, free + 16, count)

    def elsewhere(self, host: bytes) -> int:
        """Return how many connections the other workers have from a host."""
        total = 0
        for worker in range(self.workers):
            if worker == self.me:
                continue
            for place in self._places(worker, host):
                there, held, _ = SLOT.unpack_from(self._map, place)
                if there == host:
                    total += held
                    break
        return total

    def _places(self, worker: int, host: bytes) -> list[int]:
        first = checksum(host)
        return [worker * TABLE + ((first + each) & (SLOTS - 1)) * SLOT.size for each in range(PROBES)]
