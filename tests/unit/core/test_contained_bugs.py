"""Background work that fails unexpectedly: it is reported each time, and begins again."""

from __future__ import annotations

import asyncio

from kshare_core.contained_bugs import RESTART_PAUSE_S, restarted_after_bugs
from support.simulation.loop import VirtualLoop


def test_work_that_fails_is_reported_and_begins_again_after_a_pause() -> None:
    loop = VirtualLoop()
    began_at: list[float] = []

    async def work() -> None:
        began_at.append(loop.time())
        await asyncio.sleep(1)
        if len(began_at) < 3:
            raise KeyError(len(began_at))

    loop.run(restarted_after_bugs("the planted work", work))
    assert began_at == [0, 1 + RESTART_PAUSE_S, 2 * (1 + RESTART_PAUSE_S)]
    text = "the planted work failed unexpectedly and begins again in 5 s"
    assert loop.problems == [f"at 1.000 s: {text}: KeyError(1)", f"at 7.000 s: {text}: KeyError(2)"]


def test_work_that_is_cancelled_ends() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        task = loop.create_task(restarted_after_bugs("the planted work", loop.create_future))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    loop.run(main())
    assert loop.problems == []
