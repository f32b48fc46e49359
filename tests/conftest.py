"""Options of the whole test suite.

`--hypothesis-profile slow` is for models that then take many more steps than in a plain run: `make model-slow`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The processes that tests start keep their compiled code, as a user's do: without it half a second of each start is
# compiling.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("slow", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=None, metavar="N", help="simulate seeds 1 to N (tests/simulation)")
    group.addoption("--seed", type=int, default=None, metavar="S", help="simulate seed S only (tests/simulation)")
