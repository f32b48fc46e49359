"""Calls to the coordinators over the exchange stream that other roles use, and the choice of the active one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare.addresses import Address
from kshare.commands.state.coordinator_address import CoordinatorAddress
from kshare.commands.state.role_network import role_network, why_no_response
from kshare.failure import CommandFailed
from kshare_rpc.coordinator_calls import is_refused
from kshare_rpc.network import CallFailed, Method, Request, Response

CALL_TIMEOUT_MS = 2_000
"""With the start of Python, an unreachable coordinator is reported within 3 s."""


class CoordinatorUnreachable(CommandFailed):
    """No coordinator responds, or none is active; a retry may succeed."""


def call_coordinator(address: Address, method: Method[Request, Response], request: Request) -> Response:
    """The active coordinator's response; all are called at once. CoordinatorUnreachable if none is active."""
    addresses = coordinators_at(address)
    problems = []
    for each, answer in zip(addresses, call_each(addresses, method, request), strict=True):
        if isinstance(answer, CallFailed):
            problems.append(f"the coordinator at {each} did not answer {method.name}: {why_no_response(each, answer)}")
        elif is_refused(answer):
            problems.append(f"the coordinator at {each} is not the active one: {getattr(answer, 'error_message', '')}")
        else:
            return answer
    raise CoordinatorUnreachable("; ".join(problems))


def coordinators_at(address: Address) -> list[Address]:
    """All known coordinators."""
    return [address, *(address.others if isinstance(address, CoordinatorAddress) else ())]


def call_one(
    address: Address, method: Method[Request, Response], request: Request, *, timeout_ms: int = CALL_TIMEOUT_MS
) -> Response | CallFailed:
    """The response of one node."""
    return asyncio.run(_call(address, method, request, timeout_ms))


def call_each(
    addresses: Sequence[Address], method: Method[Request, Response], request: Request
) -> list[Response | CallFailed]:
    """Each coordinator's response, in the order of the addresses."""

    async def all_at_once() -> list[Response | CallFailed]:
        return await asyncio.gather(*(_call(address, method, request, CALL_TIMEOUT_MS) for address in addresses))

    return asyncio.run(all_at_once())


async def _call(
    address: Address, method: Method[Request, Response], request: Request, timeout_ms: int
) -> Response | CallFailed:
    channel = role_network(address).connect(str(address))
    try:
        answer, _ = await channel.call(method, request, timeout_ms=timeout_ms)
    except CallFailed as failure:
        return failure
    finally:
        await channel.close()
    return answer
