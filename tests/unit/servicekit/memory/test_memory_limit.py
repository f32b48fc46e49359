"""A process's memory limit, and its share for queued requests and responses."""

from __future__ import annotations

from pathlib import Path

from kshare_core.configs import process_configs
from kshare_servicekit.memory.limit import (
    LEAST_QUEUED_BYTES,
    MOST_QUEUED_BYTES,
    queued_bytes,
    share_partitions,
    usable_memory_bytes,
)

GIBIBYTE = 1024**3


def test_an_eighth_of_the_memory_within_bounds_unless_the_config_says_more() -> None:
    configs = process_configs({})[0]
    assert queued_bytes(configs, 2 * GIBIBYTE) == 2 * GIBIBYTE // 8
    assert queued_bytes(configs, GIBIBYTE // 8) == LEAST_QUEUED_BYTES
    assert queued_bytes(configs, 64 * GIBIBYTE) == MOST_QUEUED_BYTES
    given = process_configs({"kshare.queued.max.bytes": "12345"})[0]
    assert queued_bytes(given, 64 * GIBIBYTE) == 12345


def test_share_partitions_follow_the_memory_unless_they_are_given() -> None:
    configs = process_configs({})[0]
    assert share_partitions(configs, 8 * GIBIBYTE) == GIBIBYTE // 4096
    assert share_partitions(configs, GIBIBYTE // 8) == 20_000
    for given in (0, 7):
        texts = {"kshare.leader.max.share.partitions": str(given)}
        assert share_partitions(process_configs(texts)[0], GIBIBYTE) == given


def test_the_least_limit_of_the_cgroup_and_its_parents_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/pod/container\n")
    container = tmp_path / "cgroup" / "pod" / "container"
    container.mkdir(parents=True)
    machine = usable_memory_bytes(tmp_path / "none", own)
    assert machine > 0
    (container / "memory.max").write_text("max\n")
    assert usable_memory_bytes(tmp_path / "cgroup", own) == machine
    (container / "memory.max").write_text("300000000\n")
    (container.parent / "memory.max").write_text("200000000\n")
    assert usable_memory_bytes(tmp_path / "cgroup", own) == 200_000_000


def test_the_limit_of_version_1_counts(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("100000000\n")
    assert usable_memory_bytes(tmp_path, tmp_path / "no-such-file") == 100_000_000
