"""Late requests at a leader: acknowledgements of an older acquisition, and state writes near their timeout."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_leader.share import state_store
from kshare_leader.share.limits import WRITE_ATTEMPT_MIN_MS
from support.leader.share.service import Leader, fetch_partition, run

ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready() -> Leader:
    """A leader with ten records in partition 0."""
    leader = Leader()
    leader.channel.initialize(0, 0)
    leader.log().append(10)
    return leader


@pytest.mark.parametrize("kind", [ACCEPT, RELEASE, REJECT])
@pytest.mark.parametrize("by_fetch", [True, False])
def test_a_late_acknowledgement_does_not_meet_an_acquisition_that_was_not_delivered(
    kind: bytes, by_fetch: bool
) -> None:
    async def test() -> None:
        async def acknowledge(delivered_fetch_number: int) -> int:
            if not by_fetch:
                return await leader.acknowledge("m1", 2, 5, kind, delivered_fetch_number=delivered_fetch_number)
            partition = fetch_partition(0, (2, 5, kind))
            partition.fetch = False
            answer, _ = await leader.fetch(
                "m1", partition, max_wait_ms=0, fetch_number=9, delivered_fetch_number=delivered_fetch_number
            )
            return answer.partitions[0].acknowledge_error_code

        leader = ready()
        assert await leader.acquire(fetch_number=7) == [(0, 9, 1)]
        await asyncio.sleep(30)
        assert await leader.acquire(fetch_number=8) == [(0, 9, 2)]
        assert await acknowledge(7) == ErrorCode.INVALID_RECORD_STATE
        assert await acknowledge(8) == 0
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("final_pause_ms", [1_000, 150])
def test_no_attempt_is_made_that_would_be_cut_off(final_pause_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut off has an unknown outcome, and the state would have to be read anew."""
    monkeypatch.setattr(state_store, "RETRY_INTERVAL_MAX_MS", final_pause_ms)

    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [int(ErrorCode.NOT_COORDINATOR)] * 1000
        began_ms = now_ms()
        assert await leader.acknowledge("m1", 0, 4, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert now_ms() - began_ms <= 5000
        assert len(leader.channel.timeouts_ms) > 3
        assert min(leader.channel.timeouts_ms) >= WRITE_ATTEMPT_MIN_MS - 1
        await leader.service.stop()

    run(test)
