"""One call to the coordinator, over the same stream that other roles use; of several, to the active one."""

from __future__ import annotations

import asyncio

from kshare.addresses import Address
from kshare.commands.state.coordinator_address import CoordinatorAddress
from kshare.commands.state.role_network import role_network
from kshare.failure import CommandFailed
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.network import CallFailed, Method, Request, Response

CALL_TIMEOUT_MS = 5_000


class CoordinatorUnreachable(CommandFailed):
    """It does not answer, or none is active; that may change."""


def call_coordinator(address: Address, method: Method[Request, Response], request: Request) -> Response:
    """The answer; CoordinatorUnreachable where there is none."""
    problems = []
    for asked in coordinators_at(address):
        answer = ask(asked, method, request)
        if isinstance(answer, CallFailed):
            problems.append(f"the coordinator at {asked} does not answer {method.name}: {answer}")
        elif is_refused(answer):
            problems.append(f"the coordinator at {asked} is not the active one: {getattr(answer, 'error_message', '')}")
        else:
            return answer
    raise CoordinatorUnreachable("; ".join(problems))


def coordinators_at(address: Address) -> list[Address]:
    """All that are known."""
    return [Address(*address), *(address.others if isinstance(address, CoordinatorAddress) else ())]


def ask(address: Address, method: Method[Request, Response], request: Request) -> Response | CallFailed:
    """What one coordinator answers."""

    async def call() -> Response:
        channel = role_network().connect(str(address))
        try:
            answer, _ = await channel.call(method, request, timeout_ms=CALL_TIMEOUT_MS)
        finally:
            await channel.close()
        return answer

    try:
        return asyncio.run(call())
    except CallFailed as failure:
        return failure
