"""A broker that is cut off from its controller: it answers Metadata, and does not learn of elections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.port import UpstreamPartitionName
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from support.upstream.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.timeout(30)

CUT_OFF, OTHER = 1, 2
AT = UpstreamPartitionName("orders", 0)
TOPIC_ID, NEW_ID, NO_ID = b"i" * 16, b"n" * 16, bytes(16)


class TwoBrokers:
    """Both name CUT_OFF as the leader in epoch 5; each answers what `tells` set."""

    def __init__(self, cut_off: ScriptedBroker, other: ScriptedBroker) -> None:
        self.cut_off, self.other = cut_off, other
        for broker in (cut_off, other):
            self.tells(broker, CUT_OFF, epoch=5)
        self.cluster = Cluster([BrokerAddress("127.0.0.1", cut_off.port)], ClientSettings(connect_timeout_ms=300))

    def tells(self, broker: ScriptedBroker, leader_id: int, *, epoch: int, topic_id: bytes = TOPIC_ID) -> None:
        partition = MetadataResponsePartition(
            partition_index=AT.partition, leader_id=leader_id, leader_epoch=epoch, replica_nodes=[CUT_OFF, OTHER]
        )
        topic = MetadataResponseTopic(name=AT.topic, topic_id=topic_id, partitions=[partition])
        brokers = [
            MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=each.port)
            for node_id, each in ((CUT_OFF, self.cut_off), (OTHER, self.other))
        ]
        answer = MetadataResponse(brokers=brokers, cluster_id="upstream", controller_id=OTHER, topics=[topic])
        broker.answers[ApiKey.METADATA] = lambda version, frame: answer

    async def leader_anew(self) -> int:
        self.cluster.forget_leader(AT)
        return await self.cluster.leader_of(AT)


def run(body: Callable[[TwoBrokers], Awaitable[None]]) -> None:
    async def test() -> None:
        async with ScriptedBroker() as cut_off, ScriptedBroker() as other:
            two = TwoBrokers(cut_off, other)
            await two.cluster.describe([])
            try:
                await body(two)
            finally:
                await two.cluster.close()

    asyncio.run(test())


def test_brokers_are_asked_in_turn() -> None:
    async def body(two: TwoBrokers) -> None:
        await two.cluster.versions()  # connects to both
        for broker in (two.cut_off, two.other):
            broker.frames.clear()
        for _ in range(10):
            await two.leader_anew()
        assert [len(each.received(ApiKey.METADATA)) for each in (two.cut_off, two.other)] == [5, 5]

    run(body)


def test_an_election_is_seen_at_the_other_broker_and_kept() -> None:
    async def body(two: TwoBrokers) -> None:
        assert await two.leader_anew() == CUT_OFF
        two.tells(two.other, OTHER, epoch=6)
        await two.leader_anew()
        assert [await two.leader_anew() for _ in range(6)] == [OTHER] * 6
        for _ in range(2):
            leader = (await two.cluster.describe([AT.topic])).topics[AT.topic].leaders[AT.partition]
            assert (leader.node_id, leader.leader_epoch) == (OTHER, 6)

    run(body)


def test_a_leader_without_an_epoch_is_taken() -> None:
    async def body(two: TwoBrokers) -> None:
        for broker in (two.cut_off, two.other):
            two.tells(broker, OTHER, epoch=6)
        assert await two.leader_anew() == OTHER
        for broker in (two.cut_off, two.other):
            two.tells(broker, CUT_OFF, epoch=-1)
        assert await two.leader_anew() == CUT_OFF

    run(body)


def test_an_older_epoch_that_all_brokers_answer_is_followed() -> None:
    """The cluster's metadata was restored from a backup."""

    async def body(two: TwoBrokers) -> None:
        for broker in (two.cut_off, two.other):
            two.tells(broker, OTHER, epoch=6)
        assert await two.leader_anew() == OTHER
        for broker in (two.cut_off, two.other):
            two.tells(broker, CUT_OFF, epoch=2)
        assert [await two.leader_anew() for _ in range(4)] == [OTHER, OTHER, CUT_OFF, CUT_OFF]

    run(body)


def test_a_look_up_does_not_wait_for_a_connection_while_another_broker_has_one() -> None:
    """The broker was lost: to connect to it again takes as long as the limit."""

    async def body(two: TwoBrokers) -> None:
        await two.cluster.versions()
        two.other.answers[ApiKey.API_VERSIONS] = lambda version, frame: None
        two.other.close_clients()
        async with asyncio.timeout(5):  # until they are closed
            while two.other.connections:
                await asyncio.sleep(0)
        async with asyncio.timeout(0.25):
            assert [await two.leader_anew() for _ in range(8)] == [CUT_OFF] * 8

    run(body)


def test_a_broker_that_does_not_serve_the_request_does_not_hide_the_others() -> None:
    async def body(two: TwoBrokers) -> None:
        del two.other.served[ApiKey.METADATA]
        await two.cluster.versions()
        assert [await two.leader_anew() for _ in range(4)] == [CUT_OFF] * 4

    run(body)


@pytest.mark.parametrize("topic_id", [NEW_ID, NO_ID], ids=["another id", "no ids"])
def test_the_epochs_of_a_topic_that_may_be_another_one_begin_anew(topic_id: bytes) -> None:
    async def body(two: TwoBrokers) -> None:
        for broker in (two.cut_off, two.other):
            two.tells(broker, OTHER, epoch=6, topic_id=TOPIC_ID if topic_id == NEW_ID else NO_ID)
        assert await two.leader_anew() == OTHER
        for broker in (two.cut_off, two.other):
            two.tells(broker, CUT_OFF, epoch=0, topic_id=topic_id)
        assert await two.leader_anew() == CUT_OFF

    run(body)


def test_a_broker_that_could_not_be_reached_is_asked_last() -> None:
    """Each attempt would delay a look-up by the connect timeout."""

    async def body(two: TwoBrokers) -> None:
        two.other.answers[ApiKey.API_VERSIONS] = lambda version, frame: None
        assert [await two.leader_anew() for _ in range(8)] == [CUT_OFF] * 8
        assert len(two.other.received(ApiKey.API_VERSIONS)) <= 2

    run(body)
