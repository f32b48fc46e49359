"""docker-compose.yml as its users start it: clients outside of the containers, containers that die, and scaling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import RELEASE, Reader, new_group, new_topic, produce, values_of, wait_for
from support.clients.rolling_load import RollingLoad
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.compose_stack import Stack, running_stack
from support.environment.docker import docker
from support.environment.prometheus import PrometheusAnswers

PARTITIONS = 12
STEP = 600
STATE_PARTITIONS = 50
LONGEST_PAUSE_S = 5.0

pytestmark = pytest.mark.timeout(1_200)
"""Whichever test comes first builds the images, and a Docker where there is none."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as found:
        yield found


def test_the_containers_may_do_no_more_than_they_must(stack: Stack) -> None:
    for service in ("coordinator", "share-coordinator", "leader", "gateway-1"):
        container = stack.containers(service)[0]
        stack.wait_until_healthy(container)  # the test before may have just started it again
        (described,) = json.loads(docker("inspect", container, environment=stack.environment))
        assert described["Config"]["User"] == "10001:10001"
        assert described["HostConfig"]["ReadonlyRootfs"] is True
        assert described["HostConfig"]["CapDrop"] == ["ALL"]
        assert described["State"]["Health"]["Status"] == "healthy"
        assert described["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        bill = json.loads(docker("exec", container, "cat", "/opt/kshare/sbom.cdx.json", environment=stack.environment))
        names = {component["name"] for component in bill["components"]}
        assert {"grpcio", "kshare-core"} <= names
        assert not names & {"pytest", "confluent-kafka", "typer"}, "what only tests and the kshare command need"


def test_nothing_is_lost_while_containers_die_and_share_coordinators_are_scaled(stack: Stack) -> None:
    bootstrap, other = stack.bootstraps
    create_topic(bootstrap, "orders", PARTITIONS)
    read_from_earliest(other, "workers")
    tasks = [
        WorkerTask(bootstrap=stack.bootstraps[index % 2], topic="orders", group="workers", index=index, release_every=7)
        for index in range(3)
    ]
    total = 0

    def produce() -> None:
        nonlocal total
        produce_numbered(stack.bootstraps[total // STEP % 2], "orders", range(total, total + STEP), PARTITIONS)
        total += STEP

    with WorkerPool(tasks) as pool:
        produce()
        pool.run_until(lambda account: len(account.accepted) >= total, timeout_s=90)
        for service in ("leader", "share-coordinator", "coordinator", "gateway-1"):
            container = stack.containers(service)[-1]
            stack.kill(container)
            stack.start(container)
            produce()
            pool.run_until(lambda account: len(account.accepted) >= total, timeout_s=120)
        before = stack.node_ids()
        stack.scale("share-coordinator", 3)
        wait_for(lambda: stack.loads() == [16, 17, 17], "three share coordinators have their part", timeout_s=60)
        produce()
        pool.run_until(lambda account: len(account.accepted) >= total, timeout_s=90)
        (added,) = {*stack.node_ids().items()} - {*before.items()}
        assert "is empty and can be stopped" in stack.kshare("state", "drain", str(added[1]))
        docker("rm", "--force", added[0], environment=stack.environment)
        assert [load for load in stack.loads() if load] == [25, 25]
        produce()
        pool.run_until(lambda account: len(account.accepted) >= total, timeout_s=90)
        pool.run_until_drained(bootstrap, "workers", "orders", timeout_s=90)
    assert pool.account.finish(range(total)) == []


@pytest.mark.quiet
def test_containers_are_restarted_one_at_a_time(stack: Stack) -> None:
    """As for a new image: SIGTERM, and up again on the same volume; nothing is lost, and no consumer waits for long."""
    with RollingLoad(stack.bootstraps, PARTITIONS) as load:
        for service in ("coordinator", "share-coordinator", "leader", "gateway-1", "gateway-2"):
            for container in stack.containers(service):
                load.during(container, partial(stack.restart, container))
        load.finish()
    load.check_pauses(LONGEST_PAUSE_S)


def test_everything_is_there_after_down_and_up(stack: Stack) -> None:
    """Containers are removed and made anew; records, positions and what was accepted are on the volumes."""
    topic, group = new_topic(stack.bootstraps[0], PARTITIONS), new_group(stack.bootstraps[0])
    values = [f"value {number:03d}" for number in range(20 * PARTITIONS)]
    for partition in range(PARTITIONS):
        produce(stack.bootstraps[0], topic, values[20 * partition : 20 * (partition + 1)], partition)
    with Reader(stack.bootstraps[0], group, topic) as reader:
        accepted = values_of(reader.accept(len(values) // 2))
    nodes = sorted(stack.node_ids().values())
    stack.down_and_up()
    assert sorted(stack.node_ids().values()) == nodes
    assert stack.cluster_problem(stack.containers("gateway-1")[0]) == ""
    with Reader(stack.bootstraps[1], group, topic) as reader:
        rest = values_of(reader.accept(len(values) - len(accepted)))
        assert sorted([*accepted, *rest]) == values, "all of them, and nothing accepted twice"
        produce(stack.bootstraps[1], topic, ["new"])
        assert values_of(reader.accept(1)) == ["new"]


def test_clients_in_other_containers_reach_the_gateways(stack: Stack) -> None:
    topic = new_topic(stack.bootstraps[0])
    internal = ("--bootstrap", "gateway-2:19092")
    assert topic in stack.kshare("topics", "list", *internal)
    produce(stack.bootstraps[0], topic, ["from outside"])
    read_from_earliest(stack.bootstraps[0], f"{topic}-readers")
    assert "from outside" in stack.kshare("consume", topic, "--group", f"{topic}-readers", "--max", "1", *internal)


def test_a_gateway_says_that_the_cluster_cannot_serve(stack: Stack) -> None:
    new_topic(stack.bootstraps[0], 2)
    gateway, leaders = stack.containers("gateway-1")[0], stack.containers("leader")
    assert stack.cluster_problem(gateway) == ""
    for leader in leaders:
        stack.kill(leader)
    try:
        wait_for(lambda: "no leader is live" in stack.cluster_problem(gateway), "the leases are over", timeout_s=60)
        assert "topic partitions have no live leader: leader " in stack.cluster_problem(gateway)
        assert "no leader is live" in stack.kshare("nodes")
        (coordinator,) = stack.containers("coordinator")
        assert stack.role_problem(coordinator) == "", "it does its own work"
    finally:
        for leader in leaders:
            stack.start(leader)
    wait_for(lambda: stack.cluster_problem(gateway) == "", "the leaders are back", timeout_s=60)


def test_prometheus_sees_what_was_done(stack: Stack) -> None:
    """The container of the compose file finds all the others by itself; its answers are the clients' figures."""
    bootstrap = stack.bootstraps[0]
    topic, group = new_topic(bootstrap, 2), new_group(bootstrap)
    for partition in range(2):
        produce(bootstrap, topic, map(str, range(100)), partition)
    with Reader(bootstrap, group, topic) as reader:
        reader.take()
        reader.settle(RELEASE)
        reader.accept(200)
    stack.compose("--profile", "observability", "up", "--detach", "--no-deps", "--no-recreate", "prometheus")
    prometheus = PrometheusAnswers(f"127.0.0.1:{stack.environment['PROMETHEUS_PORT']}")
    accepted = f'sum(kshare_leader_share_acknowledged_records_total{{group="{group}",type="accept"}})'
    wait_for(lambda: prometheus.value(accepted) == 200, "all acceptances are seen", timeout_s=60)
    wait_for(lambda: prometheus.value(f'sum(kshare_leader_share_lag_records{{group="{group}"}})') == 0, "no lag")
    released = f'sum(kshare_leader_share_acknowledged_records_total{{group="{group}",type="release"}})'
    acquired = f'sum(kshare_leader_share_acquired_records_total{{group="{group}"}})'
    assert (prometheus.value(acquired) or 0) == 200 + (prometheus.value(released) or 0)
    assert (prometheus.value(released) or 0) > 0
    for role, count in (("coordinator", 1), ("leader", 2), ("gateway-1", 1), ("gateway-2", 1)):
        wait_for(
            lambda role=role, count=count: prometheus.value(f'sum(up{{component="{role}"}})') == count,  # type: ignore[misc]
            f"{count} of {role}: {prometheus.query('up')}",
        )
    wait_for(
        lambda: (prometheus.value('sum(up{component="share-coordinator"})') or 0) >= 2,
        "both share coordinators are found and scraped",
    )
    assert prometheus.value("min(kshare_node_healthy)") == 1
