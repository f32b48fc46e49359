"""A coordinator and leaders on simulated hosts without gateways: tests call the roles as other roles do.

`TwoLeaders.run` runs a test's body on virtual time. `stored` is what a leader has of a partition, family by family.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kshare_core.identifiers import TopicPartition
from kshare_leader.engine.embedded import checksummed
from kshare_leader.log import keys
from kshare_leader.node import LeaderNode
from kshare_leader.reassignment.rows import PartitionRows
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import (
    APPEND_DEAD_LETTERS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_PARTITIONS,
    FETCH,
    LIST_OFFSETS,
    MOVE_PARTITIONS,
    PRODUCE,
    WRITE_TXN_MARKERS,
)
from kshare_rpc.network import Method
from kshare_runtime.memory_store import MemoryStore
from kshare_runtime.ports import KeyValueStore
from support.simulation.cluster import COORDINATOR, OBSERVER, RPC_PORT, Shape
from support.simulation.hosts import SimulatedHost
from support.simulation.loop import Incarnation, VirtualLoop
from support.simulation.moving_partitions import PagedCluster
from support.simulation.network import SimulatedNetwork
from support.wire.record_building import build_batch

TOPIC = "orders"
TIMEOUT_MS = 2_000
SETTLED_WITHIN_S = 60.0
CONFIGS = {"kshare.node.lease.ms": "3000", "transaction.partition.verification.enable": "false"}
BATCH_TIME_MS = 1_767_225_600_000


class TwoLeaders:
    """See the module's text."""

    def __init__(self, *, leaders: int = 2, partitions: int = 2, topic_configs: dict[str, str] | None = None) -> None:
        self.loop = VirtualLoop(time_limit=600.0, step_limit=400_000)
        shape = Shape(share_coordinators=0, leaders=leaders, gateways=0, configs=CONFIGS)
        self.cluster = PagedCluster(self.loop, "two leaders", shape)
        self._network = SimulatedNetwork(self.cluster.fabric, Incarnation(OBSERVER, 1))
        self._partitions = partitions
        self._topic_configs = topic_configs or {}
        self.topic_id = b""

    def run(self, body: Callable[[TwoLeaders], Awaitable[None]]) -> None:
        async def whole() -> None:
            await asyncio.gather(*(host.start() for host in self.cluster.hosts.values()))
            await self._create_topic()
            await body(self)

        self.loop.run(whole())
        assert self.cluster.problems() == []

    async def _create_topic(self) -> None:
        configs = [pb.ConfigEntry(name=name, value=value) for name, value in self._topic_configs.items()]
        topic = pb.CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=self._partitions, replication_factor=-1, configs=configs
        )
        answer = await self.call(COORDINATOR, CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
        assert answer.topics[0].error_code == 0, answer
        self.topic_id = answer.topics[0].topic_id
        await asyncio.sleep(0.5)

    async def call(
        self,
        host: str,
        method: Method[Any, Any],
        request: Any,
        payload: Sequence[bytes] = (),
        *,
        timeout_ms: int = 2_000,
    ) -> Any:
        channel = self._network.connect(f"{host}:{RPC_PORT}")
        answer, data = await channel.call(method, request, payload, timeout_ms=timeout_ms)
        if method == FETCH:
            return answer, bytes(data)
        return answer

    def host(self, number: int) -> SimulatedHost:
        return self.cluster.hosts[f"leader-{number}"]

    def node(self, number: int) -> LeaderNode:
        node = self.host(number).node
        assert isinstance(node, LeaderNode)
        return node

    def store(self, number: int) -> KeyValueStore:
        """A leader's rows as its parts see them, without checksums."""
        engine = self.node(number)._engine
        assert engine is not None and isinstance(engine.store, MemoryStore)
        return checksummed(engine.store)

    def key(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic_id, partition)

    def stored(self, number: int, partition: int = 0) -> dict[str, dict[bytes, bytes]]:
        """The rows of a partition at a leader; families without any are left out."""
        prefix = keys.partition_prefix(self.key(partition))
        found = {
            family: dict(self.store(number).scan(family, prefix, keys.after_prefix(prefix)))
            for family in keys.PARTITION_FAMILIES
        }
        return {family: rows for family, rows in found.items() if rows}

    def mark(self, number: int, partition: int = 0) -> int | None:
        return PartitionRows(self.store(number)).mark(self.key(partition))

    # Moving

    async def begin(self, to: int, *partitions: int, cancel: bool = False) -> list[int]:
        """The error codes."""
        named = pb.NamedPartitions(topic_name=TOPIC, partitions=partitions or [0])
        request = pb.MovePartitionsRequest(topics=[named], to_node_id=to, cancel=cancel)
        answer = await self.call(COORDINATOR, MOVE_PARTITIONS, request)
        assert answer.error_code == 0, answer.error_message
        return [result.error_code for result in answer.results]

    async def partition(self, number: int = 0) -> pb.Topic.Partition:
        answer = await self.call(COORDINATOR, DESCRIBE_PARTITIONS, pb.DescribePartitionsRequest(topic_names=[TOPIC]))
        found: pb.Topic.Partition = answer.topics[0].partitions[number]
        return found

    async def settled(self, partition: int = 0) -> pb.Topic.Partition:
        """The partition when it does not move any more, and the leaders have seen that."""
        deadline = self.loop.time() + SETTLED_WITHIN_S
        while (found := await self.partition(partition)).is_moving:
            assert self.loop.time() < deadline, found
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        return found

    async def move(self, to: int, partition: int = 0) -> pb.Topic.Partition:
        """Returns when the move is complete, or was taken back."""
        assert await self.begin(to, partition) == [0]
        return await self.settled(partition)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = self.loop.time() + SETTLED_WITHIN_S
        while not condition():
            assert self.loop.time() < deadline
            await asyncio.sleep(0.01)

    # What gateways and roles ask of leaders

    async def produce(
        self,
        leader: int,
        values: Sequence[bytes] = (b"value",),
        *,
        partition: int = 0,
        producer_id: int = -1,
        sequence: int = -1,
        transactional: bool = False,
    ) -> tuple[int, int]:
        """The error code and the base offset."""
        batch = build_batch(
            values,
            timestamps_ms=[BATCH_TIME_MS] * len(values),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        request = leader_pb2.ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS)
        request.transactional_id = f"transactional-{producer_id}" if transactional else ""
        request.partitions.add(topic_id=self.topic_id, partition=partition, records_length=len(batch))
        answer = await self.call(f"leader-{leader}", PRODUCE, request, (batch,))
        result = answer.partitions[0]
        return result.error_code, result.base_offset

    async def end_transaction(self, leader: int, producer_id: int, *, committed: bool, partition: int = 0) -> int:
        marker = leader_pb2.WriteTxnMarkersRequest.Marker(
            producer_id=producer_id, producer_epoch=0, committed=committed, coordinator_epoch=1
        )
        marker.partitions.add(topic_id=self.topic_id, partition=partition)
        request = leader_pb2.WriteTxnMarkersRequest(markers=[marker])
        answer = await self.call(f"leader-{leader}", WRITE_TXN_MARKERS, request)
        return int(answer.results[0].error_code)

    async def delete_records(self, leader: int, offset: int, partition: int = 0) -> tuple[int, int]:
        """The error code and the log start offset."""
        request = leader_pb2.DeleteRecordsRequest()
        request.partitions.add(topic_id=self.topic_id, partition=partition, offset=offset)
        answer = await self.call(f"leader-{leader}", DELETE_RECORDS, request)
        return answer.results[0].error_code, answer.results[0].low_watermark

    async def append_dead_letter(self, leader: int, offset: int, partition: int = 0) -> tuple[int, list[int]]:
        """One of group "g" from partition 0 of some topic: the error code, and which offset is appended."""
        batch = build_batch([b"letter"], timestamps_ms=[BATCH_TIME_MS])
        request = leader_pb2.AppendDeadLettersRequest(
            group_id="g",
            state_epoch=1,
            source_topic_id=self.topic_id,
            source_partition=1,
            topic_id=self.topic_id,
            partition=partition,
        )
        request.offsets.add(first_offset=offset, last_offset=offset)
        answer = await self.call(f"leader-{leader}", APPEND_DEAD_LETTERS, request, (batch,))
        return answer.error_code, [run.first_offset for run in answer.appended]

    async def fetch(
        self, leader: int, offset: int = 0, *, partition: int = 0, committed: bool = False, max_wait_ms: int = 0
    ) -> tuple[leader_pb2.FetchResponse.Partition, bytes]:
        request = leader_pb2.FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=int(committed)
        )
        request.partitions.add(
            topic_id=self.topic_id,
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
        )
        timeout_ms = TIMEOUT_MS + max_wait_ms
        answer, data = await self.call(f"leader-{leader}", FETCH, request, timeout_ms=timeout_ms)
        return answer.partitions[0], data

    async def offset_of_time(self, leader: int, timestamp_ms: int, partition: int = 0) -> int:
        request = leader_pb2.ListOffsetsRequest()
        request.partitions.add(
            topic_id=self.topic_id, partition=partition, current_leader_epoch=-1, timestamp=timestamp_ms
        )
        answer = await self.call(f"leader-{leader}", LIST_OFFSETS, request)
        return int(answer.partitions[0].offset)
