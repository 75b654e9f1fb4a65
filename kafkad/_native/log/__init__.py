"""A partition on disk: segments, indexes, producers; append, read, recover, sync."""
