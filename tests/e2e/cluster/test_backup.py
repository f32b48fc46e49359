"""A backup of a cluster that serves, and a new cluster made of it, which is reached by IPv6.

The share group goes on as of the backup: what was confirmed before is not delivered again, and what was not is. A
coordinator that alone is restored is older than the leader, which loses no record by that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient

from kshare.backup.create import create_backup
from kshare.backup.restore import restore_backup
from kshare.failure import CommandFailed
from support.clients.administration import create_topic, read_from_earliest
from support.clients.workload import produce_numbered
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import KshareCluster

RECORDS = 20
CONFIRMED_BEFORE = 12
POLLS = 60


def worker(bootstrap: str) -> ShareConsumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer(settings)
    consumer.subscribe(["orders"])
    return consumer


def taken(consumer: ShareConsumer) -> dict[int, Message]:
    """The records of the next poll that has some, by number."""
    for _ in range(POLLS):
        found: dict[int, Message] = {}
        for message in consumer.poll(1.0):
            value = message.value()
            assert message.error() is None and value is not None, message.error()
            found[int(value[:12])] = message
        if found:
            return found
    raise AssertionError("no records came")


def accept(consumer: ShareConsumer, records: dict[int, Message], numbers: range) -> None:
    for number in numbers:
        consumer.acknowledge(records[number], AcknowledgeType.ACCEPT)
    consumer.commit_sync(30.0)


def test_a_share_group_goes_on_as_of_the_backup(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    unconfirmed = range(CONFIRMED_BEFORE, RECORDS)
    with KshareCluster(tmp_path / "old", single_process=True, engine=TestEngine.EMBEDDED) as old:
        create_topic(old.bootstrap, "orders", 1)
        read_from_earliest(old.bootstrap, "workers")
        produce_numbered(old.bootstrap, "orders", range(RECORDS), 1)
        consumer = worker(old.bootstrap)
        records = taken(consumer)
        assert sorted(records) == [*range(RECORDS)]
        accept(consumer, records, range(CONFIRMED_BEFORE))
        manifest = create_backup(old.data_dir, backup, print)
        assert manifest.was_running
        assert [store.name for store in manifest.stores] == ["coordinator", "share-coordinator", "leader"]
        accept(consumer, records, unconfirmed)  # after the backup, which does not know it
        consumer.close()
        cluster_id = AdminClient({"bootstrap.servers": old.bootstrap}).list_topics(timeout=10).cluster_id
        with pytest.raises(CommandFailed, match="is in use by another kshare up"):
            restore_backup(backup, old.data_dir, only=(), cluster_id=None, dry_run=False, show=print)

    new = KshareCluster(tmp_path / "new", single_process=True, engine=TestEngine.EMBEDDED, host="[::1]")
    restore_backup(backup, new.data_dir, only=(), cluster_id=cluster_id, dry_run=False, show=print)
    with new:
        metadata = AdminClient({"bootstrap.servers": new.bootstrap}).list_topics(timeout=10)
        assert [f"[{broker.host}]:{broker.port}" for broker in metadata.brokers.values()] == [new.bootstrap]
        assert metadata.cluster_id == cluster_id
        consumer = worker(new.bootstrap)
        records = taken(consumer)
        assert sorted(records) == [*unconfirmed]
        assert {record.delivery_count() for record in records.values()} <= {1, 2}
        accept(consumer, records, unconfirmed)
        produce_numbered(new.bootstrap, "orders", range(RECORDS, RECORDS + 1), 1)
        records = taken(consumer)
        assert sorted(records) == [RECORDS], "a new record follows, and nothing else comes again"
        accept(consumer, records, range(RECORDS, RECORDS + 1))
        consumer.close()


def produce_as_new_producer(bootstrap: str, topic: str, value: str, transactional_id: str = "") -> None:
    """Produces one record, which is confirmed, by an idempotent or a transactional producer."""
    failures: list[object] = []
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    if transactional_id:
        settings["transactional.id"] = transactional_id
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions(30.0)
        producer.begin_transaction()
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: failures.append(error))
    if transactional_id:
        producer.commit_transaction(30.0)
    assert producer.flush(30.0) == 0 and failures == [None]


def stored_values(bootstrap: str, topic: str) -> list[str]:
    """The values of all records of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    for _ in range(POLLS):
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            break
        value = message.value()
        assert value is not None
        found.append(value.decode())
    consumer.close()
    return found


def restore_coordinator(cluster: KshareCluster, backup: Path) -> None:
    shutil.rmtree(cluster.data_dir / "coordinator")
    restore_backup(backup, cluster.data_dir, only=("coordinator",), cluster_id=None, dry_run=False, show=print)


def test_records_of_new_producers_are_stored_after_the_coordinator_alone_was_restored(tmp_path: Path) -> None:
    """The restored coordinator would give producer ids that the leader knows, and records would be duplicates to it."""
    backup = tmp_path / "backup"
    cluster = KshareCluster(tmp_path / "cluster", single_process=True, engine=TestEngine.EMBEDDED)
    with cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        create_backup(cluster.data_dir, backup, print)
        produce_as_new_producer(cluster.bootstrap, "orders", "idempotent")
        produce_as_new_producer(cluster.bootstrap, "orders", "transactional", "shop")
    restore_coordinator(cluster, backup)
    with cluster:
        for number in range(3):
            produce_as_new_producer(cluster.bootstrap, "orders", f"new {number}")
        found = stored_values(cluster.bootstrap, "orders")
    assert found == ["idempotent", "transactional", "new 0", "new 1", "new 2"]


def test_a_topic_that_a_restored_coordinator_does_not_know_is_kept_until_it_is_known_again(tmp_path: Path) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    cluster = KshareCluster(tmp_path / "cluster", single_process=True, engine=TestEngine.EMBEDDED)
    with cluster:
        create_topic(cluster.bootstrap, "orders", 1)
        create_backup(cluster.data_dir, older, print)
        create_topic(cluster.bootstrap, "payments", 1)
        produce_as_new_producer(cluster.bootstrap, "payments", "confirmed")
        create_backup(cluster.data_dir, newer, print)
    restore_coordinator(cluster, older)
    with cluster:
        assert "payments" not in AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10).topics
        cluster.wait_for_log("kshare.stray.topics.delete=")
        create_topic(cluster.bootstrap, "refunds", 1)
    restore_coordinator(cluster, newer)
    with cluster:
        assert stored_values(cluster.bootstrap, "payments") == ["confirmed"]
