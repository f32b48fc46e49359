"""A streaming query over a share group beside two ordinary workers, while everything that can be killed is killed.

The sink has (topic, partition, offset) as key. Nothing is lost; what the query held when it or its leader died may come
to a worker as well (at least once), nothing else does; the query itself is never given twice what it has done; and the
sink has every record once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.clients.delivery import SETTINGS, Reader, new_group, new_topic, wait_for
from support.clients.workload import Account, WorkerPool, WorkerTask, produce_numbered
from support.clusters.kshare_cluster import KshareCluster, command_line
from support.pipeline.share_query import QuerySettings

PARTITIONS = 2
FIRST_RECORDS = 1000
BATCH_RECORDS = 200
LOCK_MS = 5000
START_TIMEOUT_S = 120.0
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
Key = tuple[str, int, int]


class Life:
    """One process of the query, with everything that Spark starts for it; a context manager that leaves nothing."""

    def __init__(self, settings: QuerySettings) -> None:
        self.settings = settings
        self.log = settings.file("log")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        command = [sys.executable, "-m", "support.pipeline.share_query", settings.to_json()]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def pids(self) -> list[int]:
        """Every process of its session: the driver, the JVM, Python workers, the source's process."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if folder.name.isdigit() and session_of(folder) == self.process.pid:
                    found.append(int(folder.name))
        return found

    def source_pid(self) -> int:
        (pid,) = [pid for pid in self.pids() if RUNNER in command_line(pid)]
        return pid

    def kill(self) -> None:
        """kill -9 of all of them at once, as when a machine goes."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_for_file(self, name: str) -> Path:
        path = self.settings.file(name)

        def is_there() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return path.exists()

        wait_for(is_there, f"{path.name}: {self.log.read_text()[-2000:]}", START_TIMEOUT_S)
        return path


def session_of(process: Path) -> int:
    """The session id; IndexError or ValueError where the process is going."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[3])


@contextlib.contextmanager
def trickle(bootstrap: str, topic: str, first: int) -> Iterator[list[int]]:
    """More records all the time for the length of the block; the list has the next number."""
    upcoming, stop = [first], threading.Event()

    def produce() -> None:
        while not stop.wait(0.2):
            produce_numbered(bootstrap, topic, range(upcoming[0], upcoming[0] + 100), PARTITIONS)
            upcoming[0] += 100

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield upcoming
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Sink:
    """What the query wrote."""

    def __init__(self, settings: QuerySettings) -> None:
        self._path = settings.database

    def rows(self, query: str, *arguments: object) -> list[tuple[object, ...]]:
        database = sqlite3.connect(self._path, timeout=20.0)
        try:
            return database.execute(query, arguments).fetchall()
        finally:
            database.close()

    def numbers(self) -> list[int]:
        return [int(str(value)[:12]) for (value,) in self.rows("SELECT value FROM sink")]

    def seen(self, life: str, batch: int) -> list[Key]:
        asked = "SELECT topic, at_partition, at_offset FROM seen WHERE life = ? AND batch = ?"
        return sorted((str(topic), int(str(at)), int(str(to))) for topic, at, to in self.rows(asked, life, batch))

    def numbers_of(self, life: str, batch: int) -> list[int]:
        asked = "SELECT value FROM sink JOIN seen USING (topic, at_partition, at_offset) WHERE life = ? AND batch = ?"
        return [int(str(value)[:12]) for (value,) in self.rows(asked, life, batch)]


@dataclass
class Scene:
    """The cluster, the query's two lives and what the test knows of them."""

    cluster: KshareCluster
    topic: str
    group: str
    first: QuerySettings
    second: QuerySettings
    sink: Sink
    pool: WorkerPool


@contextlib.contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    settings = {**SETTINGS, "group.share.heartbeat.interval.ms": "1000"}
    with KshareCluster(folder / "cluster", settings) as cluster:
        topic = new_topic(cluster.bootstrap, PARTITIONS)
        group = new_group(cluster.bootstrap, record_lock_duration_ms=str(LOCK_MS), delivery_count_limit="10")
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": topic,
            "group.id": group,
            "maxRecordsPerTrigger": str(BATCH_RECORDS),
            "numPartitions": "2",
        }
        first = QuerySettings(str(folder), "first", options, hold_batch=1)
        second = QuerySettings(
            str(folder), "second", options, hold_batch=2, hold_task=True, master="local-cluster[2,1,1024]"
        )
        tasks = [
            WorkerTask(bootstrap=cluster.bootstrap, topic=topic, group=group, index=index, release_every=17)
            for index in (0, 1)
        ]
        yield Scene(cluster, topic, group, first, second, Sink(first), WorkerPool(tasks))


@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_is_twice_in_the_sink(tmp_path: Path) -> None:
    with scene(tmp_path) as scenery, contextlib.ExitStack() as stack:
        produce_numbered(scenery.cluster.bootstrap, scenery.topic, range(FIRST_RECORDS), PARTITIONS)
        with Life(scenery.first) as life:
            # In its batch 1, written to the sink and not committed; two workers begin on the rest, and it is killed.
            life.wait_for_file("holding")
            stack.enter_context(scenery.pool)
            scenery.pool.run_until(lambda account: len(account.accepted) >= 100, 120.0)
            life.kill()
        with Life(scenery.second) as life:
            with trickle(scenery.cluster.bootstrap, scenery.topic, FIRST_RECORDS) as upcoming:
                lose_an_executor_the_leader_and_the_locks(scenery, life)
                wait_for(
                    lambda: bool(scenery.sink.seen("second", 3)), "a batch after the one that lost its locks", 120.0
                )
            everything = range(upcoming[0])
            account = scenery.pool.account
            wait_for(lambda: has_all(scenery, everything), "the last records to come to somebody", 120.0)
            life.settings.file("stop").touch()
            assert life.process.wait(120.0) == 0, life.log.read_text()[-4000:]
        scenery.pool.run_until_drained(scenery.cluster.bootstrap, scenery.group, scenery.topic, 120.0)
        with Reader(scenery.cluster.bootstrap, scenery.group, scenery.topic) as reader:
            left = reader.poll(2.0)
            assert not left, f"offset {left[0].offset()} of partition {left[0].partition()} is nobody's"
        check(scenery.sink, account, everything)


def lose_an_executor_the_leader_and_the_locks(scenery: Scene, life: Life) -> None:
    """Kills an executor in the replayed batch; in batch 2 the leader, then holds the driver until its locks end."""
    task = life.wait_for_file("task")
    wait_for(lambda: task.read_text().endswith("\n"), "the pid of the task's executor")
    executor = int(task.read_text())
    assert "CoarseGrainedExecutorBackend" in " ".join(command_line(executor))
    os.kill(executor, signal.SIGKILL)
    life.wait_for_file("holding")
    with stopped(life.source_pid()):
        scenery.cluster.wait_until_gone(scenery.cluster.kill_role("leader"))
        scenery.pool.run_for(1.5 * LOCK_MS / 1000)
    life.settings.file("go").touch()


def has_all(scenery: Scene, everything: range) -> bool:
    scenery.pool.run_for(0.5)
    account = scenery.pool.account
    return len(set(scenery.sink.numbers()) | account.accepted.keys()) == len(everything)


def check(sink: Sink, account: Account, everything: range) -> None:
    written = sink.numbers()
    assert len(written) == len(set(written)), "the sink has a record twice"
    assert set(written) | account.accepted.keys() == set(everything)
    assert len(written) > 2 * BATCH_RECORDS and len(account.accepted_at) > 200, "both had a part in it"
    assert account.finish(account.accepted) == []
    replayed = sink.seen("second", 1)
    assert len(replayed) == BATCH_RECORDS and replayed == sink.seen("first", 1), "the same records after the restart"
    ((twice,),) = sink.rows(
        "SELECT COUNT(*) - COUNT(DISTINCT at_partition || ':' || at_offset) FROM seen WHERE life = 'second'"
    )
    assert twice == 0, "the query was given again what it had done"
    ((last,),) = sink.rows("SELECT MAX(batch) FROM seen")
    in_danger = [("first", 1), ("second", 2), ("second", int(str(last)))]
    may_be_twice = {number for life, batch in in_danger for number in sink.numbers_of(life, batch)}
    of_both = set(written) & account.accepted_at.keys()
    assert of_both <= may_be_twice, f"{len(of_both - may_be_twice)} records came to a worker and the query"
