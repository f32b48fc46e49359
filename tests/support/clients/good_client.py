"""A good client: a process that produces 20 records a second and share-consumes them, while a test attacks the cluster.

with GoodClient(bootstrap) as client:
    with client.measured() as figures:
        attack()
    assert figures.p99_ms < 250

The client is a process of its own, so that the test's own work does not count as latency. It prints one line for each
record that it consumed. At the end it consumes until every record that was acknowledged to its producer has come, and
reports those that did not come.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

RECORDS_PER_SECOND = 20
SAMPLES_AT_LEAST = 101
"""A 99th percentile of fewer is their maximum."""
MEASURED_S = 6.0
"""How long an attack lasts, so that there are as many samples."""
FIRST_RECORD_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 30.0
ERRORS_ONLY = 2
"""Syslog's level: the client's 37 lines a second while a gateway is away would hide what failed."""


@dataclass
class Figures:
    """Of the records that were sent within one stretch of time; complete once the client has ended or went on."""

    began_s: float
    ended_s: float = float("inf")
    latencies_ms: list[float] = field(default_factory=list)
    """From the call of `produce` until the share consumer's `poll` returned the record."""
    stolen_ticks: int = 0
    """Of all processors' ticks in that time: those that the host gave to other machines."""
    passed_ticks: int = 0

    def joined(self, later: Figures) -> Figures:
        """The figures of two stretches of time as one."""
        return Figures(
            self.began_s,
            later.ended_s,
            self.latencies_ms + later.latencies_ms,
            self.stolen_ticks + later.stolen_ticks,
            self.passed_ticks + later.passed_ticks,
        )

    @property
    def p99_ms(self) -> float:
        found = sorted(self.latencies_ms)
        assert len(found) >= SAMPLES_AT_LEAST, f"the good client consumed {len(found)} records while it was measured"
        return found[int(len(found) * 0.99)]

    def __str__(self) -> str:
        stolen = self.stolen_ticks / self.passed_ticks if self.passed_ticks else 0.0
        longest = f"longest {max(self.latencies_ms):.0f} ms of {len(self.latencies_ms)}"
        return f"p99 {self.p99_ms:.0f} ms, {longest}, {stolen:.1%} stolen"


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    """What a process holds in memory now, or its highest value so far."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no {name}")


class GoodClient:
    """See the module's text. On entry its first record is consumed; `problems` is complete after exit."""

    def __init__(self, bootstrap: str, *, partitions: int = 1) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._samples: list[tuple[float, float]] = []
        self._has_first = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.problems: list[str] = []
        """Records that were acknowledged and never consumed, and what the producer could not send."""

    def __enter__(self) -> GoodClient:
        from support.clients.delivery import new_group, new_topic  # only the parent needs what these import

        topic, group = new_topic(self._bootstrap, self._partitions), new_group(self._bootstrap)
        command = [sys.executable, str(Path(__file__)), self._bootstrap, topic, group]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._has_first.wait(FIRST_RECORD_TIMEOUT_S):
            self._process.kill()
            raise AssertionError("the good client did not consume its first record")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None and self._reader is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(DRAIN_TIMEOUT_S * 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if kind is None:
            assert code == 0, f"the good client ended with {code}"
            assert not self.problems, self.problems

    @contextmanager
    def measured(self) -> Iterator[Figures]:
        """The latencies of records that are sent while the body runs; complete when it returns."""
        from support.environment.stolen_time import machine_ticks  # only the parent needs it

        figures, before = Figures(time.monotonic()), machine_ticks()
        yield figures
        figures.ended_s, after = time.monotonic(), machine_ticks()
        figures.stolen_ticks, figures.passed_ticks = after[0] - before[0], after[1] - before[1]
        deadline = figures.ended_s + DRAIN_TIMEOUT_S
        while not any(sent_s > figures.ended_s for sent_s, _ in list(self._samples)):
            assert time.monotonic() < deadline, "the good client consumed nothing after the attack"
            time.sleep(0.02)
        samples = list(self._samples)
        figures.latencies_ms = [ms for sent_s, ms in samples if figures.began_s <= sent_s <= figures.ended_s]

    def wait_for_records(self, count: int) -> None:
        """Returns when so many further records were consumed."""
        wanted, deadline = len(self._samples) + count, time.monotonic() + DRAIN_TIMEOUT_S
        while len(self._samples) < wanted:
            assert time.monotonic() < deadline, f"the good client consumed fewer than {count} records"
            time.sleep(0.02)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "sent_s" in said:
                self._samples.append((said["sent_s"], said["latency_ms"]))
                self._has_first.set()
            else:
                self.problems.append(said["problem"])


def _say(**said: object) -> None:
    print(json.dumps(said), flush=True)


class _Sender(threading.Thread):
    """Produces until `ended` is set; `acknowledged` has the numbers of records that the cluster confirmed."""

    def __init__(self, bootstrap: str, topic: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": ERRORS_ONLY})
        self._topic = topic
        self._ended = ended
        self.acknowledged: set[int] = set()

    def run(self) -> None:
        began_s, number = time.monotonic(), 0
        while not self._ended.is_set():
            value = json.dumps([number, time.monotonic()]).encode()
            self._producer.produce(self._topic, value, on_delivery=self._reported(number))
            number += 1
            while (rest_s := began_s + number / RECORDS_PER_SECOND - time.monotonic()) > 0:
                self._producer.poll(rest_s)
        self._producer.flush(DRAIN_TIMEOUT_S)

    def _reported(self, number: int) -> Any:
        def report(error: object, message: object) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                _say(problem=f"record {number} was not stored: {error}")

        return report


def _await_end_of_input(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _run(bootstrap: str, topic: str, group: str) -> None:
    from confluent_kafka import ShareConsumer

    ended = threading.Event()
    threading.Thread(target=_await_end_of_input, args=(ended,), daemon=True).start()
    sender = _Sender(bootstrap, topic, ended)
    consumed: set[int] = set()
    with ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": ERRORS_ONLY}) as consumer:
        consumer.subscribe([topic])
        sender.start()
        deadline = float("inf")
        while time.monotonic() < deadline:
            for message in consumer.poll(0.1):
                if message.error() is not None:
                    continue
                number, sent_s = json.loads(message.value() or b"")
                _say(sent_s=sent_s, latency_ms=(time.monotonic() - sent_s) * 1000)
                consumed.add(number)
            if not sender.is_alive():
                if deadline == float("inf"):
                    deadline = time.monotonic() + DRAIN_TIMEOUT_S
                if sender.acknowledged <= consumed:
                    break
    for number in sorted(sender.acknowledged - consumed):
        _say(problem=f"record {number} was stored and never consumed")


if __name__ == "__main__":
    _run(*sys.argv[1:])
