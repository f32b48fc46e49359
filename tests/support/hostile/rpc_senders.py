"""Sends hostile calls to a role over Exchange streams, as another role would, and demands an answer to each.

Calls that a role may rightly answer late (`HostileCall.may_wait`) go over streams of their own, which end after
WAITING_S with or without answers, so the bound holds for all others.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from kshare_rpc.exchange.frames import decode_frame
from support.clients.administration import create_topic
from support.clients.good_client import GoodClient
from support.clusters.kshare_cluster import ROLES, KshareCluster, command_line
from support.hostile.bounds import DESCRIPTORS_BESIDE_CALLS, exceeded
from support.hostile.corpus import FOUND_FOLDER, FoundFrames
from support.hostile.kafka_messages import Vocabulary
from support.hostile.process_figures import ProcessFigures, watched
from support.hostile.role_logs import lines_in_a_second, unexpected_lines
from support.hostile.rpc_messages import CallSource, HostileCall, methods_of
from support.hostile.topics import topic_ids

ANSWER_BOUND_S = 30.0
WAITING_S = 3.0
WAITING_LIMIT = 32
"""Calls of one stream that may wait; further ones are not sent while they do."""
BURST = 8
LATER_S = 30.0
STREAMS = 2
"""To each role at once, and as many for calls that may wait."""
KEPT_CALLS = 50_000
"""The newest calls, whose frames are found again by the request ids in the log."""
SERVICES = {"coordinator": "Coordinator", "share_coordinator": "ShareCoordinator", "leader": "Leader"}
CALLER = "hostile-call"
"""Begins the request ids of the calls."""
_REQUEST_ID = re.compile(rf"request_id=({CALLER}-\d+-\d+)")
CONNECTIONS = len(SERVICES) * STREAMS
Exchange = grpc.aio.StreamStreamMultiCallable[bytes, bytes]
ALL_PATHS = frozenset(method.path for service in SERVICES.values() for method in methods_of(service))


@dataclass
class CallOutcomes:
    """What became of the calls."""

    answered: int = 0
    failed: int = 0
    """Answered with a failure instead of a response."""
    streams_ended: int = 0
    longest_s: float = 0.0
    by_method: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    sent: OrderedDict[str, HostileCall] = field(default_factory=OrderedDict)
    """The newest calls by their request ids."""
    problems: list[str] = field(default_factory=list)
    found: FoundFrames = field(default_factory=lambda: FoundFrames(FOUND_FOLDER / "calls"))

    def is_enough(self, until: float) -> bool:
        """Whether it is `until`, and each method was called; on a busy machine that may take longer."""
        now = time.monotonic()
        return now > until and (self.by_method.keys() >= ALL_PATHS or now > until + LATER_S)

    def note_sent(self, caller: str, call: HostileCall) -> None:
        self.sent[f"{caller}-{call.correlation_id}"] = call
        if len(self.sent) > KEPT_CALLS:
            self.sent.popitem(last=False)

    def problem(self, text: str, calls: Iterable[HostileCall]) -> None:
        if len(self.problems) < 20:
            self.problems.append(text)
            for call in calls:
                self.found.add(f"{call.service}_{call.name}", call.frame, text)


@dataclass
class CallRun:
    """What a run of calls found."""

    outcomes: CallOutcomes
    processes: Mapping[str, ProcessFigures]
    log: str
    problems: list[str]

    def report(self) -> str:
        """Figures for a person."""
        found = self.outcomes
        met = [count for name, count in found.by_method.items() if name in ALL_PATHS]
        return "\n".join(
            [
                f"{found.answered} calls answered, {found.failed} of them with a failure; "
                f"{found.streams_ended} streams ended by a frame that was none; longest burst {found.longest_s:.1f} s",
                f"{len(met)} of {len(ALL_PATHS)} methods met, each at least {min(met, default=0)} times",
                *(f"{role}: {figures}" for role, figures in self.processes.items()),
                f"log: {self.log.count(chr(10))} lines, at most {lines_in_a_second(self.log)} in one second",
                *found.found.report(),
                *(f"PROBLEM: {problem}" for problem in self.problems),
            ]
        )


def run_calls(folder: Path, settings: dict[str, str], *, seed: int, seconds: float, topics: Sequence[str]) -> CallRun:
    """Hostile calls to every role of a cluster, with a good client beside them."""
    outcomes = CallOutcomes()
    with KshareCluster(folder, settings) as cluster:
        for topic in topics:
            create_topic(cluster.bootstrap, topic, 2)
        vocabulary = Vocabulary(topics=topics, topic_ids=topic_ids(cluster.bootstrap, topics))
        pids = {role: cluster.role_pid(role) for role in ROLES}
        logged = len(cluster.log_text())
        with GoodClient(cluster.bootstrap) as client, watched(pids) as processes:
            until = time.monotonic() + seconds
            asyncio.run(send_calls(cluster, seed, vocabulary, outcomes, lambda: outcomes.is_enough(until)))
            client.wait_for_records(20)
        log = cluster.log_text()[logged:]
        ended = [role for role, pid in pids.items() if cluster.role_pid(role) != pid]
    for request_id in request_ids(unexpected_lines(log)):
        if request_id in outcomes.sent:
            call = outcomes.sent[request_id]
            outcomes.found.add(f"{call.service}_{call.name}", call.frame, "a line of level error or a traceback")
    problems = [*outcomes.problems, *(f"{role} was started again: it had ended" for role in ended)]
    problems += exceeded(processes, log, connections=CONNECTIONS, descriptors=DESCRIPTORS_BESIDE_CALLS)
    problems += [f"{path} was not called" for path in sorted(ALL_PATHS - outcomes.by_method.keys())]
    return CallRun(outcomes, processes, log, problems)


def request_ids(lines: Iterable[str]) -> list[str]:
    """The request ids of hostile calls in `unexpected_lines`, each once."""
    first_lines = [line.partition("\n")[0] for line in lines]
    return list(dict.fromkeys(each for line in first_lines for each in _REQUEST_ID.findall(line)))


def address_of(cluster: KshareCluster, role: str) -> str:
    """Where a role serves the calls of other roles."""
    words = command_line(cluster.role_pid(role))
    name = "--listen" if "--listen" in words else "--coordinator-address"
    return words[words.index(name) + 1]


async def send_calls(
    cluster: KshareCluster, seed: int, vocabulary: Vocabulary, outcomes: CallOutcomes, is_enough: Callable[[], bool]
) -> None:
    """STREAMS streams to each role, until it is enough."""
    work = []
    for number, (role, service) in enumerate([*SERVICES.items()] * STREAMS):
        caller = f"{CALLER}-{number}"
        calls = CallSource(random.Random(seed * 100 + number), service, vocabulary, caller=caller)
        work.append(send_to(address_of(cluster, role), service, calls, caller, outcomes, is_enough))
    await asyncio.gather(*work)


async def send_to(
    address: str,
    service: str,
    calls: CallSource,
    caller: str,
    outcomes: CallOutcomes,
    is_enough: Callable[[], bool],
    *,
    answer_bound_s: float = ANSWER_BOUND_S,
    waiting_s: float = WAITING_S,
) -> None:
    """Sends bursts of calls to one role, until it is enough."""
    number = 0
    late: list[HostileCall] = []
    waiting: asyncio.Task[None] | None = None
    async with grpc.aio.insecure_channel(address) as channel:
        exchange: Exchange = channel.stream_stream(f"/kshare.v1.{service}/Exchange")
        while not is_enough():
            burst = [calls.next_call(number + each) for each in range(1, BURST + 1)]
            number += BURST
            for call in burst:
                outcomes.note_sent(caller, call)
            late = [*late, *(each for each in burst if each.may_wait)][-WAITING_LIMIT:]
            if late and (waiting is None or waiting.done()):
                waiting = asyncio.create_task(_wait(exchange, late, outcomes, waiting_s))
                late = []
            await _burst(exchange, [each for each in burst if not each.may_wait], outcomes, answer_bound_s)
        if waiting is not None:
            await waiting


async def _burst(exchange: Exchange, burst: Sequence[HostileCall], outcomes: CallOutcomes, bound_s: float) -> None:
    """One stream for a burst, which ends at the first frame that is none."""
    waiting = {each.correlation_id: each for each in burst if each.is_whole}
    began = time.monotonic()
    try:
        async with asyncio.timeout(bound_s):
            await _exchange(exchange, burst, waiting, outcomes)
    except TimeoutError:
        names = ", ".join(each.method for each in waiting.values())
        outcomes.problem(f"neither answered nor ended within {bound_s} s: {names}", waiting.values())
    finally:
        outcomes.longest_s = max(outcomes.longest_s, time.monotonic() - began)


async def _wait(exchange: Exchange, calls: Sequence[HostileCall], outcomes: CallOutcomes, lasts_s: float) -> None:
    """One stream for calls that may be answered late, or not while it lasts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(lasts_s):
            await _exchange(exchange, calls, {each.correlation_id: each for each in calls}, outcomes)


async def _exchange(
    exchange: Exchange, calls: Sequence[HostileCall], waiting: dict[int, HostileCall], outcomes: CallOutcomes
) -> None:
    """Sends the calls and takes out of `waiting` those that are answered, until the stream ends."""

    async def frames() -> AsyncIterator[bytes]:
        for each in calls:
            yield each.frame

    stream = exchange(frames())
    try:
        async for answer in stream:
            header, _ = decode_frame(answer)
            call = waiting.pop(header.correlation_id, None)
            if call is None:
                continue  # a damaged frame that was one by chance
            outcomes.answered += 1
            outcomes.by_method[call.method] += 1
            if header.failure:
                outcomes.failed += 1
                outcomes.failures[f"{call.method[:60]}: {header.failure[:100]}"] += 1
        if waiting and all(each.is_whole for each in calls):
            names = ", ".join(each.method for each in waiting.values())
            outcomes.problem(f"a stream of whole frames ended without answers to {names}", waiting.values())
    except grpc.aio.AioRpcError as error:
        outcomes.streams_ended += 1
        if all(each.is_whole for each in calls):
            outcomes.problem(f"a stream of whole frames ended: {error.code()} {error.details()}", calls)
    finally:
        stream.cancel()
