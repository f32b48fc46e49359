"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=None, metavar="N", help="simulate seeds 1 to N (tests/simulation)")
    group.addoption("--seed", type=int, default=None, metavar="S", help="simulate seed S only (tests/simulation)")
