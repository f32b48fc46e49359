"""Descriptions of the chart's values in values.schema.json, which editors show: the comments of values.yaml.

Values without a comment of their own (Kubernetes' own, and those that every role has) have the words of `USUAL` and
`LAST`. The alerts' part of the schema is made by deploy/observability/alerts.py. A test compares the schema with
this; `python -m support.house.chart_schema` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parents[3] / "helm" / "kshare"
SCHEMA = CHART / "values.schema.json"
_KEY = re.compile(r"( *)([A-Za-z0-9]+):")
_COMMENT = re.compile(r"( *)# ?(.*)")

USUAL: Mapping[str, str] = {
    "global": "Values of a chart that has this one as a part; not used.",
    "image": "Where the images are.",
    "image.pullPolicy": "When nodes pull an image that they have.",
    "image.pullSecrets": "Secrets with the registry's credentials, in the release's namespace.",
    "network": "Address families of Services and pods.",
    "engine.kafka": "The existing Kafka cluster.",
    "logs": "Log lines of all processes.",
    "coordinator": "The coordinators: groups and the catalog.",
    "shareCoordinator": "The share coordinators: durable share-partition state.",
    "leader": "The leaders: topic logs and deliveries.",
    "gateway": "The gateways: Kafka clients.",
    "gateway.external.type": "How clients outside of the cluster reach gateways.",
    "gateway.external.port": "The port that clients outside are told; with NodePorts for each gateway, the first one.",
    "tls.enabled": "Whether gateways listen with a certificate.",
    "tls.roles.enabled": "Whether roles call each other with mutual TLS.",
    "tls.certManager.enabled": "Whether cert-manager makes the gateways' certificate.",
    "tls.certManager.issuerRef": "cert-manager's issuer.",
    "tls.certManager.renewBefore": "Such as 360h, how long before its end it is renewed. Empty: cert-manager's.",
    "pipeline.enabled": "Whether the pipeline runs, and leaders write the delivery history.",
    "pipeline.triggerIntervalMs": "Milliseconds between two reads of new events.",
    "pipeline.martsIntervalMs": "Milliseconds between two computations of the marts and the report.",
    "pipeline.martsRetentionDays": "Days that marts are kept.",
    "console.enabled": "Whether the console runs.",
    "toolbox.enabled": "Whether there is a pod for commands.",
    "metadata": "Where coordinators keep groups and the catalog.",
    "metadata.etcd": "The etcd of metadata.store=etcd.",
    "metadata.etcd.prefix": "What keys in etcd begin with; two releases on one etcd need different ones.",
    "metadata.etcd.clientCertificate": "Whether coordinators show the certificate of tlsSecret to etcd.",
    "spread.topologyKeys": "Labels of nodes, such as kubernetes.io/hostname.",
    "podDisruptionBudget": "How many pods of each role may be evicted at a time.",
    "podDisruptionBudget.maxUnavailable": "Pods of a role that may be away by eviction: a number or a percentage.",
    "serviceAccount": "The ServiceAccount of all pods.",
    "serviceAccount.create": "Whether the chart makes it.",
    "serviceAccount.name": "Its name. Empty: that of the release, or `default` where it is not made.",
    "podSecurityContext": "The security context of every pod.",
    "networkPolicy": "NetworkPolicies of all roles.",
    "metrics": "What Prometheus and Grafana need.",
    "metrics.podMonitor": "A PodMonitor of the Prometheus operator.",
    "metrics.podMonitor.interval": "How often metrics are read.",
    "metrics.prometheusRule": "The alerts, as a PrometheusRule.",
    "metrics.dashboards": "Dashboards of Grafana.",
    "autoscaling": "Autoscalers of roles and of your workers.",
    "autoscaling.gateway": "A HorizontalPodAutoscaler of gateways, by processor time.",
    "autoscaling.gateway.targetCPUUtilizationPercentage": "Processor time that gateways use, of what they request.",
    "autoscaling.workers.[].target": "The workload that is scaled.",
    "autoscaling.workers.[].group": "The share group whose lag counts.",
    "autoscaling.workers.[].recordsPerWorker": "Records of lag for which there is one worker.",
    "autoscaling.keda.prometheusAddress": "Where KEDA asks for metrics.",
    "autoscaling.keda.pollingIntervalSeconds": "How often KEDA asks.",
    "tracing": "Traces of requests, by OpenTelemetry.",
}
"""By path."""

LAST: Mapping[str, str] = {
    "affinity": "The pods' affinity, in place of the role's spread over nodes.",
    "annotations": "Annotations of the object.",
    "apiVersion": "The API version of the object.",
    "className": "The StorageClass. Empty: the cluster's default.",
    "claims": "Resource claims of the container.",
    "enabled": "Whether it is rendered.",
    "envSourceContainerName": "KEDA's field of this name.",
    "extraEnv": "Further variables of the container, as in a pod's `env`.",
    "group": "The API group of the object.",
    "kind": "The kind of the object.",
    "labels": "Further labels of the object.",
    "limits": "The most that the container gets.",
    "maxReplicas": "The most pods.",
    "maxSkew": "By how many pods two places may differ.",
    "minReplicas": "The fewest pods.",
    "name": "The name of the object or variable.",
    "nodeSelector": "Labels of the nodes on which the pods may run.",
    "podAnnotations": "Annotations of the pods.",
    "podLabels": "Labels of the pods.",
    "port": "The port of the Service.",
    "priorityClassName": "The PriorityClass of the pods. Empty: the chart's.",
    "replicas": "How many pods.",
    "requests": "What is reserved for the container.",
    "resources": "Resources of the container.",
    "retention": "What happens to the volumes of pods that are gone.",
    "service": "The Service.",
    "size": "The size of a volume.",
    "storage": "The volume of each pod.",
    "terminationGracePeriodSeconds": "Seconds that a pod has to stop.",
    "tolerations": "Taints of nodes that the pods tolerate.",
    "topologyKey": "The label of nodes that names a place.",
    "topologySpreadConstraints": "Constraints of the pods in place of `spread`.",
    "type": "The type of the object.",
    "whenDeleted": "When the StatefulSet is deleted: Retain or Delete.",
    "whenScaled": "When a pod is scaled away: Retain or Delete.",
    "whenUnsatisfiable": "Whether a pod that cannot be placed so stays pending.",
}
"""By the last name of a path."""

ALERTS = "metrics.prometheusRule.alerts"


def comments(text: str) -> dict[str, str]:
    """The comment above each key of a values file, by path."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if comment := _COMMENT.fullmatch(line):
            above.append((len(comment[1]), comment[2].strip()))
            continue
        if key := _KEY.match(line):
            indent = len(key[1])
            path = [*(part for part in path if part[0] < indent), (indent, key[2])]
            words = " ".join(words for depth, words in above if depth == indent)
            if words:
                found[".".join(name for _, name in path)] = words
        above = []
    return found


def description(path: str, commented: Mapping[str, str]) -> str:
    """What the schema says of a value; KeyError where nothing does."""
    last = path.rpartition(".")[2]
    if path in commented or path in USUAL:
        return commented.get(path) or USUAL[path]
    return LAST[last]


def described(schema: dict[str, Any], commented: Mapping[str, str], path: str = "") -> dict[str, Any]:
    """The schema with a description of each value; KeyError names one that has none."""
    if path == ALERTS:
        return schema
    found = {name: part for name, part in schema.items() if name != "description" or path == ""}
    if path and not path.endswith("[]"):
        found = {"description": description(path, commented), **found}
    if "properties" in schema:
        found["properties"] = {
            name: described(part, commented, f"{path}.{name}".removeprefix("."))
            for name, part in schema["properties"].items()
        }
    if isinstance(schema.get("items"), dict):
        found["items"] = described(schema["items"], commented, f"{path}.[]")
    return found


def wanted() -> str:
    """The text that the schema should have."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    commented = comments((CHART / "values.yaml").read_text(encoding="utf-8"))
    return json.dumps(described(schema, commented), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(wanted(), encoding="utf-8")
