"""A broker that has just started answers Metadata without brokers, until it hears from its controller."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from kshare.attach.examination import ExaminedCluster, can_work_with
from kshare_upstream.cluster import BrokersUnknown, Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from support.upstream.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.timeout(30)

FIRST, SECOND = 1, 2
UNINFORMED = MetadataResponse(brokers=[], cluster_id="upstream", controller_id=-1)


def informed(*brokers: ScriptedBroker) -> MetadataResponse:
    described = [
        MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
        for node_id, broker in zip((FIRST, SECOND), brokers, strict=False)
    ]
    return MetadataResponse(brokers=described, cluster_id="upstream", controller_id=FIRST)


def test_another_broker_is_asked_and_connections_stay() -> None:
    async def test() -> None:
        async with ScriptedBroker() as first, ScriptedBroker() as second:
            for broker in (first, second):
                broker.answers[ApiKey.METADATA] = lambda version, frame: informed(first, second)
            cluster = Cluster([BrokerAddress("127.0.0.1", first.port)], ClientSettings())
            await cluster.describe([])
            second.answers[ApiKey.HEARTBEAT] = lambda version, frame: None
            request = HeartbeatRequest(group_id="group", member_id="member")
            asking = asyncio.ensure_future(cluster.ask_broker(SECOND, request, VersionRange(0, 4), purpose="held"))
            await cluster.ask_broker(FIRST, request, VersionRange(0, 4))
            first.answers[ApiKey.METADATA] = lambda version, frame: UNINFORMED
            for _ in range(3):
                assert set((await cluster.describe([])).brokers) == {FIRST, SECOND}
            assert not asking.done()
            asking.cancel()
            await cluster.close()

    asyncio.run(test())


def test_a_cluster_whose_brokers_all_start_is_no_cluster_without_brokers() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            broker.answers[ApiKey.METADATA] = lambda version, frame: UNINFORMED
            cluster = Cluster([BrokerAddress("127.0.0.1", broker.port)], ClientSettings())
            with pytest.raises(BrokersUnknown):
                await cluster.describe([])
            broker.answers[ApiKey.METADATA] = lambda version, frame: informed(broker)
            assert set((await cluster.describe([])).brokers) == {FIRST}
            await cluster.close()

    asyncio.run(test())


def test_the_next_bootstrap_address_is_tried() -> None:
    """The first one may be that of a broker which has been starting for long."""

    async def test() -> None:
        async with ScriptedBroker() as first, ScriptedBroker() as second:
            first.answers[ApiKey.METADATA] = lambda version, frame: UNINFORMED
            second.answers[ApiKey.METADATA] = lambda version, frame: informed(second)
            addresses = [BrokerAddress("127.0.0.1", broker.port) for broker in (first, second)]
            cluster = Cluster(addresses, ClientSettings())
            with pytest.raises(BrokersUnknown):
                await cluster.describe([])
            assert set((await cluster.describe([])).brokers) == {FIRST}
            await cluster.close()

    asyncio.run(test())


def test_attach_waits_for_it() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            answers = 5 * [UNINFORMED]
            broker.answers[ApiKey.METADATA] = lambda version, frame: answers.pop() if answers else informed(broker)
            del broker.served[ApiKey.PRODUCE]
            output = io.StringIO()
            cluster = ExaminedCluster(f"127.0.0.1:{broker.port}", None)
            assert not await can_work_with(cluster, Console(file=output), is_start=True)
            assert "Produce is needed in version" in output.getvalue(), "what is found after the wait is told"
            assert answers == []

    asyncio.run(test())
