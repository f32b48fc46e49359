"""State writes that reach no share coordinator: members keep their locks, unless an earlier attempt may be stored."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.share.limits import WRITE_ATTEMPT_MIN_MS
from kshare_rpc.network import CallNotStarted, CallTimeout, ConnectTimeout
from support.leader.share.service import GATEWAY, TOPIC, UNAVAILABLE, Leader, run

ACCEPT = b"\x01"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready(records: int) -> Leader:
    """A leader with `records` in partition 0, whose share-partition starts at 0."""
    leader = Leader()
    leader.channel.initialize(0, 0)
    leader.log().append(records)
    return leader


@pytest.mark.parametrize("failure", [CallNotStarted("refused"), ConnectTimeout("no connection"), None])
def test_a_write_that_reached_no_share_coordinator_leaves_the_records_with_their_holder(
    failure: CallNotStarted | None,
) -> None:
    """None: the catalog names no live share coordinator."""

    async def test() -> None:
        leader = ready(5)
        await leader.acquire()
        leader.log().append(5)
        before = leader.view
        leader.channel.write_answers = [failure] * 1000 if failure else []
        if failure is None:
            leader.change_view(replace(leader.view, nodes=(GATEWAY,)))
        assert await leader.acknowledge("m1", 0, 1, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 5000 - WRITE_ATTEMPT_MIN_MS <= now_ms() <= 5100
        assert leader.service.problems()
        leader.channel.write_answers = []
        leader.change_view(before)
        assert await leader.acquire("m2") == [(5, 9, 1)]
        assert await leader.acknowledge("m1", 0, 4, ACCEPT) == 0
        assert leader.channel.states[TOPIC, 0].start_offset == 5
        assert leader.channel.reads == 1 and leader.service.problems() == []
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("first", [UNAVAILABLE, CallTimeout("no answer"), int(ErrorCode.NOT_COORDINATOR)])
def test_a_write_that_may_have_been_stored_stays_unknown_though_later_attempts_do_not_start(
    first: int | Exception,
) -> None:
    async def test() -> None:
        leader = ready(10)
        await leader.acquire()
        leader.channel.write_answers = [CallNotStarted("refused"), first, *[CallNotStarted("refused")] * 1000]
        assert await leader.acknowledge("m1", 0, 4, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert any("unknown write outcome" in report for report in leader.reports)
        leader.channel.write_answers = []
        assert await leader.acquire("m2") == [(0, 9, 1)]
        assert leader.channel.reads == 2
        await leader.service.stop()

    run(test)
