"""Connections whose SASL session ends soon are replaced, and closed after the last response that is due on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings, ConnectionLost
from kshare_upstream.sasl import Credentials
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.responses.heartbeat import HeartbeatResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse
from kshare_wire.generated.responses.sasl_handshake import SaslHandshakeResponse
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

pytestmark = pytest.mark.timeout(30)

SESSION_MS = 1
ANOTHER_BROKER = MetadataResponseBroker(node_id=NODE_ID + 1, host="127.0.0.1", port=1)
HELD = "held"
SETTINGS = ClientSettings(credentials=Credentials("PLAIN", "user", "pencil"))


class Held:
    """A client whose Heartbeats of the group HELD get their responses when `response` is set."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.response = asyncio.Event()
        self.cluster = Cluster([BrokerAddress("127.0.0.1", broker.port)], SETTINGS)
        broker.answers[ApiKey.SASL_HANDSHAKE] = lambda version, frame: SaslHandshakeResponse()
        broker.answers[ApiKey.SASL_AUTHENTICATE] = lambda version, frame: SaslAuthenticateResponse(
            session_lifetime_ms=SESSION_MS
        )
        broker.answers[ApiKey.HEARTBEAT] = self._beat

    async def _beat(self, version: int, frame: bytes) -> HeartbeatResponse:
        if HELD.encode() in frame:
            await self.response.wait()
        return HeartbeatResponse()

    async def ask(self, group_id: str) -> None:
        """A request after the end of the session before; each opens a connection."""
        await asyncio.sleep(2 * SESSION_MS / 1000)
        await self.cluster.ask_broker(NODE_ID, HeartbeatRequest(group_id=group_id), VersionRange(0, 4))

    async def hold(self) -> asyncio.Task[None]:
        """A request that the broker has received and does not answer."""
        asking = asyncio.get_running_loop().create_task(self.ask(HELD))
        await until(lambda: any(HELD.encode() in frame for frame in self.broker.received(ApiKey.HEARTBEAT)))
        return asking


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def run(scenario: Callable[[Held], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with ScriptedBroker() as broker:
            held = Held(broker)
            await held.cluster.describe([])
            await held.ask("group")
            await scenario(held)
            await held.cluster.close()
            await until(lambda: broker.connections == 0)

    asyncio.run(whole())


def test_a_connection_is_closed_after_the_last_response_that_is_due() -> None:
    async def scenario(held: Held) -> None:
        usual = held.broker.connections
        asking = await held.hold()
        for _ in range(3):
            await held.ask("group")
        await until(lambda: held.broker.connections == usual + 1)
        held.response.set()
        await asking
        await until(lambda: held.broker.connections == usual)

    run(scenario)


def test_it_is_closed_too_if_the_caller_has_given_up() -> None:
    async def scenario(held: Held) -> None:
        usual = held.broker.connections
        asking = await held.hold()
        await held.ask("group")
        asking.cancel()
        held.response.set()
        await until(lambda: held.broker.connections == usual)

    run(scenario)


@pytest.mark.parametrize("is_gone", [True, False])
def test_requests_on_it_end_with_the_client_and_with_the_broker(is_gone: bool) -> None:
    async def scenario(held: Held) -> None:
        asking = await held.hold()
        await held.ask("group")
        if is_gone:
            held.broker.answers[ApiKey.METADATA] = lambda version, frame: MetadataResponse(brokers=[ANOTHER_BROKER])
            await held.cluster.describe([])
        else:
            await held.cluster.close()
        with pytest.raises(ConnectionLost, match="was closed"):
            await asking
        held.response.set()

    run(scenario)
