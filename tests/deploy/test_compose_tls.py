"""deploy/compose/tls.yml: clients outside of the containers speak TLS with both gateways, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from support.clients.administration import read_from_earliest
from support.clusters.compose_stack import running_stack
from support.environment.certificates import Authority

pytestmark = pytest.mark.timeout(1_200)

FILES = ("docker-compose.yml", "deploy/compose/tls.yml")
RECORDS = 30
TIMEOUT_S = 60.0


def consumed(settings: dict[str, Any], group: str, topic: str) -> list[bytes]:
    consumer = ShareConsumer({**settings, "group.id": group})
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < RECORDS and time.monotonic() < deadline:
        found += [message.value() or b"" for message in consumer.poll(0.5) if message.error() is None]
    consumer.close()
    return sorted(found)


def test_clients_speak_tls_with_both_gateways(tmp_path: Path) -> None:
    authority = Authority("kshare")
    folder = authority.issue("localhost").write_directory(tmp_path / "server")
    for file in folder.iterdir():
        file.chmod(0o644)
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(each.stat().st_mode | 0o011)
    authority_file = str(authority.write(tmp_path / "ca.pem"))
    secured: dict[str, Any] = {"security.protocol": "ssl", "ssl.ca.location": authority_file}
    values = [f"value {number:02d}".encode() for number in range(RECORDS)]
    with running_stack(FILES, {"KSHARE_TLS": str(folder)}) as stack:
        first, second = ({**secured, "bootstrap.servers": bootstrap} for bootstrap in stack.bootstraps)
        admin = AdminClient(first)
        admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(TIMEOUT_S)
        read_from_earliest(stack.bootstraps[0], "workers", security_protocol="ssl", ssl_ca_location=authority_file)
        producer = Producer(second)
        for value in values:
            producer.produce("orders", value)
        assert producer.flush(TIMEOUT_S) == 0
        assert consumed(first, "workers", "orders") == values
        for bootstrap in stack.bootstraps:
            plain = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            with pytest.raises(KafkaException):
                plain.list_topics(timeout=3)
