"""What the chart's documents, its notes and its own test tell a user to run is complete; no Kubernetes is needed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kshare_servicekit.process_settings import ProcessSettings, read_settings
from support.clusters.kshare_cluster import KshareCluster
from support.clusters.kubernetes import CHART, helm_environment, run

ROOT = CHART.parents[1]
ADMINISTRATOR = ROOT / "deploy/kubernetes/administrator.yaml"
SASL = ("config.listener\\.security\\.protocol\\.map=PLAINTEXT:SASL_PLAINTEXT",)
NOTES = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
data: {text: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}}
"""


def template(*arguments: str, chart: Path = CHART) -> str:
    command = ["helm", "template", "queues", str(chart), "--kube-version", "1.36.3", *arguments]
    return run(*command, environment=helm_environment())


def rendered(*values: str) -> dict[str, dict[str, Any]]:
    """The objects with these values, by kind and name."""
    text = template(*(word for value in ("image.registry=kshare", *values) for word in ("--set", value)))
    objects = [each for each in yaml.safe_load_all(text) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects}


def notes(folder: Path, *values: str) -> str:
    """What `helm install` prints; `helm template` does not print it, so an object of a copy of the chart has it."""
    shutil.copytree(CHART, folder / "chart")
    (folder / "chart/templates/notes.yaml").write_text(NOTES)
    sets = (word for value in ("image.registry=kshare", *values) for word in ("--set", value))
    text = template(*sets, "--show-only", "templates/notes.yaml", chart=folder / "chart")
    return str(yaml.safe_load(text)["data"]["text"])


def documented_installations() -> list[list[str]]:
    """The arguments of each `helm install queues helm/kshare` of a document, after the chart."""
    found = []
    for page in (CHART / "README.md", ROOT / "docs/operations.md", ROOT / "README.md"):
        text = page.read_text().replace("\\\n", " ")
        found += [shlex.split(line) for line in re.findall(r"helm install queues helm/kshare([^`\n]*)", text)]
    return found


def test_each_documented_installation_is_rendered() -> None:
    found = documented_installations()
    assert len(found) >= 5
    for arguments in found:
        assert "kind: Deployment" in template(*arguments)


def documented_values(key: str) -> str:
    """The indented block of the chart's README that begins with a key."""
    (found,) = re.findall(rf"^    {key}:\n(?:     .*\n)+", (CHART / "README.md").read_text(), re.MULTILINE)
    return str(found)


def test_the_documented_memory_budget_is_the_leaders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert KshareOverMemoryBudget leads here; a config would be every role's."""
    (tmp_path / "values.yaml").write_text(documented_values("leader"))
    text = template("--values", str(tmp_path / "values.yaml"), "--set", "image.registry=kshare")
    workloads = [each for each in yaml.safe_load_all(text) if each and each["kind"] in ("StatefulSet", "Deployment")]
    budgets = {}
    for workload in workloads:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        values = {each["name"]: each.get("value") for each in container["env"]}
        if "KSHARE_MEMORY_BUDGET" in values:
            budgets[container["name"]] = (values["KSHARE_MEMORY_BUDGET"], container["resources"]["limits"]["memory"])
    assert budgets == {"leader": (str(3 * 1024**3), "4Gi")}
    monkeypatch.setenv("KSHARE_MEMORY_BUDGET", budgets["leader"][0])
    settings = read_settings(ProcessSettings, ["--node-id", "1", "--data-dir", "/d"], program="python -m kshare_leader")
    assert settings.memory_budget == 3 * 1024**3
    runbook = (ROOT / "docs/runbook.md").read_text()
    assert '`leader.extraEnv: [{name: KSHARE_MEMORY_BUDGET, value: "3221225472"}]`' in runbook


def test_the_documented_metric_of_an_adapter_is_what_keda_asks_for() -> None:
    """prometheus-adapter puts the labels of the autoscaler's selector and the namespace into <<.LabelMatchers>>."""
    (rule,) = yaml.safe_load(documented_values("externalRules"))["externalRules"]
    query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
    query = query.replace("<<.LabelMatchers>>", 'namespace="default",release="queues"')
    scaler = rendered("autoscaling.shareCoordinator.by=keda")["ScaledObject/queues-kshare-share-coordinator"]
    (trigger,) = scaler["spec"]["triggers"]
    assert query == trigger["metadata"]["query"].replace("_seconds_count{", "_seconds_bucket{")


@pytest.mark.parametrize(
    ("values", "warned_of"),
    [
        ((), ""),
        (("gateway.external.sourceRanges={203.0.113.0/24}",), "gateway.external.sourceRanges"),
        (("gateway.external.sourceRanges={203.0.113.0/24}", "gateway.external.trafficPolicy=Local"), ""),
        (("networkPolicy.clients[0].podSelector.matchLabels.a=b",), ""),
        (("networkPolicy.clients[0].ipBlock.cidr=203.0.113.0/24",), "networkPolicy.clients"),
    ],
)
def test_the_notes_warn_where_a_network_policy_would_see_the_addresses_of_nodes(
    tmp_path: Path, values: tuple[str, ...], warned_of: str
) -> None:
    outside = ("gateway.external.type=loadBalancer", "gateway.external.host=h")
    text = notes(tmp_path / "with", "networkPolicy.enabled=true", *outside, *values)
    assert ("Warning: set gateway.external.trafficPolicy=Local" in text) == bool(warned_of)
    assert f"refuses clients that {warned_of} would let in" in text or not warned_of
    assert "Warning" not in notes(tmp_path / "without", *outside, *values)


TLS = ("tls.enabled=true", "tls.secretName=a")
MAP = "config.listener\\.security\\.protocol\\.map"


@pytest.mark.parametrize(
    ("values", "inside", "outside"),
    [
        ((), [""], ""),
        (SASL, ["SASL_PLAINTEXT"], "SASL_PLAINTEXT"),
        (TLS, ["", "SSL"], "SSL"),
        ((*TLS, f"{MAP}=PLAINTEXT:PLAINTEXT\\,SSL:SASL_SSL"), ["", "SASL_SSL"], "SASL_SSL"),
        ((*TLS, "gateway.external.protocol=SASL_SSL"), ["", "SSL"], "SASL_SSL"),
        ((*TLS, "gateway.external.protocol=PLAINTEXT"), ["", "SSL"], ""),
        (("gateway.external.protocol=SASL_PLAINTEXT",), [""], "SASL_PLAINTEXT"),
        ((*TLS, f"{MAP}=PLAINTEXT:PLAINTEXT\\,SSL:SSL\\,external:SASL_SSL"), ["", "SSL"], "SASL_SSL"),
    ],
)
def test_the_notes_name_the_protocol_of_each_listener(
    tmp_path: Path, values: tuple[str, ...], inside: list[str], outside: str
) -> None:
    text = notes(tmp_path, *values, "gateway.external.type=loadBalancer", "gateway.external.host=h")
    before, _, after = text.partition("Clients outside connect to")
    lines = [line for line in before.splitlines() if ".svc:909" in line]
    assert [_protocol(line) for line in lines] == inside
    assert _protocol(after.splitlines()[0]) == outside
    assert after.splitlines()[1] == "  h:30092"


def _protocol(line: str) -> str:
    """The security.protocol that a line names; empty if it names none."""
    found = re.search(r"\(security\.protocol=([A-Z_]+)", line)
    return found[1] if found else ""


def test_the_notes_of_mode_proxy_name_the_protocol_of_the_one_listener(tmp_path: Path) -> None:
    proxy = ("engine.type=kafka", "engine.kafka.bootstrapServers=k:9092", "engine.kafka.mode=proxy")
    outside = ("gateway.external.type=loadBalancer", "gateway.external.host=h")
    text = notes(tmp_path, *proxy, *outside, *TLS, "tls.plaintext=false", f"{MAP}=SSL:SASL_SSL")
    assert "Clients outside connect to (security.protocol=SASL_SSL)\n  h:30092" in text


def test_the_notes_command_is_let_in_by_the_network_policy(tmp_path: Path) -> None:
    text = notes(tmp_path, "networkPolicy.enabled=true", "nameOverride=jobs")
    command = shlex.split(text[text.index("kubectl run") : text.index("Scale state:")].replace("\\\n", " "))
    labels = dict(each.split("=") for each in command[command.index("--labels") + 1].split(","))
    policy = rendered("networkPolicy.enabled=true", "nameOverride=jobs")["NetworkPolicy/queues-jobs-coordinator"]
    (peer,) = next(rule for rule in policy["spec"]["ingress"] if rule["ports"] == [{"port": "grpc"}])["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()
    assert "helm test queues" in text


def test_the_charts_test_has_credentials_or_is_not_there(tmp_path: Path) -> None:
    name = "Pod/queues-kshare-test"
    assert name not in rendered(*SASL)
    assert "helm test" not in notes(tmp_path, *SASL)
    spec = rendered(*SASL, "toolbox.clientConfigSecret=operator")[name]["spec"]
    (container,) = spec["containers"]
    assert container["env"] == [{"name": "KSHARE_COMMAND_CONFIG", "value": "/etc/kshare-client/client.properties"}]
    assert {"name": "client", "mountPath": "/etc/kshare-client", "readOnly": True} in container["volumeMounts"]
    assert spec["volumes"][0] == {"name": "client", "secret": {"secretName": "operator", "defaultMode": 0o440}}


@pytest.mark.timeout(240)
def test_the_charts_test_leaves_no_topic_and_no_group(tmp_path: Path) -> None:
    """Its script, with `kshare` of this environment and a cluster on this machine."""
    (container,) = rendered()["Pod/queues-kshare-test"]["spec"]["containers"]
    kshare = Path(sys.executable).parent / "kshare"
    with KshareCluster(tmp_path / "cluster") as cluster:
        script = container["args"][0].replace("queues-kshare-gateway:9092", cluster.bootstrap)
        script = script.replace("/tmp/read", str(tmp_path / "read"))
        environment = {"PATH": f"{kshare.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            [*container["command"], script], env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "read").read_text().count("a record") == 3
        for what in ("topics", "groups"):
            command = [str(kshare), what, "list", "--json", "--bootstrap", cluster.bootstrap]
            assert "helm-test" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_administrators_pod_is_one_for_a_release_named_queues() -> None:
    pod = yaml.safe_load(ADMINISTRATOR.read_text())
    values = ("tls.roles.enabled=true", "tls.roles.job=true", "toolbox.enabled=true", "networkPolicy.enabled=true")
    objects = rendered(*values)
    toolbox = objects["Deployment/queues-kshare-toolbox"]["spec"]["template"]["spec"]
    (container,), (wanted,) = pod["spec"]["containers"], toolbox["containers"]
    assert container["image"] == wanted["image"].replace("kshare/cli", "registry.example.com/kshare/cli")
    variables = {each["name"]: each["value"] for each in wanted["env"]}
    assert {each["name"]: each["value"] for each in container["env"]}.items() <= variables.items()
    names = {volume["name"]: volume for volume in toolbox["volumes"]}
    for volume in ("config", "roles-tls"):
        assert names[volume] in pod["spec"]["volumes"]
    # What Pod Security's level "restricted" asks for.
    assert pod["spec"]["securityContext"].items() <= toolbox["securityContext"].items()
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == wanted["securityContext"]
