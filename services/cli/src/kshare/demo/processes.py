"""The demo's processes: forwards their reports, keeps their other output in files, and stops them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kshare.demo.reports import parse_report
from kshare.failure import CommandFailed
from kshare.up import child

STOP_S = 15.0
LINES_SHOWN = 30
LONGEST_REPORT_BYTES = 16 * 1024 * 1024


class Processes:
    """Processes by name. Each dies with this process, even if that is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}

    async def start(
        self, name: str, arguments: Sequence[str], on_report: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """Runs `python -m` with the arguments; reports go to `on_report`, everything else to a file."""
        with self._output_file(name).open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", child.__file__, str(os.getpid()), sys.executable, "-m", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output if on_report is None else asyncio.subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                limit=LONGEST_REPORT_BYTES,
            )
        self._processes[name] = process
        if on_report is not None:
            assert process.stdout is not None
            self._readers[name] = asyncio.create_task(_forward(process.stdout, on_report))

    def check(self, may_die: frozenset[str] = frozenset()) -> None:
        """Raises CommandFailed if a process ended that is not in `may_die`."""
        for name, process in self._processes.items():
            if process.returncode is not None and name not in may_die:
                raise CommandFailed(f"{name} ended with code {process.returncode}:\n{self.output_of(name)}")

    def output_of(self, name: str) -> str:
        """The last lines of a process's output other than reports."""
        lines = self._output_file(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LINES_SHOWN:])

    async def stop(self, name: str) -> None:
        """Sends SIGTERM, and SIGKILL after STOP_S; forwards the last reports."""
        process = self._processes.pop(name)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is not None:
                break
            with suppress(ProcessLookupError):
                process.send_signal(number)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        reader = self._readers.pop(name, None)
        if reader is not None:
            await reader

    async def stop_all_but(self, kept: str) -> None:
        """Stops all others at the same time."""
        await asyncio.gather(*(self.stop(name) for name in list(self._processes) if name != kept))

    async def stop_all(self, last: str) -> None:
        """Stops all others, then `last`."""
        await self.stop_all_but(last)
        if last in self._processes:
            await self.stop(last)

    def _output_file(self, name: str) -> Path:
        return self._folder / f"{name.split()[0]}.log"


async def _forward(output: asyncio.StreamReader, on_report: Callable[[dict[str, Any]], None]) -> None:
    while line := await output.readline():
        found = parse_report(line)
        if found is not None:
            on_report(found)
