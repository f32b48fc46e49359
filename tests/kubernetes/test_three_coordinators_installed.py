"""The chart's values file for three coordinators over etcd, on a real Kubernetes under load, with a nameOverride."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients.delivery import wait_for
from support.clients.rolling_load import RollingLoad
from support.clusters.helm_release import Release
from support.clusters.kubernetes import CHART, OWN_NODE, Kubernetes, cache, kubernetes
from support.environment.certificates import Authority
from support.environment.etcd import require_etcd
from support.environment.unavailable import unavailable

PORT = 30_092
ETCD_PORT, ETCD_PEER_PORT, ETCD_METRICS_PORT = 32_379, 32_380, 32_381
VALUES = CHART / "ci/three-coordinators.yaml"
PARTITIONS = 4
LONGEST_PAUSE_S = 5.0
WITHOUT_THE_ACTIVE_ONE = "active coordinator deleted"
GOES_ON_WITHIN_S = 15.0
"""After the active coordinator is gone without a word: another one waits for its lease, 5 s, and reads the catalog."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes() as found:
        yield found


@contextmanager
def etcd_on_the_node(cluster: Kubernetes, folder: Path, certificates: Path) -> Iterator[str]:
    """An etcd that wants client certificates, in the node's network; its address for pods."""
    if cluster.node != OWN_NODE:
        unavailable("the etcd of this test runs on the node of ../shared/kubernetes only")
    pid = (cache() / "run/init.pid").read_text().strip()
    client, peer = f"https://{OWN_NODE}:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    metrics = f"http://{OWN_NODE}:{ETCD_METRICS_PORT}"
    command = [
        *("nsenter", "--target", pid, "--net", "--", require_etcd(), "--name=test", f"--data-dir={folder}/data"),
        *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
        *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}"),
        *(f"--cert-file={certificates}/tls.crt", f"--key-file={certificates}/tls.key"),
        *(f"--trusted-ca-file={certificates}/ca.crt", "--client-cert-auth", f"--listen-metrics-urls={metrics}"),
    ]

    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"{metrics}/health", timeout=1) as answer:
                return b'"health":"true"' in answer.read()
        except OSError:
            return False

    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as etcd:
        try:
            wait_for(is_healthy, "etcd answers", timeout_s=60)
            yield f"{OWN_NODE}:{ETCD_PORT}"
        finally:
            etcd.terminate()


@pytest.mark.timeout(1_500)
def test_three_coordinators_over_etcd(cluster: Kubernetes, tmp_path: Path) -> None:
    authority, certificates = Authority("tests"), tmp_path / "certificates"
    authority.issue("etcd", OWN_NODE).write_directory(certificates)
    authority.write(certificates / "ca.crt")
    cluster.kubectl("create", "secret", "generic", "etcd-client", f"--from-file={certificates}")
    release = Release(cluster, chart_name="work")
    external = {"type": "nodePort", "host": cluster.node, "port": PORT}
    release.values |= {"gateway": {"external": external}, "metadata": {"etcd": {}}}
    with etcd_on_the_node(cluster, tmp_path, certificates) as endpoint:
        release.values["metadata"]["etcd"]["endpoints"] = endpoint
        release.helm("install", "--values", str(VALUES))
        assert set(release.pods("coordinator")) == {f"queues-work-coordinator-{ordinal}" for ordinal in range(3)}
        check_loss_of_coordinators(release, f"{cluster.node}:{PORT}")
        release.uninstall()


def active_coordinator(release: Release) -> str:
    """Its pod."""

    def active() -> list[float]:
        return release.figures("coordinator", "kshare_coordinator_active")

    wait_for(lambda: sorted(active()) == [0, 0, 1], "one of three is active", timeout_s=60)
    return [*release.pods("coordinator")][active().index(1)]


def check_loss_of_coordinators(release: Release, bootstrap: str) -> None:
    """The active one dies, then all are restarted in turn; clients go on, and nothing is lost."""
    workload = f"{release.fullname}-coordinator"
    lost = active_coordinator(release)

    def delete() -> None:
        release.cluster.kubectl("delete", "pod", lost, "--grace-period", "0", "--force")
        release.cluster.wait_for("statefulset", workload)

    def restart() -> None:
        release.cluster.kubectl("rollout", "restart", f"statefulset/{workload}")
        release.cluster.wait_for("statefulset", workload)

    with RollingLoad([bootstrap], PARTITIONS) as load:
        load.during(WITHOUT_THE_ACTIVE_ONE, delete)
        load.catch_up(GOES_ON_WITHIN_S)
        load.during("coordinators restarted", restart, settle_s=5)
        load.finish()
    load.check_pauses(LONGEST_PAUSE_S, {WITHOUT_THE_ACTIVE_ONE: GOES_ON_WITHIN_S})
    active_coordinator(release)
