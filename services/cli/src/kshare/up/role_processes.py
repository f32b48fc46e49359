"""The roles as supervised processes; see `supervisor`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kshare.up.data_directory import DataDirectory
from kshare.up.plan import ClusterPlan, process_plans
from kshare.up.supervisor import RotatingLog, SupervisedProcess


class RoleProcesses:
    """Starts the roles in order, and stops them in reverse."""

    def __init__(self, directory: DataDirectory, plan: ClusterPlan, write_line: Callable[[str], None]) -> None:
        self._processes = [
            SupervisedProcess(
                process_plan,
                write_line=lambda name, text: write_line(f"{name:>19} | {text}"),
                log=RotatingLog(directory.log_file(process_plan.name)),
            )
            for process_plan in process_plans(directory, plan)
        ]
        self.ready_files: Sequence[Path] = [directory.ready_file(node.name) for node in plan.nodes]

    async def start(self) -> None:
        for process in self._processes:
            process.start()

    async def stop(self) -> None:
        for process in reversed(self._processes):
            await process.stop()
