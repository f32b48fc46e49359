"""What a team does to an installation after the first day, on a real Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from support.clients.delivery import wait_for
from support.clusters.kubernetes import CHART, RELEASE, Kubernetes, kubernetes

PORT = 30_092
NAME = f"{RELEASE}-kshare"
TOOLBOX = ("exec", f"deployment/{NAME}-toolbox", "--")
ALTERED = "message.max.bytes"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found:
        yield found


class Release:
    """One installation, with values that a test changes."""

    def __init__(self, cluster: Kubernetes) -> None:
        self.cluster = cluster
        self.values: dict[str, Any] = {
            **cluster.values,
            "gateway": {"external": {"type": "perGateway", "host": cluster.node, "port": PORT}},
            "toolbox": {"enabled": True},
            "keepReplicas": True,
            "extraEnv": [{"name": "TZ", "value": "UTC"}],
            "commonLabels": {"team": "orders"},
        }
        leader = self.values["leader"]
        self.values["leader"] = {"storage": {**leader["storage"], "retention": {"whenDeleted": "Delete"}}}

    def helm(self, command: str) -> None:
        arguments = (command, RELEASE, str(CHART), "--values", "-", "--wait", "--timeout", "240s")
        try:
            self.cluster.helm(*arguments, given=json.dumps(self.values))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.cluster.describe_trouble()}") from None

    def pods(self, role: str) -> dict[str, str]:
        """The uids of a role's pods, by name."""
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={role}"
        items = self.cluster.get("pods", "--selector", selector)["items"]
        return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}

    def claims(self) -> set[str]:
        items = self.cluster.get("persistentvolumeclaims")["items"]
        return {item["metadata"]["labels"]["app.kubernetes.io/component"] for item in items}


def addresses_told(cluster: Kubernetes, bootstrap: str) -> set[str]:
    """The brokers that a client in the toolbox is told of."""
    program = (
        "import sys; from confluent_kafka.admin import AdminClient;"
        "found = AdminClient({'bootstrap.servers': sys.argv[1]}).list_topics(timeout=30).brokers.values();"
        "print(*(f'{broker.host}:{broker.port}' for broker in found))"
    )
    return set(cluster.kubectl(*TOOLBOX, "python", "-c", program, bootstrap).split())


@pytest.mark.timeout(1_500)
def test_day_two(cluster: Kubernetes) -> None:
    release = Release(cluster)
    release.helm("install")

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
    roles = ("coordinator", "share-coordinator", "leader", "gateway")
    before = {role: release.pods(role) for role in roles}
    cluster.kubectl(*TOOLBOX, "kshare", "brokers", "set", f"{ALTERED}=2000000")

    def value_at(node_id: str) -> str | None:
        broker = ConfigResource(ResourceType.BROKER, node_id)
        found: str | None = admin.describe_configs([broker])[broker].result(30)[ALTERED].value
        return found

    wait_for(
        lambda: [value_at(node_id) for node_id in ("1", "2")] == ["2000000", "2000000"], "the new value", timeout_s=30
    )
    assert {role: release.pods(role) for role in roles} == before

    # An upgrade leaves what was scaled by hand.
    cluster.kubectl("scale", f"statefulset/{NAME}-share-coordinator", "--replicas", "3")
    cluster.wait_for("statefulset", f"{NAME}-share-coordinator")
    release.values["gateway"]["podAnnotations"] = {"example.com/changed": "yes"}
    release.helm("upgrade")
    assert len(release.pods("share-coordinator")) == 3

    # Only the volumes of leaders go with the release.
    assert release.claims() >= {"leader", "coordinator", "share-coordinator"}
    cluster.helm("uninstall", RELEASE, "--wait", "--timeout", "180s")
    wait_for(lambda: "leader" not in release.claims(), "the claims of leaders are gone", timeout_s=120)
    assert release.claims() >= {"coordinator", "share-coordinator"}
