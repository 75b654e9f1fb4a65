"""A log of `__consumer_offsets`, read record by record: the slow twin of `kafkad.coordinator.loading`."""

from kafkad.coordinator import records
from kafkad.coordinator.records import OffsetRecord
from kafkad.protocol.records import COMMIT, control_kind, read_batches


class SlowOffsets:
    def __init__(self, start_offset=0):
        self.start_offset = start_offset
        self.offsets = {}  # (group, topic, partition) -> CommittedOffset
        self.groups = {}  # group id -> GroupMetadataValue
        self.open = {}  # producer id -> {key: CommittedOffset}

    def replay(self, buffer):
        for batch in read_batches(buffer):
            if batch.last_offset < self.start_offset:
                continue
            for record in batch.records():
                if batch.is_control:
                    self._end(batch.producer_id, control_kind(record) == COMMIT)
                    continue
                found = records.read(record.key, record.value)
                if isinstance(found, OffsetRecord):
                    self._offset(found, record.offset, batch.producer_id if batch.is_transactional else None)
                elif found is not None and found.value is None:
                    self.groups.pop(found.group_id, None)
                elif found is not None:
                    self.groups[found.group_id] = found.value

    def _offset(self, found, offset, producer_id):
        key = (found.group_id, found.topic, found.partition)
        if found.value is None:
            self.offsets.pop(key, None)
            for commits in self.open.values():
                commits.pop(key, None)
        elif producer_id is None:
            self.offsets[key] = found.value._replace(record_offset=offset)
        else:
            self.open.setdefault(producer_id, {})[key] = found.value._replace(record_offset=offset)

    def _end(self, producer_id, commit):
        for key, committed in self.open.pop(producer_id, {}).items():
            current = self.offsets.get(key)
            if commit and (current is None or committed.record_offset > current.record_offset):
                self.offsets[key] = committed
