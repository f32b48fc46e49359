"""The roles as supervised processes; see `supervisor`.

The processes load their programs while an existing cluster is examined, and wait for the end of a pipe (--start-pipe)
before they do anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kshare.up.client_sockets import close_client_sockets
from kshare.up.data_directory import DataDirectory
from kshare.up.plan import ClusterPlan, process_plans
from kshare.up.supervisor import ProcessPlan, RotatingLog, SupervisedProcess

KEPT_BACK_LINES = 1_000
"""The limit of lines that are kept back; further ones are in the logs only."""


class RoleProcesses:
    """Starts the roles in order, and stops them in reverse."""

    def __init__(
        self, directory: DataDirectory, plan: ClusterPlan, write_line: Callable[[str], None], *, waits: bool
    ) -> None:
        """`waits`: the processes wait for `go_on`, and until then their lines are kept back."""
        self._write_line = write_line
        self._client_sockets = plan.sockets
        self._kept_back: list[str] | None = [] if waits else None
        self._pipe = os.pipe() if waits else None
        self._processes = [
            SupervisedProcess(
                process_plan,
                write_line=lambda name, text: self._write(f"{name:>19} | {text}"),
                log=RotatingLog(directory.log_file(process_plan.name)),
            )
            for process_plan in map(self._waiting, process_plans(directory, plan))
        ]
        self.ready_files: Sequence[Path] = [directory.ready_file(node.name) for node in plan.nodes]

    async def start(self) -> None:
        for process in self._processes:
            process.start()

    def go_on(self) -> None:
        """Lets the processes do their work."""
        if self._pipe is None or self._kept_back is None:
            return
        lines, self._kept_back = self._kept_back, None
        for line in lines:
            self._write_line(line)
        os.close(self._pipe[1])

    async def stop(self) -> None:
        close_client_sockets(self._client_sockets)
        for process in reversed(self._processes):
            await process.stop()
        if self._pipe is not None:
            for descriptor in self._pipe[: 1 if self._kept_back is None else 2]:
                os.close(descriptor)
            self._pipe = None

    def _waiting(self, plan: ProcessPlan) -> ProcessPlan:
        """The plan of a process that waits; one that is restarted later finds the other end closed."""
        if self._pipe is None:
            return plan
        end = self._pipe[0]
        return replace(plan, command=[*plan.command, "--start-pipe", str(end)], inherited=(*plan.inherited, end))

    def _write(self, line: str) -> None:
        if self._kept_back is None:
            self._write_line(line)
        elif len(self._kept_back) < KEPT_BACK_LINES:
            self._kept_back.append(line)
