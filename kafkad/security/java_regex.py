"""Java's regular expressions (java.util.regex.Pattern and replaceAll), translated for Python's `re`.

Most of the syntax is the same in both languages. These parts are translated:

    .  $  \\Z             Java has more line terminators than \\n
    (?<name>  \\k<name>   (?P<name>  (?P=name)
    \\z  \\h  \\v  \\R       \\Z, and classes that are written out
    \\Q...\\E  \\x{41}  \\u0041  \\0101  \\cA       the characters themselves
    \\p{Alpha} ...        the POSIX classes, ASCII only
    $1 ${name} \\$        in replacements

Refused, because Python has no equivalent: classes within classes, &&, other \\p, \\G, \\X, \\N, flags other
than i and s, flags in the middle of a group, and look-behinds of variable length. \\w, \\d, \\s, \\b and (?i)
are ASCII only. (Beware: \\b before Java 19 knows all letters.)"""

import re
from typing import Final

ENDS: Final = "\\n\\r\\x85\\u2028\\u2029"
LINE_END: Final = "(?:(?=\\r\\n\\Z)|(?<!\\r)(?=\\n\\Z)|(?=[\\r\\x85\\u2028\\u2029]?\\Z))"
HORIZONTAL: Final = " \\t\\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000"
VERTICAL: Final = "\\n\\x0b\\f\\r\\x85\\u2028\\u2029"
POSIX: Final = {
    "Lower": "a-z", "Upper": "A-Z", "ASCII": "\\x00-\\x7f", "Alpha": "a-zA-Z", "Digit": "0-9",
    "Alnum": "a-zA-Z0-9", "Punct": "!-/:-@\\[-`{-~", "Graph": "!-~", "Print": " -~", "Blank": " \\t",
    "Cntrl": "\\x00-\\x1f\\x7f", "XDigit": "0-9a-fA-F", "Space": " \\t\\n\\x0b\\f\\r",
}  # fmt: skip
CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\x07", "e": "\x1b"}
NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]*")
GROUP_MAX: Final = 2**31 - 1


class Pattern:
    """A compiled pattern. Raises ValueError if it is wrong or cannot be translated."""

    def __init__(self, java: str) -> None:
        translation = _Translation(java)
        try:
            self._pattern = re.compile(translation.text(), re.ASCII | translation.flags)
        except (re.error, OverflowError, RecursionError) as wrong:
            raise ValueError(f"the regular expression {java} is wrong or not supported: {wrong}") from None
        self.groups = self._pattern.groups

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches."""
        return self._pattern.fullmatch(text) is not None

    def replace_all(self, text: str, replacement: str, most: int = 0) -> str:
        """Do String.replaceAll, or replace only the first `most` matches. After an empty match, one character
        is copied. Raises ValueError."""
        found, copied, at = [], 0, 0
        while at <= len(text) and (match := self._pattern.search(text, at)):
            found += [text[copied : match.start()], self._expanded(match, replacement)]
            copied = match.end()
            at = copied + (match.end() == match.start())
            if len(found) == 2 * most:
                break
        return "".join(found) + text[copied:]

    def _expanded(self, match: re.Match[str], replacement: str) -> str:
        """Do Matcher.appendReplacement."""
        found, at, size = [], 0, len(replacement)
        while at < size:
            c = replacement[at]
            at += 1
            if c == "\\":
                if at == size:
                    raise ValueError("character to be escaped is missing")
                found.append(replacement[at])
                at += 1
            elif c != "$":
                found.append(c)
            elif replacement.startswith("{", at):
                name = NAME.match(replacement, at + 1)
                if name is None or not replacement.startswith("}", name.end()):
                    raise ValueError("named capturing group is missing trailing '}'")
                if name[0] not in self._pattern.groupindex:
                    raise ValueError(f"No group with name {{{name[0]}}}")
                found.append(match[name[0]] or "")
                at = name.end() + 1
            else:
                number, at = self._group(replacement, at)
                found.append(match[number] or "")
        return "".join(found)

    def _group(self, replacement: str, at: int) -> tuple[int, int]:
        """Parse a group number: more digits are taken as long as a group has that number."""
        if at == len(replacement):
            raise ValueError("Illegal group reference: group index is missing")
        if replacement[at] not in "0123456789":
            raise ValueError("Illegal group reference")
        number = int(replacement[at])
        at += 1
        while at < len(replacement) and replacement[at] in "0123456789":
            longer = number * 10 + int(replacement[at])
            if longer > self.groups:
                break
            number, at = longer, at + 1
        if number > self.groups:
            raise ValueError(f"No group {number}")
        return number, at


class _Translation:
    def __init__(self, java: str) -> None:
        self._java = java
        self._at = 0
        self._groups = 0
        self._dot_is_all = False
        self.flags = re.RegexFlag(0)

    def text(self) -> str:
        """Raises ValueError."""
        self._leading_flags()
        found = []
        while self._at < len(self._java):
            found.append(self._next())
        return "".join(found)

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"the regular expression {self._java}: {what}")

    def _take(self, count: int = 1) -> str:
        text = self._java[self._at : self._at + count]
        if len(text) < count:
            raise self._wrong("it ends in the middle")
        self._at += count
        return text

    def _sees(self, text: str) -> bool:
        if self._java.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _leading_flags(self) -> None:
        while match := re.compile(r"\(\?([is]+)\)").match(self._java, self._at):
            self._at = match.end()
            if "i" in match[1]:
                self.flags |= re.IGNORECASE
            self._dot_is_all |= "s" in match[1]

    def _next(self) -> str:
        c = self._take()
        if c == "\\":
            return self._escape()
        if c == "[":
            return self._class()
        if c == "(":
            return self._open()
        if c == "{":
            raise self._wrong("Illegal repetition")
        if c == ".":
            return "(?s:.)" if self._dot_is_all else f"[^{ENDS}]"
        if c == "$":
            return LINE_END
        if c in ")|^":
            return c
        if c in "*+?":
            return c + self._possessive_or_lazy()
        return re.escape(c) + self._repetition()

    def _possessive_or_lazy(self) -> str:
        return self._take() if self._java[self._at : self._at + 1] in ("+", "?") else ""

    def _repetition(self) -> str:
        """Take {n}, {n,} or {n,m}, if there is one."""
        match = re.compile(r"\{(\d+)(,\d*)?\}", re.ASCII).match(self._java, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0] + self._possessive_or_lazy()

    def _open(self) -> str:
        if not self._sees("?"):
            self._groups += 1
            return "("
        for same in (":", "=", "!", ">", "<=", "<!", "i:", "-i:"):
            if self._sees(same):
                return f"(?{same}"
        if self._sees("<") and (name := NAME.match(self._java, self._at)):
            self._at = name.end()
            if self._sees(">"):
                self._groups += 1
                return f"(?P<{name[0]}>"
        raise self._wrong(f"(?{self._java[self._at : self._at + 1]} is not supported here")

    def _escape(self) -> str:
        """Translate an escape outside of a class."""
        c = self._take()
        if c in "dDwWsSbBA":
            return f"\\{c}" + self._repetition()
        if c in "123456789":
            number = int(c)
            while self._at < len(self._java) and self._java[self._at] in "0123456789":
                longer = number * 10 + int(self._java[self._at])
                if longer > self._groups:
                    break
                number, self._at = longer, self._at + 1
            return f"(?:\\{number})" + self._repetition()
        if c == "k" and self._sees("<") and (name := NAME.match(self._java, self._at)):
            self._at = name.end()
            if self._sees(">"):
                return f"(?P={name[0]})" + self._repetition()
        if c == "Z":
            return LINE_END
        if c == "z":
            return "\\Z"
        if c == "R":
            return f"(?:\\r\\n|[{VERTICAL}])" + self._repetition()
        if c == "Q":
            return "".join(map(re.escape, self._quoted())) + self._repetition()
        if (members := self._members(c)) is not None:
            return f"[{members}]" + self._repetition()
        if c in "HVP":
            members = self._members(c.lower())
            assert members is not None
            return f"[^{members}]" + self._repetition()
        return re.escape(self._character(c)) + self._repetition()

    def _members(self, c: str) -> str | None:
        """Return the characters of \\h, \\v or \\p as members of a class; None for other escapes."""
        if c in "hv":
            return HORIZONTAL if c == "h" else VERTICAL
        if c != "p":
            return None
        match = re.compile(r"\{(\w+)\}", re.ASCII).match(self._java, self._at)
        if match is None or match[1] not in POSIX:
            raise self._wrong(f"this \\p is not supported; these are: {', '.join(POSIX)}")
        self._at = match.end()
        return POSIX[match[1]]

    def _character(self, c: str) -> str:
        """Return the character that an escape stands for."""
        if c in CONTROLS:
            return CONTROLS[c]
        if c == "0":
            match = re.compile(r"[0-3][0-7]{2}|[0-7]{1,2}").match(self._java, self._at)
            if match is None:
                raise self._wrong("Illegal octal escape sequence")
            self._at = match.end()
            return chr(int(match[0], 8))
        if c == "c":
            return chr(ord(self._take()) ^ 64)
        if c in "xu":
            digits = 2 if c == "x" else 4
            match = re.compile(rf"[0-9a-fA-F]{{{digits}}}").match(self._java, self._at)
            if match is None and c == "x":
                match = re.compile(r"\{([0-9a-fA-F]{1,6})\}").match(self._java, self._at)
            if match is None or int(match[match.re.groups], 16) > 0x10FFFF:
                raise self._wrong(f"\\{c} needs {digits} hexadecimal digits")
            self._at = match.end()
            return chr(int(match[match.re.groups], 16))
        if c.isascii() and c.isalpha():
            raise self._wrong(f"\\{c} is not supported")
        return c

    def _quoted(self) -> str:
        end = self._java.find("\\E", self._at)
        text = self._java[self._at :] if end < 0 else self._java[self._at : end]
        self._at = len(self._java) if end < 0 else end + 2
        return text

    def _class(self) -> str:
        found = ["[^" if self._sees("^") else "["]
        first: str | None = None  # the character with which a range may begin
        while True:
            c = self._take()
            if c == "]" and len(found) > 1:
                return "".join(found) + "]" + self._repetition()
            if c == "[" or (c == "&" and self._java.startswith("&", self._at)):
                raise self._wrong("a class within a class and && are not supported")
            if c == "-" and first is not None and not self._java.startswith("]", self._at):
                last = self._take()
                if last == "\\":
                    last = self._character(self._take())
                elif last == "[":
                    raise self._wrong("a class within a class and && are not supported")
                if last < first:
                    raise self._wrong("Illegal character range")
                found.append(f"-{re.escape(last)}")
                first = None
            elif c == "\\":
                kind = self._take()
                if kind in "dDwWsS":
                    found.append(f"\\{kind}")
                    first = None
                elif kind == "Q":
                    found += map(re.escape, self._quoted())
                    first = None
                elif (members := self._members(kind)) is not None:
                    found.append(members)
                    first = None
                else:
                    first = self._character(kind)
                    found.append(re.escape(first))
            else:
                first = c
                found.append(re.escape(c))
