"""A disk as an older version leaves it has no leader epoch histories, and is read by the present one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kshare_leader.log import keys
from kshare_leader.log.old_batches import MARK
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as pb
from kshare_runtime import checksummed_rows
from kshare_runtime.memory_store import DiskCopy
from kshare_share_coordinator.state_store import FAMILY_PREFIX
from support.simulation.activities.older_versions import forget_histories, with_older_rows
from support.simulation.history import FaultEvent
from support.simulation.plan import MOVES, UPGRADES, UPGRADES_OF_ALL_ROLES, draw_embedded_plan
from support.simulation.scenario import SeedRun


def run_of(seed: int) -> SeedRun:
    plan = draw_embedded_plan(seed)
    shape = replace(plan.shape, has_etcd=False, coordinators=1, leaders=2, share_coordinators=2, gateways=2)
    activities = (MOVES, UPGRADES, UPGRADES_OF_ALL_ROLES)
    return SeedRun(replace(plan, shape=shape, activities=activities, fault_count=3, fault_seconds=15.0))


@pytest.mark.parametrize("seed", [1, 3])
def test_nodes_are_upgraded_in_the_middle(seed: int) -> None:
    run = run_of(seed)
    outcome = run.run()
    assert not outcome.failed, outcome.report()
    upgraded = [
        event.hosts[0].rpartition("-")[0]
        for event in outcome.history.events
        if isinstance(event, FaultEvent) and event.name == "upgrade"
    ]
    assert {"coordinator", "gateway"} <= set(upgraded) and not run.cluster.older


def test_older_rows_of_coordinators_have_no_checksums() -> None:
    run = run_of(2)
    run.run()
    disk = run.cluster.hosts["coordinator-1"].disk
    mark = checksummed_rows.MARK.to_bytes(4, "big")
    assert all(value.startswith(mark) for value in values_of(disk.copy()))
    older = values_of(with_older_rows(disk.copy()))
    assert older and not any(value.startswith(mark) for value in older)


def values_of(copy: DiskCopy) -> list[bytes]:
    return [value for store in copy.stores.values() for family in store.values() for value in family.values.values()]


def test_older_rows_have_no_histories() -> None:
    run = run_of(2)
    run.run()
    disks = [host.disk for name, host in run.cluster.hosts.items() if name.startswith(("leader", "share"))]
    before = [disk.copy() for disk in disks]
    assert rows_of_stores(before, keys.LEADER_EPOCHS)
    older = [with_older_rows(disk.copy()) for disk in disks]
    assert not rows_of_stores(older, keys.LEADER_EPOCHS)
    assert not [key for key in rows_of_stores(older, keys.POSITIONS) if key.endswith(MARK)]
    assert sizes_of_states(older) < sizes_of_states(before)


def rows_of_stores(copies: list[DiskCopy], family: str) -> list[bytes]:
    return [key for copy in copies for store in copy.stores.values() if family in store for key in store[family].keys]


def sizes_of_states(copies: list[DiskCopy]) -> int:
    """Bytes of all states at share coordinators."""
    families = [item for copy in copies for store in copy.stores.values() for item in store.items()]
    return sum(
        len(value) for name, family in families if name.startswith(FAMILY_PREFIX) for value in family.values.values()
    )


def test_messages_of_an_older_version_have_no_histories() -> None:
    part = pb.WriteShareGroupStateRequest.SharePartition(partition=3, leader_epoch=7, leader_epochs=b"123456789012")
    forget_histories([part])
    assert part == pb.WriteShareGroupStateRequest.SharePartition(partition=3, leader_epoch=7)
