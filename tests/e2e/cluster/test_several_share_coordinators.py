"""`kshare up` with kshare.share.coordinators=3: state on three nodes, through a restart, and back to one node.

On the kafka engine it is `kshare attach`: nothing is on the nodes, so nothing is missing where one is not started.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.partitions import describe_state_partitions
from support.clients.delivery import Reader, new_group, new_topic, produce, values_of
from support.clusters.engines import upstream_of_tests
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.existing_cluster import ExistingCluster

PARTITIONS = 12
THREE = {"kshare.share.coordinators": "3"}
STATE_PARTITIONS = 50


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[ExistingCluster | None]:
    """The cluster behind kshare; None with the embedded engine."""
    with upstream_of_tests(tmp_path / "upstream", {}) as started:
        yield started


def owners(folder: Path) -> dict[int, int]:
    """How many state partitions each node owns; those that move count for node -1."""
    answer = describe_state_partitions(coordinator_address(None, folder / "data"))
    return dict(Counter(-1 if owner.is_moving else owner.node_id for owner in answer.state_partitions))


def wait_for_owners(folder: Path, wanted: list[int]) -> None:
    deadline = time.monotonic() + 60
    while sorted((found := owners(folder)).values()) != wanted or -1 in found:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def produce_everywhere(bootstrap: str, topic: str, name: str) -> list[str]:
    values = [f"{name}-{partition}" for partition in range(PARTITIONS)]
    for partition, value in enumerate(values):
        produce(bootstrap, topic, [value], partition)
    return values


@pytest.mark.parametrize("single_process", [False, True], ids=["processes", "single-process"])
def test_what_was_accepted_stays_accepted_through_a_restart(
    tmp_path: Path, upstream: ExistingCluster | None, single_process: bool
) -> None:
    with KshareCluster(tmp_path, THREE, single_process=single_process, upstream=upstream) as cluster:
        topic, group = new_topic(cluster.bootstrap, PARTITIONS), new_group(cluster.bootstrap)
        if not single_process:
            wait_for_owners(tmp_path, [16, 17, 17])
        first = produce_everywhere(cluster.bootstrap, topic, "first")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == sorted(first)
    for name in ("share-coordinator", "share-coordinator-2/share-coordinator", "share-coordinator-3/share-coordinator"):
        assert (tmp_path / "data" / name / "CURRENT").exists() == (upstream is None)
    with KshareCluster(tmp_path, THREE, single_process=single_process, upstream=upstream) as cluster:
        second = produce_everywhere(cluster.bootstrap, topic, "second")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == sorted(second)


def test_after_a_drain_one_is_enough_and_without_one_is_warned_of(
    tmp_path: Path, upstream: ExistingCluster | None
) -> None:
    kshare = str(Path(sys.executable).parent / "kshare")
    with KshareCluster(tmp_path, THREE, upstream=upstream) as cluster:
        topic, group = new_topic(cluster.bootstrap, PARTITIONS), new_group(cluster.bootstrap)
        wait_for_owners(tmp_path, [16, 17, 17])
        first = produce_everywhere(cluster.bootstrap, topic, "first")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == sorted(first)
        for node in ("2", "3"):
            command = [kshare, "state", "drain", node, "--data-dir", str(tmp_path / "data"), "--timeout-s", "60"]
            subprocess.run(command, check=True, timeout=90)
        assert owners(tmp_path) == {1: STATE_PARTITIONS}
    with KshareCluster(tmp_path, upstream=upstream) as cluster:
        second = produce_everywhere(cluster.bootstrap, topic, "second")
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert sorted(values_of(reader.accept(PARTITIONS))) == sorted(second)
        is_warned = "warning: share-coordinator-2 is not started; unless it was drained" in cluster.log_text()
        assert is_warned == (upstream is None)
        refused = subprocess.run(
            [kshare, "state", "drain", "1", "--data-dir", str(tmp_path / "data")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert refused.returncode == 1
        assert "no other live share coordinator can take its 50 state partitions" in refused.stderr
