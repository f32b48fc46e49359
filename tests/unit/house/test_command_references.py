"""Commands in documents and docstrings: commands and options that do not exist are found, and others are left alone."""

from __future__ import annotations

import pytest
import typer

from kshare.main import app
from support.house.command_references import CommandTree, command_problems_of, tree_of

DESCRIBE = CommandTree(frozenset({"--json", "--help"}))
RESET = CommandTree(frozenset({"--dry-run", "--to-earliest", "--help"}))
KSHARE = CommandTree(
    frozenset({"--version"}),
    {
        "groups": CommandTree(commands={"describe": DESCRIBE, "reset": RESET}),
        "up": CommandTree(frozenset({"--listen", "--data-dir", "--help"}), required=frozenset({"--data-dir"})),
    },
)


@pytest.mark.parametrize(
    "text",
    [
        "`kshare groups describe --json billing`, `.venv/bin/kshare up --listen HOST:PORT`, `kshare --version`",
        "`kshare groups describe | reset | …` and `kshare up | groups`",
        "    kshare up --data-dir=data\n    kshare up --help\n    kshare up …\n",
        "`kshare groups reset billing --to-earliest # not --gone`",
        "kshare is a set of services, and --gone is no option of it\n\nkshare gone\n",
        "run\n\n    kshare groups reset \\\n        --dry-run billing\n",
        "```sh\nkshare groups describe billing | jq --raw-output .lag\n```\n",
        "`kshare_core`, `kshare-gateway`, `kshare.groups --gone`",
    ],
)
def test_commands_that_exist(text: str) -> None:
    assert list(command_problems_of("README.md", text, KSHARE)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`kshare group describe`", "command group"),
        ("`kshare groups delete billing`", "command delete"),
        ("`kshare groups describe | delete`", "command delete"),
        ("`kshare groups describe --dry-run`", "option --dry-run"),
        ("`kshare groups reset billing [--to-latest]`", "option --to-latest"),
        ("`kshare groups --json describe`", "option --json"),
        ("see\n\n    .venv/bin/kshare up --data-dir data --listens HOST:PORT\n", "option --listens"),
        ("see\n\n    kshare up --listen HOST:PORT\n", "option --data-dir is missing"),
        ("```sh\n$ kshare down\n```\n", "command down"),
        ("```\nkshare groups reset \\\n  --gone\n```\n", "option --gone"),
    ],
)
def test_commands_that_do_not_exist(text: str, named: str) -> None:
    (problem,) = command_problems_of("README.md", text, KSHARE)
    assert problem.startswith("README.md: ") and named in problem


def test_the_tree_of_the_command() -> None:
    kshare = tree_of(typer.main.get_command(app))
    assert "--data-dir" in kshare.commands["up"].options
    assert kshare.commands["up"].required == {"--data-dir"} and not kshare.commands["nodes"].required
    assert "--json" in kshare.commands["groups"].commands["list"].options
    assert not kshare.commands["demo"].commands
