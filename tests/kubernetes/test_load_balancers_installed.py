"""Load balancers on a real Kubernetes: one for each gateway, and one for all without session affinity."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from support.clients.administration import broker_addresses, create_topic, read_from_earliest
from support.clients.delivery import wait_for
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.helm_release import Release
from support.clusters.kubernetes import RELEASE, Kubernetes, kubernetes
from support.clusters.load_balancers import load_balancers

PORT = 9094
NAME = f"{RELEASE}-kshare"
OWN_ADDRESS = "10.250.0.1"
HOSTS = ("10.250.1.10", "10.250.1.11")
SHARED_HOST = "10.250.1.20"
ADDRESSES = {
    **{f"{NAME}-gateway-{ordinal}": host for ordinal, host in enumerate(HOSTS)},
    f"{NAME}-gateway-external": SHARED_HOST,
}
RECORDS = 2_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found, load_balancers(found, ADDRESSES):
        yield found


@pytest.mark.timeout(1_500)
def test_load_balancers(cluster: Kubernetes) -> None:
    release = Release(cluster)
    outside = {
        "type": "perGateway",
        "perGatewayService": "LoadBalancer",
        "hosts": [*HOSTS],
        "port": PORT,
        "trafficPolicy": "Local",
        "sourceRanges": [f"{OWN_ADDRESS}/32"],
    }
    release.values["gateway"] = {"external": outside}
    release.helm("install")
    bootstraps = [f"{host}:{PORT}" for host in HOSTS]
    # A connection whose first packet comes before kube-proxy has the address never gets through; clients try for 30 s.
    wait_for(lambda: all(map(lets_in, HOSTS)), "the load balancers have their addresses", timeout_s=60)
    for bootstrap in bootstraps:
        assert broker_addresses(bootstrap) == bootstraps
    create_topic(bootstraps[0], "orders", PARTITIONS)
    read_from_earliest(bootstraps[1], "workers")
    check_work(bootstraps, range(RECORDS))
    assert min(release.figures("gateway", "kshare_gateway_connections_accepted_total")) > 0
    # trafficPolicy=Local: the gateway sees the client's own address.
    assert host_of_a_member(bootstraps[1]) == f"/{OWN_ADDRESS}"
    check_source_ranges(release, outside)

    # One load balancer for all gateways, in place of theirs.
    release.values["gateway"] = {"external": {"type": "loadBalancer", "host": SHARED_HOST, "port": PORT}}
    release.helm("upgrade")
    service = cluster.get("service", f"{NAME}-gateway-external")
    assert service["spec"]["sessionAffinity"] == "None"
    shared = f"{SHARED_HOST}:{PORT}"
    wait_for(lambda: lets_in(SHARED_HOST), "the load balancer has its address", timeout_s=60)
    assert set(broker_addresses(shared)) == {shared}
    check_work([shared], range(RECORDS, 2 * RECORDS))
    assert min(release.figures("gateway", "kshare_gateway_connections_accepted_total")) > 0, "one gateway had all"
    assert host_of_a_member(shared) != f"/{OWN_ADDRESS}", "with Cluster it is the node's"
    release.uninstall()


def check_work(bootstraps: list[str], numbers: range) -> None:
    """Each record is accepted once, by workers through all of these addresses."""
    tasks = [
        WorkerTask(bootstrap=bootstraps[index % len(bootstraps)], topic="orders", group="workers", index=index)
        for index in range(4)
    ]
    produce_numbered(bootstraps[-1], "orders", numbers, PARTITIONS)
    with WorkerPool(tasks) as pool:
        pool.run_until(lambda account: len(account.accepted) >= len(numbers), timeout_s=150)
        pool.run_until_drained(bootstraps[0], "workers", "orders", timeout_s=150)
    assert pool.account.finish(numbers) == []


def host_of_a_member(bootstrap: str) -> str:
    """Where a gateway says that a consumer of this process is."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "host", "group.protocol": "consumer"})
    consumer.subscribe(["orders"])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def hosts() -> list[str]:
        consumer.poll(0.1)
        described = admin.describe_consumer_groups(["host"])["host"].result(30)
        return [member.host for member in described.members]

    wait_for(lambda: hosts() != [], "the member is described", timeout_s=60)
    (host,) = hosts()
    consumer.close()
    return str(host)


def lets_in(host: str) -> bool:
    try:
        socket.create_connection((host, PORT), timeout=2).close()
    except TimeoutError:
        return False
    return True


def check_source_ranges(release: Release, outside: dict[str, object]) -> None:
    """A change of them counts at once for load balancers, and replaces no pod."""
    pods = release.all_pods()
    assert all(map(lets_in, HOSTS))
    release.values["gateway"]["external"] = {**outside, "sourceRanges": ["203.0.113.0/24"]}
    release.helm("upgrade")
    wait_for(lambda: not any(map(lets_in, HOSTS)), "connections of others are dropped", timeout_s=30)
    release.values["gateway"]["external"] = outside
    release.helm("upgrade")
    wait_for(lambda: all(map(lets_in, HOSTS)), "connections are let in again", timeout_s=30)
    assert release.all_pods() == pods
