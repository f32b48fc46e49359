"""The text scenarios of tests/scenarios/share_partition; UPDATE_SCENARIOS=1 rewrites their output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.leader.share.script import Script, blocks

SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios" / "share_partition").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    if os.environ.get("UPDATE_SCENARIOS") == "1":
        update(path)
    script = Script()
    found = blocks(path)
    assert found
    for block in found:
        output = [line for command in block.commands for line in script.run(command)]
        assert output == block.expected, f"after {block.commands}"


def update(path: Path) -> None:
    script = Script()
    parts = []
    for part in path.read_text().strip("\n").split("\n\n"):
        head = part.split("----")[0].strip("\n").splitlines()
        commands = [line for line in head if not line.startswith("#")]
        output = [line for command in commands for line in script.run(command)]
        parts.append("\n".join([*head, "----", *output]) if commands else part)
    path.write_text("\n\n".join(parts) + "\n")


def test_the_worked_table_of_the_kip_is_here() -> None:
    assert "01_kip_932_worked_table" in [path.stem for path in SCENARIOS]
