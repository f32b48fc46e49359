"""The repair of a damaged share coordinator in Kubernetes by the runbook: its pod fits the chart, its commands work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from kshare_runtime.rocks_store import RocksStore
from support.clusters.kubernetes import CHART, helm_environment, run
from support.runtime.damaged_files import damage_a_state_partition, scratch_directory
from support.share_coordinator.many_states import build_store

ROOT = CHART.parents[1]
POD = ROOT / "deploy/kubernetes/state.yaml"
SHARE_PARTITIONS = 60
KUBECTL = """\
#!/bin/sh
# Carries out `exec`, as if this machine were the pod, and notes all other commands.
if [ "$1" != exec ]; then echo "$@" >> "$NOTED"; exit; fi
shift
if [ "$1" = -i ]; then shift; else exec < /dev/null; fi
shift 2
exec "$@"
"""


def share_coordinators() -> dict[str, Any]:
    """The StatefulSet of a release named queues."""
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", "--set", "image.registry=kshare"]
    objects = yaml.safe_load_all(run(*command, environment=helm_environment()))
    found: dict[str, Any] = next(
        each
        for each in objects
        if each and each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("-share-coordinator")
    )
    return found


def script() -> list[str]:
    """The commands of the section of KshareStateDamaged."""
    (section,) = re.findall(r"^## KshareStateDamaged\n(.*?)^## ", (ROOT / "docs/runbook.md").read_text(), re.M | re.S)
    return re.findall(r"^    (kubectl .*)$", section, re.MULTILINE)


def test_its_pod_has_the_volume_of_a_share_coordinator_of_the_chart() -> None:
    stateful_set, pod = share_coordinators(), yaml.safe_load(POD.read_text())["spec"]
    (role,), (container,) = stateful_set["spec"]["template"]["spec"]["containers"], pod["containers"]
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    name = f"{claim['metadata']['name']}-{stateful_set['metadata']['name']}-0"
    assert {"name": "data", "persistentVolumeClaim": {"claimName": name}} in pod["volumes"]
    (mounted,) = (each for each in role["volumeMounts"] if each["name"] == claim["metadata"]["name"])
    assert mounted in container["volumeMounts"]
    assert {"name": "KSHARE_DATA_DIR", "value": mounted["mountPath"]} in container["env"]
    assert pod["securityContext"] == stateful_set["spec"]["template"]["spec"]["securityContext"]
    assert container["securityContext"] == role["securityContext"]
    assert container["image"] == role["image"].replace("kshare/share-coordinator", "registry.example.com/kshare/cli")
    labels = yaml.safe_load(POD.read_text())["metadata"]["labels"]
    selector = stateful_set["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items(), "its pod would be one of the StatefulSet's"


def test_its_commands_name_the_objects_of_the_chart() -> None:
    stateful_set, pod = share_coordinators(), yaml.safe_load(POD.read_text())
    commands = [shlex.split(each) for each in script()]
    scaled = [each[2] for each in commands if each[1] == "scale"]
    assert scaled == 2 * [f"statefulset/{stateful_set['metadata']['name']}"]
    assert commands[-1][-1] == str(stateful_set["spec"]["replicas"])
    (wait,) = (each for each in commands if "-l" in each)
    wanted = dict(each.split("=") for each in wait[wait.index("-l") + 1].split(","))
    assert wanted.items() <= stateful_set["spec"]["template"]["metadata"]["labels"].items()
    assert {each[3] if each[2] == "-i" else each[2] for each in commands if each[1] == "exec"} == {
        pod["metadata"]["name"]
    }


def test_its_commands_repair_a_damaged_store(tmp_path: Path) -> None:
    """Run with a kubectl that takes this machine for the pod, and the environment of the pod."""
    kubectl, noted = tmp_path / "bin/kubectl", tmp_path / "noted"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    with scratch_directory() as volume:
        path = f"{kubectl.parent}:{Path(sys.executable).parent}:/usr/bin:/bin"
        environment = {"PATH": path, "KSHARE_DATA_DIR": str(volume), "NOTED": str(noted), "HOME": str(tmp_path)}
        build_store(volume, SHARE_PARTITIONS)
        RocksStore(volume / "share-coordinator").close()  # moves the log into tables

        def done(command: str) -> tuple[int, str]:
            text = command.replace("/tmp/state.json", str(tmp_path / "in-the-pod.json"))
            each = subprocess.run(
                ["sh", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            return each.returncode, each.stdout + each.stderr

        code, text = done("kubectl exec queues-state -- kshare state export > state.json")
        assert code == 0, text
        number = damage_a_state_partition(volume)
        results = [done(command.replace("--replace N", f"--replace {number}")) for command in script()]
        codes = [code for code, _ in results]
        assert codes == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0], results
        assert f"state partition {number}: " in results[4][1], "verify finds the damage"
        assert "all checksums are correct" in done("kubectl exec queues-state -- kshare state verify")[1]
        assert len(noted.read_text().splitlines()) == len(script()) - 4
