"""Where Docker, etcd, Java or a browser could not be brought up, CI fails; a developer's run skips what needs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.environment import prepare
from support.environment.unavailable import unavailable

TESTS = Path(__file__).resolve().parents[2]
MAY_SKIP = {
    "support/environment/unavailable.py",
    "support/clusters/kubernetes.py",
    "support/environment/prepare.py",
    "conftest.py",
}
"""`unavailable` itself, what `make test` does not run, what catches a skip, and what leaves out tests that an engine's
list of exclusions names. Others call `unavailable`."""


def broken() -> None:
    raise RuntimeError("no route to the package registry")


@pytest.mark.parametrize("ci", ["true", "1", "", "false"])
def test_what_cannot_be_had_fails_in_ci_and_is_skipped_elsewhere(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    expected = pytest.fail.Exception if ci in ("true", "1") else pytest.skip.Exception
    with pytest.raises(expected, match="no Docker daemon answers"):
        unavailable("no Docker daemon answers")


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
@pytest.mark.parametrize("missing", [broken, lambda: unavailable("no Docker daemon answers")])
def test_preparing_ends_with_an_error_in_ci_where_a_part_is_missing(
    ci: str, code: int, missing: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    assert callable(missing)
    assert prepare.main({"Java": lambda: None, "Docker": missing}) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Java: here" and lines[1].startswith("Docker: ")
    assert (lines[-1] == "missing, and CI tests everything: Docker") == (code == 1)


def test_preparing_is_silent_about_nothing_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert prepare.main({"Java": lambda: None}) == 0


def test_no_other_test_skips() -> None:
    skips = re.compile(r"pytest\.(skip|importorskip|mark\.skip)|@skip|SkipTest")
    found = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and skips.search(path.read_text())
    }
    assert found <= MAY_SKIP


def test_ci_says_that_it_is_ci() -> None:
    script = (TESTS.parent / ".ci" / "run").read_text()
    assert script.index("export CI=true") < script.index("support.environment.prepare") < script.index("make test")
