"""One rule of `ssl.principal.mapping.rules`, with the patterns and replacements of Java that Kafka's rules are made of.

A pattern and a replacement are read as Java reads them (SslPrincipalMapper.Rule and Matcher.appendReplacement). What
Python's `re` cannot do, or would silently read in another way, is refused when the rules are read. So is a replacement
with which Kafka refuses each name that the pattern matches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kshare_core.configs import InvalidConfig

_CLASS = re.compile(r"\\.|\[\^?(\]?(?:\\.|[^\]\\])*)\]", re.DOTALL)
"""An escaped character, or a character class up to its first bracket that closes; its content is group 1."""
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_REFERENCE = re.compile(r"\$([0-9])")
_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class MappingRule:
    """A rule that is not DEFAULT: `letters` is L for small letters, U for capital ones, or empty."""

    pattern: re.Pattern[str]
    parts: tuple[str | int, ...]
    """The replacement: texts, and numbers of groups."""
    letters: str

    def apply(self, name: str) -> str | None:
        """The name that a distinguished name becomes; None if the pattern does not match all of it.

        As in Kafka, each match in the name is replaced then: without ^ and $, `(.*)` matches twice, at last nothing.
        """
        if self.pattern.fullmatch(name) is None:
            return None
        result = self.pattern.sub(self._replacement, name)
        return {"L": result.lower(), "U": result.upper()}.get(self.letters, result)

    def _replacement(self, match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else match[part] or "" for part in self.parts)


def mapping_rule(pattern: str, replacement: str, letters: str) -> MappingRule:
    """The rule of its three texts; InvalidConfig."""
    _check_classes(pattern)
    try:
        compiled = re.compile(pattern, re.ASCII)  # Java's \\w and \\d are ASCII characters only
    except (re.error, ValueError, OverflowError) as error:
        raise InvalidConfig(f"ssl.principal.mapping.rules has the pattern {pattern!r}: {error}") from None
    try:
        parts = _parts(_with_literal_references(replacement, compiled.groups), compiled.groups)
    except ValueError as error:
        text = f"the replacement {replacement!r} of the pattern {pattern!r} {error}"
        raise InvalidConfig(f"ssl.principal.mapping.rules: {text}") from None
    return MappingRule(compiled, parts, letters)


def _check_classes(pattern: str) -> None:
    """InvalidConfig for a union or intersection of classes, which Python reads as the characters & and [."""
    for found in _CLASS.finditer(pattern):
        content = _ESCAPED.sub("_", found[1] or "")
        if "&&" in content or "[" in content:
            text = f"the pattern {pattern!r} has && or a class within a character class, which kshare does not support"
            raise InvalidConfig(f"ssl.principal.mapping.rules: {text}; escape & and [ that are meant as characters")


def _with_literal_references(replacement: str, groups: int) -> str:
    """The replacement with an escaped $ before each number above the number of groups.

    As escapeLiteralBackReferences of Kafka 4.3.1: nothing is escaped for a pattern without groups, and a second escape
    stands one character too early, so that a replacement may have one such number only.
    """
    if groups == 0:
        return replacement
    escaped = replacement
    for reference in _REFERENCE.finditer(replacement):
        if int(reference[1]) > groups:  # a longer number is cut to its first digit before it is found too high
            escaped = f"{escaped[: reference.start()]}\\{escaped[reference.start() :]}"
    return escaped


def _parts(replacement: str, groups: int) -> tuple[str | int, ...]:
    """The texts and groups of a replacement, as Java's Matcher.appendReplacement reads it; ValueError."""
    parts: list[str | int] = []
    position = 0
    while position < len(replacement):
        char = replacement[position]
        position += 1
        if char == "\\":
            if position == len(replacement):
                raise ValueError("ends with a backslash")
            parts.append(replacement[position])
            position += 1
        elif char == "$":
            number, position = _group_number(replacement, position, groups)
            parts.append(number)
        else:
            parts.append(char)
    return tuple(parts)


def _group_number(replacement: str, position: int, groups: int) -> tuple[int, int]:
    """The number after a $, with as many digits as there are groups for, and the position after it; ValueError."""
    if replacement[position : position + 1] not in _DIGITS:
        raise ValueError(r"has a $ without the number of a group; write \$ for the character")
    number = int(replacement[position])
    position += 1
    while replacement[position : position + 1] in _DIGITS and number * 10 + int(replacement[position]) <= groups:
        number = number * 10 + int(replacement[position])
        position += 1
    if number > groups:
        raise ValueError(f"has the group {number}, and the pattern has {groups}")
    return number, position
