"""Commands in documents and docstrings: each `kshare` command that a text shows exists, with its options.

A command is shown in backticks, in an indented block or in a fenced one: `kshare groups describe --json billing`.
One in a block, which readers copy, also has the options that it requires. Words that are no command's name, such as
`GROUP` or `…`, end the comparison of names; options are compared all the same. Alternatives stand between `|`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import typer
from typer.core import TyperCommand, TyperGroup

_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROGRAM = r"(?:\$ )?(?:\.venv/bin/)?kshare "
_QUOTED = re.compile(r"`" + _PROGRAM + r"([^`]+)`")
_INDENTED = re.compile(r"^ {4,}" + _PROGRAM + r"(.+)$", re.MULTILINE)
_LINE = re.compile(r"^ *" + _PROGRAM + r"(.+)$", re.MULTILINE)
_NAME = re.compile(r"[a-z]+(-[a-z]+)*")
_OPTION = re.compile(r"--[a-z]+(-[a-z]+)*")


@dataclass(frozen=True, slots=True)
class CommandTree:
    """A command with its options, such as `--json`, and its subcommands by name."""

    options: frozenset[str] = frozenset()
    commands: Mapping[str, CommandTree] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    """The options without which the command ends with an error, each by its first name."""


def tree_of(command: object) -> CommandTree:
    """The names of a typer command and of all below it."""
    assert isinstance(command, TyperGroup | TyperCommand), command
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    below: dict[str, object] = {}
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        below = {name: command.get_command(context, name) for name in command.list_commands(context)}
    required = frozenset(each.opts[0] for each in command.params if each.required and each.opts[0].startswith("--"))
    return CommandTree(frozenset({"--help", *options}), {name: tree_of(one) for name, one in below.items()}, required)


def command_problems_of(name: str, text: str, kshare: CommandTree) -> Iterator[str]:
    """The commands and options in a text that do not exist, a line each. `name` is the path of its file."""
    joined = text.replace("\\\n", " ")
    quoted = [" ".join(found.split()) for found in _QUOTED.findall(joined)]
    for is_whole, shown in (*((False, each) for each in quoted), *((True, each) for each in _lines(joined))):
        line = re.split(r"\s(?:#|>|&&|<)|;", shown)[0]
        for problem in _problems(line.split(), kshare, is_whole=is_whole):
            yield f"{name}: {problem} (kshare {shown})"


def _lines(text: str) -> Iterator[str]:
    for block in _FENCE.findall(text):
        yield from _LINE.findall(block)
    yield from _INDENTED.findall(_FENCE.sub("", text))


def _problems(words: Sequence[str], kshare: CommandTree, *, is_whole: bool) -> Iterator[str]:
    parent, commands, at = kshare, [kshare], 0
    while at < len(words):
        is_alternative = words[at] == "|" and at > 0
        at += is_alternative
        if at == len(words) or not (is_alternative or commands[-1].commands) or not _NAME.fullmatch(words[at]):
            break
        if not is_alternative:
            parent, commands = commands[-1], []
        if words[at] not in parent.commands:
            yield f"there is no command {words[at]}"
            return
        commands.append(parent.commands[words[at]])
        at += 1
    known = frozenset.union(*(command.options for command in commands))
    for word in words[at:]:
        if word == "|":
            return
        option = word.strip("[]().,").partition("=")[0]
        if _OPTION.fullmatch(option) and option not in known:
            yield f"there is no option {option}"
    given = {word.partition("=")[0] for word in words}
    if is_whole and not given & {"--help", "-h", "…"}:
        yield from (f"the option {option} is missing" for option in sorted(commands[-1].required - given))
