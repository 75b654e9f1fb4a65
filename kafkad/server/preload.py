"""What serving takes from files beside the data, read before the first connection.

A broker at its descriptor limit cannot open a file. So no request may be the first to need one: the schemas
of all served APIs are read here, once, before the workers are forked, which then share them. A module that
another one imports inside a function, since the two need each other, is imported here, too.
(tests/integration/test_lives_on.py watches a broker for imports and for files that are opened.)
"""

import kafkad._native.log.partition_reader  # noqa: F401  (Partition.reader imports it)
from kafkad.api import table
from kafkad.protocol import messages


def preload() -> None:
    """Make the message classes of every served API. What they need for a version is memory only."""
    for key in table.BY_KEY:
        messages.request_class(key)
        messages.response_class(key)
    for name in ("RequestHeader", "ResponseHeader"):
        messages.message_class(name)
