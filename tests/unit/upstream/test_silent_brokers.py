"""A broker that hangs: its connections stay open, and it answers nothing."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings, ConnectionLost
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from support.upstream.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.timeout(30)

HUNG, OTHER = 1, 2
SILENCE_MS = 200
SETTINGS = ClientSettings(silence_ms=SILENCE_MS, request_timeout_ms=30_000)


class TwoBrokers:
    """Broker HUNG answers nothing after `hang`; the brokers' Metadata have it until `fence`."""

    def __init__(self, hung: ScriptedBroker, other: ScriptedBroker) -> None:
        self.hung, self.other = hung, other
        self._brokers = [
            MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
            for node_id, broker in ((HUNG, hung), (OTHER, other))
        ]
        for broker in (hung, other):
            broker.answers[ApiKey.METADATA] = lambda version, frame: self._metadata()
        self.cluster = Cluster([BrokerAddress("127.0.0.1", other.port)], SETTINGS)

    def _metadata(self) -> MetadataResponse:
        return MetadataResponse(brokers=self._brokers, cluster_id="upstream", controller_id=OTHER)

    def hang(self) -> None:
        self.hung.answers = dict.fromkeys(self.hung.answers, lambda version, frame: None)

    def fence(self) -> None:
        self._brokers = self._brokers[1:]

    async def ask_hung(self) -> None:
        request = HeartbeatRequest(group_id="group", member_id="member")
        await self.cluster.ask_broker(HUNG, request, VersionRange(0, 4))


def lookups(broker: ScriptedBroker) -> int:
    return len([frame for frame in broker.frames if struct.unpack_from(">h", frame)[0] == ApiKey.METADATA])


def test_its_requests_fail_as_soon_as_the_cluster_has_given_it_up() -> None:
    async def test() -> None:
        async with ScriptedBroker() as hung, ScriptedBroker() as other:
            two = TwoBrokers(hung, other)
            await two.cluster.describe([])
            await two.ask_hung()
            two.hang()
            asking = asyncio.ensure_future(two.ask_hung())
            before = lookups(other)
            while lookups(other) < before + 3:
                await asyncio.sleep(0.01)
            assert not asking.done(), "the cluster still has it: it may only be slow"
            two.fence()
            began = time.monotonic()
            with pytest.raises(ConnectionLost):
                await asking
            assert time.monotonic() - began < 5.0, "not after the request timeout"
            assert set((await two.cluster.describe([])).brokers) == {OTHER}
            await two.cluster.close()

    asyncio.run(test())


def test_other_brokers_are_asked_before_a_silent_one() -> None:
    async def test() -> None:
        async with ScriptedBroker() as hung, ScriptedBroker() as other:
            two = TwoBrokers(hung, other)
            await two.cluster.describe([])
            await two.ask_hung()
            two.hang()
            asking = asyncio.ensure_future(two.ask_hung())
            await asyncio.sleep(2 * SILENCE_MS / 1000)
            async with asyncio.timeout(5.0):
                await two.cluster.describe([])
            asking.cancel()
            await two.cluster.close()

    asyncio.run(test())


def test_an_idle_connection_is_not_silent() -> None:
    async def test() -> None:
        async with ScriptedBroker() as hung, ScriptedBroker() as other:
            two = TwoBrokers(hung, other)
            await two.cluster.describe([])
            await two.ask_hung()
            before = lookups(other)
            await asyncio.sleep(3 * SILENCE_MS / 1000)
            assert lookups(other) == before
            await two.cluster.close()

    asyncio.run(test())
