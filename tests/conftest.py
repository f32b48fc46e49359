"""Options of the whole test suite.

`--hypothesis-profile slow` is for models that then take many more steps than in a plain run: `make model-slow`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator

import pytest
from hypothesis import settings

from support.turns import forget, turn

# The processes that tests start keep their compiled code, as a user's do: without it half a second of each start is
# compiling.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("slow", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seeds", type=int, default=None, metavar="N", help="simulate seeds 1 to N (tests/simulation)")
    group.addoption("--seed", type=int, default=None, metavar="S", help="simulate seed S only (tests/simulation)")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with turn(quiet=item.get_closest_marker("quiet") is not None):
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Names the run, where there are several processes, before pytest-xdist does."""
    if getattr(config.option, "testrunuid", "") is None:
        config.option.testrunuid = uuid.uuid4().hex


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = getattr(session.config.option, "testrunuid", None)
    if run is not None and not hasattr(session.config, "workerinput"):
        forget(run)
