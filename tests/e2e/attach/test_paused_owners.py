"""Owners of logs in front of an existing cluster stand still for longer than their lease, and wake.

Owners are share coordinators and the active coordinator. Another one has taken over meanwhile. Writes that were under
way when the process stood still do not count unless they were confirmed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import call_one, coordinators_at
from kshare.commands.state.partitions import describe_state_partitions
from kshare.failure import CommandFailed
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed
from support.clients.rolling_load import RollingLoad
from support.clients.several_coordinator_load import wait_until
from support.clusters.attached_roles import attached_to
from support.clusters.restarted_roles import RestartedRoles
from support.kafka.existing_cluster import ExistingCluster

pytestmark = pytest.mark.attached_faults

PARTITIONS = 12
NODE_LEASE_S = 4.0
RECORDS = 300
GOES_ON_WITHIN_S = 30.0
SETTINGS = {"kshare.node.lease.ms": str(int(NODE_LEASE_S * 1000)), "share.coordinator.state.topic.num.partitions": "8"}
TIMES = 2
"""So often each of the two stands still."""


def share_coordinators(roles: RestartedRoles) -> set[int]:
    """The node ids of those that own state partitions, as the catalog says; none while no coordinator answers."""
    try:
        answer = describe_state_partitions(coordinator_address(roles.coordinators, None))
    except CommandFailed:
        return set()
    return {owner.node_id for owner in answer.state_partitions}


def active_coordinators(roles: RestartedRoles) -> list[str]:
    """Names of those that answer for the catalog."""
    addresses = coordinators_at(coordinator_address(roles.coordinators, None))
    answers = [call_one(address, methods.DESCRIBE_NODES, pb.DescribeNodesRequest()) for address in addresses]
    return [
        f"coordinator-{node_id}"
        for node_id, answer in enumerate(answers, 1)
        if not isinstance(answer, CallFailed) and not answer.error_code
    ]


@pytest.mark.quiet
@pytest.mark.timeout(280)
def test_share_coordinators_that_stood_still(tmp_path: Path) -> None:
    (tmp_path / "existing").mkdir()
    with (
        ExistingCluster(tmp_path / "existing") as existing,
        RestartedRoles(tmp_path / "roles", {**attached_to(existing), **SETTINGS}) as roles,
        RollingLoad(roles.bootstraps, PARTITIONS, existing_cluster=existing.bootstrap) as load,
    ):

        def stand_still(node_id: int, other: int) -> None:
            with roles.roles[f"share-coordinator-{node_id}"].paused():
                wait_until(lambda: share_coordinators(roles) == {other}, 20, "the other one owns all states")
                load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)
            wait_until(lambda: share_coordinators(roles) == {1, 2}, 30, "the one that woke has its share again")
            load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)

        wait_until(lambda: share_coordinators(roles) == {1, 2}, 30, "each owns a part of the states")
        for node_id, other in [(1, 2), (2, 1)] * TIMES:
            load.during(f"share-coordinator-{node_id}", partial(stand_still, node_id, other))
        load.finish()
        print(load.table())


@pytest.mark.quiet
@pytest.mark.timeout(280)
def test_an_active_coordinator_that_stood_still(tmp_path: Path) -> None:
    """For a moment after it wakes, two may take themselves for the active one. The log decides."""
    (tmp_path / "existing").mkdir()
    with (
        ExistingCluster(tmp_path / "existing") as existing,
        RestartedRoles(tmp_path / "roles", {**attached_to(existing), **SETTINGS}, coordinators=2) as roles,
        RollingLoad(roles.bootstraps, PARTITIONS, existing_cluster=existing.bootstrap) as load,
    ):

        def stand_still() -> None:
            (active,) = active_coordinators(roles)
            with roles.roles[active].paused():
                wait_until(lambda: active_coordinators(roles) not in ([], [active]), 20, "the other one is active")
                load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)
            for _ in range(10):
                assert active not in active_coordinators(roles)
            load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)

        for number in range(TIMES):
            load.during(f"coordinator, {number}", stand_still)
        load.finish()
        print(load.table())
