"""A run of hostile requests against a cluster, with a good client beside it, and what it found."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic
from support.clients.good_client import Figures, GoodClient
from support.clusters.kshare_cluster import ROLES, KshareCluster
from support.hostile.bursts import Bursts
from support.hostile.corpus import corpus_requests
from support.hostile.kafka_messages import Vocabulary
from support.hostile.process_figures import MIB, ProcessFigures, watched
from support.hostile.requests import served_versions
from support.hostile.role_logs import kinds_of_lines, lines_in_a_second, unexpected_lines
from support.hostile.senders import Outcomes, Pace, Sender
from support.hostile.topics import topic_ids

TOPICS = ("hostile-a", "hostile-b", "hostile-compacted")
BUDGET_BYTES = 96 * MIB
SETTINGS = {
    "kshare.queued.max.bytes": str(BUDGET_BYTES),
    "kshare.gateway.cache.bytes": str(16 * MIB),
    "kshare.leader.tail.bytes": str(64 * MIB),
    "kshare.max.partitions": "100",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}
MEMORY_GROWTH_LIMIT_BYTES = BUDGET_BYTES + 192 * MIB
"""The budget, and as in the other attacks: copies on the way, what malloc keeps, and a batch after decompression."""
DESCRIPTORS_BESIDE_CONNECTIONS = 64
SENDERS_NICE = 10
DRAWN_FOR_A_JUDGED_REQUEST = 1.4
"""A connection's end cuts off the requests behind the one that it refused: 0.3 to 0.35 for each that is judged."""
LINES_PER_SECOND_LIMIT = 300
P99_LIMIT_MS = 250.0
"""As beside the other attacks; on a machine where it is more than half of that already, at most twice as much."""


def p99_limit_ms(calm: Figures) -> float:
    """What a good client may have beside an attack."""
    return max(P99_LIMIT_MS, 2 * calm.p99_ms)


@dataclass
class Run:
    """What a run found."""

    outcomes: Outcomes
    seconds: float
    processes: Mapping[str, ProcessFigures]
    calm: Figures
    attacked: Figures
    log: str
    connections: int
    calm_after: Figures | None = None
    """`calm` is before the attack. Some minutes of this machine have a p99 twice that of others without any attack."""
    beside_drawing: Figures | None = None
    """Beside senders that draw requests and send none: what the use of a processor alone does to a client."""
    problems: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> Figures:
        """The good client without an attack: before it, and after it where that was measured."""
        return self.calm if self.calm_after is None else self.calm.joined(self.calm_after)

    def report(self) -> str:
        """Figures for a person."""
        met = len(self.outcomes.by_version)
        lines = [
            f"{self.outcomes.judged} requests in {self.seconds:.0f} s "
            f"({self.outcomes.judged / self.seconds:.0f}/s) over "
            f"{self.outcomes.connections} connections: {self.outcomes.answered} answered, {self.outcomes.refused} "
            f"refused by closing; {self.outcomes.not_reached} more were cut off by those",
            f"{met} of {len(served_versions())} versions of APIs met, each at least "
            f"{min(self.outcomes.by_version.values(), default=0)} times; "
            + ", ".join(f"{name} {count}" for name, count in self.outcomes.by_damage.most_common()),
            f"longest burst until its last answer: {self.outcomes.longest_s:.1f} s",
            f"good client before: {self.calm}; after: {self.calm_after}; without, in all: {self.baseline}",
            *self._beside_drawing(),
            f"good client beside it: {self.attacked}, p99 {self.attacked.p99_ms / self.baseline.p99_ms:.2f} times",
            *(f"{role}: {figures}" for role, figures in self.processes.items()),
            f"log: {self.log.count(chr(10))} lines, at most {lines_in_a_second(self.log)} in one second",
        ]
        lines += self._refused_and_logged()
        lines += [f"PROBLEM: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _beside_drawing(self) -> list[str]:
        found = self.beside_drawing
        if found is None:
            return []
        factor = found.p99_ms / self.baseline.p99_ms
        return [f"good client beside senders that draw and send nothing: {found}, p99 {factor:.2f} times"]

    def _refused_and_logged(self) -> list[str]:
        lines = []
        if self.outcomes.good_refused:
            named = [
                f"{ApiKey(key).api_name} v{version}: {count}"
                for (key, version), count in self.outcomes.good_refused.most_common(20)
            ]
            lines.append("readable requests that closed the connection: " + ", ".join(named))
        return lines + [f"  {count:6} {kind}" for kind, count in kinds_of_lines(self.log)]


def run_hostile(
    folder: Path,
    *,
    seed: int,
    requests: int | None,
    seconds: float | None,
    calm_s: float,
    draws_ahead: bool = False,
    calm_after_s: float = 0.0,
    connections: int = 32,
    api_keys: Collection[int] = (),
    is_alone: bool = False,
    requests_per_second: float | None = None,
) -> Run:
    """Starts a cluster, and ends after at least so many requests and seconds, of those that are given.

    `calm_s` and `calm_after_s`: how long the good client is measured before and after the attack. `draws_ahead`: draws
    the requests before the attack, for at least `calm_s`, while the good client is measured; in memory they have about
    a kilobyte each. `is_alone`: whether nothing else runs on the machine.
    `requests_per_second`: at most, of all connections together; None: as many as the machine can do.
    """
    with KshareCluster(folder, SETTINGS) as cluster:
        for topic in TOPICS:
            create_topic(cluster.bootstrap, topic, 2)
        vocabulary = Vocabulary(topics=TOPICS, topic_ids=topic_ids(cluster.bootstrap, TOPICS))
        pids = {role: cluster.role_pid(role) for role in ROLES}
        outcomes = Outcomes()
        sources = [random.Random(seed * 1_000 + number) for number in range(connections)]
        bursts = [Bursts(source, vocabulary, api_keys) for source in sources]
        with GoodClient(cluster.bootstrap) as client:
            with client.measured() as calm:
                time.sleep(calm_s)
            beside_drawing = None
            if draws_ahead:
                with client.measured() as beside_drawing:
                    _after_the_services(lambda: _draw(bursts, requests or 0, calm_s), is_alone=is_alone)
            logged = len(cluster.log_text())
            with watched(pids) as processes, client.measured() as attacked:
                began = time.monotonic()
                is_enough = _limit(outcomes, began, requests, seconds)
                sending = _send(cluster.port, bursts, outcomes, is_enough, Pace(requests_per_second))
                _after_the_services(lambda: uvloop.run(sending), is_alone=is_alone)
                took_s = time.monotonic() - began
            calm_after = None
            if calm_after_s:
                with client.measured() as calm_after:
                    time.sleep(calm_after_s)
        log = cluster.log_text()[logged:]
        found = Run(outcomes, took_s, processes, calm, attacked, log, connections, calm_after, beside_drawing)
        for role, pid in pids.items():
            if cluster.role_pid(role) != pid:
                found.problems.append(f"{role} was started again: it had ended")
    found.problems += _problems(found)
    return found


def _after_the_services(work: Callable[[], None], *, is_alone: bool) -> None:
    """Runs work when the services and the good client do not: who attacks a cluster does not use its processors.

    Beside other tests, work that runs only when nothing else does would stand still, so there it has a lower priority.
    That disturbs the others: a process that wakes up may have to wait until a slice of some milliseconds ends.
    """

    def run() -> None:
        if is_alone:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + SENDERS_NICE))
        work()

    with ThreadPoolExecutor(1, thread_name_prefix="senders") as thread_of_its_own:
        thread_of_its_own.submit(run).result()


def _draw(bursts: Sequence[Bursts], judged_requests: int, seconds: float) -> None:
    """Draws what so many judged requests need, and for at least so long."""
    deadline, drawn = time.monotonic() + seconds, 0
    while drawn < judged_requests * DRAWN_FOR_A_JUDGED_REQUEST or time.monotonic() < deadline:
        drawn += sum(each.draw_ahead() for each in bursts)
    gc.freeze()  # a collection during the attack would visit them all


def _limit(outcomes: Outcomes, began: float, requests: int | None, seconds: float | None) -> Callable[[], bool]:
    def is_enough() -> bool:
        if len(outcomes.problems) >= 20:
            return True
        has_requests = requests is None or outcomes.judged >= requests
        return has_requests and (seconds is None or time.monotonic() - began >= seconds)

    return is_enough


async def _send(
    port: int, bursts: Sequence[Bursts], outcomes: Outcomes, is_enough: Callable[[], bool], pace: Pace
) -> None:
    """The corpus first, one connection for each; then all senders at once."""
    sender = Sender(port, outcomes)
    for request in corpus_requests():
        await sender.run_one(request)
    await asyncio.gather(*(sender.run(each, pace, is_enough) for each in bursts))


def _problems(run: Run) -> list[str]:
    found = list(run.outcomes.problems)
    found += [f"in the log: {line}" for line in unexpected_lines(run.log)[:20]]
    for role, figures in run.processes.items():
        grown = figures.peak_bytes - figures.first_bytes
        if grown > MEMORY_GROWTH_LIMIT_BYTES:
            found.append(f"{role} grew by {grown // MIB} MiB")
        if figures.peak_descriptors > figures.first_descriptors + run.connections * 2 + DESCRIPTORS_BESIDE_CONNECTIONS:
            found.append(f"{role} had {figures.peak_descriptors} descriptors, {figures.first_descriptors} at first")
    if (most := lines_in_a_second(run.log)) > LINES_PER_SECOND_LIMIT:
        found.append(f"{most} log lines in one second")
    return found
