"""Flags of a process as fields of a dataclass: declaration, command line, and variables KSHARE_<NAME>.

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        node_id: int = flag("Unique among the nodes of its role.", whole_number(0))

    Settings(**parsed_flags(Settings, ["--node-id", "3"], program="example"))

The flag of a field `node_id` is --node-id, and its variable is KSHARE_NODE_ID. A flag takes precedence; an empty
variable counts as missing. *Choice: argparse. pydantic-settings took a sixth of a role's start to import.*
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any

VARIABLE_PREFIX = "KSHARE_"
REQUIRED = object()


class SettingsError(Exception):
    """A flag, a variable or the config file is wrong; the text says which, with which value, and what is allowed."""


class WrongValue(ValueError):
    """The text of a flag or variable is not allowed; the message says what is."""


def flag(text: str, read: Callable[[str], object], *, default: object = REQUIRED, choices: Sequence[str] = ()) -> Any:
    """A field that is read from a flag. `text` describes it; `read` makes the value, or raises WrongValue."""
    metadata = {"text": text, "read": read, "choices": choices}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers within bounds."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise WrongValue("it must be a whole number") from None
        if number < least:
            raise WrongValue(f"it must be greater than or equal to {least}")
        if most is not None and number > most:
            raise WrongValue(f"it must be less than or equal to {most}")
        return number

    return read


def ratio(text: str) -> float:
    """A number from 0 to 1; WrongValue."""
    try:
        number = float(text)
    except ValueError:
        raise WrongValue("it must be a number from 0 to 1") from None
    if not 0 <= number <= 1:
        raise WrongValue("it must be from 0 to 1")
    return number


def some_text(text: str) -> str:
    """A text that is not empty; WrongValue."""
    if not text:
        raise WrongValue("it must not be empty")
    return text


def parsed_flags(kind: type, arguments: Sequence[str], *, program: str) -> dict[str, Any]:
    """The values of a dataclass's fields that are given; SettingsError for bad or missing ones.

    SystemExit for --help and for flags that do not exist or have no value.
    """
    declared = {each.name: each for each in fields(kind)}
    given = vars(_parser(kind, declared, program).parse_args(list(arguments)))
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, each in declared.items():
        text = given[name] if given[name] is not None else os.environ.get(_variable(name)) or None
        called = f"{_flag(name)} (or {_variable(name)})"
        if text is None:
            if each.default is MISSING:
                problems.append(f"{called} is missing: {each.metadata['text']}")
            continue
        try:
            found[name] = _read(each, text)
        except WrongValue as error:
            problems.append(f"{called} is {text!r}: {error}")
    if problems:
        raise SettingsError("; ".join(problems))
    return found


def _read(declared: Field[object], text: str) -> object:
    choices = declared.metadata["choices"]
    if choices and text not in choices:
        raise WrongValue(f"it must be one of {', '.join(choices)}")
    return declared.metadata["read"](text)


def _parser(kind: type, declared: dict[str, Field[object]], program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=kind.__doc__, allow_abbrev=False)
    for name, each in declared.items():
        choices = each.metadata["choices"]
        default = "required" if each.default is MISSING else f"default: {each.default}"
        if each.default is None:
            default = ""
        text = each.metadata["text"] + (f" ({default})" if default else "")
        shown = "{" + ",".join(choices) + "}" if choices else name.rpartition("_")[2].upper()
        parser.add_argument(_flag(name), dest=name, metavar=shown, help=text.replace("%", "%%"))
    return parser


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _variable(name: str) -> str:
    return VARIABLE_PREFIX + name.upper()
