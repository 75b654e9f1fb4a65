"""The value of `sasl.jaas.config`: one login module, a control flag, options, a semicolon.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret" user_bob='...';

The rules are those of Java's StreamTokenizer, which Kafka uses. A quoted value ends at its quote or at the
end of the line, and may have Java's escapes. A word begins with a letter, `_`, `$` or a character from
U+00A0 on, and continues with those, digits, `.` and `-`. A value that begins with a digit must be quoted,
otherwise it is a number. `/` begins a comment. (JaasConfig, JaasContext, java.io.StreamTokenizer.)"""

from collections.abc import Iterator
from typing import Final, NamedTuple

FLAGS: Final = ("required", "requisite", "sufficient", "optional")
END: Final = ""  # kind of the last token
WORD: Final = "word"  # a word or a quoted text; any other token is a character, or a number without a text
NUMBER: Final = "number"
_ESCAPES: Final = {"a": "\x07", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\x0b"}
_DIGITS: Final = "0123456789"
_LATER: Final = f"{_DIGITS}.-"  # in a word, but not its first character


class LoginModule(NamedTuple):
    name: str  # a Java class
    options: dict[str, str]


class Token(NamedTuple):
    kind: str
    text: str | None  # of a word


def parse(text: str) -> LoginModule:
    """Return the only module. Raises ValueError."""
    modules = list(_modules(_tokens(text)))
    if not modules:
        raise ValueError("Login module not specified in JAAS config")
    if len(modules) > 1:
        raise ValueError(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    return modules[0]


def _modules(tokens: Iterator[Token]) -> Iterator[LoginModule]:
    while (token := next(tokens)).kind != END:
        flag = next(tokens)
        if flag.kind == END:
            raise ValueError("Login module control flag not specified in JAAS config")
        if flag.text is None:
            raise ValueError("Login module control flag is not available in the JAAS config")
        if flag.text.lower() not in FLAGS:
            raise ValueError(f"Invalid login module control flag '{flag.text}' in JAAS config")
        options: dict[str, str] = {}
        while (key := next(tokens)).kind not in (END, ";"):
            equals, value = next(tokens), Token(END, None)
            if equals.kind == "=":
                value = next(tokens)
            if value.text is None or key.text is None:
                raise ValueError(f"Value not specified for key '{key.text}' in JAAS config")
            options[key.text] = value.text
        if key.kind != ";":
            raise ValueError("JAAS config entry not terminated by semi-colon")
        yield LoginModule(token.text or "", options)


def _tokens(text: str) -> Iterator[Token]:
    at, size = 0, len(text)
    while at < size:
        c = text[at]
        if c <= " ":
            at += 1
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = size if end < 0 else end + 2
        elif c == "/":
            at = _end_of_line(text, at)
        elif c in "\"'":
            word, at = _quoted(text, at)
            yield Token(WORD, word)
        elif c in _DIGITS or (c in "-." and text[at + 1 : at + 2] in (*_DIGITS, ".")):
            at += 1
            while at < size and (text[at] in _DIGITS or text[at] == "."):
                at += 1
            yield Token(NUMBER, None)
        elif _begins_word(c):
            end = at + 1
            while end < size and (_begins_word(text[end]) or text[end] in _LATER):
                end += 1
            yield Token(WORD, text[at:end])
            at = end
        else:
            yield Token(c, None)
            at += 1
    while True:
        yield Token(END, None)


def _begins_word(c: str) -> bool:
    return "a" <= c <= "z" or "A" <= c <= "Z" or c in "_$" or c >= "\xa0"


def _end_of_line(text: str, at: int) -> int:
    while at < len(text) and text[at] not in "\r\n":
        at += 1
    return at


def _quoted(text: str, at: int) -> tuple[str, int]:
    quote, found = text[at], []
    at += 1
    while at < len(text) and text[at] not in (quote, "\r", "\n"):
        c = text[at]
        at += 1
        if c == "\\" and at < len(text):
            c = text[at]
            at += 1
            if c in "01234567":  # one to three octal digits, the third only below 256
                digits = c
                while (
                    at < len(text) and text[at] in "01234567" and len(digits) < (3 if digits[0] < "4" else 2)
                ):
                    digits += text[at]
                    at += 1
                c = chr(int(digits, 8))
            else:
                c = _ESCAPES.get(c, c)
        found.append(c)
    return "".join(found), at + 1 if at < len(text) and text[at] == quote else at
