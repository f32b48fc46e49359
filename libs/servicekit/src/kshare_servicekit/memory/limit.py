"""The memory limit of this process: the machine's memory, or less if its container has a limit."""

from __future__ import annotations

import os
from pathlib import Path

from kshare_core.configs import Configs

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
QUEUED_SHARE = 8
LEAST_QUEUED_BYTES = 64 * 1024 * 1024
MOST_QUEUED_BYTES = 512 * 1024 * 1024
SHARE_PARTITIONS_SHARE = 8
SHARE_PARTITION_BYTES = 4096
"""Of one that is idle (tests/benchmarks/idle_share_partitions.py)."""
LEAST_SHARE_PARTITIONS = 20_000


def queued_bytes(configs: Configs, memory_bytes: int | None = None) -> int:
    """The value of kshare.queued.max.bytes in this process.

    It is derived from the memory budget (`budget`). For configs without sizes it is an eighth of `memory_bytes`, the
    memory limit of the process; None: determined here.
    """
    given = configs.integer("kshare.queued.max.bytes")
    if given >= 0:
        return given
    available = usable_memory_bytes() if memory_bytes is None else memory_bytes
    return min(max(available // QUEUED_SHARE, LEAST_QUEUED_BYTES), MOST_QUEUED_BYTES)


def share_partitions(configs: Configs, memory_bytes: int | None = None) -> int:
    """The value of kshare.leader.max.share.partitions in this process; `memory_bytes` as for `queued_bytes`."""
    given = configs.integer("kshare.leader.max.share.partitions")
    if given >= 0:
        return given
    available = usable_memory_bytes() if memory_bytes is None else memory_bytes
    return max(available // SHARE_PARTITIONS_SHARE // SHARE_PARTITION_BYTES, LEAST_SHARE_PARTITIONS)


def usable_memory_bytes(cgroups: Path = CGROUPS, own_cgroup: Path = OWN_CGROUP) -> int:
    """The minimum of the machine's memory and the limits of the process's cgroup and its parents, cgroup v1 or v2."""
    files = [folder / "memory.max" for folder in _folders(cgroups, own_cgroup)]
    limits = [_limit(file) for file in [*files, cgroups / "memory" / "memory.limit_in_bytes"]]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit in limits if limit is not None)])


def _folders(cgroups: Path, own_cgroup: Path) -> list[Path]:
    try:
        lines = own_cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = cgroups / own
    return [cgroups, folder, *(parent for parent in folder.parents if cgroups in parent.parents)]


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:  # the other version, or no such controller
        return None
    return int(text) if text.isdecimal() else None
