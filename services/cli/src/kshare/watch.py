"""`--watch`: shows a listing again and again, until Ctrl-C.

On a terminal each view replaces the one before. In a pipe they follow each other; JSON has one object for each. Once a
view was shown, a cluster that cannot be reached is a line on stderr, and the next view is tried: a restart of what is
watched does not end the watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import typer
from rich.console import Console

from kshare.failure import BAD_USE, CommandFailed
from kshare.output import stdout_console

Show = Callable[[Console], None]
Wait = Callable[[float], object]


def every(watch: bool, interval_s: float) -> float | None:
    """The seconds between two views; None without --watch."""
    return interval_s if watch else None


def show_watched(show: Show, interval_s: float | None) -> None:
    """Shows once, or without end at this interval; KeyboardInterrupt ends it as what it is for."""
    console = stdout_console()
    if interval_s is None:
        show(console)
        return
    try:
        show_repeatedly(show, console, interval_s, time.sleep)
    except KeyboardInterrupt:
        raise typer.Exit from None


def show_repeatedly(show: Show, console: Console, interval_s: float, wait: Wait) -> None:
    """Ends with the exception of `wait`, or of a first view that fails."""
    is_first = True
    while True:
        try:
            _show_view(show, console)
        except CommandFailed as failure:
            if is_first or failure.exit_code == BAD_USE:
                raise
            typer.echo(f"kshare: {failure}", err=True)
        is_first = False
        wait(interval_s)


def _show_view(show: Show, console: Console) -> None:
    """Reads first and draws then, so that the terminal is not empty meanwhile."""
    if not console.is_terminal:
        show(console)
        return
    with console.capture() as view:
        show(console)
    console.clear()
    console.out(f"{time.strftime('%H:%M:%S')}  Ctrl-C ends", highlight=False)
    console.file.write(view.get())
    console.file.flush()
