"""The definitions of VolumeSnapshots, which a cluster with Kubernetes' snapshot controller has, from its Go module."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from support.clusters.kubernetes import Kubernetes
from support.environment.unavailable import unavailable

MODULE = "github.com/kubernetes-csi/external-snapshotter/client/v8@v8.6.0"


def apply_snapshot_definitions(cluster: Kubernetes) -> None:
    go = shutil.which("go")
    if go is None:
        unavailable("the definitions of snapshots are in a Go module: Go must be on the PATH (https://go.dev/dl)")
    downloaded = subprocess.run([go, "mod", "download", "-json", MODULE], cwd="/", check=True, capture_output=True)
    crds = sorted(Path(json.loads(downloaded.stdout)["Dir"]).glob("config/crd/snapshot.storage.k8s.io_*.yaml"))
    assert len(crds) == 3, crds
    cluster.define(crds)
