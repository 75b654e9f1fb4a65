"""How many connections each host has with every worker: what max.connections.per.ip counts.

    memory made before the fork: a table a worker | slot × SLOTS: host, 16 bytes | count u32 | zero u32

A worker writes only its own table, and reads those of the others when it asks for a host. A slot belongs to
the host that first needed it until its count is zero and another needs it; a host is looked for in PROBES
slots from where its hash begins. One that finds no room there is not counted for the others, and the limit
is then each worker's own.

Beware: two workers that accept at the same moment may both find the last place free."""

import mmap
import struct

from kafkad._native.wire.crc32c import checksum

SLOT = struct.Struct("<16sII")
SLOTS = 16384  # a power of two; memory comes with the first touch
PROBES = 32
COUNT = struct.Struct("<I")
TABLE = SLOTS * SLOT.size


class HostCounts:
    """Made once for `workers`; each then calls `enter`, also one that takes a dead one's place."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.me = -1
        self._map = mmap.mmap(-1, workers * TABLE)

    def enter(self, me: int) -> None:
        self.me = me
        self.forget(me)

    def forget(self, worker: int) -> None:
        """It has no connections: it begins, or is dead."""
        table = worker * TABLE
        for first in range(table, table + TABLE, mmap.PAGESIZE):
            if any(self._map[first : first + mmap.PAGESIZE]):
                self._map[first : first + mmap.PAGESIZE] = bytes(mmap.PAGESIZE)

    def set(self, host: bytes, count: int) -> None:
        """This worker has so many connections of that host (16 bytes)."""
        free = -1
        for place in self._places(self.me, host):
            there, held, _ = SLOT.unpack_from(self._map, place)
            if there == host:
                COUNT.pack_into(self._map, place + 16, count)
                return
            if held == 0 and free < 0:
                free = place
        if free >= 0 and count:
            self._map[free : free + 16] = host
            COUNT.pack_into(self._map, free + 16, count)

    def elsewhere(self, host: bytes) -> int:
        """What the other workers have of that host."""
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
