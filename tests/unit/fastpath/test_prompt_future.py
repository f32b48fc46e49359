"""Futures that tell one listener at once, and are Futures otherwise."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from kshare_fastpath.prompt_future import PromptFuture, when_all_ended, when_ended

ENDS: list[Callable[[asyncio.Future[Any]], object]] = [
    lambda future: future.set_result(1),
    lambda future: future.set_exception(ValueError("no")),
    lambda future: future.cancel(),
]


@pytest.mark.parametrize("end", ENDS, ids=["result", "exception", "cancelled"])
@pytest.mark.parametrize("listens_late", [False, True])
def test_the_listener_hears_of_the_end_once_and_at_once(
    end: Callable[[asyncio.Future[Any]], object], listens_late: bool
) -> None:
    async def scene() -> None:
        future: PromptFuture[int] = PromptFuture(loop=asyncio.get_running_loop())
        heard: list[bool] = []
        if not listens_late:
            when_ended(future, lambda ended: heard.append(ended is future and ended.done()))
            assert heard == []
        end(future)
        if listens_late:
            when_ended(future, lambda ended: heard.append(ended is future and ended.done()))
        assert heard == [True], "before anybody else has a turn"
        assert not future.cancel(), "it has ended"
        await asyncio.wait([future])
        assert heard == [True]
        assert future.cancelled() or future.exception() is not None or future.result() == 1

    asyncio.run(scene())


def test_another_future_tells_in_the_next_turn() -> None:
    async def scene() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heard: list[int] = []
        when_ended(future, lambda ended: heard.append(ended.result()))
        future.set_result(3)
        assert heard == []
        await asyncio.sleep(0)
        assert heard == [3]

    asyncio.run(scene())


def test_those_who_await_it_go_on_and_a_cancelled_one_takes_nothing_along() -> None:
    async def scene() -> None:
        future: PromptFuture[int] = PromptFuture(loop=asyncio.get_running_loop())
        waiting, leaving = (asyncio.ensure_future(asyncio.wait_for(asyncio.shield(future), 10)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert not future.done()
        future.set_result(5)
        assert await waiting == 5
        assert await future == 5

    asyncio.run(scene())


def test_a_listener_that_raises_harms_nobody_and_is_reported() -> None:
    async def scene() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        future: PromptFuture[int] = PromptFuture(loop=asyncio.get_running_loop())

        def fail(ended: object) -> None:
            raise RuntimeError("a bug")

        future.listen(fail)
        future.set_result(1)
        assert await future == 1
        assert [str(report["exception"]) for report in reports] == ["a bug"]

    asyncio.run(scene())


def test_all_have_ended_when_the_last_one_has() -> None:
    async def scene() -> None:
        futures: list[PromptFuture[int]] = [PromptFuture(loop=asyncio.get_running_loop()) for _ in range(3)]
        heard: list[list[bool]] = []
        futures[1].set_result(1)
        when_all_ended(futures, lambda: heard.append([future.done() for future in futures]))
        futures[0].cancel()
        assert heard == []
        futures[2].set_result(2)
        assert heard == [[True, True, True]]

    asyncio.run(scene())


def test_an_exception_is_retrieved_although_the_listener_has_no_use_for_it() -> None:
    """As when a server stopped, and gave up the call whose work ends now."""

    async def scene() -> None:
        problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        future: PromptFuture[int] = PromptFuture(loop=asyncio.get_running_loop())
        when_all_ended([future], lambda: None)
        future.set_exception(ValueError("no"))
        del future
        gc.collect()
        assert problems == []

    asyncio.run(scene())


def test_all_of_none_and_all_of_ended_ones_have_ended_at_once() -> None:
    async def scene() -> None:
        ended: list[PromptFuture[int]] = [PromptFuture(loop=asyncio.get_running_loop()) for _ in range(2)]
        for future in ended:
            future.set_result(0)
        heard: list[str] = []
        when_all_ended([], lambda: heard.append("none"))
        when_all_ended(ended, lambda: heard.append("ended"))
        assert heard == ["none", "ended"]

    asyncio.run(scene())


def test_a_completed_future_has_what_was_made_or_raised_and_a_given_up_one_makes_nothing() -> None:
    async def scene() -> None:
        made, raised, cancelled, given_up = (PromptFuture[float](loop=asyncio.get_running_loop()) for _ in range(4))
        never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        never.cancel()
        made.complete(lambda: 1.5)
        raised.complete(lambda: 1 / 0)
        cancelled.complete(never.result)
        given_up.cancel()
        given_up.complete(lambda: made.result() / 0)
        assert made.result() == 1.5
        assert isinstance(raised.exception(), ZeroDivisionError)
        assert isinstance(cancelled.exception(), asyncio.CancelledError)
        assert given_up.cancelled()

    asyncio.run(scene())


def test_a_listener_that_refers_to_its_future_needs_no_garbage_collector() -> None:
    class Call:
        """As the calls of the leader: it has the futures, whose listener refers to it."""

        def __init__(self) -> None:
            self.futures: list[PromptFuture[int]] = [PromptFuture(loop=asyncio.get_running_loop()) for _ in range(2)]
            when_all_ended(self.futures, self.ended)

        def ended(self) -> None:
            assert [future.result() for future in self.futures] == [1, 1]

    async def scene() -> None:
        call = Call()
        left = weakref.ref(call)
        for future in call.futures:
            future.set_result(1)
        del call, future
        assert left() is None

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()
