"""`--watch`: views follow each other, a failure after the first is told and not the end, and Ctrl-C ends it well."""

from __future__ import annotations

import io

import pytest
import typer
from rich.console import Console

from kshare.failure import BAD_USE, CommandFailed
from kshare.watch import every, show_repeatedly, show_watched


class Views:
    """Shows its number, or fails where `failures` say so; waits until there were `count` views."""

    def __init__(self, count: int, failures: dict[int, CommandFailed] | None = None) -> None:
        self.count = count
        self.failures = failures or {}
        self.shown = 0
        self.waits: list[float] = []

    def show(self, console: Console) -> None:
        self.shown += 1
        if self.shown in self.failures:
            raise self.failures[self.shown]
        console.print(f"view {self.shown}")

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.shown == self.count:
            raise KeyboardInterrupt


def test_views_follow_each_other_in_a_pipe() -> None:
    output, views = io.StringIO(), Views(3)
    with pytest.raises(KeyboardInterrupt):
        show_repeatedly(views.show, Console(file=output), 0.5, views.wait)
    assert output.getvalue() == "view 1\nview 2\nview 3\n" and views.waits == [0.5, 0.5, 0.5]


def test_a_view_replaces_the_one_before_on_a_terminal() -> None:
    output, views = io.StringIO(), Views(2)
    with pytest.raises(KeyboardInterrupt):
        show_repeatedly(views.show, Console(file=output, force_terminal=True), 1.0, views.wait)
    _, first, second = output.getvalue().split("\x1b[2J")
    assert "view 1" in first.replace("\x1b[1;36m", "").replace("\x1b[0m", "") and "Ctrl-C ends" in first
    assert "view 2" in second.replace("\x1b[1;36m", "").replace("\x1b[0m", "")


def test_a_failure_between_views_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    output, views = io.StringIO(), Views(3, {2: CommandFailed("cannot connect")})
    with pytest.raises(KeyboardInterrupt):
        show_repeatedly(views.show, Console(file=output), 1.0, views.wait)
    assert output.getvalue() == "view 1\nview 3\n"
    assert capsys.readouterr().err == "kshare: cannot connect\n"


@pytest.mark.parametrize(("view", "code"), [(1, 1), (2, BAD_USE)])
def test_failures_that_end_the_watch(view: int, code: int) -> None:
    views = Views(3, {view: CommandFailed("no", code)})
    with pytest.raises(CommandFailed):
        show_repeatedly(views.show, Console(file=io.StringIO()), 1.0, views.wait)
    assert views.shown == view


@pytest.mark.parametrize("interval_s", [None, 2.0])
def test_once_without_watch_and_until_an_interrupt_with_it(
    monkeypatch: pytest.MonkeyPatch, interval_s: float | None
) -> None:
    views = Views(2)
    monkeypatch.setattr("time.sleep", views.wait)
    if interval_s is None:
        show_watched(views.show, interval_s)
    else:
        with pytest.raises(typer.Exit):
            show_watched(views.show, interval_s)
    assert views.shown == (1 if interval_s is None else 2)
    assert every(False, 2.0) is None and every(True, 2.0) == 2.0
