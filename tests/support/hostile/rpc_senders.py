"""Sends hostile calls to a role over Exchange streams, as another role would, and demands an answer to each."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from kshare_rpc.frames import decode_frame
from support.clients.administration import create_topic
from support.clients.good_client import GoodClient
from support.clusters.kshare_cluster import ROLES, KshareCluster, command_line
from support.hostile.kafka_messages import Vocabulary
from support.hostile.process_figures import ProcessFigures, watched
from support.hostile.role_logs import unexpected_lines
from support.hostile.rpc_messages import CallSource, HostileCall, methods_of
from support.hostile.topics import topic_ids

ANSWER_BOUND_S = 30.0
BURST = 8
SERVICES = {"coordinator": "Coordinator", "share_coordinator": "ShareCoordinator", "leader": "Leader"}
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
    problems: list[str] = field(default_factory=list)


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
        with GoodClient(cluster.bootstrap) as client, watched(pids) as processes:
            until = time.monotonic() + seconds
            asyncio.run(send_calls(cluster, seed, vocabulary, outcomes, lambda: time.monotonic() > until))
            client.wait_for_records(20)
        log = cluster.log_text()
        ended = [role for role, pid in pids.items() if cluster.role_pid(role) != pid]
    problems = [*outcomes.problems, *(f"{role} was started again: it had ended" for role in ended)]
    problems += [f"in the log: {line}" for line in unexpected_lines(log)[:20]]
    return CallRun(outcomes, processes, log, problems)


def address_of(cluster: KshareCluster, role: str) -> str:
    """Where a role serves the calls of other roles."""
    words = command_line(cluster.role_pid(role))
    name = "--listen" if "--listen" in words else "--coordinator-address"
    return words[words.index(name) + 1]


async def send_calls(
    cluster: KshareCluster, seed: int, vocabulary: Vocabulary, outcomes: CallOutcomes, is_enough: Callable[[], bool]
) -> None:
    """Two streams to each role, until it is enough."""
    work = []
    for number, (role, service) in enumerate([*SERVICES.items()] * 2):
        source = random.Random(seed * 100 + number)
        calls = CallSource(source, service, vocabulary)
        work.append(_send_to(address_of(cluster, role), service, calls, outcomes, is_enough))
    await asyncio.gather(*work)


async def _send_to(
    address: str, service: str, calls: CallSource, outcomes: CallOutcomes, is_enough: Callable[[], bool]
) -> None:
    number = 0
    async with grpc.aio.insecure_channel(address) as channel:
        exchange: Exchange = channel.stream_stream(f"/kshare.v1.{service}/Exchange")
        while not is_enough():
            burst = [calls.next_call(number + each) for each in range(1, BURST + 1)]
            number += BURST
            await _burst(exchange, burst, outcomes)


async def _burst(exchange: Exchange, burst: list[HostileCall], outcomes: CallOutcomes) -> None:
    """One stream for a burst, which ends at the first frame that is none."""

    async def frames() -> AsyncIterator[bytes]:
        for each in burst:
            yield each.frame

    began = time.monotonic()
    waiting = {each.correlation_id: each for each in burst if each.is_whole}
    stream = exchange(frames())
    try:
        async with asyncio.timeout(ANSWER_BOUND_S if not any(each.may_wait for each in burst) else 3.0):
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
    except TimeoutError:
        if not any(each.may_wait for each in burst) and len(outcomes.problems) < 20:
            names = ", ".join(each.method for each in waiting.values())
            outcomes.problems.append(f"neither answered nor ended within {ANSWER_BOUND_S} s: {names}")
    except grpc.aio.AioRpcError as error:
        outcomes.streams_ended += 1
        if all(each.is_whole for each in burst) and len(outcomes.problems) < 20:
            outcomes.problems.append(f"a stream of whole frames ended: {error.code()} {error.details()}")
    finally:
        stream.cancel()
        outcomes.longest_s = max(outcomes.longest_s, time.monotonic() - began)
