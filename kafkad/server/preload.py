"""Loads all files that serving needs besides the data, before the first connection.

A broker at its descriptor limit cannot open a file, so no request may be the first to need one. The schemas
of all served APIs are read here once, before the fork, so that the workers share them. Modules that are
imported inside functions, because they depend on each other, are imported here, too.
(tests/integration/test_lives_on.py checks a running broker for imports and opened files.)
"""

import kafkad._native.log.partition_reader  # noqa: F401  (Partition.reader imports it)
from kafkad.api import table
from kafkad.protocol import messages


def preload() -> None:
    """Create the message classes of every served API, and the plans of all versions.

    A plan lives as long as the process. One that is created during a large request would pin a mebibyte of
    Python's heap, of which the rest is free afterwards."""
    for key, row in table.BY_KEY.items():
        for cls in (messages.request_class(key), messages.response_class(key)):
            for version in range(row.low, row.high + 1):
                cls.SPEC.prepare(version)
    for name in ("RequestHeader", "ResponseHeader"):
        messages.message_class(name)
