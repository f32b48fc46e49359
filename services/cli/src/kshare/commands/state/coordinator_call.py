"""One call to the coordinator, over the same stream that other roles use; of several, to the active one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare.addresses import Address
from kshare.commands.state.coordinator_address import CoordinatorAddress
from kshare.commands.state.role_network import role_network
from kshare.failure import CommandFailed
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.network import CallFailed, Method, Request, Response

CALL_TIMEOUT_MS = 2_000
"""A user learns within 3 s, the start of Python included, that nothing answers."""


class CoordinatorUnreachable(CommandFailed):
    """It does not answer, or none is active; that may change."""


def call_coordinator(address: Address, method: Method[Request, Response], request: Request) -> Response:
    """The answer of the active one; all are asked at once. CoordinatorUnreachable where none answers as that."""
    asked = coordinators_at(address)
    problems = []
    for each, answer in zip(asked, ask_all(asked, method, request), strict=True):
        if isinstance(answer, CallFailed):
            problems.append(f"the coordinator at {each} does not answer {method.name}: {answer}")
        elif is_refused(answer):
            problems.append(f"the coordinator at {each} is not the active one: {getattr(answer, 'error_message', '')}")
        else:
            return answer
    raise CoordinatorUnreachable("; ".join(problems))


def coordinators_at(address: Address) -> list[Address]:
    """All that are known."""
    return [Address(*address), *(address.others if isinstance(address, CoordinatorAddress) else ())]


def ask(address: Address, method: Method[Request, Response], request: Request) -> Response | CallFailed:
    """What one coordinator answers."""
    (answer,) = ask_all([address], method, request)
    return answer


def ask_all(
    addresses: Sequence[Address], method: Method[Request, Response], request: Request
) -> list[Response | CallFailed]:
    """What each coordinator answers, in the order of the addresses."""

    async def all_at_once() -> list[Response | CallFailed]:
        return await asyncio.gather(*(_ask(address, method, request) for address in addresses))

    return asyncio.run(all_at_once())


async def _ask(address: Address, method: Method[Request, Response], request: Request) -> Response | CallFailed:
    channel = role_network().connect(str(address))
    try:
        answer, _ = await channel.call(method, request, timeout_ms=CALL_TIMEOUT_MS)
    except CallFailed as failure:
        return failure
    finally:
        await channel.close()
    return answer
