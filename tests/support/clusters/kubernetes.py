"""A Kubernetes with helm for tests, and a kshare that is installed on it by the chart.

A current KUBECONFIG is used as it is (the images must be where its nodes find them: KSHARE_TEST_REGISTRY and
KSHARE_TEST_TAG). Else ../shared/kubernetes brings up a one-node Kubernetes, whose containerd gets the images that
support.environment.docker builds. Where neither is possible the tests are skipped and say why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clusters.dual_stack import write_dual_stack
from support.environment.docker import ROOT, TARGETS, docker, images, kafka_image
from support.environment.helm import require_helm
from support.environment.installation import alone, user_cache

SHARED = ROOT.parent / "shared" / "kubernetes"
CHART = ROOT / "helm" / "kshare"
BUILD_TIMEOUT_S = 3_000
RELEASE = "queues"
OWN_NODE = "10.250.0.2"
"""The address of the node of ../shared/kubernetes; this machine is 10.250.0.1 to it."""
OWN_STORAGE_CLASS = "local"
"""Its folders of this machine; nothing empties one that was released."""


def cache() -> Path:
    return user_cache() / "kshare-k8s"


def helm_environment() -> dict[str, str]:
    """The environment for `helm` alone, which needs no cluster."""
    return {**os.environ, "PATH": f"{Path(require_helm()).parent}:{os.environ['PATH']}"}


def run(*command: str, environment: Mapping[str, str], timeout_s: float = 240, given: str | None = None) -> str:
    """What it printed; AssertionError where it fails."""
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(environment),
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(command)}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


def _build() -> None:
    if not SHARED.exists() or os.geteuid() != 0:
        pytest.skip("no KUBECONFIG works, and ../shared/kubernetes with root to bring up a node is not here")
    with alone("kubernetes"):
        done = subprocess.run(
            [str(SHARED / "build")], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        pytest.skip(f"../shared/kubernetes/build fails here: {done.stderr.strip()[-500:]}")


class Kubernetes:
    """`node` is an address at which NodePorts answer; `kafka_image` has an Apache Kafka without share groups."""

    def __init__(
        self,
        environment: dict[str, str],
        node: str,
        registry: str,
        tag: str,
        storage_class: str,
        kafka_image: str = "apache/kafka:3.9.1",
    ) -> None:
        self.environment = environment
        self.node = node
        self.kafka_image = kafka_image
        self.values = {
            "image": {"registry": registry, "tag": tag, "pullPolicy": "IfNotPresent"},
            **{
                role: {"storage": {"size": "1Gi", "className": storage_class}}
                for role in ("coordinator", "shareCoordinator", "leader")
            },
        }

    def kubectl(self, *arguments: str, timeout_s: float = 240, given: str | None = None) -> str:
        return run("kubectl", *arguments, environment=self.environment, timeout_s=timeout_s, given=given)

    def helm(self, *arguments: str, timeout_s: float = 300, given: str | None = None) -> str:
        return run("helm", *arguments, environment=self.environment, timeout_s=timeout_s, given=given)

    def shell(self, script: str, timeout_s: float = 600) -> str:
        """A script of our documents; the first command that fails ends it."""
        return run("bash", "-euo", "pipefail", "-c", script, environment=self.environment, timeout_s=timeout_s)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def wait_for(self, kind: str, name: str) -> None:
        """Until all pods of a StatefulSet or Deployment are of its newest revision, and ready."""
        self.kubectl("rollout", "status", f"{kind}/{name}", "--timeout", "180s")

    def define(self, definitions: Sequence[Path]) -> None:
        """Applies files of CustomResourceDefinitions; returns when their kinds can be used."""
        for path in definitions:
            self.kubectl("apply", "--filename", str(path))
        for path in definitions:
            self.kubectl("wait", "--for", "condition=Established", "--timeout", "120s", "--filename", str(path))

    def uninstall_all(self) -> None:
        """All releases, also those of an installation that failed; returns when no pod is left."""
        for release in self.helm("list", "--all", "--short").split():
            self.helm("uninstall", release, "--wait", "--timeout", "180s")
            selector = f"app.kubernetes.io/instance={release}"
            self.kubectl("wait", "--for", "delete", "pods", "--selector", selector, "--timeout", "120s")

    def delete_volumes(self) -> None:
        """Of all releases, with what is on them.

        A release that finds volumes of an earlier one has its state; if some of them belong to pods that it does not
        have, the state on them has no owner, and groups stand still.
        """
        selector = ("--selector", "app.kubernetes.io/component in (coordinator, share-coordinator, leader)")
        claims = self.get("persistentvolumeclaims", *selector)["items"]
        self.kubectl("delete", "persistentvolumeclaims", *selector)
        for claim in claims:
            if self.node == OWN_NODE and claim["spec"]["storageClassName"] == OWN_STORAGE_CLASS:
                self._empty(claim["spec"].get("volumeName"))

    def _empty(self, volume: str | None) -> None:
        """Makes a released volume of our own node a new one."""
        if volume is None:  # its claim waited for a pod
            return
        released = "jsonpath={.status.phase}=Released"
        self.kubectl("wait", "--for", released, "--timeout", "60s", f"persistentvolume/{volume}")
        for path in Path(self.get("persistentvolume", volume)["spec"]["local"]["path"]).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        without_claim = json.dumps([{"op": "remove", "path": "/spec/claimRef"}])
        self.kubectl("patch", "persistentvolume", volume, "--type", "json", "--patch", without_claim)

    def describe_trouble(self) -> str:
        """What a person would look at first."""
        pods = self.kubectl("get", "pods", "--output", "wide")
        return pods + self.kubectl("get", "events", "--sort-by", ".lastTimestamp")[-3000:]


def _reachable(environment: Mapping[str, str]) -> bool:
    if not environment.get("KUBECONFIG") or not shutil.which("kubectl", path=environment["PATH"]):
        return False
    command = ["kubectl", "get", "nodes", "--request-timeout", "10s"]
    return subprocess.run(command, env=dict(environment), capture_output=True, check=False).returncode == 0


@contextmanager
def kubernetes(*, dual_stack: bool = False) -> Iterator[Kubernetes]:
    """The user's cluster, or a node of our own that is taken down afterwards, with IPv6 beside IPv4 if wanted."""
    environment = helm_environment()
    if _reachable(environment):
        registry = environment.get("KSHARE_TEST_REGISTRY")
        if registry is None:
            pytest.skip("KUBECONFIG works; KSHARE_TEST_REGISTRY must say where its nodes find the images")
        (node, *_) = [
            address["address"]
            for item in json.loads(run("kubectl", "get", "nodes", "-o", "json", environment=environment))["items"]
            for address in item["status"]["addresses"]
            if address["type"] == "InternalIP"
        ]
        yield Kubernetes(environment, node, registry, environment.get("KSHARE_TEST_TAG", "test"), "")
        return
    _build()
    environment["PATH"] = f"{cache() / 'bin'}:{environment['PATH']}"
    environment["KUBECONFIG"] = str(cache() / "run/cfg/admin.kubeconfig")
    _, tag = images()
    script = SHARED / "k8snode.sh"
    if dual_stack:
        script = write_dual_stack(script, cache() / "k8snode-dual-stack.sh")
    with alone("kubernetes-node"):  # there can be one on a machine
        try:
            run(str(script), "up", environment=environment)
            _import_images(environment, tag)
            yield Kubernetes(environment, OWN_NODE, "kshare", tag, OWN_STORAGE_CLASS, kafka_image())
        finally:
            run(str(script), "down", environment=environment)


def _import_images(environment: Mapping[str, str], tag: str) -> None:
    docker_environment, _ = images()
    tar = cache() / "kshare-images.tar"
    names: Sequence[str] = [*(f"kshare/{target}:{tag}" for target in TARGETS), kafka_image()]
    docker("save", "--output", str(tar), *names, environment=docker_environment)
    containerd = str(cache() / "run/containerd.sock")
    run("ctr", "-a", containerd, "-n", "k8s.io", "images", "import", str(tar), environment=environment)
    tar.unlink()
