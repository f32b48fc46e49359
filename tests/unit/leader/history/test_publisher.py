"""The publisher, with scripted leaders and a scripted coordinator: the consequence of each response."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.delivery_history import HISTORY_TOPIC
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import group_partition_of
from kshare_leader.history.buffer import EventStream
from kshare_leader.history.limits import (
    FLUSH_BYTES,
    FLUSH_INTERVAL_MS,
    RETRY_INTERVAL_MAX_MS,
    STOP_TIMEOUT_MS,
)
from kshare_leader.history.numbers import Number
from kshare_leader.history.publisher import HistoryPublisher
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import CREATE_TOPICS, PRODUCE
from kshare_rpc.network import ChannelUnavailable, Method, Payload, Request, Response
from kshare_wire.record_batches import read_produced_batch
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import StillClock
from support.leader.share.service import run

TOPIC_ID = b"history-00000001"
PARTITIONS = 2
KEYS = [key for key in (b"orders/0/g", b"orders/1/g", b"orders/2/g", b"orders/3/g")]
LOST = ChannelUnavailable("the connection was lost")


def topic(name: str = HISTORY_TOPIC, topic_id: bytes = TOPIC_ID, **configs: str) -> coordinator_pb2.Topic:
    found = coordinator_pb2.Topic(topic_id=topic_id, name=name, internal=True)
    for index in range(PARTITIONS):
        found.partitions.add(partition=index, leader_node_id=index + 1)
    for key, value in configs.items():
        found.configs.add(name=key.replace("_", "."), value=value)
    return found


def view_with(*topics: coordinator_pb2.Topic) -> CatalogView:
    nodes = [
        coordinator_pb2.Node(role=coordinator_pb2.ROLE_LEADER, node_id=number, rpc_address=f"leader:{number}")
        for number in (1, 2)
    ]
    return CatalogView(
        version=1,
        topics_by_id={one.topic_id: one for one in topics},
        topics_by_name={one.name: one for one in topics},
        nodes=tuple(nodes),
    )


class Cluster:
    """Both sides of the publisher. `answers` are taken first, by address: an error code or an exception."""

    def __init__(self, view: CatalogView, **configs: str) -> None:
        self.view = view
        self.counts = HistoryCounts()
        self.reports: list[str] = []
        self.stored: dict[int, list[tuple[bytes, bytes]]] = {0: [], 1: []}
        self.calls: list[tuple[str, float]] = []
        self.answers: dict[str, list[int | Exception]] = {}
        self.create_answers: list[int | Exception] = []
        self.created: list[coordinator_pb2.CreateTopicsRequest.CreatableTopic] = []
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        self.publisher = HistoryPublisher(
            view=lambda: self.view,
            channel=lambda address: _Channel(self, address),
            coordinator=lambda: _Channel(self, "coordinator"),
            wait_for_version=self._wait_for_version,
            configs=Configs(PROCESS_CONFIGS, texts),
            clock=StillClock(),
            random=random.Random(1),
            report=self.reports.append,
            counts=self.counts,
        )
        self.streams = [EventStream(self.publisher.buffer, Number(0), key, "<", ">[") for key in KEYS]

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        await asyncio.sleep(0.01)
        return version == self.view.version

    def values(self) -> list[bytes]:
        return sorted(value for records in self.stored.values() for _, value in records)

    def answer(self, address: str, method: Any, request: Any, payload: Payload) -> Any:
        if method is CREATE_TOPICS:
            return self._create(request)
        assert method is PRODUCE
        self.calls.append((address, asyncio.get_running_loop().time()))
        scripted = self.answers.get(address)
        answer = scripted.pop(0) if scripted else 0
        if isinstance(answer, Exception):
            raise answer
        response = leader_pb2.ProduceResponse()
        for partition, data in zip(request.partitions, payload, strict=True):
            assert (partition.topic_id, partition.records_length) == (TOPIC_ID, len(data))
            assert address == f"leader:{partition.partition + 1}"
            assert read_produced_batch(data).record_count > 0, "what a leader takes of a producer"
            response.partitions.add(
                topic_id=TOPIC_ID, partition=partition.partition, error_code=answer, error_message="as told"
            )
            if not answer:
                records = open_records(data, limit_bytes=1 << 24)
                self.stored[partition.partition] += [(record.key or b"", record.value or b"") for record in records]
        return response

    def _create(self, request: coordinator_pb2.CreateTopicsRequest) -> coordinator_pb2.CreateTopicsResponse:
        answer = self.create_answers.pop(0) if self.create_answers else 0
        if isinstance(answer, Exception):
            raise answer
        self.created.extend(request.topics)
        if not answer:
            self.view = replace(view_with(topic()), version=2)
        response = coordinator_pb2.CreateTopicsResponse(version=self.view.version)
        response.topics.add(name=HISTORY_TOPIC, error_code=answer, error_message="as told")
        return response


class _Channel:
    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster = cluster
        self._address = address

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        await asyncio.sleep(0.001)
        return cast(Response, self._cluster.answer(self._address, method, request, payload)), memoryview(b"")

    async def close(self) -> None:
        pass


def scenario(
    test: Callable[[Cluster], Coroutine[Any, Any, None]], view: CatalogView | None = None, **configs: str
) -> None:
    async def whole() -> None:
        cluster = Cluster(view_with(topic()) if view is None else view, **configs)
        await test(cluster)
        await cluster.publisher.stop()

    run(whole)


def test_what_is_told_within_an_interval_goes_together_to_the_partition_of_its_key() -> None:
    async def test(cluster: Cluster) -> None:
        for stream in cluster.streams:
            stream.add("1")
            stream.add("2")
        await asyncio.sleep(FLUSH_INTERVAL_MS / 1000 - 0.01)
        assert cluster.calls == []
        await asyncio.sleep(0.05)
        assert sorted(address for address, _ in cluster.calls) == ["leader:1", "leader:2"]
        for partition, records in cluster.stored.items():
            keys = [key for key in KEYS if group_partition_of(key.decode(), PARTITIONS) == partition]
            assert keys and records == [(key, b"<0>[1,2]}") for key in keys]
        counts = cluster.counts
        assert (counts.events, counts.published, counts.dropped, counts.failures) == (8, 8, 0, 0)
        assert counts.buffer_bytes == 0 and counts.published_bytes > 0
        await asyncio.sleep(60)
        assert len(cluster.calls) == 2, "nothing is sent where nothing is told"

    scenario(test)


def test_much_goes_at_once_and_in_several_batches() -> None:
    async def test(cluster: Cluster) -> None:
        noise = random.Random(2)
        texts = [f'"{noise.randbytes(40_000).hex()}"' for _ in range(40)]
        for text in texts:
            cluster.streams[0].add(text)
        assert cluster.publisher.buffer.size_bytes > 4 * FLUSH_BYTES
        await asyncio.sleep(0.1)
        assert cluster.counts.published == 40 and len(cluster.calls) > 1
        found = b"".join(value for records in cluster.stored.values() for _, value in records)
        assert [found.find(text.encode()) for text in texts] == sorted(found.find(text.encode()) for text in texts)
        assert all(text.encode() in found for text in texts)

    scenario(test)


def test_the_topic_is_made_by_the_first_event() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_answers = [LOST, ErrorCode.POLICY_VIOLATION]
        await asyncio.sleep(5)
        assert cluster.created == []
        cluster.streams[0].add("1")
        await asyncio.sleep(10)
        assert cluster.values() == [b"<0>[1]}"]
        made = cluster.created[-1]
        assert (made.name, made.num_partitions, made.internal) == (HISTORY_TOPIC, 3, True)
        assert {entry.name: entry.value for entry in made.configs} == {
            "cleanup.policy": "delete",
            "retention.ms": "5000",
        }
        assert cluster.counts.failures == 2 and len(cluster.reports) == 2

    configs = {"topic_num_partitions": "3", "retention_ms": "5000"}
    prefixed = {f"kshare_delivery_history_{name}": value for name, value in configs.items()}
    scenario(test, view_with(), **prefixed)


def test_what_was_not_stored_is_sent_again_in_order_and_the_other_partition_does_not_wait() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [LOST, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR]}
        for stream in cluster.streams:
            stream.add("1")
        await asyncio.sleep(0.3)
        assert cluster.stored[1] and not cluster.stored[0]
        for stream in cluster.streams:
            stream.add("2")
        await asyncio.sleep(20)
        for records in cluster.stored.values():
            of_each = {key: [value for other, value in records if other == key] for key, _ in records}
            assert set(map(tuple, of_each.values())) == {(b"<0>[1]}", b"<1>[2]}")}
        assert cluster.counts.failures == 3 and cluster.counts.buffer_bytes == 0
        assert len(cluster.reports) == 2, "one sentence for each problem that is new"

    scenario(test)


def test_pauses_between_attempts_grow_to_a_limit_and_events_do_not_shorten_them() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [LOST] * 1000, "leader:2": [LOST] * 1000}
        for _ in range(6_000):
            cluster.streams[0].add("1" * 1_000)
            await asyncio.sleep(0.02)
        times = [time for _, time in cluster.calls]
        pauses = [after - before for before, after in pairwise(times)]
        assert 0.4 <= pauses[0] <= 0.7
        assert all(after > 1.3 * before for before, after in pairwise(pauses[:4]))
        assert 0.8 * RETRY_INTERVAL_MAX_MS <= 1000 * max(pauses) <= 1.25 * RETRY_INTERVAL_MAX_MS
        assert len(times) < 25
        cluster.answers = {}

    scenario(test)


def test_a_full_buffer_drops_and_says_so_until_the_leader_is_back() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [LOST] * 3, "leader:2": [LOST] * 3}
        for number in range(100):
            cluster.streams[0].add(str(number))
            await asyncio.sleep(0.01)
        assert cluster.counts.dropped > 0 and cluster.publisher.buffer.size_bytes <= 1_000
        await asyncio.sleep(20)
        cluster.streams[0].add("last")
        await asyncio.sleep(1)
        counts = cluster.counts
        assert counts.published == counts.events == 101 - counts.dropped
        assert cluster.values()[-1] == b"<100>[last]}" or b"<100>[last]}" in cluster.values()
        assert any("were dropped" in text for text in cluster.reports)

    scenario(test, kshare_delivery_history_buffer_bytes="1000")


def test_what_the_leader_will_never_take_is_dropped_and_counted() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [ErrorCode.MESSAGE_TOO_LARGE], "leader:2": [ErrorCode.MESSAGE_TOO_LARGE]}
        cluster.streams[0].add("1")
        await asyncio.sleep(1)
        assert (cluster.counts.dropped, cluster.counts.published, cluster.counts.buffer_bytes) == (1, 0, 0)
        cluster.streams[0].add("2")
        cluster.answers = {}
        await asyncio.sleep(1)
        assert cluster.values() == [b"<1>[2]}"]
        assert any("refuses delivery events: as told" in text for text in cluster.reports)

    scenario(test)


def test_a_leader_that_stops_sends_what_it_has() -> None:
    async def test(cluster: Cluster) -> None:
        for stream in cluster.streams:
            stream.add("1")
        await cluster.publisher.stop()
        assert cluster.values() == [b"<0>[1]}"] * 4

    scenario(test)


def test_a_leader_that_stops_does_not_wait_for_long() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [LOST] * 1000, "leader:2": [LOST] * 1000}
        cluster.streams[0].add("1")
        await asyncio.sleep(3)
        began = asyncio.get_running_loop().time()
        await cluster.publisher.stop()
        assert asyncio.get_running_loop().time() - began <= STOP_TIMEOUT_MS / 1000 + 0.01
        assert any("because this leader stops" in text for text in cluster.reports)

    scenario(test)


def test_a_topic_that_was_made_anew_gets_what_is_left() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.answers = {"leader:1": [LOST], "leader:2": [LOST]}
        for stream in cluster.streams:
            stream.add("1")
        await asyncio.sleep(0.3)
        cluster.view = replace(view_with(), version=9)
        await asyncio.sleep(10)
        assert len(cluster.created) == 1
        assert cluster.values() == [b"<0>[1]}"] * 4

    scenario(test)
