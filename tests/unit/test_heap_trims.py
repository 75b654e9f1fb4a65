"""When the heap is trimmed: at the end of long work, and some times more for what it frees later."""

from kafkad.config.broker import BrokerConfig
from kafkad.server.heap_trims import LOOK_MS, LOOKS, HeapTrims


def test_the_heap_is_trimmed_after_long_work_and_at_some_looks_more():
    trims = []
    heap = HeapTrims(lambda: trims.append(1))
    heap.look()
    assert not trims  # nothing was done yet
    heap.work_ended()
    assert len(trims) == 1
    for _ in range(LOOKS + 5):
        heap.look()
    assert len(trims) == 1 + LOOKS
    heap.work_ended()
    heap.look()
    heap.work_ended()  # from here on anew
    for _ in range(LOOKS + 5):
        heap.look()
    assert len(trims) == 1 + LOOKS + 3 + LOOKS


def test_a_deleted_topic_is_gone_before_the_last_look():
    delay_ms = BrokerConfig({"node.id": "1", "log.dirs": "/tmp/none"}).log_segment_delete_delay_ms
    assert delay_ms < LOOK_MS * (LOOKS - 1)
