"""What py-spy saw of one process: samples by the package and by the function that ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Frame(NamedTuple):
    """A function on the stack of a sample."""

    function: str
    file: str
    """The path below the package's folder, or the library's name."""

    @property
    def package(self) -> str:
        return self.file.split("/")[0] if "/" in self.file else self.file.partition(":")[0]


class Profile(NamedTuple):
    """The samples of one process."""

    samples: int
    packages: Counter[str]
    functions: Counter[str]


def frame_of(text: str) -> Frame:
    """A frame of py-spy's raw format: `function (file:line)`."""
    function, _, place = text.rpartition(" (")
    return Frame(function or text, place.rstrip(")"))


def profile_of(lines: Sequence[str]) -> Profile:
    """Sums up py-spy's raw format: a stack from the outermost frame to the innermost, and how often it was seen."""
    total, packages, functions = 0, Counter[str](), Counter[str]()
    for line in lines:
        stack, _, count_text = line.rpartition(" ")
        count = int(count_text)
        running = frame_of(stack.rpartition(";")[2])
        total += count
        packages[running.package] += count
        functions[f"{running.function} ({running.file.rpartition(':')[0]})"] += count
    return Profile(total, packages, functions)
