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
from itertools import cycle
from pathlib import Path

import uvloop

from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic
from support.clients.good_client import Figures, GoodClient
from support.clusters.kshare_cluster import ROLES, KshareCluster
from support.environment.free_ports import free_port
from support.hostile.bounds import RESTED_S, exceeded, kept
from support.hostile.bursts import Bursts
from support.hostile.corpus import FOUND_FOLDER, FOUND_LIMIT, FoundFrames, corpus_frames, corpus_requests
from support.hostile.entrances import Entrance, entrances
from support.hostile.kafka_messages import Vocabulary
from support.hostile.process_figures import MIB, ProcessFigures, watched
from support.hostile.requests import HostileRequest, served_versions
from support.hostile.role_logs import (
    correlation_ids,
    kinds_of_lines,
    lines_in_a_second,
    logged_refusals,
    silent_refusals,
    unexpected_lines,
)
from support.hostile.senders import Outcomes, Pace, Sender
from support.hostile.topics import topic_ids

TOPICS = ("hostile-a", "hostile-b", "hostile-compacted")
SETTINGS = {
    "kshare.queued.max.bytes": str(96 * MIB),
    "kshare.gateway.cache.bytes": str(16 * MIB),
    "kshare.leader.tail.bytes": str(4 * MIB),
    "kshare.max.partitions": "100",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
}
SENDERS_NICE = 10
DRAWN_FOR_A_JUDGED_REQUEST = 1.4
"""A connection's end cuts off the requests behind the one that it refused: 0.3 to 0.35 for each that is judged."""
LATE_LINES_S = 10.0
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
    rested: Mapping[str, ProcessFigures] = field(default_factory=dict)
    """The roles without any client, after the good client was measured once more; empty where it was not."""
    problems: list[str] = field(default_factory=list)

    @property
    def baseline(self) -> Figures:
        """The good client without an attack: before it, and after it where that was measured."""
        return self.calm if self.calm_after is None else self.calm.joined(self.calm_after)

    def report(self) -> str:
        """Figures for a person."""
        met = len(self.outcomes.by_version.keys() & set(served_versions()))
        lines = [
            f"{self.outcomes.judged} requests in {self.seconds:.0f} s "
            f"({self.outcomes.judged / self.seconds:.0f}/s) over "
            f"{self.outcomes.connections} connections: {self.outcomes.answered} answered, {self.outcomes.refused} "
            f"refused by closing; {self.outcomes.not_reached} more were cut off by those",
            f"{met} of {len(served_versions())} versions of APIs met, each at least "
            f"{min(self.outcomes.by_version.values(), default=0)} times; "
            + ", ".join(f"{name} {count}" for name, count in self.outcomes.by_damage.most_common()),
            f"longest burst until its last answer: {self.outcomes.longest_s:.1f} s; the form of "
            f"{self.outcomes.checked} answers was checked",
            f"good client before: {self.calm}; after: {self.calm_after}; without, in all: {self.baseline}",
            *self._beside_drawing(),
            f"good client beside it: {self.attacked}, p99 {self.attacked.p99_ms / self.baseline.p99_ms:.2f} times",
            *(f"{role}: {figures}" for role, figures in self.processes.items()),
            *(f"{role} afterwards: {figures.last_bytes // MIB} MiB" for role, figures in self.rested.items()),
            f"log: {self.log.count(chr(10))} lines, at most {lines_in_a_second(self.log)} in one second",
        ]
        lines += self._refused_and_logged()
        lines += self.outcomes.found.report()
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
        logged = logged_refusals(self.log)
        lines.append(
            f"refusals in the log: {logged.total}, in {logged.lines} lines; between {self.outcomes.refused_whole} and "
            f"{self.outcomes.refused} were seen"
        )
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
    has_sasl: bool = False,
) -> Run:
    """Starts a cluster, and ends after at least so many requests and seconds, of those that are given.

    `calm_s` and `calm_after_s`: how long the good client is measured before and after the attack. `draws_ahead`: draws
    the requests before the attack, for at least `calm_s`, while the good client is measured; in memory they have about
    a kilobyte each. `is_alone`: whether nothing else runs on the machine.
    `requests_per_second`: at most, of all connections together; None: as many as the machine can do.
    `has_sasl`: half of the connections go to a SASL listener, and the authorizer is on (`entrances`).
    """
    port = free_port()
    doors, settings = entrances(port, SETTINGS, has_sasl=has_sasl)
    with KshareCluster(folder, settings, port=port) as cluster:
        for topic in TOPICS:
            create_topic(cluster.bootstrap, topic, 2)
        vocabulary = Vocabulary(topics=TOPICS, topic_ids=topic_ids(cluster.bootstrap, TOPICS))
        pids = {role: cluster.role_pid(role) for role in ROLES}
        rested: Mapping[str, ProcessFigures] = {}
        outcomes = Outcomes(found=FoundFrames(FOUND_FOLDER / f"seed-{seed}"))
        supply = Supply(seed, connections, vocabulary, api_keys)
        bursts = [supply.bursts(number) for number in range(connections)]
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
                sending = _send(doors, bursts, outcomes, is_enough, Pace(requests_per_second))
                _after_the_services(lambda: uvloop.run(sending), is_alone=is_alone)
                took_s = time.monotonic() - began
            calm_after = None
            if calm_after_s:
                with client.measured() as calm_after:
                    time.sleep(calm_after_s)
        if calm_after_s:
            with watched(pids) as rested:
                time.sleep(RESTED_S)
        log = _complete_log(cluster, logged, outcomes.refused_whole)
        found = Run(outcomes, took_s, processes, calm, attacked, log, connections, calm_after, beside_drawing, rested)
        for role, pid in pids.items():
            if cluster.role_pid(role) != pid:
                found.problems.append(f"{role} was started again: it had ended")
    found.problems += _problems(found)
    for correlation_id in correlation_ids(unexpected_lines(log))[:FOUND_LIMIT]:
        request = supply.again(correlation_id, outcomes.sent)
        if request is not None:
            outcomes.keep("a line of level error or a traceback", request)
    return found


class Supply:
    """The requests of a run, by sender: `again` draws one of them once more, since keeping all takes a gigabyte."""

    def __init__(self, seed: int, senders: int, vocabulary: Vocabulary, api_keys: Collection[int]) -> None:
        self._seed = seed
        self._vocabulary = vocabulary
        self._api_keys = api_keys
        self._corpus = corpus_frames()
        self._ids_of_each = (2**31 - 1) // senders

    def bursts(self, number: int) -> Bursts:
        source = random.Random(self._seed * 1_000 + number)
        first_id = number * self._ids_of_each + 1
        return Bursts(source, self._vocabulary, self._api_keys, self._corpus, first_id)

    def again(self, correlation_id: int, limit: int) -> HostileRequest | None:
        """The request with this id, among the first `limit` of its sender."""
        return self.bursts((correlation_id - 1) // self._ids_of_each).again(correlation_id, limit)


def _complete_log(cluster: KshareCluster, start: int, refusals: int) -> str:
    """The log from `start` on, once it tells of so many refusals: of lines that are left out, it tells a second later.

    Where it does not, `silent_refusals` says so.
    """
    deadline = time.monotonic() + LATE_LINES_S
    while logged_refusals(log := cluster.log_text()[start:]).total < refusals and time.monotonic() < deadline:
        time.sleep(0.5)
    return log


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
    doors: Sequence[Entrance], bursts: Sequence[Bursts], outcomes: Outcomes, is_enough: Callable[[], bool], pace: Pace
) -> None:
    """The corpus first, one connection for each; then all senders at once."""
    senders = [Sender(door, outcomes) for door in doors]
    for request in corpus_requests():
        await senders[0].run_one(request)
    work = zip(bursts, cycle(senders), strict=False)
    await asyncio.gather(*(sender.run(each, pace, is_enough) for each, sender in work))


def _problems(run: Run) -> list[str]:
    outcomes = run.outcomes
    found = list(outcomes.problems)
    found += exceeded(run.processes, run.log, connections=run.connections)
    found += kept(run.processes, run.rested)
    found += silent_refusals(
        logged_refusals(run.log),
        outcomes.refusal_times,
        refused_whole=outcomes.refused_whole,
        refused=outcomes.refused,
    )
    return found
