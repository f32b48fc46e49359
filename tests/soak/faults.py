"""The faults of a soak: one every 20 s by default, drawn by a seed. Each ends by itself; its name is in the report.

`spared` has one node of each role, drawn by the seed. While a fault spares them, it neither kills nor restarts them, so
that their memory can be measured for long; it pauses them and fills their disks as before.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable

from support.clusters.kshare_cluster import ROLES, ClusterNode, KshareCluster
from support.clusters.role_logs import Excuse

PAUSE_S = 12.0
"""Longer than a node's lease (kshare.node.lease.ms)."""
SHORT_PAUSE_S = 2.0
FULL_S = 3.0
AFTER_FULL_S = 5.0
"""How long a node may still log what a full disk refused."""


class Faults:
    """Draws and carries out faults on a running cluster; one at a time."""

    def __init__(self, cluster: KshareCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.spared = spared_nodes(cluster.nodes, seed)
        self.done: dict[str, int] = {}
        """How often each fault was there."""
        self.excuses: list[Excuse] = []
        """The full disks: what their nodes may log as failures. Kills and pauses explain none."""

    def next(self, *, is_sparing: bool) -> str:
        """Carries out one fault; its name."""
        node = self._random.choice(self._cluster.nodes)
        kinds = self.kinds(node, is_sparing=is_sparing)
        name = self._random.choice(list(kinds))
        kinds[name]()
        self.done[name] = self.done.get(name, 0) + 1
        return name

    def kinds(self, node: ClusterNode, *, is_sparing: bool) -> dict[str, Callable[[], None]]:
        """The faults that are possible where a node was drawn."""
        found: dict[str, Callable[[], None]] = {
            f"pause {node.name} past its lease": lambda: self._pause(node, PAUSE_S),
            f"pause {node.name} shortly": lambda: self._pause(node, SHORT_PAUSE_S),
        }
        if node.role != "gateway":  # it has no disk
            found[f"full disk at {node.name}"] = lambda: self._full_disk(node)
        if not is_sparing or node not in self.spared:
            found[f"kill {node.name}"] = lambda: self._kill(node)
        if not is_sparing:
            found["kill everything"] = self._kill_everything
            found["restart"] = self._restart
        return found

    def _kill(self, node: ClusterNode) -> None:
        pid = self._cluster.node_pid(node)
        os.kill(pid, signal.SIGKILL)
        self._cluster.wait_until_gone(pid)
        self._cluster.node_pid(node)

    def _pause(self, node: ClusterNode, duration_s: float) -> None:
        with self._cluster.paused(node):
            time.sleep(duration_s)

    def _full_disk(self, node: ClusterNode) -> None:
        """The files of a node's process cannot grow for a while."""
        pid = self._cluster.node_pid(node)
        began_at = time.time()
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        time.sleep(FULL_S)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        self.excuses.append(Excuse(node.name, began_at, time.time() + AFTER_FULL_S))

    def _kill_everything(self) -> None:
        self._cluster.kill_everything()
        self._cluster.start()

    def _restart(self) -> None:
        code = self._cluster.stop()
        assert code == 0, f"kshare up ended with {code} after SIGTERM:\n{self._cluster.log_text()[-4000:]}"
        self._cluster.start()


def spared_nodes(nodes: list[ClusterNode], seed: int) -> list[ClusterNode]:
    """One of each role."""
    drawn = random.Random(f"{seed} spared")
    return [drawn.choice([node for node in nodes if node.role == role]) for role in ROLES]
