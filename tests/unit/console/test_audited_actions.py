"""The audit log of the console has one line for each action, however the action ends."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest

from kshare_console.actions import Actions, Actor, ask_back
from kshare_console.refusal import Refusal
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import Viewers
from kshare_console.views.paging import Json
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_upstream.connection import BrokerAddress
from support.environment.free_ports import free_port

ASKED = {"name": "leader-1"}


async def end_with(error: BaseException | None) -> None:
    """An action that ends with an error, or succeeds."""

    async def act() -> Json:
        if error is not None:
            raise error
        return {"draining": "leader-1"}

    roles = RoleCalls(InProcessNetwork(), ["nobody:1"])
    bootstrap = [BrokerAddress("127.0.0.1", free_port())]
    viewers = Viewers(bootstrap, {}, None, roles, time.monotonic, lambda: 0)
    try:
        actor = Actor((await viewers.find("")).viewer, "127.0.0.9")
        await Actions(roles, 1, is_allowed=True).audited(actor, "Drain", ASKED, act)
    finally:
        await viewers.close()


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        (None, [("succeeded", "")]),
        (Refusal(403, "FORBIDDEN", "not you"), [("denied", "not you")]),
        (Refusal(503, "BUSY", "not now"), [("failed", "not now")]),
        (ask_back("really?"), []),
        (ValueError("odd"), [("failed", "ValueError: odd")]),
        (asyncio.CancelledError(), [("interrupted", "what was begun may go on to its end")]),
    ],
    ids=["succeeded", "denied", "refused", "asked back", "failed", "interrupted"],
)
def test_an_action_has_a_line(
    error: BaseException | None, outcomes: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kshare.audit"):
        if error is None:
            asyncio.run(end_with(error))
        else:
            with pytest.raises(type(error)):
                asyncio.run(end_with(error))
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "kshare.audit"]
    assert [(line["outcome"], line["problem"]) for line in lines] == outcomes
    assert all((line["api"], line["request"], line["client_host"]) == ("Drain", ASKED, "127.0.0.9") for line in lines)
