"""What a soak looks at every few seconds: memory and descriptors of every process, disk, and latency."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.processor_time import resident_mb
from benchmarks.scenarios import percentile
from support.clusters.kshare_cluster import KshareCluster, children_of
from support.clusters.role_logs import SUPERVISOR


class Sample(NamedTuple):
    """One look."""

    at_s: float
    """Since the soak began."""
    memory_mb: dict[str, float]
    """By process: the supervisor, and the nodes that are running."""
    descriptors: dict[str, int]
    """See `descriptors`."""
    disk_mb: float
    delivered_per_s: float
    p50_ms: float | None
    """From the Produce of a record to the worker, of all deliveries since the last look; None without any."""
    p99_ms: float | None
    backlog: int
    """Records sent and not settled yet."""
    pids: dict[str, int]


class Watch:
    """Looks at one cluster. `deliveries` since the last look are given to it."""

    def __init__(self, cluster: KshareCluster) -> None:
        self._cluster = cluster
        self._began_at = self._looked_at = time.monotonic()
        self._waited_s: list[float] = []
        self.samples: list[Sample] = []

    def delivered(self, waited_s: list[float]) -> None:
        self._waited_s.extend(waited_s)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_at

    def look(self, backlog: int) -> Sample:
        now = time.monotonic()
        waited, self._waited_s = self._waited_s, []
        pids = {SUPERVISOR: self._cluster.pid, **self._cluster.pids()}
        sample = Sample(
            at_s=now - self._began_at,
            memory_mb={name: _own_memory_mb(pid) for name, pid in pids.items()},
            descriptors={name: descriptors(pid) for name, pid in pids.items()},
            disk_mb=_disk_bytes(self._cluster.data_dir) / 1e6,
            delivered_per_s=len(waited) / max(now - self._looked_at, 1e-3),
            p50_ms=percentile(waited, 0.5) * 1000 if waited else None,
            p99_ms=percentile(waited, 0.99) * 1000 if waited else None,
            backlog=backlog,
            pids=pids,
        )
        self._looked_at = now
        self.samples.append(sample)
        return sample


def _own_memory_mb(pid: int) -> float:
    """Of the process alone: children are listed by themselves."""
    return resident_mb(pid) - sum(resident_mb(child) for child in children_of(pid))


def descriptors(pid: int) -> int:
    """The open descriptors of a process, without those of the tables that its store has on disk; 0 if it has ended.

    A store keeps its tables open, and merges them when it has 16 of a kind. A coordinator writes few of them, one after
    each full disk, so it takes hours for that. A table that is still open although its file was removed counts.
    """
    count = 0
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed since it was listed
                count += not str(descriptor.readlink()).endswith(".sst")
    except OSError:
        return 0
    return count


def _disk_bytes(folder: Path) -> int:
    """What the files take on the disk: a reserved log has its length before it is written."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found
