"""What a team does to an installation after the first day, on a real Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from support.clients.delivery import wait_for
from support.clusters.helm_release import Release
from support.clusters.kubernetes import RELEASE, Kubernetes, kubernetes

PORT = 30_092
NAME = f"{RELEASE}-kshare"
TOOLBOX = ("exec", f"deployment/{NAME}-toolbox", "--")
ALTERED = "message.max.bytes"
ROLES = ("coordinator", "share-coordinator", "leader", "gateway")
PRIORITY: dict[str, Any] = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "important"},
    "value": 1_000,
}
CONFINEMENT = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(os.getuid(), status["NoNewPrivs"].strip(), status["CapEff"].strip())
try:
    open("/opt/kshare/new", "w")
except OSError as error:
    print("read-only" if error.errno == 30 else error)
"""
"""Prints the user, NoNewPrivs (1: privileges cannot grow), the capabilities, and whether the root is read-only."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found:
        yield found


def release_of_a_team(cluster: Kubernetes) -> Release:
    """With what a team sets: labels, variables, priorities, a toolbox, and addresses of gateways for outside."""
    release = Release(cluster)
    release.values |= {
        "gateway": {"external": {"type": "perGateway", "host": cluster.node, "port": PORT}},
        "toolbox": {"enabled": True},
        "keepReplicas": True,
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "commonLabels": {"team": "orders"},
        "priorityClassName": PRIORITY["metadata"]["name"],
    }
    release.values["leader"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    return release


def addresses_told(cluster: Kubernetes, bootstrap: str) -> set[str]:
    """The brokers that a client in the toolbox is told of."""
    program = (
        "import sys; from confluent_kafka.admin import AdminClient;"
        "found = AdminClient({'bootstrap.servers': sys.argv[1]}).list_topics(timeout=30).brokers.values();"
        "print(*(f'{broker.host}:{broker.port}' for broker in found))"
    )
    return set(cluster.kubectl(*TOOLBOX, "python", "-c", program, bootstrap).split())


def check_pods(release: Release) -> None:
    """What the values say is on every pod that runs, and holds in it."""
    pods = release.cluster.get("pods", "--selector", "team=orders")["items"]
    assert {each["metadata"]["name"] for each in pods} == set(release.all_pods())
    assert {each["spec"]["priority"] for each in pods} == {PRIORITY["value"]}
    for role in ROLES:
        pod = next(iter(release.pods(role)))
        assert release.cluster.kubectl("exec", pod, "--", "printenv", "TZ").strip() == "UTC"
        told = release.cluster.kubectl("exec", pod, "--", "python", "-c", CONFINEMENT).split()
        assert told == ["10001", "1", "0000000000000000", "read-only"], role


@pytest.mark.timeout(1_500)
def test_day_two(cluster: Kubernetes) -> None:
    cluster.kubectl("apply", "--filename", "-", given=json.dumps(PRIORITY))
    release = release_of_a_team(cluster)
    release.helm("install")
    check_pods(release)

    # Clients inside are told addresses of pods, and clients outside those of nodes.
    pods = cluster.get("pods", "--selector", "app.kubernetes.io/component=gateway")["items"]
    inside = {f"{pod['status']['podIP']}:9092" for pod in pods}
    assert len(inside) == 2
    assert addresses_told(cluster, f"{NAME}-gateway:9092") == inside
    outside = {f"{cluster.node}:{PORT + ordinal}" for ordinal in range(2)}
    admin = AdminClient({"bootstrap.servers": f"{cluster.node}:{PORT}"})
    assert {f"{each.host}:{each.port}" for each in admin.list_topics(timeout=30).brokers.values()} == outside

    # The toolbox knows the release.
    nodes = json.loads(cluster.kubectl(*TOOLBOX, "kshare", "nodes", "--output", "json"))["nodes"]
    assert sorted(node["role"] for node in nodes) == [
        "coordinator",
        *("gateway", "gateway"),
        *("leader", "leader"),
        *("share-coordinator", "share-coordinator"),
    ]
    assert cluster.kubectl(*TOOLBOX, "printenv", "TZ").strip() == "UTC"

    # A dynamic config is altered without a restart of any pod.
    before = {role: release.pods(role) for role in ROLES}
    cluster.kubectl(*TOOLBOX, "kshare", "brokers", "set", f"{ALTERED}=2000000")

    def value_at(node_id: str) -> str | None:
        broker = ConfigResource(ResourceType.BROKER, node_id)
        found: str | None = admin.describe_configs([broker])[broker].result(30)[ALTERED].value
        return found

    wait_for(
        lambda: [value_at(node_id) for node_id in ("1", "2")] == ["2000000", "2000000"], "the new value", timeout_s=30
    )
    assert {role: release.pods(role) for role in ROLES} == before

    # An upgrade leaves what was scaled by hand.
    cluster.kubectl("scale", f"statefulset/{NAME}-share-coordinator", "--replicas", "3")
    cluster.wait_for("statefulset", f"{NAME}-share-coordinator")
    release.values["gateway"]["podAnnotations"] = {"example.com/changed": "yes"}
    release.helm("upgrade")
    assert len(release.pods("share-coordinator")) == 3

    # Only the volumes of leaders go with the release.
    assert release.claims() >= {"leader", "coordinator", "share-coordinator"}
    release.uninstall()
    wait_for(lambda: "leader" not in release.claims(), "the claims of leaders are gone", timeout_s=120)
    assert release.claims() >= {"coordinator", "share-coordinator"}
