class ProducerTable:
    def __len__(self) -> int: ...
    def load(
        self,
        producer_id: int,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        coordinator_epoch: int,
        transaction_start: int,
    ) -> None: ...
    def rows(self) -> list[tuple[int, int, int, int, int, int, int, int]]: ...
    def entries(self) -> bytes:
        """`rows` in the format of a producer snapshot: a count, then 46 bytes each."""
    def recall(self, replayed: ProducerTable) -> None: ...
    def clear(self) -> None: ...
    def take(self, other: ProducerTable) -> None: ...
    def remove_expired(self, now_ms: int, expiration_ms: int) -> int: ...
    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        offset_delta: int,
        sequenced: bool = True,
        transactional: bool = False,
    ) -> tuple[int, int, int]: ...
    def record(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: bool = False,
    ) -> None: ...
    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int
    ) -> int: ...
    def first_unstable(self) -> int: ...
