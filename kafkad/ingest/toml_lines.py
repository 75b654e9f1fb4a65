"""Find the line of each key of a TOML text. tomllib returns values only, and error messages need line
numbers.

`key_lines(text)` maps the path of every table header and key to its line, counted from 1. It walks statement
by statement: a header sets the prefix, a key ends at `=`, and only the end of a value is searched (strings of
all four kinds, brackets, comments). Keys in an inline table have no line of their own; `line_of` falls back
to the nearest path that has one. Beware: the text must have passed tomllib, because nothing is checked here.
"""

from __future__ import annotations

Path = tuple[str, ...]

TRIPLES = ('"""', "'''")


def key_lines(text: str) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    prefix: Path = ()
    at = 0
    while (at := skip_blank(text, at)) < len(text):
        line = text.count("\n", 0, at) + 1
        if text[at] == "[":
            opening = 2 if text.startswith("[[", at) else 1
            prefix, at = dotted_key(text, at + opening)
            lines.setdefault(prefix, line)
            at = text.index("]", at) + opening
        else:
            key, at = dotted_key(text, at)
            for depth in range(1, len(key) + 1):  # a.b = 1 defines a, too
                lines.setdefault(prefix + key[:depth], line)
            at = value_end(text, text.index("=", at) + 1)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int:
    """Return the line of a key, or of the nearest enclosing table; 1 if there is none."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def skip_blank(text: str, at: int) -> int:
    """Skip white space, empty lines and comments."""
    while at < len(text):
        if text[at] == "#":
            at = line_end(text, at)
        elif text[at].isspace():
            at += 1
        else:
            break
    return at


def line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def dotted_key(text: str, at: int) -> tuple[Path, int]:
    parts: list[str] = []
    while True:
        while text[at] in " \t":
            at += 1
        if text[at] in "\"'":
            end = string_end(text, at)
            parts.append(text[at + 1 : end - 1])
        else:
            end = at
            while text[end] not in " \t.=]":
                end += 1
            parts.append(text[at:end])
        at = end
        while text[at] in " \t":
            at += 1
        if text[at] != ".":
            return tuple(parts), at
        at += 1


def string_end(text: str, at: int) -> int:
    """Return the position after the string that begins at `at`."""
    quote = text[at : at + 3] if text.startswith(TRIPLES, at) else text[at]
    position = at + len(quote)
    while not text.startswith(quote, position):
        position += 2 if text[position] == "\\" and quote[0] == '"' else 1
    position += len(quote)
    while len(quote) == 3 and text[position : position + 1] == quote[0]:  # up to two quotes before the end
        position += 1
    return position


def value_end(text: str, at: int) -> int:
    depth = 0
    while at < len(text):
        character = text[at]
        if character in "\"'":
            at = string_end(text, at)
            continue
        if character == "#":
            at = line_end(text, at)
            continue
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "\n" and depth == 0:
            return at
        at += 1
    return at
