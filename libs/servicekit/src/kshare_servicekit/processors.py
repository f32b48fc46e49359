"""Whether this process may keep a processor busy without need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
ENOUGH = 2
CONTAINER_VARIABLE = "KSHARE_CONTAINER"
"""Set by the images' entry point (`container`)."""


def may_keep_busy(
    cgroups: Path = CGROUPS,
    own_cgroup: Path = OWN_CGROUP,
    *,
    processors: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Not in a container, whose machine is for others too, nor with a limit of processor time, which it would use up.

    A single processor is not enough, either.

    `own_cgroup` names the cgroup below `cgroups`; a limit of any of its parents counts. Of version 1 only what a
    container sees, its own cgroup at the root, is looked at.
    """
    if processors is None:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if environment.get(CONTAINER_VARIABLE) or processors < ENOUGH:
        return False
    limits = [folder / "cpu.max" for folder in _folders(cgroups, own_cgroup)]
    return not any(map(_is_limited, [*limits, cgroups / "cpu" / "cpu.cfs_quota_us"]))


def _folders(cgroups: Path, own_cgroup: Path) -> list[Path]:
    try:
        lines = own_cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    folder = cgroups / own
    return [cgroups, folder, *(parent for parent in folder.parents if cgroups in parent.parents)]


def _is_limited(limit: Path) -> bool:
    try:
        return not limit.read_text(encoding="utf-8").startswith(("max", "-1"))
    except OSError:  # the other version, or no such controller
        return False
