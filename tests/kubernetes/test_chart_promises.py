"""What the chart renders for values that once went wrong, each by itself; no cluster is needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clusters.kubernetes import CHART, helm_environment, run


def rendered(
    *values: str,
    template: str = "",
    release: str = "queues",
    namespace: str = "default",
    flags: Sequence[str] = (),
) -> str:
    command = ["helm", "template", release, str(CHART), "--kube-version", "1.36.3", "--namespace", namespace]
    command += ["--set", "image.registry=kshare"]
    command += [word for value in values for word in ("--set", value)]
    command += flags
    if template:
        command += ["--show-only", f"templates/{template}.yaml"]
    return run(*command, environment=helm_environment())


def objects(text: str) -> dict[str, str]:
    """What was rendered, by kind and name."""
    found = {}
    for part in text.split("\n---\n"):
        kind, name = re.search(r"^kind: (\S+)$", part, re.MULTILINE), re.search(r"^  name: (\S+)$", part, re.MULTILINE)
        if kind and name:
            found[f"{kind[1]}/{name[1]}"] = part
    return found


def affinity(text: str) -> str:
    found = re.search(r"^  sessionAffinity: (\S+)$", text, re.MULTILINE)
    return found[1] if found else ""


# Metrics


def test_samples_have_the_release_that_alerts_and_autoscalers_ask_for() -> None:
    monitor = rendered("metrics.podMonitor.enabled=true", template="podmonitor")
    assert "targetLabel: release" in monitor and "app_kubernetes_io_instance" in monitor
    scaled = rendered("autoscaling.shareCoordinator.by=keda", template="scaledobjects", namespace="n")
    assert 'namespace=\\"n\\",release=\\"queues\\"' in scaled
    scaled = rendered("autoscaling.shareCoordinator.by=hpa", template="horizontalpodautoscaler", namespace="n")
    assert "selector: {matchLabels: {namespace: n, release: queues}}" in scaled


# Numbers

NUMBERS = """
config: {log.retention.ms: 86400000, log.retention.bytes: -1, log.cleaner.min.cleanable.ratio: 0.25, num.partitions: 3,
  auto.create.topics.enable: true, flush.messages: "9223372036854775807"}
pipeline: {enabled: true, config: {spark.kafka.bytes: 1073741824}}
autoscaling:
  workers: [{name: a, target: {kind: Deployment, name: w}, group: g, recordsPerWorker: 2000000, maxReplicas: 2}]
metrics: {prometheusRule: {enabled: true, alerts: {KshareGroupLagGrows: {records: 2500000}}}}
"""


def of_file(folder: Path, values: str) -> str:
    (folder / "values.yaml").write_text(values)
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", "--set", "image.registry=kshare"]
    return run(*command, "--values", str(folder / "values.yaml"), environment=helm_environment())


def test_whole_numbers_of_a_values_file_are_written_with_their_digits(tmp_path: Path) -> None:
    """Numbers of --set are whole already; those of a file are floats to a template."""
    text = of_file(tmp_path, NUMBERS)
    configs = re.findall(r"^    ([a-z]+\.[a-z.]+=\S+)$", text, re.MULTILINE)
    assert {
        "log.retention.ms=86400000",
        "log.retention.bytes=-1",
        "log.cleaner.min.cleanable.ratio=0.25",
        "num.partitions=3",
        "auto.create.topics.enable=true",
        "flush.messages=9223372036854775807",
        "spark.kafka.bytes=1073741824",
    } <= set(configs)
    assert 'threshold: "2000000"' in text and "> 2500000" in text
    with pytest.raises(AssertionError, match="write it in quotes"):
        of_file(tmp_path, "config: {flush.messages: 9223372036854775807}")


# Services


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("loadBalancer", "", "None"),
        ("loadBalancer", "ClientIP", "ClientIP"),
        ("nodePort", "", "ClientIP"),
        ("nodePort", "None", "None"),
    ],
)
def test_a_load_balancer_needs_no_session_affinity(kind: str, value: str, expected: str) -> None:
    text = rendered(
        f"gateway.external.type={kind}",
        "gateway.external.host=kafka.example.com",
        f"gateway.external.sessionAffinity={value}",
        template="gateway",
    )
    assert affinity(objects(text)["Service/queues-kshare-gateway-external"]) == expected


# Time to stop


@pytest.mark.parametrize(("role", "name"), [("shareCoordinator", "share-coordinator"), ("leader", "leader")])
def test_the_time_to_hand_over_is_within_the_grace_period(role: str, name: str) -> None:
    text = rendered(f"{role}.terminationGracePeriodSeconds=60", template=name)
    assert "terminationGracePeriodSeconds: 60" in text
    assert 'name: KSHARE_SCALE_DOWN_TIMEOUT_S, value: "30"' in text


@pytest.mark.parametrize(
    "value",
    [
        "shareCoordinator.terminationGracePeriodSeconds=59",
        "leader.terminationGracePeriodSeconds=59",
        "gateway.terminationGracePeriodSeconds=14",
        "coordinator.terminationGracePeriodSeconds=14",
    ],
)
def test_a_grace_period_without_time_is_refused(value: str) -> None:
    with pytest.raises(AssertionError, match="minimum"):
        rendered(value)


def test_the_autoscaler_takes_a_period_that_the_api_server_allows() -> None:
    values = ("autoscaling.shareCoordinator.by=hpa", "shareCoordinator.terminationGracePeriodSeconds=7200")
    text = rendered(*values, template="horizontalpodautoscaler")
    assert "periodSeconds: 1800" in text and "periodSeconds: 7200" not in text


# Policies


def test_the_charts_own_test_may_connect_to_gateways() -> None:
    values = ("networkPolicy.enabled=true", "networkPolicy.clients[0].podSelector.matchLabels.team=orders")
    policy = objects(rendered(*values, template="networkpolicy"))["NetworkPolicy/queues-kshare-gateway"]
    test_pod = rendered(*values, template="tests/produce-and-consume")
    labels = re.findall(r"^    (app\.kubernetes\.io/(?:name|instance|component): \S+)$", test_pod, re.MULTILINE)
    assert len(labels) == 3
    peers = policy[policy.index("from:") : policy.index("port: metrics")]
    assert all(label in peers for label in labels)


@pytest.mark.parametrize("value", ["0", "2", "25%", "100%"])
def test_evictions_are_limited_to_a_number_or_a_percentage(value: str) -> None:
    text = rendered(f"podDisruptionBudget.maxUnavailable={value}", template="poddisruptionbudget")
    assert text.count(f"maxUnavailable: {value}\n") == 4


# Autoscalers


@pytest.mark.parametrize("by", ["hpa", "keda"])
def test_what_an_autoscaler_scales_has_no_number_of_the_values(by: str) -> None:
    """With a cluster the workload keeps its number; test_chart_installed sees that."""
    values = (f"autoscaling.shareCoordinator.by={by}", "autoscaling.gateway.enabled=true")
    found = objects(rendered(*values))
    for name in ("StatefulSet/queues-kshare-share-coordinator", "Deployment/queues-kshare-gateway"):
        assert not re.search(r"^  replicas:", found[name], re.MULTILINE)
    assert re.search(r"^  replicas: 2$", found["StatefulSet/queues-kshare-leader"], re.MULTILINE)


# Names


def test_a_name_override_is_in_names_and_labels() -> None:
    values = ("nameOverride=jobs", "networkPolicy.enabled=true", "metrics.podMonitor.enabled=true")
    text = rendered(*values)
    names = [name.partition("/")[2] for name in objects(text)]
    assert names and all(name.startswith("queues-jobs") for name in names)
    assert "app.kubernetes.io/name: kshare" not in text
    assert "app.kubernetes.io/name: jobs" in text
    assert all(
        name.startswith("big-jobs-1")
        for name in (n.partition("/")[2] for n in objects(rendered("nameOverride=jobs", release="big-jobs-1")))
    )


@pytest.mark.parametrize(
    ("value", "release"),
    [
        ("", 45 * "a"),
        ("", f"{39 * 'a'}kshare"),
        (f"fullnameOverride={34 * 'a'}", "queues"),
        (f"nameOverride={40 * 'a'}", "b"),
    ],
)
def test_a_stateful_sets_name_leaves_room_for_the_hash_in_a_label(value: str, release: str) -> None:
    """Kubernetes labels the pods with the name, a hyphen and up to 10 characters; above 63 it makes no pod."""
    values = ("gateway.external.type=perGateway", "gateway.external.host=h", "pipeline.enabled=true")
    found = objects(rendered(*values, *filter(None, [value]), release=release))
    names = [key.partition("/")[2] for key in found if key.startswith("StatefulSet/")]
    assert len(names) == 5
    assert max(len(name) for name in names) == 63 - len("-0123456789")


# The kafka engine

KAFKA_ENGINE = ("engine.type=kafka", "engine.kafka.bootstrapServers=kafka:9092")
KEEPERS = ("coordinator", "share-coordinator", "leader")


def test_roles_in_front_of_a_cluster_keep_nothing() -> None:
    """Deployments without a volume: their id is that of their address, and nothing is handed over before they stop."""
    found = objects(rendered(*KAFKA_ENGINE))
    assert not [name for name in found if name.startswith(("StatefulSet/", "Role/", "RoleBinding/"))]
    for role in KEEPERS:
        workload = found[f"Deployment/queues-kshare-{role}"]
        assert "name: KSHARE_NODE_ID, value: address" in workload
        assert not re.search(r"volumeClaimTemplates|/var/lib/kshare|preStop|SCALE_DOWN|serviceName", workload)
        assert "maxUnavailable: 0" in workload
        assert "automountServiceAccountToken: false" in workload
        assert f"PodDisruptionBudget/queues-kshare-{role}" in found


def test_the_metadata_goes_where_the_logs_are() -> None:
    values = (*KAFKA_ENGINE, "engine.kafka.prefix=__a_", "engine.kafka.replicationFactor=1", "coordinator.replicas=3")
    configs = rendered(*values, template="configmap")
    for line in (
        "kshare.engine=kafka",
        "kshare.metadata.store=kafka",
        "kshare.upstream.bootstrap.servers=kafka:9092",
        "kshare.upstream.topic.prefix=__a_",
        "kshare.upstream.topic.replication.factor=1",
        "kshare.upstream.mode=share",
    ):
        assert f"    {line}\n" in configs
    embedded = rendered("metadata.store=kafka", "engine.kafka.bootstrapServers=kafka:9092")
    assert "kshare.metadata.store=kafka" in embedded and "kshare.engine=" not in embedded
    assert "StatefulSet/queues-kshare-leader" in objects(embedded)


def test_credentials_of_the_cluster_are_a_file_of_every_role() -> None:
    found = objects(rendered(*KAFKA_ENGINE, "engine.kafka.configSecret=credentials"))
    for role in (*KEEPERS, "gateway"):
        workload = found[f"Deployment/queues-kshare-{role}"]
        assert "name: KSHARE_CONFIG_UPSTREAM, value: /etc/kshare-upstream/kshare.properties" in workload
        assert "name: upstream, mountPath: /etc/kshare-upstream, readOnly: true" in workload
        assert "secretName: credentials" in workload
    assert "Pod/queues-kshare-test" not in found, "it has no credentials"


@pytest.mark.parametrize(("by", "template"), [("hpa", "horizontalpodautoscaler"), ("keda", "scaledobjects")])
def test_an_autoscaler_scales_the_workload_that_there_is(by: str, template: str) -> None:
    values = (f"autoscaling.shareCoordinator.by={by}",)
    assert "kind: StatefulSet, name: queues-kshare-share-coordinator" in rendered(*values, template=template)
    attached = rendered(*values, *KAFKA_ENGINE, template=template)
    assert "kind: Deployment, name: queues-kshare-share-coordinator" in attached


PROXY = (*KAFKA_ENGINE, "engine.kafka.mode=proxy", "engine.kafka.proxyPorts=2")


@pytest.mark.parametrize(("kind", "node_port"), [("nodePort", ", nodePort: {port}"), ("loadBalancer", "")])
def test_a_port_for_each_broker_is_the_same_everywhere(kind: str, node_port: str) -> None:
    """What a gateway binds is what clients are told; the configs come from the same values."""
    outside = (f"gateway.external.type={kind}", "gateway.external.host=h", "gateway.external.port=30100")
    found = objects(rendered(*PROXY, *outside, "networkPolicy.enabled=true"))
    assert "kshare.upstream.proxy.port.range=30101-30102\n" in found["ConfigMap/queues-kshare"]
    service = found["Service/queues-kshare-gateway-external"]
    for number, port in enumerate((30101, 30102)):
        more = node_port.format(port=port)
        assert f"- {{name: broker-{number}, port: {port}, targetPort: {port}{more}}}" in service
    assert "port: 30101, endPort: 30102" in found["NetworkPolicy/queues-kshare-gateway"]
    assert "broker-" not in found["Service/queues-kshare-gateway"]


def test_the_network_policy_lets_source_ranges_in_where_clients_outside_use_the_one_listener() -> None:
    values = ("gateway.external.type=loadBalancer", "gateway.external.host=h", "networkPolicy.enabled=true")
    ranges = "gateway.external.sourceRanges={203.0.113.0/24,2001:db8::/32}"
    clients = "networkPolicy.clients[0].podSelector.matchLabels.team=orders"

    def rules(*more: str) -> list[dict[str, Any]]:
        text = objects(rendered(*PROXY, *values, *more))["NetworkPolicy/queues-kshare-gateway"]
        found: list[dict[str, Any]] = yaml.safe_load(text)["spec"]["ingress"]
        return found

    kafka, metrics = rules(ranges, clients)
    assert [peer["ipBlock"]["cidr"] for peer in kafka["from"] if "ipBlock" in peer] == [
        "203.0.113.0/24",
        "2001:db8::/32",
    ]
    assert {"podSelector": {"matchLabels": {"team": "orders"}}} in kafka["from"]
    assert "from" not in metrics
    assert "from" not in rules(ranges)[0], "without clients all may connect"


def test_inside_of_the_cluster_a_pods_own_ports_are_those_of_brokers() -> None:
    found = objects(rendered(*PROXY))
    assert "kshare.upstream.proxy.port.range=9100-9101\n" in found["ConfigMap/queues-kshare"]
    assert "broker-" not in found["Service/queues-kshare-gateway"]
    tls = objects(rendered(*PROXY, "tls.enabled=true", "tls.secretName=a", "tls.plaintext=false"))
    assert "- {name: broker-1, port: 9101, targetPort: 9101}" in tls["Service/queues-kshare-gateway"]


def test_ports_of_brokers_are_no_other_ports_of_a_gateways_pod() -> None:
    """test_values_that_are_refused has ports outside that are; those inside are the chart's own choice."""
    for number, expected in ((90, "9100-9189"), (91, "9500-9590"), (1000, "9500-10499")):
        configs = rendered(*KAFKA_ENGINE, "engine.kafka.mode=proxy", f"engine.kafka.proxyPorts={number}")
        assert f"kshare.upstream.proxy.port.range={expected}\n" in configs
    outside = ("gateway.external.type=loadBalancer", "gateway.external.host=h", "gateway.external.port=9092")
    assert "port.range=9093-9094\n" in rendered(*PROXY, *outside), "no listener has port 9093 without TLS"


def test_the_default_number_of_ports_separates_the_brokers_of_node_pools() -> None:
    """Strimzi's annotation strimzi.io/next-node-ids is mostly by hundreds, and 100, 200, 300 collide modulo 20."""
    found = re.search(r"port\.range=(\d+)-(\d+)\n", rendered(*KAFKA_ENGINE, "engine.kafka.mode=proxy"))
    assert found
    number_of_ports = int(found[2]) - int(found[1]) + 1
    for step, brokers in ((100, 7), (1_000, 7), (10_000, 5)):
        ids = [pool * step + number for pool in range(4) for number in range(brokers)]
        assert len({broker_id % number_of_ports for broker_id in ids}) == len(ids), f"pools of {step} ids"


@pytest.mark.parametrize(("value", "expected"), [("1", 1), ("0", 0), ("12", 12), ("50%", "50%"), ("100%", "100%")])
def test_how_many_pods_may_be_away_is_a_number_also_as_a_text(value: str, expected: int | str) -> None:
    """Values that another program writes, such as Argo CD's parameters or Terraform's, are often texts."""
    flags = ("--set-string", f"podDisruptionBudget.maxUnavailable={value}")
    text = rendered(template="poddisruptionbudget", flags=flags)
    budgets = [yaml.safe_load(part)["spec"]["maxUnavailable"] for part in text.split("\n---\n")]
    assert budgets == [expected] * 4


def test_names_of_pods_are_in_the_certificates_of_roles() -> None:
    values = (*KAFKA_ENGINE, "tls.roles.enabled=true", "tls.roles.certManager=true", "tls.certManager.issuerRef.name=a")
    found = objects(rendered(*values, namespace="team"))
    for role in KEEPERS:
        workload = found[f"Deployment/queues-kshare-{role}"]
        assert f"name: KSHARE_ADVERTISED_SERVICE, value: queues-kshare-{role}.team.svc" in workload
        assert '"queues-kshare-coordinators.team.svc:9190"' in workload
        assert f'"*.queues-kshare-{role}.team.svc"' in found[f"Certificate/queues-kshare-{role}-roles"]
        assert "clusterIP: None" in found[f"Service/queues-kshare-{role}"]
    assert "- queues-kshare-coordinators.team.svc" in found["Certificate/queues-kshare-coordinator-roles"]
    assert "clusterIP" not in found["Service/queues-kshare-coordinators"]


# Probes


def test_a_gateway_that_waits_for_the_coordinator_is_not_killed() -> None:
    """Startup and liveness ask for the service that a gateway serves before it has started (test_waiting_gateway)."""
    text = rendered(template="gateway")
    for probe in ("startupProbe", "livenessProbe"):
        assert re.search(rf"{probe}:\n +grpc: {{port: 9191, service: liveness}}", text)
