"""The chart without a cluster: lint, what it renders for several sets of values, and which values it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.clusters.kubernetes import CHART, helm_environment, run

SNAPSHOTS = Path(__file__).parent / "snapshots"
REGISTRY = ("--set", "image.registry=kshare")
VALUES = {"defaults": None, **{path.stem: path for path in sorted((CHART / "ci").glob("*.yaml"))}}


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return helm_environment()


def arguments(name: str) -> list[str]:
    path = VALUES[name]
    return [*REGISTRY] if path is None else ["--values", str(path), *REGISTRY]


@pytest.mark.parametrize("name", VALUES)
def test_lint(environment: dict[str, str], name: str) -> None:
    assert "0 chart(s) failed" in run("helm", "lint", "--strict", str(CHART), *arguments(name), environment=environment)


@pytest.mark.parametrize("name", VALUES)
def test_what_is_rendered(environment: dict[str, str], name: str) -> None:
    """KSHARE_WRITE_SNAPSHOTS=1 writes what it is now; read the difference before it is committed."""
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", *arguments(name)]
    rendered = run(*command, environment=environment)
    path = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("KSHARE_WRITE_SNAPSHOTS"):
        path.write_text(rendered, encoding="utf-8")
    assert rendered == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("image.registry=", "image.registry is needed: there is no public registry with kshare's images yet"),
        ("gateway.external.type=perGateway", "gateway.external.host is needed"),
        (
            "gateway.external.type=perGateway,gateway.external.hosts={a}",
            "gateway.external.hosts has 1 hosts for 2 gateways",
        ),
        (
            "gateway.external.type=perGateway,gateway.external.host=h,gateway.external.perGatewayService=LoadBalancer",
            "or {ordinal} in gateway.external.host, is needed",
        ),
        (
            "gateway.external.type=nodePort,gateway.external.host=h,gateway.external.sourceRanges={10.0.0.0/8}",
            "gateway.external.sourceRanges needs a load balancer",
        ),
        (
            "gateway.external.type=nodePort,gateway.external.host=h,gateway.external.protocol=SASL_SSL",
            "gateway.external.protocol=SASL_SSL needs tls.enabled",
        ),
        ("gateway.external.host=$(reboot)", "does not match pattern"),
        ("leader.storage.retention.whenScaled=Keep", "value must be one of"),
        ("gateway.replica=2", "additional properties 'replica' not allowed"),
        ("gateway.replicas=0", "minimum"),
        ("gateway.external.type=ingress", "value must be one of"),
        ("gateway.external.type=nodePort", "gateway.external.host is needed"),
        ("coordinator.replicas=3", "needs metadata.store=etcd"),
        ("metadata.store=etcd", "metadata.etcd.endpoints is needed"),
        ("engine.type=redpanda", "value must be one of"),
        ("engine.type=kafka", "engine.kafka.bootstrapServers is needed"),
        ("metadata.store=kafka", "engine.kafka.bootstrapServers is needed"),
        ("engine.kafka.bootstrapServers=kafka", "does not match pattern"),
        ("engine.kafka.replicationFactor=0", "minimum"),
        ("engine.kafka.mode=mirror", "value must be one of"),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,engine.kafka.mode=proxy,"
            "gateway.external.type=perGateway,gateway.external.host=h",
            "needs another gateway.external.type than perGateway",
        ),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,engine.kafka.mode=proxy,tls.enabled=true,"
            "tls.secretName=a",
            "needs tls.plaintext=false",
        ),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,engine.kafka.mode=proxy,tls.enabled=true,"
            "tls.secretName=a,tls.plaintext=false,gateway.external.type=loadBalancer,gateway.external.host=h,"
            "gateway.external.port=9092",
            "ports for brokers would be 9093-9123",
        ),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,engine.kafka.mode=proxy,"
            "gateway.external.type=loadBalancer,gateway.external.host=h,gateway.external.port=9172",
            "but their pods use port 9191 otherwise",
        ),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,engine.kafka.mode=proxy,"
            "gateway.external.type=loadBalancer,gateway.external.host=h,gateway.external.port=65530",
            "65535 is the last port there is",
        ),
        (
            "engine.type=kafka,engine.kafka.bootstrapServers=k:9092,metadata.store=rocksdb",
            "metadata.store=rocksdb needs a volume",
        ),
        ("metadata.etcd.endpoints=nonsense", "does not match pattern"),
        ("leader.storage.size=much", "does not match pattern"),
        ("logs.level=loud", "value must be one of"),
        (f"fullnameOverride={35 * 'a'}", "maxLength: got 35, want 34"),
        ("tracing.ratio=2", "maximum"),
        ("autoscaling.shareCoordinator.by=cpu", "value must be one of"),
        ("autoscaling.shareCoordinator.targetWriteSeconds=0", "minimum"),
        ("autoscaling.workers[0].name=orders", "missing properties"),
        ("autoscaling.keda.prometheusAddress=prometheus:9090", "does not match pattern"),
        ("tls.enabled=true", "tls.secretName is needed with tls.enabled, or tls.certManager.enabled"),
        ("tls.enabled=true,tls.certManager.enabled=true", "tls.certManager.issuerRef.name is needed"),
        ("tls.roles.enabled=true", "tls.roles.secretName is needed with tls.roles.enabled, or tls.roles.certManager"),
        (r"config.authorizer\.class\.name=StandardAuthorizer", "authorizer.class.name needs tls.roles.enabled"),
        ("tls.roles.enabled=true,tls.roles.certManager=true", "tls.certManager.issuerRef.name is needed"),
        ("tls.clientAuth=maybe", "value must be one of"),
        ("tls.clientAuth=required", "tls.clientAuth has no effect without tls.enabled"),
        ("tls.certManager.enabled=true", "tls.certManager.enabled has no effect without tls.enabled"),
        ("tls.secretName=a", "tls.secretName has no effect without tls.enabled"),
        ("tls.plaintext=false", "tls.plaintext=false has no effect without tls.enabled"),
        ("tls.roles.secretName=a", "tls.roles.secretName has no effect without tls.roles.enabled"),
        ("tls.roles.certManager=true", "tls.roles.certManager has no effect without tls.roles.enabled"),
        ("tls.roles.job=true", "tls.roles.job has no effect without tls.roles.enabled"),
        ("engine.kafka.mode=proxy", "engine.kafka.mode=proxy has no effect without engine.type=kafka"),
        (
            "autoscaling.gateway.enabled=true,autoscaling.gateway.minReplicas=11",
            "autoscaling.gateway has minReplicas 11 above maxReplicas 10",
        ),
        *(
            (
                f"autoscaling.shareCoordinator.by={by},autoscaling.shareCoordinator.maxReplicas=1",
                "autoscaling.shareCoordinator has minReplicas 2 above maxReplicas 1",
            )
            for by in ("hpa", "keda")
        ),
        (
            "autoscaling.workers[0].name=a,autoscaling.workers[0].target.name=w,autoscaling.workers[0].group=g,"
            "autoscaling.workers[0].recordsPerWorker=1,autoscaling.workers[0].minReplicas=3,"
            "autoscaling.workers[0].maxReplicas=2",
            "autoscaling.workers: a has minReplicas 3 above maxReplicas 2",
        ),
        ("podDisruptionBudget.maxUnavailable=one", "does not match pattern"),
        ("podDisruptionBudget.maxUnavailable=101%", "does not match pattern"),
        ("podDisruptionBudget.maxUnavailable=-1", "minimum"),
        ("tls.certManager.renewBefore=soon", "does not match pattern"),
        ("tls.secretname=a", "additional properties 'secretname' not allowed"),
        ("pipeline.retentionDays=0", "minimum"),
        ("console.enabled=true,console.admin=true", "console.admin needs console.clientConfigSecret"),
        ("console.enabled=true,tls.enabled=true,tls.secretName=a,tls.plaintext=false", "console.bootstrapServers is"),
        ("console.service.port=0", "minimum"),
        ("pipeline.config.group\\.id=x", "does not match pattern"),
        (
            "pipeline.enabled=true,tls.enabled=true,tls.plaintext=false,tls.secretName=a",
            "pipeline.bootstrapServers is needed without tls.plaintext",
        ),
    ],
)
def test_values_that_are_refused(environment: dict[str, str], value: str, problem: str) -> None:
    command = ["helm", "template", "queues", str(CHART), "--kube-version", "1.36.3", *REGISTRY, "--set", value]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert problem in result.stderr
