"""A supervisor: starts processes, forwards their output, and restarts them when they die.

Each process has its own session, so that Ctrl-C at the terminal reaches only the supervisor, which then stops the
processes in order. Each process dies with the supervisor, even if that is killed (`child`). A process that dies is
restarted after a back-off, which grows while the process keeps dying early. Restarts never stop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kshare.up import child

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
STEADY_AFTER_S = 3.0
STOP_GRACE_S = 10.0
LONGEST_LINE_BYTES = 1 << 20
VARIABLES = "KSHARE_"
VARIABLES_OF_ALL_PROCESSES = ("KSHARE_LOG_", "KSHARE_TRACE_", "KSHARE_FASTPATH_OFF")
"""Of those that roles read, the ones that an operator sets for all of them."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A role's process: its display name, and the program with its arguments."""

    name: str
    command: Sequence[str]
    inherited: Sequence[int] = ()
    """File descriptors that the process gets."""


@dataclass(slots=True)
class Backoff:
    """The delay before each restart: doubles while the process dies early, and resets after STEADY_AFTER_S."""

    _delay_s: float = FIRST_DELAY_S

    def next_delay_s(self, lived_s: float) -> float:
        if lived_s >= STEADY_AFTER_S:
            self._delay_s = FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(LONGEST_DELAY_S, delay_s * 2)
        return delay_s


def exit_text(return_code: int) -> str:
    """A phrase about the end of a process: its exit code, or the signal that killed it."""
    if return_code >= 0:
        return f"exited with code {return_code}"
    try:
        return f"was killed by {signal.Signals(-return_code).name}"
    except ValueError:
        return f"was killed by signal {-return_code}"


class SupervisedProcess:
    """One role's process, kept running until `stop`."""

    def __init__(self, plan: ProcessPlan, *, write_line: Callable[[str, str], None], log: RotatingLog) -> None:
        """`write_line(name, text)` prints a line; it must not block."""
        self._plan = plan
        self._write_line = write_line
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.restarts = 0

    @property
    def name(self) -> str:
        return self._plan.name

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"supervise-{self.name}")

    async def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL after STOP_GRACE_S; returns when the process has ended and its log is closed."""
        self._stopping = True
        if self._task is not None:
            await self._end(self._task)
        self._log.close()

    async def _end(self, task: asyncio.Task[None]) -> None:
        if self._process is None:  # waiting for a restart
            task.cancel()
        else:
            self._signal(signal.SIGTERM)
        ended = asyncio.ensure_future(self._wait_for_end(task))
        done, _ = await asyncio.wait([ended], timeout=STOP_GRACE_S)
        if not done:
            self._write_line("supervisor", f"{self.name} did not stop within {STOP_GRACE_S:g} s; killing it")
            self._signal(signal.SIGKILL)
        if (error := await ended) is not None:
            self._write_line("supervisor", f"{self.name} was no longer supervised: {error!r}")

    async def _wait_for_end(self, task: asyncio.Task[None]) -> BaseException | None:
        """Waits for the task and its process; returns the error of a failed task, whose process may outlive it."""
        await asyncio.wait([task])
        error = None if task.cancelled() else task.exception()
        if error is not None and self._process is not None:
            await self._process.communicate()  # read, so that the process does not block on its output
        return error

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while not self._stopping:
            started_at = loop.time()
            end = await self._run_once()
            if self._stopping:
                return
            lived_s = loop.time() - started_at
            delay_s = backoff.next_delay_s(lived_s)
            self._write_line("supervisor", f"{self.name} {end} after {lived_s:.1f} s; restarting it in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            self.restarts += 1

    async def _run_once(self) -> str:
        """Runs the process once; returns how it ended."""
        wrapper = [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *self._plan.command]
        try:
            process = await asyncio.create_subprocess_exec(
                *wrapper,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
                pass_fds=self._plan.inherited,
                limit=LONGEST_LINE_BYTES,
            )
        except OSError as error:
            return f"could not be started: {error}"
        self._process = process
        if self._stopping:
            self._signal(signal.SIGTERM)
        self._write_line("supervisor", f"{self.name} started (pid {process.pid})")
        assert process.stdout is not None
        await self._forward(process.stdout)
        code = await process.wait()
        self._process = None
        return f"(pid {process.pid}) {exit_text(code)}"

    async def _forward(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readline()
            except ValueError:
                continue  # the line exceeds LONGEST_LINE_BYTES and is dropped
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            self._log.write(text)
            self._write_line(self.name, text)


def _environment() -> dict[str, str]:
    """The variables of this process, without those that would set a flag which the plan leaves at its default."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(VARIABLES) or name.startswith(VARIABLES_OF_ALL_PROCESSES)
    }


class RotatingLog:
    """A log file of limited size: a full file is renamed to `.1`, and a new one is begun."""

    def __init__(self, path: Path, *, max_bytes: int = 16 * 1024 * 1024) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: str) -> None:
        """Appends a line; errors of the disk are ignored, so that a full disk loses lines but stops no process."""
        with suppress(OSError):
            if self._file.tell() >= self._max_bytes:
                with suppress(OSError):
                    self._rotate()
            self._file.write(line + "\n")
            self._file.flush()

    def _rotate(self) -> None:
        """Begins a new file; if it cannot be opened, the full one is kept, and the next line tries again."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # removed, or renamed by an earlier attempt
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        full, self._file = self._file, self._path.open("a", encoding="utf-8")
        full.close()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
