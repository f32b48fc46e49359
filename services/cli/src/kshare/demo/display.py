"""The demo's output: a live table at a terminal, plain lines elsewhere, and the account at the end."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from kshare.demo.account import ACCEPT, REJECT, RELEASE, Account

PLAIN_INTERVAL_S = 1.0


class Display:
    """The progress display, a context manager; it limits the rate of output itself."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._next_line_s = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def print(self, text: str) -> None:
        """Prints a permanent line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def update(self, account: Account, elapsed_s: float) -> None:
        """Shows the account `elapsed_s` after the start."""
        if self._live is not None:
            self._live.update(_picture(account, elapsed_s))
        elif elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + PLAIN_INTERVAL_S
            self.print(
                f"{elapsed_s:5.1f} s  produced {len(account.produced)}/{account.expected}  "
                f"accepted {len(account.accepted)}  rejected {len(account.rejected)}  "
                f"released {account.released.total()}  redelivered {len(account.redelivered)}"
            )


def _picture(account: Account, elapsed_s: float) -> Group:
    bars = Table.grid(padding=(0, 1))
    for name, count in (("produced", len(account.produced)), ("settled", account.settled)):
        bars.add_row(
            name, ProgressBar(total=account.expected, completed=count, width=40), f"{count}/{account.expected}"
        )
    return Group(f"{elapsed_s:.0f} s", bars, worker_table(account))


def worker_table(account: Account) -> Table:
    """A table of the workers with their acknowledgements."""
    table = Table("worker", "state", "accepted", "released", "rejected")
    for name, tally in account.workers.items():
        style = "red" if tally.state == "crashed" else None
        counts = [str(tally.answers[answer]) for answer in (ACCEPT, RELEASE, REJECT)]
        table.add_row(name, tally.state, *counts, style=style)
    return table


def account_table(account: Account) -> Table:
    """A table of the account."""
    table = Table("orders", "", title="Account")
    table.columns[1].justify = "right"
    for name, count in account.rows():
        table.add_row(name, str(count))
    return table
