"""Kafka's arithmetic of a quota, one plain object a sample: the slow twin of _native/shared/quota_table.

SampledStat, Rate and QuotaUtils of Kafka 4.3, for one process; several are the sum of their samples."""

import math
from dataclasses import dataclass, field


@dataclass
class Sample:
    start_ms: int
    last_ms: int
    amount: float = 0.0


@dataclass
class SlowRate:
    """What one worker counts."""

    windows: int
    window_ms: int
    samples: list[Sample] = field(default_factory=list)
    current: int = 0

    def add(self, amount: float, now_ms: int) -> None:
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        if now_ms - self.samples[self.current].start_ms >= self.window_ms:
            self.current = (self.current + 1) % (self.windows + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            else:
                self.samples[self.current] = Sample(now_ms, now_ms)
        self.samples[self.current].amount += amount
        self.samples[self.current].last_ms = now_ms


def rate(cells: list[SlowRate], now_ms: int) -> tuple[float, int]:
    """(a second, milliseconds of the window)"""
    windows, window_ms = cells[0].windows, cells[0].window_ms
    live = [s for cell in cells for s in cell.samples if now_ms - s.last_ms < windows * window_ms]
    elapsed_ms = now_ms - min([s.start_ms for s in live], default=now_ms)
    full = elapsed_ms // window_ms
    if full < windows - 1:
        elapsed_ms += (windows - 1 - full) * window_ms
    elapsed_ms = max(elapsed_ms, 1)
    return sum(s.amount for s in live) / (elapsed_ms / 1000), elapsed_ms


def pause_ms(cells: list[SlowRate], limit: float, now_ms: int) -> int:
    found, elapsed_ms = rate(cells, now_ms)
    return 0 if found <= limit else math.floor((found - limit) / limit * elapsed_ms + 0.5)
