"""The service beside a real cluster: its marts say what the workers did, and neither a kill nor a stop changes that."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest

from kshare_pipeline.report.figures import Figures, NoMarts, read_figures, total, totals_by
from kshare_pipeline.tables.layout import Layout
from kshare_pipeline.tables.parse import EVENT_KEY
from support.clients.administration import create_topic, read_from_earliest
from support.clients.delivery import ACCEPT, REJECT, RELEASE, SETTINGS, Reader, produce, wait_for
from support.clients.delivery_history import HISTORY_ON
from support.clusters.kshare_cluster import KshareCluster
from support.environment.free_ports import free_port
from support.servicekit.scraped import Scraped

PARTITIONS = 2
TIMEOUT_S = 180

pytestmark = pytest.mark.timeout(600)


class Account:
    """What workers did, record by record."""

    def __init__(self) -> None:
        self.ended: collections.Counter[tuple[str, int]] = collections.Counter()
        """By how and delivery count."""
        self.accepted: collections.Counter[str] = collections.Counter()
        """By worker."""
        self.rejected: set[tuple[int, int]] = set()
        """Partition and offset."""

    def work(self, readers: dict[str, Reader], records: int) -> None:
        """Takes turns until all records are accepted or rejected."""
        left = records
        deadline = time.monotonic() + TIMEOUT_S
        while left:
            assert time.monotonic() < deadline, f"{left} of {records} records are left"
            for name, reader in readers.items():
                left -= self._turn(name, reader)

    def _turn(self, name: str, reader: Reader) -> int:
        """Each 7th record is rejected, each 5th is released at its first delivery. How many are done."""
        done = 0
        for message in reader.poll():
            number, count = int(message.value()), message.delivery_count()
            if number % 5 == 0 and count == 1:
                kind, outcome = RELEASE, "released"
            elif number % 7 == 0:
                kind, outcome = REJECT, "rejected"
                self.rejected.add((message.partition(), message.offset()))
            else:
                kind, outcome = ACCEPT, "accepted"
                self.accepted[name] += 1
            reader.consumer.acknowledge(message, kind)
            self.ended[outcome, count] += 1
            done += outcome != "released"
        assert not reader.commit()
        return done


class Service:
    """`python -m kshare_pipeline` on a folder."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.layout = Layout(folder / "data")
        self._folder = folder
        self._metrics = f"127.0.0.1:{free_port()}"
        self._ready = folder / "ready"
        config = folder / "pipeline.properties"
        config.write_text("spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData\n")
        flags = {
            "data-dir": self.layout.folder,
            "bootstrap-servers": bootstrap,
            "config": config,
            "trigger-interval-ms": 1000,
            "marts-interval-ms": 1000,
            "metrics-listen": self._metrics,
            "ready-file": self._ready,
        }
        self._command = [sys.executable, "-m", "kshare_pipeline"]
        for name, value in flags.items():
            self._command += [f"--{name}", str(value)]
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        self._ready.unlink(missing_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            wait_for(lambda: self._ready.exists() or self._ended(), "the service is ready", timeout_s=TIMEOUT_S)
            assert not self._ended(), self.log()
            yield
        finally:
            self._process.kill()
            self._process.wait(10)

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        os.kill(self._process.pid, number)
        return self._process.wait(30)

    def java_process(self) -> int:
        """The process id of Spark's Java process."""
        assert self._process is not None
        listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], check=True, capture_output=True, text=True).stdout
        children = [line.split() for line in listed.splitlines()]
        (found,) = [int(pid) for pid, parent, name in children if int(parent) == self._process.pid and name == "java"]
        return found

    def exit_code(self) -> int:
        """The exit code of the process, which ends by itself."""
        assert self._process is not None
        return self._process.wait(TIMEOUT_S)

    def log(self) -> str:
        """With its first lines: what Java prints when it crashes comes before the traceback of Python."""
        printed = (self._folder / "log").read_text(errors="replace")
        return printed if len(printed) <= 16_000 else f"{printed[:8_000]}\n[...]\n{printed[-8_000:]}"

    def scraped(self) -> Scraped:
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=10) as answer:
            return Scraped(answer.read().decode())

    def figures(self) -> Figures | None:
        try:
            return read_figures(self.layout, groups=["workers"])
        except NoMarts:
            return None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), {**SETTINGS, **HISTORY_ON}, single_process=True) as running:
        yield running


def test_marts_say_what_the_workers_did(cluster: KshareCluster, tmp_path: Path) -> None:
    bootstrap, account = cluster.bootstrap, Account()
    service = Service(tmp_path, bootstrap)
    create_topic(bootstrap, "orders", PARTITIONS)
    read_from_earliest(bootstrap, "workers")

    def produce_and_work(numbers: range) -> None:
        for partition in range(PARTITIONS):
            produce(bootstrap, "orders", map(str, numbers[partition::PARTITIONS]), partition)
        with Reader(bootstrap, "workers", "orders") as one, Reader(bootstrap, "workers", "orders") as other:
            account.work({f"{numbers} one": one, f"{numbers} other": other}, len(numbers))

    produce_and_work(range(200))
    with service.running():
        wait_for(service.layout.checkpoint.exists, "it reads", timeout_s=TIMEOUT_S)
        service.end(signal.SIGKILL)  # anywhere between its first batch and its marts
    produce_and_work(range(200, 300))
    with service.running():
        wait_for(lambda: agrees(service.figures(), account), "marts agree", timeout_s=TIMEOUT_S)
        done = service.scraped().value("pipeline_runs_total", result="success")  # it may be in the midst of a run
        wait_for(
            lambda: service.scraped().value("pipeline_runs_total", result="success") > done,
            "a run",
            timeout_s=TIMEOUT_S,
        )
        scraped = service.scraped()
        assert scraped.value("pipeline_runs_total", result="failure") == 0
        assert scraped.value("pipeline_quarantined_records_total") == 0
        assert scraped.value("pipeline_last_success_timestamp_seconds") > time.time() - TIMEOUT_S
        assert scraped.value("node_healthy", role="pipeline", node_id="1") == 1
        assert scraped.value("pipeline_lag_offsets") == 0
        assert service.end(signal.SIGTERM) == 0, service.log()
    check(service, account)


def test_a_process_whose_java_process_has_ended_ends_with_an_error(cluster: KshareCluster, tmp_path: Path) -> None:
    service = Service(tmp_path, cluster.bootstrap)
    with service.running():
        os.kill(service.java_process(), signal.SIGKILL)
        assert service.exit_code() == 1, service.log()
    assert "Spark's Java process has ended, or its context was stopped" in service.log()


def agrees(figures: Figures | None, account: Account) -> bool:
    """Whether the marts have as many accepted records as the workers accepted."""
    accepted = account.accepted.total()
    return figures is not None and total(figures.rows["redelivery"], "accepted_records") == accepted


def check(service: Service, account: Account) -> None:
    figures = service.figures()
    assert figures is not None
    ended: dict[tuple[str, int], int] = {}
    for outcome in ("accepted", "released", "rejected"):
        for (count,), records in totals_by(
            figures.rows["redelivery"], ["delivery_count"], f"{outcome}_records"
        ).items():
            if records:
                ended[outcome, count] = records
    assert ended == account.ended
    assert total(figures.rows["redelivery"], "acquired_records") == account.ended.total()
    by_member = totals_by(figures.rows["workers"], ["member_id"], "accepted_records").values()
    assert sorted(filter(None, by_member)) == sorted(account.accepted.values())
    assert total(figures.rows["append_to_accept"], "records") == account.accepted.total()
    assert total(figures.rows["append_to_accept"], "records_without_append_time") == 0
    poison = figures.rows["poison_records"]
    offsets = [(row["partition"], at) for row in poison for at in range(row["first_offset"], row["last_offset"] + 1)]
    assert sorted(offsets) == sorted(account.rejected)
    assert total(figures.rows["completeness"], "missing_events") == 0
    last: dict[int, Any] = {row["partition"]: row for row in sorted(figures.rows["lag"], key=lambda row: row["minute"])}
    assert {number: row["start_offset"] for number, row in last.items()} == {0: 150, 1: 150}
    assert {number: row["window_records"] for number, row in last.items()} == {0: 0, 1: 0}
    events = dataset.dataset(service.layout.events, partitioning="hive").to_table(columns=[*EVENT_KEY]).to_pylist()
    assert len({tuple(row.values()) for row in events}) == len(events) > 0
    assert "data-chart" in service.layout.report.read_text()
