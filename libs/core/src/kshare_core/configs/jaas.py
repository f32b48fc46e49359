"""JAAS values of Kafka's configs: `org.example.LoginModule required name="value" other="value";`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kshare_core.configs.definition import InvalidConfig

FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|([^\s="\';]+)|\'((?:\\.|[^\'\\])*)\'|([=;]))', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module by its class name, and its options, which may be secrets."""

    class_name: str
    options: Mapping[str, str]


def parse_jaas(name: str, text: str) -> LoginModule:
    """The one login module of a value of the config `name`; InvalidConfig, which never shows the value."""
    tokens = _tokens(name, text)
    if len(tokens) < 3 or tokens[1] not in FLAGS or tokens[-1] != ";" or ";" in tokens[:-1]:
        raise _wrong(name, "it must be CLASS required NAME=VALUE …; with one login module")
    pairs = tokens[2:-1]
    if len(pairs) % 3 or any(sign != "=" for sign in pairs[1::3]) or "=" in (*pairs[0::3], *pairs[2::3]):
        raise _wrong(name, "each option must be NAME=VALUE, with quotes around a value that has other characters")
    options = zip(pairs[0::3], pairs[2::3], strict=True)
    return LoginModule(_text(tokens[0]), {_text(key): _text(value) for key, value in options})


def _tokens(name: str, text: str) -> list[str]:
    """Names, values in double quotes, and the signs = and ;."""
    found, position, text = [], 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _wrong(name, f"the character at position {position + 1} belongs to no name, value, = or ;")
        double, bare, single, sign = match.groups()
        quoted = double if double is not None else single
        found.append(f'"{quoted}' if quoted is not None else bare or sign)
        position = match.end()
    return found


def _text(token: str) -> str:
    return _ESCAPE.sub(r"\1", token[1:]) if token.startswith('"') else token


def _wrong(name: str, problem: str) -> InvalidConfig:
    return InvalidConfig(f"{name} cannot be read: {problem}")
