"""One call to the coordinator, over the same stream that other roles use."""

from __future__ import annotations

import asyncio

from kshare.addresses import Address
from kshare.failure import CommandFailed
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, Method, Request, Response

CALL_TIMEOUT_MS = 5_000


class CoordinatorUnreachable(CommandFailed):
    """It does not answer; it may later."""


def call_coordinator(address: Address, method: Method[Request, Response], request: Request) -> Response:
    """The answer; CoordinatorUnreachable where there is none."""

    async def call() -> Response:
        channel = GrpcNetwork().connect(str(address))
        try:
            answer, _ = await channel.call(method, request, timeout_ms=CALL_TIMEOUT_MS)
        finally:
            await channel.close()
        return answer

    try:
        return asyncio.run(call())
    except CallFailed as failure:
        text = f"the coordinator at {address} does not answer {method.name}: {failure}"
        raise CoordinatorUnreachable(text) from None
