"""The property file of a process: broker configs under Kafka's names and kshare's own, `key=value` a line.

`read_properties` reads Java's property files as far as people use them: `#` and `!` begin comments, `=`, `:` or blanks
end a key, a backslash at the end of a line joins the next, `\\\\`, `\\t`, `\\n`, `\\r`, `\\uXXXX` are escapes; of two
lines with the same key the later one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kshare_core.configs.broker import BROKER_CONFIGS, check_broker_configs
from kshare_core.configs.definition import Configs, ConfigTable, InvalidConfig
from kshare_core.configs.kshare_own import KSHARE_CONFIGS

PROCESS_CONFIGS: ConfigTable = {**BROKER_CONFIGS, **KSHARE_CONFIGS}

_KEY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    """Keys and values of a property file; InvalidConfig names a line that cannot be read."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None or not match[1]:
            raise InvalidConfig(f"line {number}: expected key=value, found {line!r}")
        found[_unescape(match[1], number)] = _unescape(match[2], number)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with what follows a backslash at their end joined, without blank lines and comments; numbers from 1."""
    lines: list[tuple[int, str]] = []
    joined, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip(" \t\f")
        if not joined:
            first = number
            if not line or line[0] in "#!":
                continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        lines.append((first, joined + line))
        joined = ""
    if joined:
        lines.append((first, joined))
    return lines


def _unescape(text: str, number: int) -> str:
    def replacement(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped == "u":
            raise InvalidConfig(f"line {number}: \\u must be followed by four hexadecimal digits")
        if escaped[0] == "u":
            return chr(int(escaped[1:], 16))
        return _CONTROLS.get(escaped, escaped)

    return _ESCAPE.sub(replacement, text)


def process_configs(texts: Mapping[str, str]) -> tuple[Configs, list[str]]:
    """The configs of a process, and a warning for each key that is set and has no effect here; InvalidConfig."""
    configs = Configs(PROCESS_CONFIGS, texts)
    check_broker_configs(configs)
    warnings = [
        f"{name} is known to Kafka and has no effect here" for name in texts if not PROCESS_CONFIGS[name].has_effect
    ]
    return configs, warnings
