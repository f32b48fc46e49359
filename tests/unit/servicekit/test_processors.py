"""Whether a processor may be kept busy: not with one only, nor with a limit in any cgroup above the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kshare_servicekit.container import completed_environment
from kshare_servicekit.processors import may_keep_busy

OWN = "12:cpu:/elsewhere\n0::/apps/kshare\n"


@pytest.mark.parametrize(
    ("limits", "processors", "allowed"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({"cpu.max": "max 100000"}, 2, True),
        ({"cpu.max": "50000 100000"}, 2, False),
        ({"apps/kshare/cpu.max": "max 100000", "apps/cpu.max": "max 100000"}, 2, True),
        ({"apps/kshare/cpu.max": "200000 100000"}, 2, False),
        ({"apps/kshare/cpu.max": "max 100000", "apps/cpu.max": "200000 100000"}, 2, False),
        ({"others/cpu.max": "200000 100000"}, 2, True),
        ({"cpu/cpu.cfs_quota_us": "-1"}, 2, True),
        ({"cpu/cpu.cfs_quota_us": "50000"}, 2, False),
    ],
)
def test_limits(tmp_path: Path, limits: dict[str, str], processors: int, allowed: bool) -> None:
    own = tmp_path / "own"
    own.write_text(OWN, encoding="utf-8")
    for name, text in limits.items():
        path = tmp_path / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert may_keep_busy(tmp_path / "cgroups", own, processors=processors, environment={}) is allowed


def test_where_there_are_no_cgroups(tmp_path: Path) -> None:
    assert may_keep_busy(tmp_path, tmp_path / "missing", processors=2, environment={})


def test_a_containers_machine_is_for_others_too(tmp_path: Path) -> None:
    environment = completed_environment(
        "gateway", {}, hostname="h", own_address=lambda: "10.0.0.1", draw_node_id=lambda: 1
    )
    assert not may_keep_busy(tmp_path, tmp_path / "missing", processors=2, environment=environment)
