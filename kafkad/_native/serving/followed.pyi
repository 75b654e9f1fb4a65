FETCHING: int
DELAYED: int
TRUNCATING: int
FAILED: int

class FollowedPartitions:
    def __len__(self) -> int: ...
    def remove(self, topic_id: bytes, index: int) -> bool:
        """Return whether it was followed. Its log is not used any more."""
    def stop(self, topic_id: bytes, index: int, state: int) -> None:
        """Do not fetch a partition until `resume`, or until it is removed and added again."""
    def state_of(self, topic_id: bytes, index: int) -> tuple[int, int, int] | None:
        """Return (state, leader epoch, lag or -1), or None if it is not followed."""
