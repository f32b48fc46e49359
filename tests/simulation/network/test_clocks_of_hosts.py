"""Clocks that begin anywhere, drift and jump, and hosts that stand still."""

from __future__ import annotations

import asyncio
import random

import pytest

from kshare_core.leases import CLOCK_RATE_DIFFERENCE
from support.simulation.fault_kinds.clocks import DRIFTS, LARGEST_DRIFT
from support.simulation.hosts import EPOCH_MS, HostClock
from support.simulation.loop import Incarnation, MonotonicClock, VirtualLoop


def test_a_host_sleeps_and_sets_timers_by_its_own_clock() -> None:
    loop = VirtualLoop(time_limit=1000)
    clock = MonotonicClock(500.0)
    clock.set_rate(1.25, 0.0)
    host = Incarnation("leader-1", 1, clock)

    async def main() -> None:
        assert asyncio.get_running_loop().time() == 500.0
        await asyncio.sleep(10)
        assert loop.now_s == 8.0
        timer = loop.call_at(520.0, lambda: None)
        assert timer.when() == 520.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await loop.create_future()
        assert loop.now_s == 12.0

    loop.run(loop_task(loop, host, main()))
    assert loop.problems == []


async def loop_task(loop: VirtualLoop, host: Incarnation, main: object) -> None:
    await loop.task_in(host, main, "main")  # type: ignore[arg-type]


def test_timers_that_are_set_follow_a_clock_that_begins_to_drift() -> None:
    loop = VirtualLoop(time_limit=1000)
    clock = HostClock(loop, starts_at_s=70.0, skew_ms=5_000)
    host = Incarnation("leader-1", 1, clock.monotonic)
    woken: list[float] = []

    async def sleeper() -> None:
        await asyncio.sleep(30)
        woken.append(loop.now_s)

    async def main() -> None:
        loop.task_in(host, sleeper(), "sleeper")
        await asyncio.sleep(10)
        clock.set_rate(0.5)
        await asyncio.sleep(20)
        clock.set_rate(1.0)
        assert clock.now_ms() == EPOCH_MS + 5_000 + 20_000, "the date stays wrong by what it drifted"
        await asyncio.sleep(30)

    loop.run(main())
    assert woken == [40.0], "10 s at the true rate, 20 s at half of it, and 10 s"
    assert [clock.monotonic.shown_at(true_s) for true_s in (5.0, 20.0, 31.0)] == [75.0, 85.0, 91.0]


@pytest.mark.parametrize("rate", [1.0 + drift for drift in DRIFTS])
def test_no_timer_is_early_by_its_clock(rate: float) -> None:
    draw = random.Random(str(rate))
    clock = MonotonicClock(draw.uniform(0, 10_000))
    clock.set_rate(rate, 3.7)
    for _ in range(2_000):
        shown_s = clock.read(3.7) + draw.uniform(0, 1_000)
        assert shown_s <= clock.read(clock.true_time(shown_s)) < shown_s + 1e-6


def test_drifts_stay_within_the_stated_bound() -> None:
    assert max(abs(drift) for drift in DRIFTS) == LARGEST_DRIFT
    slowest, fastest = 1 - LARGEST_DRIFT, 1 + LARGEST_DRIFT
    of_docs = 1 - CLOCK_RATE_DIFFERENCE
    assert of_docs <= slowest / fastest < of_docs + 0.01, "nearly all that docs/operations.md allows"


def test_clocks_that_differ_show_other_times_on_each_host() -> None:
    loop = VirtualLoop()
    clocks = [HostClock.that_differs(loop, random.Random(seed)) for seed in range(20)]
    assert len({clock.monotonic.read(0.0) for clock in clocks}) == 20
    skews_ms = [clock.now_ms() - EPOCH_MS for clock in clocks]
    assert min(skews_ms) < -60_000 and max(skews_ms) > 60_000
    loop.close()


def test_after_a_pause_messages_are_handled_before_the_timers_that_were_due() -> None:
    """Code that relies on its timer alone takes a message for timely that came long after the deadline."""
    loop = VirtualLoop(time_limit=1000)
    host = Incarnation("leader-1", 1)
    seen: list[str] = []

    async def main() -> None:
        loop.run_in(host, lambda: loop.call_later(1.0, seen.append, "the lock ran out"))
        await asyncio.sleep(0.1)
        host.paused = True
        loop.call_later(5.0, loop.run_in, host, seen.append, "acknowledgement")
        await asyncio.sleep(10)
        loop.resume(host)
        await asyncio.sleep(0.1)

    loop.run(main())
    assert seen == ["acknowledgement", "the lock ran out"]
