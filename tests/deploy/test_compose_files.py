"""What the compose files say together, as `docker compose config` resolves it; nothing is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kshare_servicekit.properties import parse_properties
from support.clients.delivery import wait_for
from support.environment.docker import docker, docker_environment
from support.environment.prometheus import Prometheus

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("coordinator", "share-coordinator", "leader", "gateway", "pipeline", "console")
ATTACHED = "attached-"
KEEPERS = ("coordinator", "coordinator-2", "share-coordinator", "leader")
OVERLAYS = {"alone": (), "etcd": ("deploy/compose/etcd.yml",), "tls": ("deploy/compose/tls.yml",)}

pytestmark = pytest.mark.timeout(1_200)


def resolved(*overlays: str) -> dict[str, Any]:
    files = [word for file in ("docker-compose.yml", *overlays) for word in ("--file", file)]
    environment = {**docker_environment(), "KSHARE_TLS": "/tmp"}
    everything = ("--profile", "pipeline", "--profile", "console", "--profile", "kafka", "config", "--format", "json")
    found: dict[str, Any] = json.loads(docker("compose", *files, *everything, environment=environment))
    return found


def test_prometheus_looks_for_every_role() -> None:
    services = resolved("deploy/compose/etcd.yml")["services"]
    roles = [name for name in services if name.removeprefix(ATTACHED).rstrip("-0123456789") in ROLES]
    names = re.search(r"names: \[(.*)\]", (ROOT / "deploy/compose/prometheus.yml").read_text())
    assert names is not None
    assert sorted(names[1].split(", ")) == sorted(roles)


def test_prometheus_tells_the_cluster_in_front_of_a_kafka_apart(tmp_path: Path) -> None:
    """The relabelling of the file, on targets with the names that DNS has for them; nothing listens there."""
    (job,) = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())["scrape_configs"]
    names = ["coordinator", "coordinator-2", "attached-coordinator", "attached-leader"]
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"__meta_dns_name": name}}
        for port, name in enumerate(names, start=1)
    ]
    jobs = [{"job_name": "kshare", "static_configs": targets, "relabel_configs": job["relabel_configs"]}]
    with Prometheus(tmp_path / "prometheus", jobs=jobs) as prometheus:
        wait_for(lambda: len(prometheus.query("up")) == len(names), "all are scraped")
        found = {labels["component"]: labels["release"] for labels, _ in prometheus.query("up")}
    assert found == {name: "attached" if name.startswith(ATTACHED) else "kshare" for name in names}


def test_ports_are_published_on_this_machine_only() -> None:
    """By default; the file is read without Docker."""
    text = (ROOT / "docker-compose.yml").read_text()

    def addresses(**variables: str) -> dict[str, str]:
        filled = re.sub(r"\$\{(\w+):?-([^}]*)\}", lambda found: variables.get(found[1], found[2]), text)
        services = yaml.safe_load(filled)["services"]
        return {name: port.split(":")[-3] for name, service in services.items() for port in service.get("ports", ())}

    found = addresses()
    assert set(found.values()) == {"127.0.0.1"}
    assert {"gateway-1", "gateway-2", "attached-gateway", "kafka", "prometheus", "grafana", "jaeger"} <= found.keys()
    wide = addresses(KSHARE_PUBLISH_ADDRESS="0.0.0.0", OBSERVABILITY_PUBLISH_ADDRESS="10.0.0.1")
    assert {wide[name] for name in ("gateway-1", "gateway-2", "attached-gateway", "kafka")} == {"0.0.0.0"}
    assert {wide[name] for name in ("prometheus", "grafana", "jaeger")} == {"10.0.0.1"}
    assert wide["console"] == "127.0.0.1", "users do not sign in there"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_roles_keep_is_on_named_volumes(overlay: str) -> None:
    found = resolved(*OVERLAYS[overlay])
    for name in KEEPERS:
        if name not in found["services"]:
            continue
        service = found["services"][name]
        (data,) = [mount for mount in service["volumes"] if mount["target"] == "/var/lib/kshare"]
        assert data["type"] == "volume" and data["source"] in found["volumes"], name
        shares = service["environment"].get("KSHARE_SHARED_VOLUME") == "/var/lib/kshare"
        assert shares is ("scale" in service), f"{name}: replicas of one service share a volume"


def test_roles_in_front_of_a_kafka_keep_nothing() -> None:
    """Their images have a volume, which a file system in memory replaces."""
    services = resolved()["services"]
    attached = {name: service for name, service in services.items() if name.startswith(ATTACHED)}
    assert len(attached) == 4
    for name, service in attached.items():
        assert service["profiles"] == ["kafka"]
        assert [mount["type"] for mount in service["volumes"]] == ["bind"], name
        assert "/var/lib/kshare" in service["tmpfs"], name
        assert service["environment"]["KSHARE_NODE_ID"] == "address"


def test_every_role_of_two_coordinators_knows_both_and_has_the_same_configs() -> None:
    """deploy/compose/etcd.yml over docker-compose.yml; the files are read without Docker."""
    alone, etcd = (
        yaml.safe_load((ROOT / name).read_text())["services"]
        for name in ("docker-compose.yml", "deploy/compose/etcd.yml")
    )
    callers = {
        name: variable
        for name, service in alone.items()
        for variable in ("KSHARE_COORDINATOR_ADDRESS", "KSHARE_COORDINATOR")
        if (service.get("environment") or {}).get(variable) == "coordinator:9190"
    }
    assert {"coordinator", "gateway-1", "console", "kshare"} <= callers.keys()
    for name, variable in callers.items():
        assert etcd[name]["environment"][variable] == "coordinator:9190,coordinator-2:9190", name
        if variable == "KSHARE_COORDINATOR_ADDRESS":
            target = "/etc/kshare/kshare.properties"
            assert f"./deploy/compose/kshare-etcd.properties:{target}:ro" in etcd[name]["volumes"], name
    one, several = (
        parse_properties((ROOT / "deploy/compose" / name).read_text())
        for name in ("kshare.properties", "kshare-etcd.properties")
    )
    assert one.items() <= several.items(), "the file of several coordinators replaces that of one"
    assert several.keys() - one.keys() == {"kshare.metadata.store", "kshare.metadata.etcd.endpoints"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_gateway_has_a_listener_for_other_containers(overlay: str) -> None:
    services = resolved(*OVERLAYS[overlay])["services"]
    for name in ("gateway-1", "gateway-2"):
        environment = services[name]["environment"]
        assert "INTERNAL://0.0.0.0:19092" in environment["KSHARE_LISTENERS"].split(",")
        assert f"INTERNAL://{name}:19092" in environment["KSHARE_ADVERTISED_LISTENERS"].split(",")
        assert "KSHARE_ADVERTISED_PORT" not in environment
