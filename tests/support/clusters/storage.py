"""Storage with snapshots for the one-node Kubernetes: a driver of our own, and Kubernetes' programs around it.

Their sources are Go modules (tests/kubernetes/storage); building takes some minutes at the first time. They run in the
node's namespaces as processes, not as pods, so no images are needed, and they end with the node at the latest.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.clusters.kubernetes import Kubernetes, cache
from support.clusters.snapshot_definitions import apply_snapshot_definitions
from support.environment.docker import ROOT
from support.environment.installation import alone, debian_program
from support.environment.unavailable import unavailable

SOURCE = ROOT / "tests/kubernetes/storage"
CLASS = "snapshots"
"""The name of the StorageClass and of the VolumeSnapshotClass."""
DRIVER = "storage.kshare.test"
NODE = "k8stest"
BUILD_TIMEOUT_S = 3_000
KUBERNETES_CSI = "github.com/kubernetes-csi"
PROGRAMS = {
    "driver": ".",
    "csi-provisioner": f"{KUBERNETES_CSI}/external-provisioner/v6/cmd/csi-provisioner",
    "csi-resizer": f"{KUBERNETES_CSI}/external-resizer/v2/cmd/csi-resizer",
    "csi-snapshotter": f"{KUBERNETES_CSI}/external-snapshotter/v8/cmd/csi-snapshotter",
    "snapshot-controller": f"{KUBERNETES_CSI}/external-snapshotter/v8/cmd/snapshot-controller",
}
CLASSES = (
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": DRIVER},
        "spec": {"attachRequired": False, "fsGroupPolicy": "File"},
    },
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": DRIVER,
        "allowVolumeExpansion": True,
        "volumeBindingMode": "WaitForFirstConsumer",
    },
    {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": CLASS},
        "driver": DRIVER,
        "deletionPolicy": "Delete",
    },
)


def _go(*arguments: str) -> str:
    go = shutil.which("go")
    if go is None:
        unavailable("storage with snapshots is built from Go modules: Go must be on the PATH (https://go.dev/dl)")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    done = subprocess.run(
        [go, *arguments],
        cwd=SOURCE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _build() -> Path:
    """The folder of the programs. Go itself knows what has changed since."""
    folder = cache() / "storage"
    with alone("kubernetes-storage"):
        for name, package in PROGRAMS.items():
            _go("build", "-ldflags", "-s -w", "-o", str(folder / name), package)
    return folder


@contextmanager
def snapshot_storage(cluster: Kubernetes) -> Iterator[None]:
    """The StorageClass and the VolumeSnapshotClass named CLASS."""
    node = cache() / "run"
    if cluster.environment.get("KUBECONFIG") != str(node / "cfg/admin.kubeconfig"):
        unavailable("the tests' own storage is for the node of ../shared/kubernetes only")
    with alone():
        debian_program(["mkfs.xfs"], "xfsprogs")
    programs = _build()
    apply_snapshot_definitions(cluster)
    for each in CLASSES:
        cluster.kubectl("apply", "--filename", "-", given=json.dumps(each))  # JSON is YAML
    folder = node / "storage"
    folder.mkdir(exist_ok=True)
    own = {name: ["--kubeconfig", str(node / "cfg/admin.kubeconfig")] for name in PROGRAMS}
    for name in ("csi-provisioner", "csi-resizer", "csi-snapshotter"):
        own[name] += ["--csi-address", str(folder / "csi.sock")]
    own["driver"] = [str(folder), str(node / "kubelet"), NODE]
    inside = ["nsenter", "--target", (node / "init.pid").read_text().strip(), "--mount", "--pid", "--net", "--"]
    running = []
    try:
        for name, arguments in own.items():
            with (folder / f"{name}.log").open("wb") as log:
                command = [*inside, str(programs / name), *arguments]
                running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        yield
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)  # nsenter and its program
            process.wait(30)
