"""Listings: tables (never cut in a pipe), or one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 100_000
"""Columns of a console that is not a terminal: lines are neither cut nor wrapped."""

NO_VALUE = "-"

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
Row = Mapping[str, Value]


class Listing(NamedTuple):
    """Rows of one kind; `headings` name the columns of the table, JSON has every field of a row.

    The `summary` stands above the table, so that it is read first also where the table is long.
    """

    name: str
    headings: Mapping[str, str]
    rows: Sequence[Row]
    summary: str = ""


def stdout_console() -> Console:
    """A console on stdout: as wide as the terminal, or unlimited in a pipe."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def show(console: Console, *listings: Listing, as_json: bool) -> None:
    """Prints a table for each listing, or one JSON object with a field for each."""
    if as_json:
        show_json(console, {listing.name: [dict(row) for row in listing.rows] for listing in listings})
        return
    for listing in listings:
        if listing.summary:
            console.print(listing.summary, markup=False, highlight=False, soft_wrap=True)
        if listing.summary and not listing.rows:
            continue
        table = Table(*listing.headings.values())
        for row in listing.rows:
            table.add_row(*(Text(_cell(row[field])) for field in listing.headings))
        console.print(table)


def show_json(console: Console, value: Value) -> None:
    console.print(json.dumps(value, indent=2), markup=False, highlight=False, soft_wrap=True)


def counted(number: int, noun: str) -> str:
    """`1 group`, `12,000 groups`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _cell(value: Value) -> str:
    if value is None:
        return NO_VALUE
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value)


def show_outcome(text: str, outcome: Row, *, as_json: bool) -> None:
    """Prints what a command did: a line for people, or one JSON object."""
    if as_json:
        show_json(stdout_console(), dict(outcome))
    else:
        print_line(text)


def print_line(text: str) -> None:
    """A line on stdout, never cut or wrapped."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def progress(*, as_json: bool) -> Callable[[str], None]:
    """Where a command tells how far it is: on stdout, or on stderr if stdout has JSON."""

    def tell(text: str) -> None:
        stream = sys.stderr if as_json else sys.stdout
        stream.write(f"{text}\n")
        stream.flush()

    return tell
