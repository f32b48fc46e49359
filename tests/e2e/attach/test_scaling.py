"""From one process of each role to four and back to one in front of an existing cluster, under load.

The last one is another than the first: three that are stopped have served all the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import call_coordinator, call_each, coordinators_at
from kshare.failure import CommandFailed
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed
from support.clients.rolling_load import RollingLoad
from support.clients.several_coordinator_load import wait_until
from support.clusters.attached_roles import attached_to
from support.clusters.restarted_roles import RestartedRole, RestartedRoles
from support.kafka.existing_cluster import ExistingCluster

pytestmark = pytest.mark.attached_faults

PARTITIONS = 12
MOST = 4
LONGEST_PAUSE_S = 5.0
RECORDS = 200
GOES_ON_WITHIN_S = 30.0
SETTINGS = {"share.coordinator.state.topic.num.partitions": "8"}


def share_coordinators(roles: RestartedRoles) -> set[int]:
    """Node ids of those that own states."""
    answer = call_coordinator(
        coordinator_address(roles.coordinators, None),
        methods.DESCRIBE_STATE_PARTITIONS,
        pb.DescribeStatePartitionsRequest(),
    )
    return {owner.node_id for owner in answer.state_partitions}


def leaders(roles: RestartedRoles) -> set[int]:
    """Node ids of those that lead partitions of topics."""
    answer = call_coordinator(
        coordinator_address(roles.coordinators, None), methods.DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest()
    )
    return {leader.node_id for leader in answer.leaders if leader.partition_count}


def coordinators(roles: RestartedRoles) -> set[int]:
    """Node ids of those that run; one of them is active."""
    addresses = coordinators_at(coordinator_address(roles.coordinators, None))
    answers = call_each(addresses, methods.DESCRIBE_NODES, pb.DescribeNodesRequest())
    assert sum(not isinstance(answer, CallFailed) and not answer.error_code for answer in answers) <= 1
    return {number for number, answer in enumerate(answers, 1) if not isinstance(answer, CallFailed)}


def gateways(roles: RestartedRoles) -> set[int]:
    """Node ids of those that clients are told of."""
    for name, bootstrap in zip(range(1, MOST + 1), roles.bootstraps, strict=True):
        if roles.roles[f"gateway-{name}"].is_running:
            return set(AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).brokers)
    return set()


SERVING = {
    "leader": leaders,
    "share-coordinator": share_coordinators,
    "coordinator": coordinators,
    "gateway": gateways,
}


class Scaling:
    """One role, from one process to `MOST` and back to one."""

    def __init__(self, roles: RestartedRoles, role: str, load: RollingLoad) -> None:
        self._roles, self._role, self._load = roles, role, load

    def grow(self) -> None:
        for node_id in range(2, MOST + 1):
            self._process(node_id).start()
            self._process(node_id).wait_ready()
        self._wait_until_serving(set(range(1, MOST + 1)))

    def shrink(self) -> None:
        for node_id in range(1, MOST):
            self._process(node_id).stop()
        self._wait_until_serving({MOST})

    def _process(self, node_id: int) -> RestartedRole:
        return self._roles.roles[f"{self._role}-{node_id}"]

    def _wait_until_serving(self, wanted: set[int]) -> None:
        def is_so() -> bool:
            try:
                return SERVING[self._role](self._roles) == wanted
            except (CommandFailed, KafkaException):
                return False

        wait_until(is_so, GOES_ON_WITHIN_S, f"{self._role}s {sorted(wanted)} serve")
        self._load.wait_for_more(RECORDS, GOES_ON_WITHIN_S)


@pytest.mark.quiet
@pytest.mark.timeout(280)
def test_every_role_from_one_to_four_and_back_to_one(tmp_path: Path) -> None:
    (tmp_path / "existing").mkdir()
    counts = {"coordinators": MOST, "share_coordinators": MOST, "leaders": MOST, "gateways": MOST}
    with (
        ExistingCluster(tmp_path / "existing") as existing,
        RestartedRoles(tmp_path / "roles", {**attached_to(existing), **SETTINGS}, **counts, started=1) as roles,
        RollingLoad(roles.bootstraps, PARTITIONS, existing_cluster=existing.bootstrap) as load,
    ):
        for role in SERVING:
            scaling = Scaling(roles, role, load)
            load.during(f"more {role}s", scaling.grow)
            load.during(f"fewer {role}s", scaling.shrink)
        load.finish(roles.bootstraps[-1])
        load.check_pauses(LONGEST_PAUSE_S)
