"""Coordinators whose etcd is restarted, stalled or full, and coordinators that are killed or stalled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kshare_coordinator.metadata.port import CATALOG, OwnershipLost
from kshare_core.errors import StorageFailure
from support.environment.machine_stalls import MachineStalls
from support.metadata.cluster import LEASE_MS, Cluster, write
from support.metadata.etcd_backends import (
    Backend,
    Play,
    RealBackend,
    allowed_s,
    play_in_virtual_time,
    play_on,
    real_etcd,
    until,
)
from support.metadata.process import GROUP_PARTITIONS
from support.simulation.loop import VirtualLoop

LEASE_S = LEASE_MS / 1000
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=["etcd", "memory"])
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: play_on(request.param, scene)


async def count_up(cluster: Cluster, confirmed: dict[int, int], is_over: asyncio.Event) -> None:
    """Whoever owns a partition counts its number up, one append after the other; `confirmed` has what was confirmed."""
    while not is_over.is_set():
        for one in list(cluster.coordinators):
            mine = [p for p in (CATALOG, *one.group_partitions) if one.store.owns(p)]
            waiting = one.store.append({p: [write("n", str(int(one.rows(p).get("n", "0")) + 1))] for p in mine})
            if waiting is None:
                continue
            with suppress(OwnershipLost):
                await waiting
                confirmed.update({p: int(one.rows(p)["n"]) for p in mine if one.store.owns(p)})
        await asyncio.sleep(0.005)


def numbers(cluster: Cluster) -> dict[int, int]:
    found = {}
    for p in range(CATALOG, cluster.group_partitions):
        owner = cluster.owner(p)
        assert owner is not None
        found[p] = int(owner.rows(p)["n"])
    return found


def test_etcd_is_restarted_in_the_middle(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=6) as cluster:
            await cluster.start(1)
            await cluster.start(2)
            await cluster.balanced()
            confirmed: dict[int, int] = {}
            is_over = asyncio.Event()
            counting = asyncio.ensure_future(count_up(cluster, confirmed, is_over))
            await until(lambda: len(confirmed) == 7 and min(confirmed.values()) > 5)
            for _ in range(2):
                backend.restart()
                least = min(confirmed.values())
                await until(lambda least=least: min(confirmed.values()) > least + 5)  # type: ignore[misc]
                await cluster.balanced()
            is_over.set()
            await counting
            await cluster.balanced()
            assert all(numbers(cluster)[p] >= confirmed[p] for p in confirmed)
            for one in cluster.coordinators:
                if not one.store.owns(CATALOG):
                    newest = str(numbers(cluster)[CATALOG])
                    await until(lambda one=one, newest=newest: one.catalog["n"] == newest)  # type: ignore[misc]

    play(scene)


def test_no_coordinator_owns_a_partition_while_etcd_stalls_for_longer_than_a_lease(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=6) as cluster:
            a, b = await cluster.start(1), await cluster.start(2)
            await cluster.balanced()
            confirmed: dict[int, int] = {}
            is_over = asyncio.Event()
            counting = asyncio.ensure_future(count_up(cluster, confirmed, is_over))
            await until(lambda: len(confirmed) == 7)
            loop = asyncio.get_running_loop()
            backend.pause()
            paused_at = loop.time()
            await until(lambda: cluster.counts() == [0, 0] and cluster.owner(CATALOG) is None)
            assert loop.time() - paused_at <= allowed_s(LEASE_S + 0.1, since=paused_at)
            await until(lambda: not a.gained_rows and not b.gained_rows)
            while loop.time() < paused_at + LEASE_S + 2:
                assert cluster.counts() == [0, 0]
                assert cluster.owner(CATALOG) is None
                await asyncio.sleep(0.02)
            before = dict(confirmed)
            backend.resume()
            await until(cluster.is_complete)
            await until(lambda: all(confirmed[p] > before[p] for p in before))
            is_over.set()
            await counting
            await cluster.balanced()
            assert all(numbers(cluster)[p] >= confirmed[p] for p in confirmed)

    play(scene)


def test_a_coordinator_that_stalled_owns_nothing_even_before_its_timers_run() -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop._now += LEASE_S
            assert cluster.counts() == [0]
            assert not a.store.owns(CATALOG)
            with pytest.raises(OwnershipLost):
                await a.put(0, "k", "1")

    play_in_virtual_time(scene)


def test_a_short_standstill_takes_nothing_away(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=6) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            backend.pause()
            waiting = asyncio.ensure_future(a.append({0: [write("k", "1")], CATALOG: [write("k", "1")]}))
            await asyncio.sleep(LEASE_S / 4)
            assert not waiting.done()
            backend.resume()
            await waiting
            assert sorted(a.gained_rows) == list(range(CATALOG, 6)), "nothing was lost meanwhile"
            assert (a.rows(0), a.rows(CATALOG)) == ({"k": "1"}, {"k": "1"})

    play(scene)


def test_etcd_that_is_full_refuses_and_nothing_of_it_is_read_later() -> None:
    async def scene(server: RealBackend) -> None:
        async with Cluster(server, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            await a.put(0, "k", "1")
            written = 0
            with pytest.raises(StorageFailure, match="space exceeded"):
                for number in range(100):
                    await a.put(1, f"large {number}", "x" * 900_000)
                    written += 1
            assert 1 < written < 100
            with pytest.raises(StorageFailure, match="space exceeded"):
                await a.append({0: [write("k", "2")], 1: [write("k", "2")]})
            assert a.rows(0) == {"k": "1"}
            assert len(a.rows(1)) == written
            assert sorted(a.gained_rows) == [CATALOG, 0, 1]
            await asyncio.sleep(LEASE_S * 1.5)
            assert a.group_partitions == [0, 1], "a lease is kept without space"

    with real_etcd("--quota-backend-bytes=16000000") as server:
        asyncio.run(asyncio.wait_for(scene(RealBackend(server)), 60))


# Coordinators as processes: what they say is put side by side by the time of the machine.


class CoordinatorProcess:
    def __init__(self, folder: Path, endpoint: str, node_id: int, incarnation: str) -> None:
        self._output = folder / incarnation
        command = [sys.executable, "-m", "support.metadata.process", endpoint, str(node_id), incarnation]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(LEASE_MS)], stdout=output, stderr=subprocess.DEVNULL, env=environment, cwd=folder
            )

    def said(self) -> list[tuple[float, bool, int, int]]:
        """Time, whether it owns the catalog, how many group partitions, and the number that it knows."""
        lines = self._output.read_text().rpartition("\n")[0].splitlines()
        return [(float(t), c == "1", int(count), int(n)) for t, c, count, n in (line.split(" ") for line in lines)]

    def owns(self, count: int) -> bool:
        """Whether its newest line says that it owns the catalog, and so many of the others."""
        said = self.said()
        return bool(said) and said[-1][1] and said[-1][2] == count

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitpid(self._process.pid, os.WUNTRACED)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)


@contextmanager
def processes(count: int) -> Iterator[list[CoordinatorProcess]]:
    """The first one owns the catalog."""
    with TemporaryDirectory() as folder, real_etcd() as server:
        started: list[CoordinatorProcess] = []
        try:
            for node_id in range(1, count + 1):
                started.append(CoordinatorProcess(Path(folder), server.endpoint, node_id, f"life-{node_id}"))
                first = started[0]
                wait_until(lambda first=first: bool(first.said()) and first.said()[-1][1])  # type: ignore[misc]
            share = -(-GROUP_PARTITIONS // count)
            wait_until(lambda: started[0].owns(share))
            yield started
        finally:
            for one in started:
                one.end()


def wait_until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    until_ = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_, f"not within {within_s} s"
        time.sleep(0.01)


def assert_one_at_a_time(started: list[CoordinatorProcess]) -> None:
    """Nobody said that it owns the catalog after somebody else had said so."""
    said = sorted((when, index) for index, one in enumerate(started) for when, owns, _, _ in one.said() if owns)
    owners = [index for _, index in said]
    changes = [index for position, index in enumerate(owners) if position == 0 or owners[position - 1] != index]
    assert len(changes) == len(dict.fromkeys(changes)), f"the catalog went to and fro: {changes}"


def test_a_killed_coordinator_is_replaced_within_its_lease_and_a_second() -> None:
    with MachineStalls() as stalls, processes(2) as started:
        first, second = started
        wait_until(lambda: first.said()[-1][3] > 20)
        first.end()
        killed_at, confirmed = time.monotonic(), first.said()[-1][3]
        wait_until(lambda: second.owns(GROUP_PARTITIONS))
        took_over_at = next(when for when, owns, count, _ in second.said() if owns and count == GROUP_PARTITIONS)
        bound_s = LEASE_S + 1
        assert took_over_at - killed_at < bound_s + stalls.credit_s(killed_at, took_over_at, bound_s)
        wait_until(lambda: second.said()[-1][3] > confirmed + 20)
        assert next(number for _, owns, _, number in second.said() if owns) >= confirmed
        assert_one_at_a_time(started)


def test_a_coordinator_that_stood_still_owns_nothing_when_it_goes_on() -> None:
    with processes(2) as started:
        first, second = started
        first.send(signal.SIGSTOP)
        wait_until(lambda: second.owns(GROUP_PARTITIONS))
        before = second.said()[-1][3]
        resumed_at = time.monotonic()
        first.send(signal.SIGCONT)
        wait_until(lambda: first.said()[-1][0] > resumed_at and first.said()[-1][2] == GROUP_PARTITIONS // 2)
        later = [one for one in first.said() if one[0] > resumed_at]
        assert later[0][1:3] == (False, 0), "it knows that its lease may have run out before it does anything"
        assert not any(owns for _, owns, _, _ in later)
        wait_until(lambda: second.said()[-1][3] > before + 20)
        wait_until(lambda: first.said()[-1][3] > before + 10)
        assert_one_at_a_time(started)
