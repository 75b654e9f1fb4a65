"""The contents of a certificate: its subject, as Java's X500Principal prints it (RFC 2253), its alternative
names, and when it is valid."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

KEYWORDS: Final = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
# Strings of DER that Java prints as text (AVA.isDerString): UTF8, Printable, T61, IA5, General and BMP. Java
# reads the bytes of each as UTF-8, so a BMPString has a NUL in front of each letter.
TEXTS: Final = (12, 19, 20, 22, 27, 30)
BLANKS: Final = " \r"  # a backslash comes before each of these at the beginning and at the end
ALTERNATIVE_NAMES: Final = bytes.fromhex("55 1d 11")  # 2.5.29.17
EXTENSIONS: Final = 0xA3
UTC_TIME: Final = 23
ESCAPED: Final = ',=+<>#;"\\'


def subject_of(certificate: bytes) -> str:
    """Return the subject. Raises ValueError if it is not a certificate."""
    return name_of(_fields(certificate)[4][1])


def issuer_of(certificate: bytes) -> str:
    """Return the subject of the authority that signed it. Raises ValueError if it is not a certificate."""
    return name_of(_fields(certificate)[2][1])


def name_of(names: bytes) -> str:
    """Return what X500Principal.getName prints for the content of a Name (RFC 5280). Raises ValueError."""
    parts = [
        "+".join(_attribute(attribute) for _, attribute in _elements(part)) for _, part in _elements(names)
    ]
    return ",".join(reversed(parts))


def first_element(data: bytes) -> bytes:
    """Return the first element of DER without what follows it; all if it is cut off."""
    try:
        return data[: _element(data, 0)[2]]
    except ValueError:
        return data


def validity_of(certificate: bytes) -> tuple[datetime, datetime]:
    """Return the first and the last moment of its validity. Raises ValueError if it is not a certificate."""
    times = [_time(tag, content) for tag, content in _elements(_fields(certificate)[3][1])]
    if len(times) != 2:
        raise ValueError("this is no certificate: its validity is not two times")
    return times[0], times[1]


def _time(tag: int, content: bytes) -> datetime:
    """Parse a UTCTime or a GeneralizedTime (RFC 5280, 4.1.2.5)."""
    text = content.decode("ascii", "replace")
    if tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def alternative_names_of(certificate: bytes) -> frozenset[tuple[int, bytes]]:
    """Return kind and bytes of each (GeneralName of RFC 5280). Raises ValueError if it is not a
    certificate."""
    for tag, content in _fields(certificate)[5:]:
        if tag != EXTENSIONS:
            continue
        for _, extension in _elements(_element(content, 0)[1]):
            (_, identifier), *rest = _elements(extension)
            if identifier == ALTERNATIVE_NAMES and rest:
                return frozenset(_elements(_element(rest[-1][1], 0)[1]))
    return frozenset()


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return serial number, algorithm, issuer, validity, subject, key, and optional fields."""
    tag, body, _ = _element(certificate, 0)
    found = [it for it in _elements(_element(body, 0)[1]) if it[0] != 0xA0]  # without the version
    if tag != 0x30 or len(found) < 5:
        raise ValueError("this is no certificate")
    return found


def _attribute(data: bytes) -> str:
    _, identifier, at = _element(data, 0)
    tag, value, _ = _element(data, at)
    name = _identifier(identifier)
    if name not in KEYWORDS or tag not in TEXTS:
        return f"{KEYWORDS.get(name, name)}=#{data[at:].hex()}"
    shown = "".join(
        "\\00" if letter == "\0" else f"\\{letter}" if letter in ESCAPED else letter
        for letter in value.decode("utf-8", "replace")
    )
    body = shown.strip(BLANKS)
    lead = shown[: len(shown) - len(shown.lstrip(BLANKS))]
    trail = shown[len(lead) + len(body) :]
    return f"{KEYWORDS[name]}=" + _blanks(lead) + body + _blanks(trail)


def _blanks(text: str) -> str:
    return "".join(f"\\{letter}" for letter in text)


def _identifier(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2) if numbers else 0
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]])) if numbers else ""


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return tag, content, and the position of the next element."""
    if at + 2 > len(data):
        raise ValueError("this is no certificate: it is cut off")
    tag, size, at = data[at], data[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size = int.from_bytes(data[at : at + width], "big")
        at += width
    if at + size > len(data):
        raise ValueError("this is no certificate: it is cut off")
    return tag, data[at : at + size], at + size


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, content, at = _element(data, at)
        yield tag, content
