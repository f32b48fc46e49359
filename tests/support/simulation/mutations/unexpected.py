"""Planted bugs that end in an exception or in a line of the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from kshare_core.errors import StorageFailure
from kshare_leader.log.housekeeping import LogHousekeeping
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kshare_rpc.network import Handler, Payload
from support.simulation.mutations.mutation import Patch, at_role, planted
from support.simulation.mutations.planted_bug import UNNAMED, PlantedBug


def _fail_without_a_reason(handler: Handler) -> Handler:
    """A bug that looks like a failing disk."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen == 20:
            raise StorageFailure("ValueError: a record cannot be replayed")
        return await handler(request, payload)

    return changed


def _log_an_error(handler: Handler) -> Handler:
    """A bug that is caught, and only logged."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        logging.getLogger("kshare_leader.planted").error("a fetch failed unexpectedly: %r", ValueError("planted"))
        return await handler(request, payload)

    return changed


Retain = Callable[..., Awaitable[None]]
Run = Callable[[LogHousekeeping], Awaitable[None]]


def _fail_in_the_background(retain: Retain) -> Retain:
    """Each pass of the retention ends by an exception."""

    async def changed(housekeeping: LogHousekeeping, *, compacted: bool | None) -> None:
        raise KeyError("planted")

    return changed


def _end_silently(run: Run) -> Run:
    """The leader's task of retention and compaction ends, and the leader goes on without it."""

    async def changed(housekeeping: LogHousekeeping) -> None:
        await asyncio.sleep(5)
        raise KeyError("planted")

    return changed


PLANTED = (
    PlantedBug(
        name="an exception is taken for a failing disk",
        mutation=at_role("leader", SHARE_ACKNOWLEDGE, _fail_without_a_reason),
        rules=(UNNAMED,),
        words="a record cannot be replayed",
        seed=2,
    ),
    PlantedBug(
        name="an unexpected error is only logged",
        mutation=at_role("leader", SHARE_FETCH, _log_an_error),
        rules=(UNNAMED,),
        words="a fetch failed unexpectedly",
        seed=1,
    ),
    PlantedBug(
        name="the retention of a leader fails each time",
        mutation=planted(Patch(LogHousekeeping, "retain_all", _fail_in_the_background)),
        rules=(UNNAMED,),
        words="KeyError('planted')",
        seed=1,
    ),
    PlantedBug(
        name="a background task of a leader ends by an exception that no code looks at",
        mutation=planted(Patch(LogHousekeeping, "run", _end_silently)),
        rules=(UNNAMED,),
        words="planted",
        seed=1,
    ),
)
