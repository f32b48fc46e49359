"""Descriptions of topics that callers share: how many are asked for, and that none is older than its caller."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

import pytest

from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings, ConnectionLost
from kshare_upstream.port import ClusterView, UpstreamPartitionName
from kshare_upstream.shared_descriptions import UNDER_WAY_WAIT_MS, SharedDescriptions
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

pytestmark = pytest.mark.timeout(30)
PARTITIONS = 500


class Broker:
    """Answers when a test says so; each answer has its number as its controller's id."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[str], asyncio.Future[ClusterView]]] = []
        self.descriptions = SharedDescriptions(self._describe)

    async def _describe(self, topics: Sequence[str]) -> ClusterView:
        answer: asyncio.Future[ClusterView] = asyncio.get_running_loop().create_future()
        self.asked.append((topics, answer))
        return await answer

    def answer(self, number: int) -> None:
        self.asked[number][1].set_result(ClusterView(None, number, {}))

    def call(self, *topics: str) -> asyncio.Task[ClusterView]:
        return asyncio.ensure_future(self.descriptions.describe(topics))

    async def was_asked(self, times: int) -> None:
        async with asyncio.timeout(5):
            while len(self.asked) < times:
                await asyncio.sleep(0)


def test_calls_at_the_same_time_share_one() -> None:
    async def test() -> None:
        broker = Broker()
        calls = [broker.call("orders") for _ in range(100)]
        await broker.was_asked(1)
        broker.answer(0)
        assert {(await call).controller_id for call in calls} == {0}
        assert len(broker.asked) == 1

    asyncio.run(test())


def test_a_call_gets_no_answer_that_was_asked_for_before_it() -> None:
    async def test() -> None:
        broker = Broker()
        first = broker.call("orders")
        await broker.was_asked(1)
        later = [broker.call("orders") for _ in range(3)]
        await asyncio.sleep(0)
        broker.answer(0)
        assert (await first).controller_id == 0
        await broker.was_asked(2)
        last = broker.call("orders")
        await asyncio.sleep(0)
        broker.answer(1)
        assert {(await call).controller_id for call in later} == {1}
        await broker.was_asked(3)
        broker.answer(2)
        assert (await last).controller_id == 2
        assert len(broker.asked) == 3

    asyncio.run(test())


def test_other_topics_are_asked_for_at_the_same_time() -> None:
    async def test() -> None:
        broker = Broker()
        calls = [broker.call("orders"), broker.call("payments"), broker.call("orders", "payments")]
        await broker.was_asked(3)
        assert [topics for topics, _ in broker.asked] == [("orders",), ("payments",), ("orders", "payments")]
        for number in range(3):
            broker.answer(number)
        assert [(await call).controller_id for call in calls] == [0, 1, 2]

    asyncio.run(test())


def test_one_that_hangs_does_not_hold_up_the_next() -> None:
    async def test() -> None:
        broker = Broker()
        hung = broker.call("orders")
        await broker.was_asked(1)
        began = asyncio.get_running_loop().time()
        next_one = broker.call("orders")
        await broker.was_asked(2)
        assert asyncio.get_running_loop().time() - began >= UNDER_WAY_WAIT_MS / 1000 * 0.9
        broker.answer(1)
        assert (await next_one).controller_id == 1
        broker.answer(0)
        assert (await hung).controller_id == 0
        after = broker.call("orders")
        await broker.was_asked(3)
        broker.answer(2)
        await after

    asyncio.run(test())


def test_an_error_is_everyones_and_is_not_kept() -> None:
    async def test() -> None:
        broker = Broker()
        calls = [broker.call("orders"), broker.call("orders")]
        await broker.was_asked(1)
        broker.asked[0][1].set_exception(ConnectionLost("gone"))
        for call in calls:
            with pytest.raises(ConnectionLost):
                await call
        again = broker.call("orders")
        await broker.was_asked(2)
        broker.answer(1)
        assert (await again).controller_id == 1

    asyncio.run(test())


def test_a_caller_that_gives_up_leaves_the_others_theirs() -> None:
    async def test() -> None:
        broker = Broker()
        given_up, other = broker.call("orders"), broker.call("orders")
        await broker.was_asked(1)
        given_up.cancel()
        broker.answer(0)
        assert (await other).controller_id == 0
        await broker.descriptions.ended()

    asyncio.run(test())


def test_the_leaders_of_all_partitions_of_a_topic_take_few_requests() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker:
            topic = MetadataResponseTopic(
                name="orders",
                topic_id=bytes(range(16)),
                partitions=[
                    MetadataResponsePartition(partition_index=index, leader_id=NODE_ID) for index in range(PARTITIONS)
                ],
            )
            node = MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=broker.port)
            broker.answers[ApiKey.METADATA] = lambda version, frame: MetadataResponse(brokers=[node], topics=[topic])
            cluster = Cluster([BrokerAddress("127.0.0.1", broker.port)], ClientSettings())
            for _ in range(2):  # each time all of them are looked up anew, as after an error of their leader
                names = [UpstreamPartitionName("orders", index) for index in range(PARTITIONS)]
                for at in names:
                    cluster.forget_leader(at)
                leaders = await asyncio.gather(*map(cluster.leader_of, names))
                assert leaders == [NODE_ID] * PARTITIONS
            await cluster.close()
            asked = [frame for frame in broker.frames if struct.unpack_from(">h", frame)[0] == ApiKey.METADATA]
            assert len(asked) <= 4, len(asked)

    asyncio.run(test())
