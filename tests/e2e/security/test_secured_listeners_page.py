"""docs/secured-listeners.md: with its configuration, its commands let a first user read with its client settings."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from confluent_kafka import ShareConsumer

from kshare_servicekit.properties import parse_properties
from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import produce
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
from support.environment.certificates import Authority
from support.environment.free_ports import free_port
from support.kafka.tools import ToolRuns

PAGE = Path(__file__).resolve().parents[3] / "docs/secured-listeners.md"
OPEN, SECURED, KEYSTORE = "127.0.0.1:9092", "kafka.example.com:9093", "/etc/kshare/server.pem"
LIMIT_S = 60


def blocks() -> list[list[str]]:
    """The indented blocks of the section "SASL and ACLs": configuration, commands, settings of a client."""
    text = PAGE.read_text()
    section = text[text.index("## SASL and ACLs") : text.index("## Between the roles")]
    return [[line.strip() for line in each.splitlines()] for each in section.split("\n\n") if each.startswith("    ")]


def test_a_first_user_reads_after_the_commands_of_the_page(tmp_path: Path) -> None:
    configuration, commands, client = blocks()
    authority = Authority("kshare")
    keystore = authority.issue("server").write_combined(tmp_path / "server.pem")
    open_port, secured_port = free_port(), free_port()
    replaced = {OPEN: f"127.0.0.1:{open_port}", SECURED: f"127.0.0.1:{secured_port}", KEYSTORE: str(keystore)}
    replaced |= {"0.0.0.0:9093": f"0.0.0.0:{secured_port}"}
    text = "\n".join(configuration)
    for written, other in replaced.items():
        assert written in text
        text = text.replace(written, other)
    settings = {
        **parse_properties("\n".join(client)),
        "bootstrap.servers": replaced[SECURED],
        "ssl.ca.location": str(authority.write(tmp_path / "ca.pem")),
    }
    folder = tmp_path / "kshare"
    with KshareCluster(
        folder, parse_properties(text), port=open_port, single_process=True, engine=TestEngine.EMBEDDED
    ) as cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        read_from_earliest(cluster.bootstrap, "billing")
        produce(cluster.bootstrap, "orders", ["first order"])
        tools = ToolRuns(cluster.bootstrap)
        try:
            for line in commands:
                program, *arguments = shlex.split(line)
                assert arguments[:2] == ["--bootstrap-server", OPEN]
                tools.text(program.removesuffix(".sh"), *arguments[2:])
        finally:
            tools.close()
        consumer = ShareConsumer({**settings, "group.id": "billing"})
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + LIMIT_S
        found: Any = []
        while not found:
            assert time.monotonic() < deadline, "alice got no record"
            found = consumer.poll(1.0)
        assert found[0].value() == b"first order"
        consumer.close()
