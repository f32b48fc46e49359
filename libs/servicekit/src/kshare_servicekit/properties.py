"""A parser of `key=value` files in the syntax of Java's Properties.load, which is that of Kafka's server.properties.

Blank lines and lines that start with # or ! are ignored. A key ends at the first =, : or white space that no backslash
precedes. A line that ends with an odd number of backslashes continues on the next one, whose leading white space is
dropped. Escapes: \\t \\n \\r \\f \\uXXXX; before anything else a backslash only protects it. Of a key that comes
twice the last value counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WHITE_SPACE = " \t\f"
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.?)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values in the order in which they first come; ValueError, with the line's number, for a bad \\u."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # the pattern also matches nothing
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        try:
            found[_unescaped(key.group())] = _unescaped(line[separator.end() :])
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines, with continuations joined, each with the number of its first natural line."""
    joined = ""
    first_number = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_WHITE_SPACE)
        if not joined:
            if not line or line[0] in "#!":
                continue
            first_number = number
        joined += line
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined = joined[:-1]
            if joined:
                continue
            first_number = 0
        if joined:
            yield first_number, joined
        joined = ""
    if joined:
        yield first_number, joined


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match.group(1)
        if escape.startswith("u"):
            if len(escape) != 5:
                raise ValueError(f"\\u must be followed by four hexadecimal digits, as in \\u00e9; found {text!r}")
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(character, text)
