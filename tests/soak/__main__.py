"""Runs a soak: `make soak HOURS=2`.

Exits 1 where a record is lost or redelivered, where memory or descriptors grow, and where a process logged a failure
that no fault explains.

SIGTERM or Ctrl-C ends a soak early: it drains the load, stops the cluster, writes the report of what was run, and exits
with 128 plus the signal's number. A second signal ends it without a report; the cluster is stopped nevertheless.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import ROOT, description_of_run
from soak.faults import Faults
from soak.ledger import SHOWN_VIOLATIONS
from soak.load import Load
from soak.page import page
from soak.samples import Watch
from soak.verdict import LONG_S, Spared, Totals, Trend, restarts_of_spared, trends
from support.clusters.kshare_cluster import KshareCluster
from support.clusters.role_logs import SUPERVISOR, Failure, unexplained
from support.environment.stolen_time import machine_ticks, stolen_share

DEFAULT = ROOT / "build" / "soak"
SAMPLE_INTERVAL_S = 5.0
DRAIN_TIMEOUT_S = 180.0
FIRST_FAULT_S = 10.0
CACHE_BYTES = 4 * 1024 * 1024
SETTINGS = {
    "kshare.leaders": "2",
    "kshare.share.coordinators": "2",
    "kshare.gateway.cache.bytes": str(CACHE_BYTES),
    "kshare.leader.tail.bytes": str(CACHE_BYTES),
    "kshare.store.block.cache.bytes": str(CACHE_BYTES),
    "kshare.store.memtable.bytes": str(CACHE_BYTES),
    "log.retention.check.interval.ms": "60000",
    "log.initial.task.delay.ms": "10000",
}
"""Two of each role that may have several: while one is spared, the other is still killed.

Caches are so small that the load fills them within minutes: what grows after the warm-up is a leak. With its usual
64 MiB, the gateway's cache takes about a quarter of an hour.
"""


class FaultThread(threading.Thread):
    """One fault after the other, `interval_s` between the beginnings of two, until `end`.

    From the second `sparing_from_s` of the watch on they spare one process of each role; None: they never do.
    """

    def __init__(self, faults: Faults, interval_s: float, watch: Watch, sparing_from_s: float | None) -> None:
        super().__init__(daemon=True, name="faults")
        self._faults, self._interval_s = faults, interval_s
        self._watch, self._sparing_from_s = watch, sparing_from_s
        self.spared: Spared | None = None
        """Since the first fault that spared processes."""
        self._ending = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        due = time.monotonic() + FIRST_FAULT_S
        try:
            while not self._ending.wait(max(0.0, due - time.monotonic())):
                due = time.monotonic() + self._interval_s
                began_at = time.monotonic()
                name = self._faults.next(is_sparing=self._is_sparing())
                print(f"{datetime.now(UTC):%H:%M:%S} {name} ({time.monotonic() - began_at:.1f} s)", flush=True)
        except BaseException as failure:
            self.failure = failure

    def _is_sparing(self) -> bool:
        now_s = self._watch.elapsed_s
        if self.spared is None and self._sparing_from_s is not None and now_s >= self._sparing_from_s:
            self.spared = Spared([SUPERVISOR, *(node.name for node in self._faults.spared)], now_s)
        return self.spared is not None

    def end(self) -> None:
        """Returns when the fault under way is over; raises what failed."""
        self._ending.set()
        self.join()
        if self.failure is not None:
            raise self.failure


class StopSignal:
    """The signal that ended the soak early, None until then. The next one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self.number = signal.Signals(number)
        print(f"{self.number.name}: draining the load, then the report is written; again to end at once", flush=True)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.default_int_handler)


def soak(
    folder: Path,
    duration_s: float,
    *,
    rate: int,
    seed: int,
    fault_interval_s: float,
    stop: StopSignal,
    long_s: float = LONG_S,
) -> tuple[Totals, list[Trend], Watch]:
    """One soak on a fresh folder. AssertionError where the cluster does not come back, or is never drained."""
    is_long = duration_s >= long_s
    with KshareCluster(folder, SETTINGS, has_own_process_group=True) as cluster:
        faults = Faults(cluster, seed)
        watch = Watch(cluster)
        with Load(cluster.bootstrap, rate, seed) as load:
            load.watch = watch
            troubling = FaultThread(faults, fault_interval_s, watch, duration_s / 2 if is_long else None)
            troubling.start()
            is_over = False
            while not is_over:  # a soak that is stopped at once has a sample, too
                load.work_for(min(SAMPLE_INTERVAL_S, max(0.1, duration_s - watch.elapsed_s)))
                sample = watch.look(load.backlog)
                if len(watch.samples) % 12 == 0:
                    _tell(sample.at_s, load.backlog, sum(sample.memory_mb.values()))
                is_over = watch.elapsed_s >= duration_s or troubling.failure is not None or stop.number is not None
            troubling.end()
            load.drain(DRAIN_TIMEOUT_S)
            totals = load.totals()
        totals.faults = dict(faults.done)
    _judge_logs(totals, cluster.failures(), faults)
    spared = troubling.spared
    if spared is not None:
        totals.violations += restarts_of_spared(watch.samples, spared)
    elif is_long and stop.number is None:
        totals.violations.append("no fault began in the second half, so that no process was spared")
    return totals, trends(watch.samples, spared), watch


def _judge_logs(totals: Totals, logged: list[Failure], faults: Faults) -> None:
    failures = list(unexplained(logged, faults.excuses))
    totals.logged_failures = len(failures)
    totals.violations += [f"logged: {failure}" for failure in failures[:SHOWN_VIOLATIONS]]


def _tell(at_s: float, backlog: int, memory_mb: float) -> None:
    print(f"after {at_s:,.0f} s: backlog {backlog:,}, memory {memory_mb:,.0f} MB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=100, help="records a second of each producer (%(default)s)")
    parser.add_argument("--fault-interval-s", type=float, default=20.0)
    long_help = "a run of so many hours spares one process of each role in its second half (%(default)s)"
    parser.add_argument("--long-hours", type=float, default=LONG_S / 3600, help=long_help)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the faults; default: the time")
    parser.add_argument("--output", type=Path, default=DEFAULT, help="without ending: .json and .html (%(default)s)")
    given = parser.parse_args()
    stop = StopSignal()
    stop.listen()
    began, ticks = datetime.now(UTC), machine_ticks()
    described = description_of_run(1)
    del described["rounds"]
    described |= {
        "began": f"{began:%Y-%m-%d %H:%M} UTC",
        "hours": f"{given.hours:g}",
        "load": f"two producers, {given.rate} records/s each",
        "faults": f"one every {given.fault_interval_s:g} s, seed {given.seed}",
    }
    print("\n".join(f"{name}: {text}" for name, text in described.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="kshare-soak-") as folder:
        totals, found, watch = soak(
            Path(folder),
            given.hours * 3600,
            rate=given.rate,
            seed=given.seed,
            fault_interval_s=given.fault_interval_s,
            stop=stop,
            long_s=given.long_hours * 3600,
        )
    described["stolen"] = f"{stolen_share(ticks, machine_ticks()):.1%} of the processors' time went to other machines"
    if stop.number is not None:
        described["ended early"] = f"by {stop.number.name}, after {watch.samples[-1].at_s:,.0f} s"
    given.output.parent.mkdir(parents=True, exist_ok=True)
    samples = [sample._asdict() for sample in watch.samples]
    written = {"described": described, "totals": asdict(totals), "growth": [asdict(one) for one in found]}
    given.output.with_suffix(".json").write_text(json.dumps(written | {"samples": samples}, indent=1))
    given.output.with_suffix(".html").write_text(page(described, asdict(totals), totals, found, watch.samples, began))
    is_passed = _told(totals, found)
    if stop.number is not None:
        return 128 + stop.number
    return 0 if is_passed else 1


def _told(totals: Totals, found: list[Trend]) -> bool:
    for name, value in asdict(totals).items():
        print(f"{name.replace('_', ' ')}: {value}")
    for one in found:
        print(f"{one.name}: {one.first:,.1f} to {one.last:,.1f}, noise {one.noise:,.1f}: {one.verdict}")
    return totals.is_sound and all(one.passes for one in found)


if __name__ == "__main__":
    sys.exit(main())
