"""Virtual time, and lives that end or stop."""

from __future__ import annotations

import asyncio
import time
import warnings
from typing import Any

import pytest

from support.simulation.loop import Deadlock, Incarnation, LimitReached, VirtualLoop


def test_an_hour_passes_at_once_and_in_order() -> None:
    loop = VirtualLoop(time_limit=10_000)
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.time()))

    async def main() -> None:
        await asyncio.gather(sleeper("late", 3600), sleeper("early", 0.001), sleeper("middle", 1800))

    started = time.process_time()
    loop.run(main())
    assert time.process_time() - started < 1
    assert seen == [("early", 0.001), ("middle", 1800), ("late", 3600)]


def test_timers_of_one_time_fire_in_the_order_in_which_they_were_made_whatever_else_is_set() -> None:
    loop = VirtualLoop()
    seen: list[int] = []

    async def main() -> None:
        for number in range(50):
            loop.call_later(number % 7, lambda: None).cancel()
            loop.call_at(5.0, seen.append, number)
            loop.call_later(4 + number % 3, lambda: None)
        await asyncio.sleep(10)

    loop.run(main())
    assert seen == list(range(50))


def test_a_deadlock_names_the_tasks_that_wait() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        asyncio.current_task().set_name("the one that waits")  # type: ignore[union-attr]
        await loop.create_future()

    with pytest.raises(Deadlock, match=r"the one that waits at .*test_virtual_loop\.py"):
        loop.run(main())


@pytest.mark.parametrize(("limits", "delay"), [({"time_limit": 5.0}, 1.0), ({"step_limit": 500}, 0.0)])
def test_an_endless_run_ends_at_the_limit(limits: dict[str, float], delay: float) -> None:
    loop = VirtualLoop(**limits)  # type: ignore[arg-type]

    async def main() -> None:
        while True:
            await asyncio.sleep(delay)

    with pytest.raises(LimitReached):
        loop.run(main())


def test_a_dead_incarnation_never_runs_again_not_even_its_finally_blocks() -> None:
    loop = VirtualLoop()
    incarnation = Incarnation("leader-1", 1)
    seen: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(2)
                seen.append("woke")
        finally:
            seen.append("finally")

    async def child() -> None:
        asyncio.get_running_loop().call_later(2, seen.append, "timer")
        asyncio.get_running_loop().call_soon(lambda: asyncio.create_task(work()))
        await work()

    async def main() -> None:
        loop.task_in(incarnation, child(), "child")
        await asyncio.sleep(1)
        incarnation.dead = True
        await asyncio.sleep(10)
        assert seen == []

    loop.run(main())
    assert loop.problems == []


def test_a_failure_that_a_dead_incarnation_would_have_noted_is_no_problem() -> None:
    """Seed 620000098: a leader died between a write that failed and the callback that would have looked at it."""
    loop = VirtualLoop()
    incarnation = Incarnation("leader-1", 1)

    def die() -> None:
        incarnation.dead = True

    async def write() -> None:
        failed = loop.create_future()
        failed.add_done_callback(lambda failed: failed.exception())
        failed.set_exception(OSError("No space left on device"))
        incarnation.before_step = die

    async def main() -> None:
        loop.task_in(incarnation, write(), "write")
        await asyncio.sleep(1)
        assert incarnation.dead

    loop.run(main())
    assert loop.problems == []


def test_a_paused_incarnation_goes_on_where_it_was() -> None:
    loop = VirtualLoop()
    incarnation = Incarnation("leader-1", 1)
    seen: list[float] = []

    async def ticker() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        task = loop.task_in(incarnation, ticker(), "ticker")
        await asyncio.sleep(1.5)
        incarnation.paused = True
        await asyncio.sleep(10)
        assert seen == [1]
        loop.resume(incarnation)
        await task

    loop.run(main())
    assert seen == [1, 11.5, 12.5]


def test_work_that_a_finally_block_begins_at_the_end_leaves_no_warning() -> None:
    loop = VirtualLoop()

    async def closes() -> None:
        await asyncio.sleep(0)

    async def serves() -> None:
        try:
            await loop.create_future()
        finally:
            loop.create_task(closes())

    async def main() -> None:
        loop.create_task(serves())
        await asyncio.sleep(1)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loop.run(main())
    assert warned == []


def test_an_uncaught_exception_is_recorded() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run(main())
    assert len(loop.problems) == 1 and "ZeroDivisionError" in loop.problems[0]


def test_a_roles_task_on_no_host_is_a_problem_where_there_are_hosts() -> None:
    role: dict[str, Any] = {}
    exec(compile("async def work(): pass", "/kshare/services/role.py", "exec"), role)
    loop = VirtualLoop()

    async def main() -> None:
        await loop.create_task(role["work"]())  # a unit test of a part of a role
        await loop.task_in(Incarnation("a", 1), role["work"](), "on its host")
        assert loop.problems == []
        await loop.create_task(role["work"]())

    loop.run(main())
    assert loop.problems == ["at 0.000 s: work runs on no host"]
