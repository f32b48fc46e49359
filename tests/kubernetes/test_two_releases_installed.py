"""Two releases beside each other in one live Prometheus: each rings for its own trouble, and only then.

Prometheus runs beside the cluster, with the jobs and rules that the operator makes of the chart's PodMonitors and
PrometheusRules, and reads the pods themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import wait_for
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.helm_release import Release
from support.clusters.kubernetes import CHART, Kubernetes, kubernetes
from support.environment.prometheus import Prometheus

NAMES = ("queues", "beside")
ROLES = ("coordinator", "share-coordinator", "leader", "gateway")
FIRST_PORT = 30_092
SOON = "15s"
"""How long an alert's expression holds here until it rings; minutes in the chart's values."""
OF_THE_MACHINE = {
    *("KshareDiskNearlyFull", "KshareDiskFills", "KshareStateWritesSlow", "KshareLogWritesSlow"),
    *("KshareAcknowledgementsSlow", "KshareEventLoopLag"),
}
"""Alerts that would tell the truth about the machine of the test; they are switched off."""
RINGS_WITHOUT_A_LEADER = {"KshareRoleDown", "KshareFewerThanExpected", "KsharePartitionWithoutLeader"}
QUIET_S = 90.0
RINGS_WITHIN_S = 120.0
ENDS_WITHIN_S = 30
RECORDS = 500
UNDERSCORES = str.maketrans("./-", "___")
"""Prometheus' names of labels have these in place of other characters."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found:
        yield found


def new_release(cluster: Kubernetes, name: str, port: int) -> Release:
    release = Release(cluster, name)
    for role in ("coordinator", "shareCoordinator", "leader"):
        release.values[role]["replicas"] = 1
    release.values["gateway"] = {"replicas": 1, "external": {"type": "nodePort", "host": cluster.node, "port": port}}
    release.values["metrics"] = {
        "prometheusRule": {"enabled": True, "alerts": dict(alerts())},
        "podMonitor": {"enabled": True},
    }
    return release


def alerts() -> Iterator[tuple[str, dict[str, object]]]:
    """Every alert of the chart, so that it rings within seconds."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, settings in values["metrics"]["prometheusRule"]["alerts"].items():
        if name in OF_THE_MACHINE:
            yield name, {"enabled": False}
        elif settings["for"] != "0s":
            yield name, {"for": SOON}


def objects(cluster: Kubernetes, release: Release) -> dict[str, Any]:
    """What is installed of the Prometheus operator's kinds."""
    found = yaml.safe_load_all(cluster.helm("get", "manifest", release.name))
    return {each["kind"]: each["spec"] for each in found if each and each["apiVersion"].startswith("monitoring.")}


def job(release: Release, monitor: dict[str, Any], targets: Path) -> dict[str, object]:
    """The scrape config that the operator makes of a PodMonitor; pods come from a file instead of the API server."""
    (endpoint,) = monitor["podMetricsEndpoints"]
    own = [
        {
            "source_labels": [f"__meta_kubernetes_pod_label_{key.translate(UNDERSCORES)}"],
            "regex": value,
            "action": "keep",
        }
        for key, value in monitor["selector"]["matchLabels"].items()
    ]
    own.append(
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"], "action": "keep"}
    )
    own += [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": label}
        for source, label in (("namespace", "namespace"), ("pod_name", "pod"), ("pod_container_name", "container"))
    ]
    given = [
        {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]} for each in endpoint["relabelings"]
    ]
    return {
        "job_name": f"podMonitor/default/{release.fullname}/0",
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
        "relabel_configs": [*own, *given],
    }


def write_targets(cluster: Kubernetes, path: Path) -> None:
    """Every port of every pod that runs, as Prometheus' own discovery describes it."""
    found = []
    for pod in cluster.get("pods")["items"]:
        if pod["status"].get("podIP") and pod["status"]["phase"] == "Running":
            labels = {
                f"pod_label_{key.translate(UNDERSCORES)}": text for key, text in pod["metadata"]["labels"].items()
            }
            labels |= {"namespace": pod["metadata"]["namespace"], "pod_name": pod["metadata"]["name"]}
            for container in pod["spec"]["containers"]:
                for port in container.get("ports", ()):
                    of_port = {"pod_container_name": container["name"], "pod_container_port_name": port["name"]}
                    described = {f"__meta_kubernetes_{key}": text for key, text in {**labels, **of_port}.items()}
                    target = f"{pod['status']['podIP']}:{port['containerPort']}"
                    found.append({"targets": [target], "labels": described})
    written = path.with_suffix(".new")
    written.write_text(json.dumps(found))
    written.rename(path)


def rung(prometheus: Prometheus) -> set[tuple[str, str]]:
    """The releases and names of all alerts that have rung so far, as stored by Prometheus itself."""
    found = prometheus.query('count by (release, alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))')
    return {(labels.get("release", ""), labels["alertname"]) for labels, _ in found}


class Work:
    """Records for both releases, and a worker in each; it goes on while nothing rings, and while something does."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._bootstraps = {name: f"{cluster.node}:{FIRST_PORT + at}" for at, name in enumerate(NAMES)}
        for bootstrap in self._bootstraps.values():
            create_topic(bootstrap, "orders", 2)
            read_from_earliest(bootstrap, "workers")
        self.pool = WorkerPool(
            [
                WorkerTask(bootstrap=bootstrap, topic="orders", group="workers", index=at)
                for at, bootstrap in enumerate(self._bootstraps.values())
            ]
        )

    def go_on(self, duration_s: float, names: Collection[str] = NAMES) -> None:
        for name in names:
            produce_numbered(self._bootstraps[name], "orders", range(RECORDS), 2)
        self.pool.run_for(duration_s)


@pytest.mark.timeout(1_500)
def test_only_the_release_in_trouble_rings(cluster: Kubernetes, tmp_path: Path) -> None:
    cluster.define(sorted((Path(__file__).parent / "crds").glob("*.yaml")))
    releases = [new_release(cluster, name, FIRST_PORT + at) for at, name in enumerate(NAMES)]
    targets, jobs, rules = tmp_path / "targets.json", [], []
    for release in releases:
        release.helm("install")
        found = objects(cluster, release)
        jobs.append(job(release, found["PodMonitor"], targets))
        rules.append(tmp_path / f"{release.name}.json")
        rules[-1].write_text(json.dumps(found["PrometheusRule"]))
    write_targets(cluster, targets)
    work = Work(cluster)
    with Prometheus(tmp_path / "prometheus", rules=rules, jobs=jobs) as prometheus, work.pool:
        check_rest(prometheus, work)
        check_trouble(prometheus, work, releases[1], targets)
    for release in releases:
        release.uninstall()


def check_rest(prometheus: Prometheus, work: Work) -> None:
    """Both releases have work to do and no trouble: nothing rings in QUIET_S, and every rule is evaluated."""
    wait_for(
        lambda: (
            {labels["release"]: value for labels, value in prometheus.query("count by (release) (up == 1)")}
            == dict.fromkeys(NAMES, len(ROLES))
        ),
        "all pods are scraped",
        timeout_s=60,
    )
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        work.go_on(5)
    assert rung(prometheus) == set()
    rules = prometheus.rules()
    assert {rule["health"] for rule in rules} == {"ok"}
    chart = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    names = {rule["alert"] for group in chart for rule in group["rules"]} - OF_THE_MACHINE
    for release in NAMES:
        assert {rule["name"] for rule in rules if f'release="{release}"' in rule["query"]} == names


def check_trouble(prometheus: Prometheus, work: Work, broken: Release, targets: Path) -> None:
    """The leader of one release is gone; that release rings for it until it is back, and the other one never.

    Scaled to 0 it has no other one to hand over to, so it ends at once.
    """
    cluster, leader = broken.cluster, f"{broken.fullname}-leader"
    cluster.kubectl("scale", f"statefulset/{leader}", "--replicas", "0")
    cluster.kubectl("wait", "--for", "delete", f"pod/{leader}-0", "--timeout", f"{ENDS_WITHIN_S}s")
    expected = {(broken.name, name) for name in RINGS_WITHOUT_A_LEADER}

    def rings() -> bool:
        write_targets(cluster, targets)
        work.go_on(1, [name for name in NAMES if name != broken.name])
        return rung(prometheus) >= expected

    wait_for(rings, f"{sorted(expected)} ring", timeout_s=RINGS_WITHIN_S)
    of_a_role = prometheus.query('ALERTS{alertname="KshareRoleDown",alertstate="firing"}')
    assert [labels["component"] for labels, _ in of_a_role] == ["leader"]

    cluster.kubectl("scale", f"statefulset/{leader}", "--replicas", "1")
    cluster.wait_for("statefulset", leader)

    def is_quiet() -> bool:
        write_targets(cluster, targets)
        work.go_on(1)
        return not prometheus.query('ALERTS{alertstate="firing"}')

    wait_for(is_quiet, "nothing rings any more", timeout_s=RINGS_WITHIN_S)
    found = rung(prometheus)
    assert {release for release, _ in found} == {broken.name}, sorted(found)
