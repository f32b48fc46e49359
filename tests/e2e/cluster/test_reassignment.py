"""Partitions move between two leaders, there and back, while real clients work on them.

Producers (idempotent and transactional), ordinary consumers and share consumers of confluent-kafka go on; every record
is there once, every committed transaction whole, every aborted one not at all, and every record is accepted exactly
once. So it is when a leader is killed in the middle of a move. In the end leader 2 is drained and stopped for good.

In front of an existing cluster leaders have the partitions that share groups read. Those are moved there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kshare.commands.partitions import describe_partitions
from kshare.commands.state.coordinator_address import coordinator_address
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import Reader as ShareReader
from support.clients.delivery import wait_for
from support.clients.workload import WorkerPool, WorkerTask, produce_numbered
from support.clusters.engines import is_attached, upstream_of_tests
from support.clusters.kshare_cluster import KshareCluster, children_of, command_line
from support.kafka.existing_cluster import ExistingCluster

PARTITIONS = 4
WORKERS = 2
STEP = 200
TIMEOUT_S = 60.0
SETTINGS = {"kshare.leaders": "2", "kshare.node.lease.ms": "3000"}


def kshare(cluster: KshareCluster, *arguments: str, code: int = 0) -> str:
    command = [str(Path(sys.executable).parent / "kshare"), "partitions", *arguments]
    command += ["--data-dir", str(cluster.folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def partitions_of(cluster: KshareCluster, topic: str) -> list[pb.Topic.Partition]:
    address = coordinator_address(None, cluster.folder / "data")
    return list(describe_partitions(address, [topic]).topics[0].partitions)


def moved_topics() -> tuple[str, ...]:
    return ("load",) if is_attached() else ("load", "transactions")


def is_spread(cluster: KshareCluster, topic: str) -> bool:
    """Whether both leaders have partitions of the topic; the catalog of an existing cluster may not have it yet."""
    found = describe_partitions(coordinator_address(None, cluster.folder / "data"), []).topics
    return {one.leader_node_id for each in found if each.name == topic for one in each.partitions} == {1, 2}


def all_of(topic: str) -> str:
    return ",".join(f"{topic}:{number}" for number in range(PARTITIONS))


def move_all(cluster: KshareCluster, topic: str, to: int) -> None:
    """Asks again where a move was taken back, because somebody died."""
    deadline = time.monotonic() + TIMEOUT_S
    while any(one.leader_node_id != to or one.is_moving for one in partitions_of(cluster, topic)):
        assert time.monotonic() < deadline, partitions_of(cluster, topic)
        with contextlib.suppress(AssertionError):
            kshare(cluster, "move", all_of(topic), "--to", str(to), "--wait", "--timeout-s", "20")


def begin_move(cluster: KshareCluster, to: int) -> None:
    """Asks again while the leader that was killed last is not back."""

    def has_begun() -> bool:
        with contextlib.suppress(AssertionError):
            kshare(cluster, "move", ",".join(map(all_of, moved_topics())), "--to", str(to))
            return True
        return False

    wait_for(has_begun, "the leader is live")


def has_leader(cluster: KshareCluster, number: int) -> bool:
    with contextlib.suppress(AssertionError):
        return leader_pid(cluster, number) > 0
    return False


def leader_pid(cluster: KshareCluster, number: int) -> int:
    for child in children_of(cluster.pid):
        words = command_line(child)
        if "kshare_leader" in words and words[words.index("--node-id") + 1] == str(number):
            return child
    raise AssertionError(f"no process of leader {number}")


class Work(threading.Thread):
    """Runs `step` again and again until `finish`; what it raises is raised there."""

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._step = step
        self._stop_asked = threading.Event()
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self._step()
        except BaseException as failure:
            self._failure = failure

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        if self._failure is not None:
            raise self._failure


class Idempotent:
    """Produces numbered records to all partitions of a topic; `count` are confirmed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic, self.count = bootstrap, topic, 0

    def step(self) -> None:
        produce_numbered(self.bootstrap, self.topic, range(self.count, self.count + STEP), PARTITIONS)
        self.count += STEP
        time.sleep(0.05)


class Transactional:
    """Each transaction writes to all partitions; every third one is aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.number = 0
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "moving", "linger.ms": 0, "log_level": 0}
        )
        self._producer.init_transactions(TIMEOUT_S)

    def step(self) -> None:
        values = [f"{self.number}/{partition}" for partition in range(PARTITIONS)]
        self._producer.begin_transaction()
        for partition, value in enumerate(values):
            self._producer.produce(self.topic, value.encode(), partition=partition)
        assert self._producer.flush(TIMEOUT_S) == 0
        if self.number % 3 == 2:
            self._producer.abort_transaction(TIMEOUT_S)
            self.aborted += values
        else:
            self._producer.commit_transaction(TIMEOUT_S)
            self.committed += values
        self.number += 1
        time.sleep(0.02)


class Reader:
    """An ordinary consumer in a group, read_committed; keeps what it got, in order, by partition."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self.values: dict[tuple[str, int], list[bytes]] = {}
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._consumer.subscribe(topics)

    def step(self) -> None:
        message = self._consumer.poll(0.2)
        if message is None:
            return
        if (error := message.error()) is not None:
            self.errors.append(str(error))
            return
        value, partition = message.value(), message.partition()
        assert isinstance(value, bytes) and partition is not None
        self.values.setdefault((str(message.topic()), partition), []).append(value[:12])

    def read_until(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.count(topic) < count:
            assert time.monotonic() < deadline, f"{self.count(topic)} of {count} came, errors {self.errors[:5]}"
            self.step()

    def count(self, topic: str) -> int:
        return sum(len(values) for (name, _), values in self.values.items() if name == topic)

    def close(self) -> None:
        with contextlib.suppress(KafkaException):
            self._consumer.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path, SETTINGS) as running:
        yield running


def disturb_nobody(cluster: KshareCluster) -> None:
    for to in (2, 1, 2, 1):
        for topic in moved_topics():
            move_all(cluster, topic, to)
        time.sleep(0.3)


def kill_leaders_in_moves(cluster: KshareCluster) -> None:
    for to, victim in ((2, 1), (1, 1), (2, 2), (1, 2)):
        begin_move(cluster, to)
        time.sleep(0.02)
        pid = leader_pid(cluster, victim)
        os.kill(pid, signal.SIGKILL)
        cluster.wait_until_gone(pid)
        wait_for(partial(has_leader, cluster, victim), f"leader {victim} is started again")
        for topic in moved_topics():
            move_all(cluster, topic, to)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disturb", [disturb_nobody, kill_leaders_in_moves])
def test_clients_go_on_while_partitions_move(cluster: KshareCluster, disturb: Callable[[KshareCluster], None]) -> None:
    bootstrap = cluster.bootstrap
    for topic in ("load", "transactions"):
        create_topic(bootstrap, topic, PARTITIONS)
    read_from_earliest(bootstrap, "workers")
    load, transactions = Idempotent(bootstrap, "load"), Transactional(bootstrap, "transactions")
    reader = Reader(bootstrap, ["load", "transactions"])
    tasks = [
        WorkerTask(bootstrap=bootstrap, topic="load", group="workers", index=index, release_every=7)
        for index in range(WORKERS)
    ]
    with WorkerPool(tasks) as pool:
        works = [Work(load.step), Work(transactions.step), Work(reader.step)]
        pool.run_for(2.0)
        for topic in moved_topics():
            wait_for(partial(is_spread, cluster, topic), f"the partitions of {topic} are spread over leaders")
        disturb(cluster)
        for work in works:
            work.finish()
        total = load.count
        pool.run_until(lambda account: len(account.accepted) == total, timeout_s=120)
        pool.run_until_drained(bootstrap, "workers", "load", timeout_s=60)
    reader.read_until("load", total)
    reader.read_until("transactions", len(transactions.committed))
    reader.close()

    assert pool.account.finish(range(total)) == []
    for partition in range(PARTITIONS):
        wanted = [f"{number:012d}".encode() for number in range(total) if number % PARTITIONS == partition]
        assert reader.values["load", partition] == wanted, "each once, in the order in which they were produced"
        committed = [value.encode() for value in transactions.committed if value.endswith(f"/{partition}")]
        assert reader.values["transactions", partition] == committed
    assert transactions.aborted and len(transactions.committed) > 3 * PARTITIONS
    assert reader.errors == []


@pytest.mark.timeout(120)
def test_a_leader_is_emptied_and_stopped_for_good(tmp_path: Path) -> None:
    with upstream_of_tests(tmp_path / "upstream", SETTINGS) as upstream:
        empty_and_stop(tmp_path, upstream)


def empty_and_stop(folder: Path, upstream: ExistingCluster | None) -> None:
    with KshareCluster(folder, SETTINGS, upstream=upstream) as two:
        create_topic(two.bootstrap, "load", PARTITIONS)
        produce_numbered(two.bootstrap, "load", range(1_000), PARTITIONS)
        with ShareReader(two.bootstrap, "workers", "load") as reader:
            wait_for(lambda: not reader.poll() and is_spread(two, "load"), "the partitions are spread over leaders")
        assert "leader 2 is empty and can be stopped" in kshare(two, "drain", "2")
        assert "drained" in kshare(two, "list", "load")
        refusal = kshare(two, "move", "load:0", "--to", "2", code=1)
        assert "being drained" in refusal
        assert "it has 4 partitions" in kshare(two, "move", "load:9", "--to", "1", code=1)
        assert "no other live leader" in kshare(two, "drain", "1", code=1)
    with KshareCluster(folder, SETTINGS | {"kshare.leaders": "1"}, port=two.port, upstream=upstream) as one:
        assert [found.leader_node_id for found in partitions_of(one, "load")] == [1] * PARTITIONS
        consumer = Consumer({"bootstrap.servers": one.bootstrap, "group.id": "any", "log_level": 0})
        ends = [
            consumer.get_watermark_offsets(TopicPartition("load", number), TIMEOUT_S) for number in range(PARTITIONS)
        ]
        consumer.close()
        assert ends == [(0, 250)] * PARTITIONS
        assert ("leader-2 is not started" in one.log_text()) == (upstream is None), (
            "it has records of the embedded engine"
        )
