"""IPv6 before IPv4 on a Kubernetes with both: clients inside and outside of it that use IPv6 only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.clients.administration import broker_addresses
from support.clients.delivery import Reader, new_group, new_topic, produce, values_of
from support.clusters.dual_stack import NODE
from support.clusters.helm_release import Release
from support.clusters.kubernetes import OWN_NODE, Kubernetes, kubernetes
from support.environment.unavailable import unavailable

PORT = 30_092


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes(dual_stack=True) as found:
        if found.node != OWN_NODE:
            unavailable("the node of ../shared/kubernetes has both families for certain; this cluster may not")
        yield found


@pytest.mark.timeout(1_500)
def test_clients_that_use_ipv6_only(cluster: Kubernetes) -> None:
    release = Release(cluster)
    release.values |= {
        "network": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        "gateway": {"external": {"type": "perGateway", "hosts": [NODE, NODE], "port": PORT}},
        "toolbox": {"enabled": True},
    }
    release.helm("install")
    outside = [f"[{NODE}]:{PORT + ordinal}" for ordinal in range(2)]
    for bootstrap in outside:
        assert broker_addresses(bootstrap) == [f"{NODE}:{PORT}", f"{NODE}:{PORT + 1}"]
    topic, group = new_topic(outside[0]), new_group(outside[1])
    produce(outside[0], topic, ["outside"])

    # Inside: the Service's address is one of IPv6, and so is the first of its name.
    service = cluster.get("service", f"{release.fullname}-gateway")["spec"]
    assert service["ipFamilies"] == ["IPv6", "IPv4"] and ":" in service["clusterIP"]
    toolbox = ("exec", f"deployment/{release.fullname}-toolbox", "--", "kshare", "produce", topic, "inside")
    cluster.kubectl(*toolbox, "--bootstrap", f"[{service['clusterIP']}]:9092")
    with Reader(outside[1], group, topic) as reader:
        assert sorted(values_of(reader.accept(2, 60))) == ["inside", "outside"]

    # The roles find each other, and a pod that is replaced is found again.
    for role in ("coordinator", "share-coordinator", "leader"):
        cluster.kubectl("rollout", "restart", f"statefulset/{release.fullname}-{role}")
        cluster.wait_for("statefulset", f"{release.fullname}-{role}")
    produce(outside[0], topic, ["after all restarts"])
    with Reader(outside[0], group, topic) as reader:
        assert values_of(reader.accept(1, 60)) == ["after all restarts"]
    release.uninstall()
