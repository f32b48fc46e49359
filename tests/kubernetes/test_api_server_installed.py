"""What a real API server says without pods: to whatever the chart renders, and to our scripts for VolumeSnapshots.

It has IPv4 and IPv6. The test has the part of the snapshot controller, so every manifest of docs/operations.md is
accepted by that controller's definitions, the order is the documented one, and claims come back under the names and
labels that the chart and the scripts look for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from support.clusters.documented_commands import shell_after
from support.clusters.kubernetes import CHART, RELEASE, Kubernetes, kubernetes
from support.clusters.snapshot_definitions import apply_snapshot_definitions
from support.environment.docker import ROOT

OPERATIONS = ROOT / "docs/operations.md"
BACKUP = "no pod should restart and no partition move meanwhile:"
RESTORE = "Claims of those names must be gone."
SIZES = {"coordinator": "1Gi", "share-coordinator": "2Gi", "leader": "3Gi"}
"""By role, in the order of the backup."""
LOOKS_EVERY_S = 0.2
CLASS = "snapshots"
OF_CERT_MANAGER = "apiVersion: cert-manager.io/"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes(dual_stack=True) as found:
        apply_snapshot_definitions(found)
        yield found


def test_the_api_server_takes_whatever_the_chart_can_render(cluster: Kubernetes) -> None:
    """Strictly: a field that its kind does not have is refused. Kinds of others come from tests/kubernetes/crds.

    But for cert-manager's, which are not there: its Certificate is only rendered (snapshots).
    """
    cluster.define(sorted((Path(__file__).parent / "crds").glob("*.yaml")))
    for values in sorted((CHART / "ci").glob("*.yaml")):
        rendered = cluster.helm(
            *("template", "strict", str(CHART), "--values", str(values), "--set", "image.registry=kshare"),
            *("--skip-tests", "--kube-version", "1.36.3"),
        )
        rendered = "\n---\n".join(part for part in rendered.split("\n---\n") if OF_CERT_MANAGER not in part)
        arguments = ("--dry-run=server", "--validate=strict", "--filename", "-")
        accepted = cluster.kubectl("apply", *arguments, given=rendered)
        assert "(server dry run)" in accepted
        assert len(accepted.splitlines()) == rendered.count("\nkind: ")


def documented(sentence: str) -> str:
    script = shell_after(OPERATIONS, sentence)
    return script.replace("SNAPSHOT_CLASS", CLASS).replace("STORAGE_CLASS", CLASS)


def claims_of_the_chart(cluster: Kubernetes) -> list[dict[str, object]]:
    """As StatefulSets make them of the chart's claim templates: Kubernetes adds the pod's number to the name."""
    values = {"coordinator": "coordinator", "shareCoordinator": "share-coordinator", "leader": "leader"}
    sizes = [word for value, role in values.items() for word in ("--set", f"{value}.storage.size={SIZES[role]}")]
    command = ("template", RELEASE, str(CHART), "--kube-version", "1.36.3", "--set", "image.registry=nowhere")
    rendered = cluster.helm(*command, *sizes)
    found: list[dict[str, object]] = []
    for workload in yaml.safe_load_all(rendered):
        if not workload or workload["kind"] != "StatefulSet":
            continue
        (template,) = workload["spec"]["volumeClaimTemplates"]
        for ordinal in range(workload["spec"]["replicas"]):
            name = f"{template['metadata']['name']}-{workload['metadata']['name']}-{ordinal}"
            metadata = {"name": name, "labels": template["metadata"]["labels"]}
            spec = {**template["spec"], "storageClassName": CLASS}
            found.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    return found


@contextmanager
def snapshots_get_ready(cluster: Kubernetes) -> Iterator[list[str]]:
    """The snapshot controller's part; what it gives are the claims whose snapshots got ready, in order."""
    stop = threading.Event()
    ready: list[str] = []

    def work() -> None:
        while not stop.wait(LOOKS_EVERY_S):
            for snapshot in cluster.get("volumesnapshots")["items"]:
                if "status" not in snapshot:
                    claim = snapshot["spec"]["source"]["persistentVolumeClaimName"]
                    role = snapshot["metadata"]["labels"]["role"]
                    ready.append(claim)
                    patch = json.dumps({"status": {"readyToUse": True, "restoreSize": SIZES[role]}})
                    arguments = ("--subresource", "status", "--type", "merge", "--patch", patch)
                    cluster.kubectl("patch", "volumesnapshot", snapshot["metadata"]["name"], *arguments)

    controller = threading.Thread(target=work)
    controller.start()
    try:
        yield ready
    finally:
        stop.set()
        controller.join()


@pytest.mark.timeout(900)
def test_claims_come_back_as_they_were(cluster: Kubernetes) -> None:
    claims = claims_of_the_chart(cluster)
    assert len(claims) == 5
    for claim in claims:
        cluster.kubectl("apply", "--filename", "-", given=json.dumps(claim))
    before = described(cluster)
    with snapshots_get_ready(cluster) as ready:
        cluster.shell(documented(BACKUP))
    roles = [before[name]["role"] for name in ready]
    assert roles == ["coordinator", *("share-coordinator", "share-coordinator"), *("leader", "leader")]

    cluster.kubectl("delete", "persistentvolumeclaims", "--all")
    cluster.shell(documented(RESTORE))
    after = described(cluster)
    assert {name: {**each, "source": None} for name, each in after.items()} == before
    assert {name: each["source"] for name, each in after.items()} == {name: f"{name}-monday" for name in before}

    # The next backup finds them, too.
    cluster.kubectl("delete", "volumesnapshots", "--all")
    with snapshots_get_ready(cluster) as ready:
        cluster.shell(documented(BACKUP))
    assert sorted(ready) == sorted(before)
    cluster.kubectl("delete", "volumesnapshots,persistentvolumeclaims", "--all")


def described(cluster: Kubernetes) -> dict[str, dict[str, str | None]]:
    """Of each claim: its role and release, its class and size, and the snapshot that it comes from."""
    return {
        each["metadata"]["name"]: {
            "role": each["metadata"]["labels"]["app.kubernetes.io/component"],
            "release": each["metadata"]["labels"]["app.kubernetes.io/instance"],
            "class": each["spec"]["storageClassName"],
            "size": each["spec"]["resources"]["requests"]["storage"],
            "modes": ",".join(each["spec"]["accessModes"]),
            "source": each["spec"].get("dataSource", {}).get("name"),
        }
        for each in cluster.get("persistentvolumeclaims")["items"]
    }
