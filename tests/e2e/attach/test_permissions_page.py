"""docs/existing-clusters.md: the ACLs that its lines give to kshare's user suffice, also for dead letters."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.existing_cluster import ExistingCluster
from support.kafka.tools import ToolRuns

PAGE = Path(__file__).resolve().parents[3] / "docs/existing-clusters.md"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = 'username="admin" password="admin-s3cret" user_admin="admin-s3cret" user_kshare="kshare-s3cret"'
GUARDED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.name.plaintext.plain.sasl.jaas.config": f"{JAAS} {USERS};",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}
"""The name of the brokers' listener is given, since their protocol of transactions would be PLAINTEXT otherwise."""
LIMIT_S = 60


def acl_lines() -> list[str]:
    return [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    kafka-acls.sh ")]


def test_the_rights_of_the_page_suffice_for_deliveries_and_dead_letters(tmp_path: Path) -> None:
    with ExistingCluster(tmp_path / "kafka", settings=GUARDED) as kafka:
        file = tmp_path / "admin.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={JAAS} username="admin" password="admin-s3cret";\n'
        )
        tools = ToolRuns(kafka.bootstrap)
        try:
            for line in acl_lines():
                program, *arguments = shlex.split(line)
                assert arguments[:2] == ["--bootstrap-server", "broker:9092"]
                tools.text(program.removesuffix(".sh"), *arguments[2:], "--command-config", str(file))
        finally:
            tools.close()
        settings = {
            "kshare.engine": "kafka",
            "kshare.metadata.store": "kafka",
            "kshare.upstream.bootstrap.servers": kafka.bootstrap,
            "kshare.upstream.security.protocol": "SASL_PLAINTEXT",
            "kshare.upstream.sasl.mechanism": "PLAIN",
            "kshare.upstream.sasl.jaas.config": f'{JAAS} username="kshare" password="kshare-s3cret";',
        }
        with KshareCluster(tmp_path / "kshare", settings, single_process=True, engine=TestEngine.EMBEDDED) as kshare:
            assert dead_letter(kafka.bootstrap, kshare.bootstrap) == b"poison"


def as_admin(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": "admin-s3cret",
    }


def dead_letter(kafka: str, kshare: str) -> bytes | None:
    """The value of the dead letter of a record that a share consumer rejects."""
    admin = AdminClient(as_admin(kafka))
    for created in admin.create_topics([NewTopic("orders", 1, 1), NewTopic("dlq.billing", 1, 1)]).values():
        created.result(LIMIT_S)
    configs = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.billing",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    group = ConfigResource(ConfigResource.Type.GROUP, "billing", incremental_configs=entries)
    through = AdminClient(as_admin(kshare))
    for altered in through.incremental_alter_configs([group]).values():
        altered.result(LIMIT_S)
    producer = Producer(as_admin(kafka))
    producer.produce("orders", b"poison")
    assert producer.flush(LIMIT_S) == 0
    worker = ShareConsumer({**as_admin(kshare), "group.id": "billing", "share.acknowledgement.mode": "explicit"})
    worker.subscribe(["orders"])
    deadline = time.monotonic() + LIMIT_S
    found: Any = []
    while not found:
        assert time.monotonic() < deadline, "no record came"
        found = worker.poll(1.0)
    worker.acknowledge(found[0], AcknowledgeType.REJECT)
    worker.commit_sync(30.0)
    worker.close()
    reader = Consumer({**as_admin(kafka), "group.id": "reader", "auto.offset.reset": "earliest"})
    reader.subscribe(["dlq.billing"])
    try:
        while (letter := reader.poll(1.0)) is None or letter.error() is not None:
            assert time.monotonic() < deadline, "no dead letter came"
        value: bytes | None = letter.value()
        return value
    finally:
        reader.close()
