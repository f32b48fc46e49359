"""The metrics of a running cluster, scraped while confluent-kafka clients work: equal to what was done."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition

from kshare.commands.metrics import description
from support.clients.administration import alter_group
from support.clients.delivery import Reader, new_topic, set_group
from support.clusters.kshare_cluster import KshareCluster
from support.servicekit.scraped import Scraped, scrape

TOPIC, GROUP = "jobs", "workers"
PARTITIONS = 2
RECORDS = 200
WITHIN_S = 30.0
SHARE = {"group": GROUP, "topic": TOPIC}
ROLES = ("coordinator", "share-coordinator", "leader", "gateway")


class Scrapes:
    """The processes of a cluster by role; a single process has one address for all."""

    def __init__(self, cluster: KshareCluster) -> None:
        found = re.findall(r"metrics of ([a-z -]+): http://([0-9.:]+)/metrics", cluster.log_text())
        self.addresses = dict(found)

    def of(self, role: str) -> Scraped:
        return scrape(self.addresses.get(role) or self.addresses["all roles"])


def test_values_are_what_was_done(tmp_path: Path) -> None:
    with cluster_with_metrics(tmp_path, single_process=False) as (cluster, scrapes):
        assert set(scrapes.addresses) == set(ROLES)
        check(cluster, scrapes, {})


def test_values_are_what_was_done_in_a_single_process(tmp_path: Path) -> None:
    with cluster_with_metrics(tmp_path, single_process=True) as (cluster, scrapes):
        assert set(scrapes.addresses) == {"all roles"}
        check(cluster, scrapes, {"node_id": "1"})
        found = scrapes.of("leader")
        assert {found.value("node_healthy", role=role, node_id="1") for role in ROLES} == {1}


@contextmanager
def cluster_with_metrics(folder: Path, *, single_process: bool) -> Iterator[tuple[KshareCluster, Scrapes]]:
    options = ["--metrics-listen", "127.0.0.1:0"]
    with KshareCluster(folder, single_process=single_process, options=options) as cluster:
        yield cluster, Scrapes(cluster)


def check(cluster: KshareCluster, scrapes: Scrapes, labels: dict[str, str]) -> None:
    produce(cluster.bootstrap)
    done = consume(cluster.bootstrap)
    assert sum(done.values()) == RECORDS + done[AcknowledgeType.RELEASE]
    accepted, rejected = done[AcknowledgeType.ACCEPT], done[AcknowledgeType.REJECT]
    found = until(lambda: scrapes.of("leader"), lambda found: found.total("leader_share_lag_records", **SHARE) == 0)
    check_leader(found, accepted, rejected, done[AcknowledgeType.RELEASE])
    if cluster.upstream is None:
        check_logs(found)
    check_gateway(scrapes.of("gateway"), labels)
    check_coordinators(scrapes, labels)
    if cluster.upstream is None:
        assert scrapes.of("share-coordinator").value("share_coordinator_damaged_families", **labels) == 0
    for role in ROLES:
        check_described(scrapes.of(role), labels)


def check_leader(found: Scraped, accepted: int, rejected: int, released: int) -> None:
    acknowledged = "leader_share_acknowledged_records_total"
    assert found.total(acknowledged, **SHARE, type="accept") == accepted
    assert found.total(acknowledged, **SHARE, type="reject") == rejected
    assert found.total(acknowledged, **SHARE, type="release") == released
    assert found.total("leader_share_acquired_records_total", **SHARE) == RECORDS + released
    assert found.total("leader_share_archived_records_total", **SHARE, reason="rejected") == rejected
    assert found.total("leader_share_archived_records_total", **SHARE, reason="delivery_limit") == 0
    assert found.total("leader_share_delivery_count_bucket", **SHARE, le="1.0") == RECORDS
    assert found.total("leader_share_delivery_count_count", **SHARE) == RECORDS + released
    assert found.total("leader_topic_partitions", topic=TOPIC) == PARTITIONS
    assert found.total("leader_topic_records_out_total", topic=TOPIC, call="share_fetch") == RECORDS + released
    assert found.total("leader_share_in_flight_records", **SHARE) == 0


def check_logs(found: Scraped) -> None:
    """Of a leader that stores records."""
    assert found.total("leader_share_append_to_accept_seconds_count", **SHARE) > 0
    assert found.total("leader_topic_records_in_total", topic=TOPIC) == RECORDS
    assert found.total("leader_topic_log_bytes", topic=TOPIC) == found.total("leader_topic_bytes_in_total", topic=TOPIC)
    assert found.total("leader_log_write_duration_seconds_count") > 0
    assert found.total("leader_rocksdb_memtable_bytes") > 0


def check_gateway(found: Scraped, labels: dict[str, str]) -> None:
    requests = "gateway_request_duration_seconds_count"
    assert found.total(requests, api="ShareFetch") > 0
    assert found.total(requests, api="ShareAcknowledge") > 0
    assert found.total(requests, api="CreateTopics") == 1
    assert found.total("gateway_received_bytes_total") > RECORDS
    assert found.value("gateway_connections_refused_total", **labels) == 0
    assert found.total("rpc_client_call_duration_seconds_count", service="Leader", method="ShareFetch") > 0
    assert found.total("event_loop_lag_seconds_count") > 0


def check_coordinators(scrapes: Scrapes, labels: dict[str, str]) -> None:
    found = scrapes.of("coordinator")
    assert found.value("coordinator_topics", **labels) == 1
    assert found.value("coordinator_partitions", **labels) == PARTITIONS
    assert found.value("coordinator_partitions_without_leader", **labels) == 0
    assert found.value("coordinator_state_partitions_without_owner", **labels) == 0
    assert found.total("coordinator_groups", type="share") == 1
    assert found.total("coordinator_heartbeats_total", type="share") > 0
    assert found.value("coordinator_nodes", role="gateway", **labels) == 1
    found = scrapes.of("share-coordinator")
    operations = "share_coordinator_operations_total"
    assert found.value(operations, operation="initialize", error="NONE", **labels) == PARTITIONS
    writes = found.value(operations, operation="write", error="NONE", **labels)
    assert 0 < writes <= found.total("share_coordinator_state_records_total")
    assert found.total("share_coordinator_state_append_bytes_total") > 0


def check_described(found: Scraped, labels: dict[str, str]) -> None:
    """Whatever is shown is in the document, with its type and labels."""
    rows = re.findall(r"^\| `kshare_(\w+)` \| (\w+) \| ([^|]+) \|", description(), re.MULTILINE)
    described = {name: (kind, set(names.strip().split(", ")) - {"none"}) for name, kind, names in rows}
    for name, kind in found.families.items():
        if name.startswith("kshare_"):
            short = name.removeprefix("kshare_") + ("_total" if kind == "counter" else "")
            assert short in described, f"{name} is not described"
            assert described[short][0] == kind
    for name, has in found.samples:
        short = re.sub(r"_(bucket|sum|count)$", "", name.removeprefix("kshare_"))
        if name.startswith("kshare_") and short in described:
            assert {label for label, _ in has} - {"le"} - set(labels) <= described[short][1], name
    assert found.total("metrics_read_failures_total") == 0


def produce(bootstrap: str) -> None:
    new_topic(bootstrap, PARTITIONS, name=TOPIC)
    set_group(bootstrap, GROUP, auto_offset_reset="earliest")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(TOPIC, value=str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def consume(bootstrap: str) -> dict[AcknowledgeType, int]:
    """Rejects each tenth record, releases each seventh once, accepts the others; how many of each were confirmed."""
    done = dict.fromkeys((AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT), 0)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + 60
    while done[AcknowledgeType.ACCEPT] + done[AcknowledgeType.REJECT] < RECORDS:
        assert time.monotonic() < deadline, f"only {done} so far"
        for message in consumer.poll(1.0):
            kind = wanted(int(message.value() or 0), message.delivery_count() or 1)
            consumer.acknowledge(message, kind)
            done[kind] += 1
        for partition, error in consumer.commit_sync().items():
            assert error is None, f"{partition}: {error}"
    consumer.close()
    return done


def wanted(number: int, delivery_count: int) -> AcknowledgeType:
    if number % 10 == 0:
        return AcknowledgeType.REJECT
    if number % 7 == 0 and delivery_count == 1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


def until(look: Callable[[], Scraped], is_there: Callable[[Scraped], bool]) -> Scraped:
    deadline = time.monotonic() + WITHIN_S
    while True:
        found = look()
        if is_there(found):
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"it did not come to pass: {found.samples}")
        time.sleep(0.2)


def test_transactions_commits_and_dead_letters(tmp_path: Path) -> None:
    with cluster_with_metrics(tmp_path, single_process=False) as (cluster, scrapes):
        bootstrap = cluster.bootstrap
        new_topic(bootstrap, 1, name=TOPIC)
        run_transactions(bootstrap, committed=3, aborted=2)
        if cluster.upstream is None:
            commit_offset(bootstrap)
            check_transactions(scrapes)
        letters = f"dlq.{TOPIC}"
        new_topic(bootstrap, 1, name=letters, errors_deadletterqueue_group_enable="true")
        alter_group(
            bootstrap,
            GROUP,
            {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": letters},
        )
        with Reader(bootstrap, GROUP, TOPIC) as reader:
            rejected = len(reader.take())
            reader.settle(AcknowledgeType.REJECT)
            stored = "leader_share_dead_letters_total"
            found = until(lambda: scrapes.of("leader"), lambda found: found.total(stored, **SHARE) == rejected)
            assert found.total("leader_share_archived_records_total", **SHARE, reason="rejected") == rejected
            assert found.total("leader_share_dead_letters_given_up_total", **SHARE) == 0
            if cluster.upstream is None:
                assert found.total("leader_topic_records_in_total", topic=letters) == rejected


def check_transactions(scrapes: Scrapes) -> None:
    """Of a coordinator that has transactions and committed offsets."""
    ended = "coordinator_transactions_ended_total"
    found = until(lambda: scrapes.of("coordinator"), lambda found: found.total(ended) == 5)
    assert found.value(ended, outcome="commit") == 3
    assert found.value(ended, outcome="abort") == 2
    assert found.total("coordinator_transactions") == 1
    assert found.value("coordinator_committed_offsets_total") == 1
    assert found.value("coordinator_groups", type="classic", state="Empty") == 1


def run_transactions(bootstrap: str, *, committed: int, aborted: int) -> None:
    """One record each."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "log_level": 0})
    producer.init_transactions(30)
    for number in range(committed + aborted):
        producer.begin_transaction()
        producer.produce(TOPIC, value=str(number))
        assert producer.flush(30) == 0
        if number < committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def commit_offset(bootstrap: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "by-hand", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    consumer.close()
