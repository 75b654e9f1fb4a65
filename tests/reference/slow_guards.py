"""Kafka's rules for the first batch of a transaction in a partition, the plain way: the twin of guards.pyx.

After UnifiedLog.maybeStartTransactionVerification, analyzeAndValidateProducerState and updateProducers."""

from dataclasses import dataclass, field

OUT_OF_ORDER, OLD_EPOCH, NOT_ONGOING = -45, -47, -48


@dataclass
class Guard:
    epoch: int
    lowest: int
    implicit: bool
    number: int = 0


@dataclass
class Known:
    epoch: int
    ongoing: bool
    sequences: list[int] = field(
        default_factory=list
    )  # of its batches, each of one record; the last five count
    ended: int = 0  # how many of these are of ended transactions


class SlowGuards:
    def __init__(self) -> None:
        self.guards: dict[int, Guard] = {}
        self.producers: dict[int, Known] = {}

    def append(self, producer: int, epoch: int, sequence: int, implicit: bool, guard: int) -> int | str:
        known, waiting = self.producers.get(producer), self.guards.get(producer)
        if known is not None and known.epoch == epoch and sequence in known.sequences[-5:]:
            is_retry = known.sequences.index(sequence) >= known.ended
            return "appended" if is_retry else OUT_OF_ORDER  # unlike Kafka, see docs/differences.md
        ongoing = known is not None and known.ongoing and known.epoch == epoch
        if not ongoing:
            if known is not None and epoch < known.epoch:
                return OLD_EPOCH
            if guard == 0:
                if waiting is None:
                    self.guards[producer] = Guard(epoch, sequence, implicit)
                elif epoch > waiting.epoch:
                    waiting.epoch, waiting.lowest = epoch, sequence
                elif epoch == waiting.epoch:
                    waiting.lowest = min(waiting.lowest, sequence)
                return "ask"
            if waiting is None or waiting.number != guard:
                return NOT_ONGOING
            if (waiting.implicit and sequence and known is None) or sequence > waiting.lowest:
                return OUT_OF_ORDER
        if known is not None and known.epoch != epoch and sequence:
            return OUT_OF_ORDER
        if known is not None and known.epoch == epoch:
            last = known.sequences[-1] if known.sequences else -1
            if sequence != last + 1:
                return OUT_OF_ORDER
        if known is None or known.epoch != epoch:
            known = self.producers[producer] = Known(epoch, True)
        known.ongoing = True
        known.sequences.append(sequence)
        self.guards.pop(producer, None)
        return "appended"

    def marker(self, producer: int, epoch: int, version: int) -> int:
        known, waiting = self.producers.get(producer), self.guards.get(producer)
        if known is not None and (
            epoch < known.epoch or (version >= 2 and epoch == known.epoch and known.ongoing)
        ):
            return -OLD_EPOCH
        if known is None or known.epoch != epoch:
            self.producers[producer] = Known(epoch, False)
        else:
            known.ongoing = False
            known.ended = len(known.sequences)
        if waiting is not None and not (waiting.implicit and waiting.epoch == epoch):
            del self.guards[producer]
        return 0
