"""The user name of a client with a certificate: ssl.principal.mapping.rules.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),.*$/$1/, DEFAULT

The key may have the prefix listener.name.<listener>. The first rule whose regular expression matches the
whole subject determines the name: every match is replaced, then the text is changed to lower (L) or upper
case (U). DEFAULT is the subject itself. If no rule matches, the connection is refused. Regular expressions
are Java's, and so are `$` and `\\` in a replacement; a `$` with a number that is not a group's stands for
itself. (SslPrincipalMapper, KIP-371.)

The rules have a time limit, because some expressions never end for some texts (security/time_limit). Then the
client is refused. In Kafka it would hold a network thread for good."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from kafkad.config.definition import ConfigError, trimmed
from kafkad.security import java_regex
from kafkad.security.time_limit import SHOWN, LimitedNames

RULES: Final = "ssl.principal.mapping.rules"
_ANY: Final = r"[^\n\r\x85\u2028\u2029]"  # Java's dot
_PART: Final = rf"((?:\\{_ANY}|[^\\/])*)"
_RULE: Final = rf"(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?){_ANY}*?|({_ANY}*?)"
_REFERENCE: Final = re.compile(r"\$(\d+)", re.ASCII)


class Rule(NamedTuple):
    pattern: java_regex.Pattern | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""  # L, U or neither

    def apply(self, subject: str) -> str | None:
        """Return the name, or None if the rule does not match. Raises ValueError if the replacement is
        wrong."""
        if self.pattern is None:
            return subject
        if not self.pattern.matches(subject):
            return None
        name = self.pattern.replace_all(subject, _escaped(self.replacement, self.pattern.groups))
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


class PrincipalRules(LimitedNames):
    """`name_of` takes a certificate's subject, as Java prints it. Raises ValueError with Kafka's message if a
    rule is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__(self._user, text)
        self._text = text
        self._all = [rule for part in _split(text) if (rule := _parsed(part)) is not None]

    def _user(self, subject: str) -> str:
        for rule in self._all:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise ValueError(f"No rules apply to {subject[:SHOWN]}, rules {self._text}")


def principal_rules(config: Any, endpoints: Iterable[Any] | None = None) -> dict[str, PrincipalRules]:
    """Return the rules, by name, of the SSL listeners of `config` (BrokerConfig), or of `endpoints`. Raises
    ConfigError."""
    found = {}
    for endpoint in config.broker_endpoints if endpoints is None else endpoints:
        if endpoint.protocol != "SSL":
            continue
        text = config.for_listener(endpoint.listener, RULES)
        try:
            found[endpoint.listener] = PrincipalRules(text)
        except ValueError as wrong:
            raise ConfigError(
                f"Invalid value {text} for configuration {RULES} of listener {endpoint.listener}: {wrong}"
            ) from None
    return found


@cache
def _splitter() -> re.Pattern[str]:  # not compiled before there are rules: it takes 200 KB
    return re.compile(rf"\s*({_RULE})\s*(,\s*|\Z)", re.ASCII)


@cache
def _parser() -> re.Pattern[str]:
    return re.compile(_RULE, re.ASCII)


def _split(text: str) -> list[str]:
    """Split like Java's Matcher.find: after an empty match the search skips a character."""
    text = trimmed(text)
    found, at = [], 0
    while at <= len(text) and (match := _splitter().search(text, at)):
        found.append(match[1])
        at = match.end() + (match.end() == match.start())
    return found


def _parsed(text: str) -> Rule | None:
    """Parse a rule. Return None for an empty one, which is ignored."""
    match = _parser().match(text)
    assert match is not None  # its last alternative is empty
    if match.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return Rule(None)
    if match[2] is None:
        return None
    return Rule(java_regex.Pattern(match[2]), match[3], match[4])


def _escaped(replacement: str, groups: int) -> str:
    """Put a backslash before each `$` whose number is not a group's (escapeLiteralBackReferences). If there
    are several, Kafka uses positions of the text without backslashes, so the second one is a place too
    early."""
    if groups == 0:
        return replacement
    text = replacement
    for found in _REFERENCE.finditer(replacement):
        if found[1].startswith("0"):
            continue
        number = int(found[1])
        if number > java_regex.GROUP_MAX:
            raise ValueError(f'For input string: "{found[1]}"')
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            text = f"{text[: found.start()]}\\{text[found.start() :]}"
    return text
