"""The fetches that wait for records of a share-partition: which ones a wake-up reaches, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kshare_leader.machine.interval_map import Owner
from kshare_leader.share.waiting_fetches import Sleeper, WaitingFetches


class Fetch:
    """Notes its wake-ups and its end; `on_wake` is what it does then."""

    def __init__(self, name: str, fetch_number: int, told: list[str]) -> None:
        self.owner = Owner(name)
        self.fetch_number = fetch_number
        self.wait_number = 0
        self.session: Sleeper | None = None
        self._told = told
        self.on_wake: Callable[[], None] = lambda: None

    def wake(self) -> None:
        self._told.append(f"wake {self.owner.member_id}")
        self.on_wake()

    def end(self) -> None:
        self._told.append(f"end {self.owner.member_id}")


def test_the_longest_waiting_is_woken_first_while_there_are_records() -> None:
    async def scenario() -> None:
        told: list[str] = []
        records = 2
        waiting = WaitingFetches(may_wake=lambda: records > 0)
        fetches = [Fetch(name, 1, told) for name in ("a", "b", "c")]

        def take(fetch: Fetch) -> None:
            nonlocal records
            records -= 1
            waiting.remove(fetch)

        for fetch in fetches:
            fetch.on_wake = lambda fetch=fetch: take(fetch)  # type: ignore[misc]
            waiting.add(fetch)
        waiting.schedule_wake()
        waiting.schedule_wake()
        assert told == [], "in the next turn of the loop"
        await asyncio.sleep(0)
        assert told == ["wake a", "wake b"] and waiting
        records = 1
        waiting.schedule_wake()
        waiting.wake_now()
        assert told[2:] == ["wake c"] and not waiting
        await asyncio.sleep(0)
        assert len(told) == 3, "the scheduled wake-up was made up for"

    asyncio.run(scenario())


def test_one_that_was_removed_by_another_is_not_woken() -> None:
    async def scenario() -> None:
        told: list[str] = []
        waiting = WaitingFetches(may_wake=lambda: True)
        first, second = Fetch("a", 1, told), Fetch("b", 1, told)
        first.on_wake = lambda: waiting.remove(second)
        waiting.add(first)
        waiting.add(second)
        waiting.schedule_wake()
        await asyncio.sleep(0)
        assert told == ["wake a"]

    asyncio.run(scenario())


def test_waits_are_ended_by_their_owner_and_number() -> None:
    async def scenario() -> None:
        told: list[str] = []
        waiting = WaitingFetches(may_wake=lambda: False)
        for name, number in (("a", 1), ("a", 5), ("b", 9)):
            waiting.add(Fetch(name, number, told))
        assert waiting.has_newer(Owner("a"), 4) and not waiting.has_newer(Owner("a"), 5)
        waiting.end(lambda fetch: fetch.owner == Owner("a") and fetch.fetch_number <= 4)
        assert told == ["end a"]

    asyncio.run(scenario())
