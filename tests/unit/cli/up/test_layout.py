"""How many processes a `kshare up` makes."""

from __future__ import annotations

import pytest

from kshare.failure import CommandFailed
from kshare.up.layout import chosen_processes, is_one_process


@pytest.mark.parametrize(
    ("processes", "nodes", "processors", "is_one"),
    [
        ("auto", 4, 1, True),
        ("auto", 4, 2, True),
        ("auto", 4, 3, False),
        ("auto", 5, 2, False),
        ("1", 5, 8, True),
        ("4", 4, 1, False),
        ("6", 6, 2, False),
    ],
)
def test_one_process_or_one_for_each_node(processes: str, nodes: int, processors: int, is_one: bool) -> None:
    assert is_one_process(processes, nodes, processors=processors) is is_one


@pytest.mark.parametrize("processes", ["0", "2", "5", "-1", "two", "", "1.0"])
def test_numbers_that_cannot_be(processes: str) -> None:
    with pytest.raises(CommandFailed, match=f"--processes must be auto, 1, or 4, .*; found '{processes}'"):
        is_one_process(processes, 4, processors=2)


def test_the_older_option() -> None:
    assert chosen_processes("auto", True) == chosen_processes("1", True) == "1"
    assert chosen_processes("auto", False) == "auto" and chosen_processes("4", False) == "4"
    with pytest.raises(CommandFailed, match="--single-process and --processes 4 contradict each other"):
        chosen_processes("4", True)
