"""How long strings of Kafka's protocol may be, and names in messages for people."""

import codecs
from typing import Final

BYTES_MAX: Final = 32_767  # of a string in a request, a response or a record
SHOWN: Final = 1_000  # characters of a name in an error message, which is a string itself


def fits(text: str) -> bool:
    """Return whether a string can be encoded. Raises UnicodeEncodeError for half of a surrogate pair."""
    return len(text.encode()) <= BYTES_MAX


def java_length(text: str) -> int:
    """Return how many UTF-16 code units a string has, which is its length in Java."""
    if text.isascii():
        return len(text)
    units, _ = codecs.utf_16_be_encode(text, "surrogatepass")  # text.encode would import a module
    return len(units) // 2


def shown(name: str) -> str:
    """Return a name for an error message. Requests may have names as long as a whole message may be."""
    return name[:SHOWN]
