"""Missing outside dependencies of a test: skipped on a developer's machine, a failure in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

YES = ("1", "true", "yes")


def is_ci() -> bool:
    """Whether CI=true, which .ci/run sets."""
    return os.environ.get("CI", "").lower() in YES


def unavailable(why: str) -> NoReturn:
    """Skips the test; fails it in CI, where a skip would say nothing of what was not tested."""
    if is_ci():
        pytest.fail(f"CI must not skip this: {why}")
    pytest.skip(why)
