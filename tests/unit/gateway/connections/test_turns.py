"""Which connection starts its next request when clients have sent more than a gateway starts at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from kshare_gateway.connections.turns import CREDIT_REQUESTS, REQUESTS_PER_TURN, Turns


class Client:
    """A connection with so many pipelined requests; `started` has the names of those who started one, in order."""

    def __init__(self, turns: Turns, name: str, requests: int, started: list[str]) -> None:
        self.charge = 0.0
        self.waits_for_turn = False
        self._turns = turns
        self._name = name
        self._left = 0
        self._started = started
        turns.admit(self)
        self.send(requests)

    def send(self, requests: int) -> None:
        self._left += requests
        if self._left and self._turns.may_start(self):
            self.take_turn()

    def take_turn(self) -> None:
        is_turn = True
        while self._left:
            if not is_turn:
                self._turns.wait(self)
                return
            self._left -= 1
            self._started.append(self._name)
            is_turn = self._turns.charged(self)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_client_alone_starts_a_bounded_number_in_each_turn() -> None:
    async def scenario() -> None:
        started: list[str] = []
        Client(Turns(), "a", 3 * REQUESTS_PER_TURN, started)
        for turns in range(1, 4):
            assert len(started) == turns * REQUESTS_PER_TURN
            await asyncio.sleep(0)

    run(scenario)


def test_a_client_that_sends_little_is_not_behind_what_others_have_pipelined() -> None:
    async def scenario() -> None:
        turns, started = Turns(), list[str]()
        polite = Client(turns, "polite", 0, started)
        for number in range(60):
            Client(turns, f"flood-{number}", 500, started)
        fair_share_turns = 60 // REQUESTS_PER_TURN + 2
        for _ in range(50):
            for _ in range(fair_share_turns):
                await asyncio.sleep(0)
            started.clear()
            polite.send(1)
            assert started == ["polite"], "in the turn in which its request arrives"

    run(scenario)


def test_floods_share_what_is_left() -> None:
    async def scenario() -> None:
        turns, started = Turns(), list[str]()
        clients = [Client(turns, f"{number}", 10_000, started) for number in range(10)]
        for _ in range(100):
            await asyncio.sleep(0)
        counts = Counter(started)
        assert len(counts) == len(clients)
        assert max(counts.values()) - min(counts.values()) <= REQUESTS_PER_TURN, counts
        assert len(started) <= 101 * REQUESTS_PER_TURN

    run(scenario)


def test_a_quiet_client_does_not_save_up() -> None:
    async def scenario() -> None:
        turns, started = Turns(), list[str]()
        quiet = Client(turns, "quiet", 0, started)
        Client(turns, "busy", 10_000, started)
        for _ in range(100):
            await asyncio.sleep(0)
        started.clear()
        quiet.send(10_000)
        assert started == ["quiet"] * int(CREDIT_REQUESTS)
        for _ in range(10):
            await asyncio.sleep(0)
        counts = Counter(started[int(CREDIT_REQUESTS) :])
        assert abs(counts["quiet"] - counts["busy"]) <= 1, counts

    run(scenario)


def test_clients_that_connect_anew_for_each_request_are_not_always_first() -> None:
    async def scenario() -> None:
        turns, started = Turns(), list[str]()
        Client(turns, "steady", 10_000, started)
        anew = 0
        for _ in range(1_000):
            while anew < started.count("anew") + 60:  # as many connections at a time
                Client(turns, "anew", 1, started)
                anew += 1
            await asyncio.sleep(0)
        counts = Counter(started)
        assert counts["steady"] >= counts["anew"] / 60 * 0.9, counts

    run(scenario)


def test_every_request_is_started_once() -> None:
    async def scenario() -> None:
        turns, started = Turns(), list[str]()
        clients = [Client(turns, f"{number}", number, started) for number in range(50)]
        for round_number in range(200):
            clients[round_number % 50].send(round_number % 7)
            await asyncio.sleep(0)
        for _ in range(1_000):
            await asyncio.sleep(0)
        sent = {f"{number}": number for number in range(50)}
        for round_number in range(200):
            sent[f"{round_number % 50}"] += round_number % 7
        assert Counter(started) == Counter(sent)

    run(scenario)
