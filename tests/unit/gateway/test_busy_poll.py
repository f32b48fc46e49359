"""Looking instead of sleeping: for how long, for what, and not where it was in vain."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from kshare_core.configs import process_configs
from kshare_gateway.busy_poll import SKIPPED_LIMIT, BusyPoll
from kshare_gateway.settings import BUSY_POLL_US, busy_poll_limit_us
from kshare_wire.api_versions import ApiKey
from support.gateway_harness import GatewayHarness, run

LIMIT_US = 1_000
STEP_S = 0.000_1
LOOKS = 10
"""In vain, until the limit."""


class Looking:
    """A BusyPoll whose clock goes on by STEP_S with each look."""

    def __init__(self, limit_us: int = LIMIT_US, *, has_leaders_here: bool = False) -> None:
        self.time_s = 0.0
        self.looks = 0
        self.busy_poll = BusyPoll(
            limit_us, has_leaders_here=has_leaders_here, now=lambda: self.time_s, let_others=self._look
        )

    def _look(self) -> None:
        self.looks += 1
        self.time_s += STEP_S

    async def turns(self, count: int) -> int:
        """How many looks there were in so many turns of the loop."""
        before = self.looks
        for _ in range(count):
            await asyncio.sleep(0)
        return self.looks - before

    async def until_it_sleeps(self) -> int:
        """How many looks there were until it gave up."""
        before = self.looks
        while self.busy_poll.is_looking:
            await asyncio.sleep(0)
        return self.looks - before


def test_it_looks_until_the_limit_and_then_sleeps() -> None:
    async def scene() -> None:
        looking = Looking()
        looking.busy_poll.request_came()
        assert await looking.until_it_sleeps() in (LOOKS, LOOKS + 1)
        assert await looking.turns(50) == 0

    asyncio.run(scene())


def test_answers_that_the_same_loop_makes_are_not_looked_for() -> None:
    async def scene() -> None:
        looking = Looking(has_leaders_here=True)
        for _ in range(20):
            looking.busy_poll.request_came()
            assert await looking.turns(LOOKS // 2) == 0
            looking.busy_poll.was_answered()
            assert await looking.turns(LOOKS // 2) > 0

    asyncio.run(scene())


def test_what_has_come_has_its_turn_before_others_get_the_processor() -> None:
    async def scene() -> None:
        looking = Looking()
        looking.busy_poll.request_came()
        assert await looking.turns(1) == 0
        assert await looking.turns(1) == 1

    asyncio.run(scene())


def test_what_comes_in_time_begins_a_new_look() -> None:
    async def scene() -> None:
        looking = Looking()
        for _ in range(20):
            looking.busy_poll.request_came()
            assert await looking.turns(LOOKS // 2)
            looking.busy_poll.was_answered()
            assert await looking.turns(LOOKS // 2)
        assert looking.busy_poll.is_looking
        assert await looking.until_it_sleeps() <= LOOKS + 1

    asyncio.run(scene())


def test_what_did_not_come_is_looked_for_more_and_more_rarely() -> None:
    async def scene() -> None:
        looking = Looking()
        looked = []
        for occasion in range(3 * (1 << SKIPPED_LIMIT)):
            looking.busy_poll.request_came()
            if await looking.until_it_sleeps():
                looked.append(occasion)
        pauses = [later - earlier - 1 for earlier, later in pairwise(looked)]
        assert pauses[:10] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        assert max(pauses) == 1 << SKIPPED_LIMIT

    asyncio.run(scene())


def test_a_slow_leader_does_not_end_the_looks_for_quick_clients() -> None:
    """And one that is quick again sets its failures back."""

    async def scene() -> None:
        looking = Looking()
        for _ in range(5):
            looking.busy_poll.request_came()
            await looking.until_it_sleeps()  # no answer in time
            looking.busy_poll.was_answered()
            assert await looking.turns(2)
        looking.busy_poll.request_came()
        await looking.until_it_sleeps()
        while not looking.busy_poll.is_looking:  # passed over, until it is its turn
            looking.busy_poll.request_came()
        looking.busy_poll.was_answered()
        looking.busy_poll.request_came()
        assert await looking.turns(2), "the answer came in time, so it is looked for again at once"

    asyncio.run(scene())


def test_without_a_limit_it_never_looks() -> None:
    async def scene() -> None:
        looking = Looking(limit_us=0)
        looking.busy_poll.request_came()
        looking.busy_poll.was_answered()
        assert await looking.turns(5) == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("given", "may_keep_busy", "limit_us"),
    [({}, True, BUSY_POLL_US), ({}, False, 0), ({"kshare.gateway.busy.poll.max.us": "70"}, False, 70)],
)
def test_the_config(given: dict[str, str], may_keep_busy: bool, limit_us: int) -> None:
    assert busy_poll_limit_us(process_configs(given)[0], may_keep_busy=may_keep_busy) == limit_us


AWAITED = {
    ApiKey.SHARE_ACKNOWLEDGE: (2, {"group_id": "g", "member_id": "m", "share_session_epoch": 1, "topics": ()}),
    ApiKey.PRODUCE: (12, {"acks": -1, "topic_data": ()}),
}


@pytest.mark.parametrize("api_key", AWAITED)
def test_acknowledgements_and_records_are_waited_for_and_nothing_else(api_key: ApiKey) -> None:
    async def scene(harness: GatewayHarness) -> None:
        client = harness.client()
        await client.ask(ApiKey.METADATA, 12, topics=())
        await client.ask(ApiKey.LIST_GROUPS, 5)
        assert not harness.node.busy_poll.is_looking
        version, values = AWAITED[api_key]
        await client.ask(api_key, version, **values)
        assert harness.node.busy_poll.is_looking

    run(scene, {"kshare.gateway.busy.poll.max.us": "1000000"})
