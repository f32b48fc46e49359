"""The faults of a soak: one every 20 s by default, drawn by a seed. Each ends by itself; its name is in the report."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable

from support.clusters.kshare_cluster import ROLES, KshareCluster

PAUSE_S = 12.0
"""Longer than a node's lease (kshare.node.lease.ms)."""
SHORT_PAUSE_S = 2.0
FULL_S = 3.0


class Faults:
    """Draws and carries out faults on a running cluster; one at a time."""

    def __init__(self, cluster: KshareCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.done: dict[str, int] = {}
        """How often each fault was there."""

    def next(self) -> str:
        """Carries out one fault; its name."""
        role = self._random.choice(ROLES)
        kinds: dict[str, Callable[[], None]] = {
            f"kill {role}": lambda: self._kill(role),
            f"pause {role} past its lease": lambda: self._pause(role, PAUSE_S),
            f"pause {role} shortly": lambda: self._pause(role, SHORT_PAUSE_S),
            f"full disk at {role}": lambda: self._full_disk(role),
            "kill everything": self._kill_everything,
            "restart": self._restart,
        }
        if role == "gateway":  # it has no disk
            del kinds["full disk at gateway"]
        name = self._random.choice(list(kinds))
        kinds[name]()
        self.done[name] = self.done.get(name, 0) + 1
        return name

    def _kill(self, role: str) -> None:
        self._cluster.wait_until_gone(self._cluster.kill_role(role))
        self._cluster.role_pid(role)

    def _pause(self, role: str, duration_s: float) -> None:
        with self._cluster.paused(role):
            time.sleep(duration_s)

    def _full_disk(self, role: str) -> None:
        """The files of a role's process cannot grow for a while."""
        pid = self._cluster.role_pid(role)
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        time.sleep(FULL_S)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    def _kill_everything(self) -> None:
        self._cluster.kill_everything()
        self._cluster.start()

    def _restart(self) -> None:
        code = self._cluster.stop()
        assert code == 0, f"kshare up ended with {code} after SIGTERM:\n{self._cluster.log_text()[-4000:]}"
        self._cluster.start()
