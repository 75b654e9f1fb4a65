"""How long strings of Kafka's protocol may be, and names in messages for people."""

from typing import Final

BYTES_MAX: Final = 32_767  # of a string in a request, a response or a record
SHOWN: Final = 1_000  # characters of a name in an error message, which is a string itself


def fits(text: str) -> bool:
    """Return whether a string can be encoded. Raises UnicodeEncodeError for half of a surrogate pair."""
    return len(text.encode()) <= BYTES_MAX


def shown(name: str) -> str:
    """Return a name for an error message. Requests may have names as long as a whole message may be."""
    return name[:SHOWN]
