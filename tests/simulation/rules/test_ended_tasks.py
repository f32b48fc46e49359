"""Exceptions of background tasks: which of them fail a run, and which an awaiter would still have looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kshare_core.errors import StorageFailure
from support.simulation.loop import Incarnation, VirtualLoop


class Role:
    """A role with one background task, which it keeps in an attribute."""

    def __init__(self, error: BaseException | None, *, ends_after_s: float = 1.0) -> None:
        self._error = error
        self._ends_after_s = ends_after_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work(), name="the work")

    async def look(self, later_s: float) -> None:
        """Looks at the end of the task, after other work."""
        await self.start()
        await asyncio.sleep(later_s)
        assert self._task is not None
        await asyncio.wait([self._task])
        self._task.exception()

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            await asyncio.sleep(self._ends_after_s)
        finally:
            if self._error is not None:
                raise self._error


def problems_of(scene: Callable[[VirtualLoop, Incarnation], Coroutine[Any, Any, object]]) -> list[str]:
    loop = VirtualLoop()
    kept: list[object] = []

    async def main() -> None:
        kept.append(await scene(loop, Incarnation("leader-1", 1)))

    loop.run(main())
    return loop.problems


def in_host(loop: VirtualLoop, life: Incarnation, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return loop.task_in(life, work, "role")


NOTED = "leader-1#1: the task 'the work' ended by an exception: KeyError('planted')"


@pytest.mark.parametrize("error", [KeyError("planted"), StorageFailure("planted")])
def test_a_task_that_ends_by_an_exception_is_noted_at_the_end_of_the_run(error: Exception) -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> Role:
        role = Role(error)
        await in_host(loop, life, role.start())
        await asyncio.sleep(10)
        return role

    (problem,) = problems_of(scene)
    assert problem == f"at 10.000 s: leader-1#1: the task 'the work' ended by an exception: {error!r}"


@pytest.mark.parametrize("error", [None, KeyError("planted"), StorageFailure("planted")])
@pytest.mark.parametrize("later_s", [0.0, 5.0])
def test_a_task_whose_end_is_looked_at_is_no_problem(error: Exception | None, later_s: float) -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> Role:
        role = Role(error)
        await in_host(loop, life, role.look(later_s))
        return role

    assert problems_of(scene) == []


def test_a_task_that_ended_by_a_bug_is_noted_also_if_its_host_dies_later() -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> Role:
        role = Role(KeyError("planted"))
        await in_host(loop, life, role.start())
        await asyncio.sleep(2)
        life.dead = True
        return role

    assert problems_of(scene) == [f"at 2.000 s: {NOTED}"]


@pytest.mark.parametrize("error", [StorageFailure("the disk failed"), ConnectionError("reset")])
def test_what_a_dead_host_would_have_looked_at_later_is_no_problem(error: Exception) -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> Role:
        role = Role(error)
        in_host(loop, life, role.look(5.0))
        await asyncio.sleep(2)
        life.dead = True
        return role

    assert problems_of(scene) == []


def test_what_a_dead_host_was_about_to_hear_is_no_problem() -> None:
    """The host dies between the end of the task and the step of the one that awaits it."""

    async def scene(loop: VirtualLoop, life: Incarnation) -> Role:
        role = Role(KeyError("planted"))
        in_host(loop, life, role.look(0.0))
        await asyncio.sleep(0)
        steps = 0

        def die_behind_the_end() -> None:
            nonlocal steps
            if role._task is not None and role._task.done():
                life.dead = True

        life.before_step = die_behind_the_end
        await asyncio.sleep(10)
        assert life.dead and life.deferred
        return role

    assert problems_of(scene) == []


@pytest.mark.parametrize("ends_after_s", [1.0, 100.0])
def test_a_bug_that_a_stop_throws_away_is_noted(ends_after_s: float) -> None:
    """It ended by itself before, or by an error while it is cancelled."""

    async def scene(loop: VirtualLoop, life: Incarnation) -> None:
        role = Role(KeyError("planted"), ends_after_s=ends_after_s)
        await in_host(loop, life, role.start())
        await asyncio.sleep(2)
        await in_host(loop, life, role.stop())

    assert problems_of(scene) == ["at 2.000 s: a task that was gathered ended by an exception: KeyError('planted')"]


def test_what_a_stop_may_throw_away_is_no_problem_unless_the_task_had_ended_before() -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> None:
        role = Role(StorageFailure("planted"), ends_after_s=100)
        await in_host(loop, life, role.start())
        await asyncio.sleep(2)
        loop.note_ended_tasks(life)
        await in_host(loop, life, role.stop())

    assert problems_of(scene) == []

    async def earlier(loop: VirtualLoop, life: Incarnation) -> None:
        role = Role(StorageFailure("planted"))
        await in_host(loop, life, role.start())
        await asyncio.sleep(2)
        loop.note_ended_tasks(Incarnation("leader-2", 1))
        assert loop.problems == []
        loop.note_ended_tasks(life)
        await in_host(loop, life, role.stop())

    assert len(problems_of(earlier)) == 1


def test_a_gather_gives_its_results_as_ever() -> None:
    async def scene(loop: VirtualLoop, life: Incarnation) -> None:
        async def value() -> int:
            return 1

        async def failing() -> int:
            raise ConnectionError("reset")

        first, second = await asyncio.gather(value(), value())
        assert (first, second) == (1, 1)
        assert await asyncio.gather(return_exceptions=True) == []
        _, error = await asyncio.gather(value(), failing(), return_exceptions=True)
        assert isinstance(error, ConnectionError)

    assert problems_of(scene) == []


def test_a_gather_that_is_cancelled_is_no_problem() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        gathering = asyncio.ensure_future(asyncio.gather(asyncio.sleep(5), return_exceptions=True))
        await asyncio.sleep(1)
        gathering.cancel()
        await asyncio.wait([gathering])

    loop.run(main())
    assert loop.problems == []
