r"""Read Java's .properties files like java.util.Properties.

Lines end at \n, \r or \r\n. A line that begins with # or !, after optional white space, is a comment. A line
with an odd number of backslashes at its end continues on the next line, whose leading white space is dropped.
The key ends at the first `=`, `:` or white space without a backslash before it. White space around this
separator is dropped; white space at the end of the value is kept. Escapes are \t \n \r \f and \uXXXX (UTF-16,
so a pair may be one character). A backslash before any other character is dropped. If a key is repeated, the
last value wins.

Beware: a file is Latin-1, as in Java's Properties.load(InputStream). Other characters need escapes."""

import os
import re

SIZE_MAX = 16 << 20  # largest file
_SPACE = " \t\f"
_NEWLINE = re.compile(r"\r\n|\n|\r")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_SEPARATOR = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the keys and values of a file. Raise OSError, or ValueError for a wrong escape or another kind
    of file."""
    with open(path, encoding="latin-1", newline="") as file:
        text = file.read(SIZE_MAX + 1)
    if "\0" in text or len(text) > SIZE_MAX:
        wrong = "holds a NUL byte" if "\0" in text else f"has more than {SIZE_MAX} bytes"
        raise ValueError(f"the file {wrong}, so it is not a file of properties")
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _SEPARATOR.match(line)
        assert match is not None  # it also matches nothing
        rest = line[match.end() :].lstrip(_SPACE)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_SPACE)
        properties[_unescape(match.group())] = _unescape(rest)
    return properties


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments and blank lines, with continued lines joined."""
    lines = []
    started: str | None = None
    for natural in _NEWLINE.split(text):
        line = natural.lstrip(_SPACE)
        if started is None and (not line or line[0] in "#!"):
            continue
        line = (started or "") + line
        started = line[:-1] if _is_continued(line) else None
        if started is None:
            lines.append(line)
    if started is not None:
        lines.append(started)
    return lines


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_escaped, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs


def _escaped(match: re.Match[str]) -> str:
    code = match.group(1)
    if code == "u":
        raise ValueError("Malformed \\uxxxx encoding.")
    if code.startswith("u"):
        return chr(int(code[1:], 16))
    return _CONTROL.get(code, code)
