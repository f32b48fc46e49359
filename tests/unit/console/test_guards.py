"""What keeps other sites and other hosts out of the console, and the limit of live viewers."""

from __future__ import annotations

import asyncio
import json

import pytest

from kshare_console.http.guards import check_host, check_origin, is_allowed_host
from kshare_console.live import LiveViews, Message
from kshare_console.refusal import Refusal
from kshare_console.viewers import FAILING_HOSTS_LIMIT, FAILURES_LIMIT, FAILURES_WITHIN_S, SignInAttempts
from kshare_console.views.paging import Json
from support.leader.share.service import run


@pytest.mark.parametrize(
    ("header", "is_allowed"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("10.1.2.3", True),
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("console.example.com:443", True),
        ("evil.example.com:8080", False),
        ("console.example.com.evil.com", False),
        ("localhost.evil.com", False),
        ("", False),
        ("[::1", False),
    ],
)
def test_only_addresses_and_known_names_are_hosts(header: str, is_allowed: bool) -> None:
    assert is_allowed_host(header, {"console.example.com"}) is is_allowed
    if not is_allowed:
        with pytest.raises(Refusal):
            check_host(header, {"console.example.com"})


def test_a_page_of_another_origin_cannot_act() -> None:
    check_origin(None, "127.0.0.1:8080")
    check_origin("http://127.0.0.1:8080", "127.0.0.1:8080")
    for origin in ("http://evil.example.com", "http://127.0.0.1:9090", "null"):
        with pytest.raises(Refusal) as refused:
            check_origin(origin, "127.0.0.1:8080")
        assert refused.value.status == 403


def test_viewers_of_one_view_share_one_computation_and_get_changes_only() -> None:
    async def test() -> None:
        computed = 0
        current: Json = {"time_ms": 1, "value": 1}

        async def compute() -> Json:
            nonlocal computed
            computed += 1
            return {**current, "time_ms": computed}

        live = LiveViews(limit=3)
        first, second = live.watch("view", compute), live.watch("view", compute)
        answers = await asyncio.gather(anext(first), anext(second))
        assert answers[0] == answers[1]
        assert computed == 1
        waiting = asyncio.ensure_future(anext(first))
        while computed < 3:
            await asyncio.sleep(0.01)
        assert not waiting.done()  # only its time has changed
        current = {"value": 2}
        assert json.loads((await waiting).data)["value"] == 2
        await first.aclose()
        await second.aclose()
        assert live.viewers == 0

    run(test)


def test_a_refusal_is_told_and_does_not_end_the_stream() -> None:
    async def test() -> None:
        is_away = True

        async def compute() -> Json:
            if is_away:
                raise Refusal(503, "UNAVAILABLE", "the leader is away")
            return {"value": 1}

        stream = LiveViews(limit=1).watch("view", compute)
        told = await anext(stream)
        assert told == Message("problem", '{"error":"the leader is away","code":"UNAVAILABLE"}')
        is_away = False
        assert (await anext(stream)).event == "state"
        await stream.aclose()

    run(test)


def test_there_is_a_limit_of_viewers() -> None:
    async def test() -> None:
        async def compute() -> Json:
            return {}

        live = LiveViews(limit=1)
        first = live.watch("a", compute)
        await anext(first)
        with pytest.raises(Refusal) as refused:
            await anext(live.watch("b", compute))
        assert refused.value.code == "TOO_MANY_STREAMS"
        await first.aclose()
        again = live.watch("b", compute)
        await anext(again)
        await again.aclose()

    run(test)


def test_passwords_cannot_be_tried_out_from_one_address() -> None:
    attempts = SignInAttempts()
    assert all(attempts.begin("10.0.0.1", second) for second in range(FAILURES_LIMIT))
    assert not attempts.begin("10.0.0.1", FAILURES_LIMIT)
    assert attempts.begin("10.0.0.2", FAILURES_LIMIT)
    attempts.take_back("10.0.0.1", 3)
    assert attempts.begin("10.0.0.1", FAILURES_LIMIT)
    assert not attempts.begin("10.0.0.1", FAILURES_LIMIT)
    assert attempts.begin("10.0.0.1", FAILURES_WITHIN_S)
    assert not attempts.begin("10.0.0.1", FAILURES_WITHIN_S)
    for number in range(FAILING_HOSTS_LIMIT):
        attempts.begin(f"host-{number}", FAILURES_WITHIN_S)
    assert attempts.begin("10.0.0.1", FAILURES_WITHIN_S)
