"""`kshare attach` in front of Apache Kafka 3.9.1: producers write to the cluster, share consumers connect to kshare."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewPartitions

from support.clients.administration import create_topic, read_from_earliest, wait_until_known
from support.clusters.engines import TestEngine
from support.clusters.kshare_cluster import COMMAND, KshareCluster
from support.environment.free_ports import free_port

TIMEOUT_S = 60
LOCK_MS = 3_000
SETTINGS = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "5",
}
REFUSED = 1
BAD_USE = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    folder = tmp_path_factory.mktemp("attached")
    with KshareCluster(folder, SETTINGS, engine=TestEngine.KAFKA_SHARE) as started:
        yield started


@pytest.fixture
def topic(cluster: KshareCluster) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.records_bootstrap, name, 2)
    return name


@pytest.fixture
def group(cluster: KshareCluster) -> str:
    name = f"group-{uuid.uuid4().hex[:8]}"
    read_from_earliest(cluster.bootstrap, name)
    return name


def produce(cluster: KshareCluster, topic: str, values: Sequence[str], partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": cluster.records_bootstrap})
    errors: list[Any] = []

    def confirmed(error: Any, _: Any) -> None:
        errors.extend([error] if error is not None else [])

    for index, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=index % partitions, on_delivery=confirmed)
    assert producer.flush(TIMEOUT_S) == 0 and not errors


class Worker:
    """A share consumer; `closing` is its context manager. Each record is acknowledged as its value says."""

    def __init__(self, cluster: KshareCluster, group: str, topic: str) -> None:
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._consumer.subscribe([topic])
        self.deliveries: dict[str, list[int]] = {}
        """The delivery counts of each value."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def work_until(self, is_done: Callable[[dict[str, list[int]]], bool], *, commit: bool = True) -> None:
        """Polls, acknowledges and commits until `is_done`; without `commit` it holds what it gets."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_done(self.deliveries):
            assert time.monotonic() < deadline, self.deliveries
            polled: Any = self._consumer.poll(0.5)
            for message in polled:
                assert message.error() is None, message.error()
                value = message.value().decode()
                self.deliveries.setdefault(value, []).append(message.delivery_count())
                if commit:
                    self._consumer.acknowledge(message, acknowledgement(value))
            if commit:
                assert all(error is None for error in self._consumer.commit_sync(TIMEOUT_S).values())

    def gets_nothing(self) -> None:
        assert list(self._consumer.poll(1.0)) == []


def acknowledgement(value: str) -> AcknowledgeType:
    kinds = {"release": AcknowledgeType.RELEASE, "reject": AcknowledgeType.REJECT}
    return kinds.get(value.split("-")[0], AcknowledgeType.ACCEPT)


def all_of(values: Sequence[str]) -> Callable[[dict[str, list[int]]], bool]:
    return lambda deliveries: set(values) <= set(deliveries)


def test_accepted_released_and_rejected_records(cluster: KshareCluster, topic: str, group: str) -> None:
    values = [f"{kind}-{number}" for number in range(20) for kind in ("accept", "release", "reject")]
    produce(cluster, topic, values)
    released = [value for value in values if value.startswith("release")]
    with Worker(cluster, group, topic) as worker:
        worker.work_until(lambda deliveries: all(len(deliveries.get(value, [])) == 5 for value in released))
        worker.gets_nothing()
        assert worker.deliveries == {value: [1, 2, 3, 4, 5] if value in released else [1] for value in values}
    produce(cluster, topic, ["accept-last"])
    with Worker(cluster, group, topic) as worker:
        worker.work_until(all_of(["accept-last"]))
        assert worker.deliveries == {"accept-last": [1]}, "what was accepted does not come back"


def test_records_whose_lock_timed_out_come_again(cluster: KshareCluster, group: str) -> None:
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.records_bootstrap, topic, 1)  # of more, each member would have one for itself
    produce(cluster, topic, ["held"], partitions=1)
    with Worker(cluster, group, topic) as holder, Worker(cluster, group, topic) as other:
        holder.work_until(all_of(["held"]), commit=False)
        acquired_at = time.monotonic()
        other.work_until(all_of(["held"]))
        assert other.deliveries == {"held": [2]}
        assert time.monotonic() - acquired_at > LOCK_MS / 1000 / 2


def test_a_new_attach_goes_on_where_the_last_one_ended(cluster: KshareCluster, topic: str, group: str) -> None:
    values = [f"accept-{number}" for number in range(40)]
    produce(cluster, topic, values)
    with Worker(cluster, group, topic) as worker:
        worker.work_until(lambda deliveries: len(deliveries) >= 10)
        done = list(worker.deliveries)
    assert cluster.stop() == 0
    produce(cluster, topic, ["accept-meanwhile"])
    cluster.start()
    left = [value for value in [*values, "accept-meanwhile"] if value not in done]
    with Worker(cluster, group, topic) as worker:
        worker.work_until(all_of(left))
        worker.gets_nothing()
        assert sorted(worker.deliveries) == sorted(left), "what was accepted before does not come back"


def test_a_topic_that_is_made_after_the_subscription(cluster: KshareCluster, group: str) -> None:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    with Worker(cluster, group, name) as worker:
        worker.gets_nothing()
        create_topic(cluster.records_bootstrap, name, 2)
        produce(cluster, name, ["accept-1", "accept-2"])
        worker.work_until(all_of(["accept-1", "accept-2"]))


def test_partitions_that_are_added_are_read_from_their_first_record(
    cluster: KshareCluster, topic: str, group: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.records_bootstrap})
    with Worker(cluster, group, topic) as worker:
        produce(cluster, topic, ["accept-old"])
        worker.work_until(all_of(["accept-old"]))
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
        wait_until_known(cluster.records_bootstrap, topic, 4)
        values = [f"accept-{number}" for number in range(8)]
        produce(cluster, topic, values, partitions=4)
        worker.work_until(all_of(values))
        assert all(counts == [1] for counts in worker.deliveries.values())


def test_a_topic_that_is_deleted_and_made_again_is_another_one(cluster: KshareCluster, topic: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.records_bootstrap})
    values = [f"accept-{number}" for number in range(20)]
    produce(cluster, topic, values)
    with Worker(cluster, group, topic) as worker:
        worker.work_until(all_of(values))
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while topic in admin.list_topics(timeout=TIMEOUT_S).topics:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        create_topic(cluster.records_bootstrap, topic, 2)
        produce(cluster, topic, ["accept-new", "accept-newer"])
        worker.work_until(all_of(["accept-new", "accept-newer"]))
        assert worker.deliveries["accept-new"] == [1], "offset 0 of a new log, not one that was accepted"


def attach(*options: str) -> tuple[int, str]:
    """The exit code and the errors of an attach that is refused."""
    done = subprocess.run([COMMAND, "attach", *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stderr + done.stdout


def test_what_cannot_work_is_refused_with_what_to_change(cluster: KshareCluster, tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    code, text = attach(nowhere)
    assert code == REFUSED and nowhere in text and "kshare.upstream.security.protocol" in text
    code, text = attach(cluster.records_bootstrap, "--mode", "mirror")
    assert code == BAD_USE and "--mode must be share or proxy, found 'mirror'" in text
    config = tmp_path / "kshare.properties"
    config.write_text("share.coordinator.state.topic.num.partitions=7\n")
    code, text = attach(cluster.records_bootstrap, "--config", str(config), "--listen", "127.0.0.1:0")
    assert code == REFUSED and "__kshare_state has 5 partitions, and kshare needs 7" in text
    assert "set share.coordinator.state.topic.num.partitions=5" in text


def test_commands_find_the_roles_in_the_directory_of_an_attach(cluster: KshareCluster) -> None:
    data_dir = str(cluster.folder / "data")
    for where in (("--data-dir", data_dir), ("--bootstrap", cluster.bootstrap)):
        done = subprocess.run(
            [COMMAND, "nodes", "--json", *where], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        roles = {node["role"] for node in json.loads(done.stdout)["nodes"]}
        assert roles == {"coordinator", "gateway", "leader", "share-coordinator"}
    code, text = attach(cluster.records_bootstrap, "--data-dir", data_dir, "--listen", "127.0.0.1:0")
    assert code == BAD_USE and f"data directory {data_dir} is in use" in text
    assert not [path for path in Path(data_dir).rglob("*.properties") if "bootstrap" in path.read_text()], (
        "the configuration, which may hold a password, does not stay"
    )


def test_up_with_the_engine_in_its_configuration_does_the_same(
    cluster: KshareCluster, topic: str, tmp_path: Path
) -> None:
    """Beside the attached kshare, under a prefix of its own."""
    produce(cluster, topic, ["accept-1", "accept-2"])
    settings = {
        "kshare.engine": "kafka",
        "kshare.metadata.store": "kafka",
        "kshare.upstream.bootstrap.servers": cluster.records_bootstrap,
        "kshare.upstream.topic.prefix": "__second_",
    }
    with KshareCluster(tmp_path, {**SETTINGS, **settings}, engine=TestEngine.EMBEDDED, single_process=True) as second:
        read_from_earliest(second.bootstrap, "group")
        with Worker(second, "group", topic) as worker:
            worker.work_until(all_of(["accept-1", "accept-2"]))
    names = AdminClient({"bootstrap.servers": cluster.records_bootstrap}).list_topics(timeout=TIMEOUT_S).topics
    assert {"__second_state", "__second_metadata"} <= set(names)
