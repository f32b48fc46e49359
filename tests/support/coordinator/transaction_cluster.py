"""A whole coordinator on virtual time with scripted leaders, for tests of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import Server, Service
from support.coordinator.cluster import CoordinatorCluster

CONFIGS = {"kshare.node.lease.ms": "600000"}
Marker = leader_pb2.WriteTxnMarkersRequest.Marker
Producer = tuple[int, int]
Place = tuple[bytes, int]


class ScriptedLeader:
    """Keeps each call with its time. `codes` are answered for a partition, one a call, and then NONE."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, list[Marker]]] = []
        self.codes: dict[int, list[E]] = {}
        self.delays_s: list[float] = []
        """How long the next calls take."""
        self.written: list[tuple[Producer, bool, int, int]] = []
        """Of each partition with answer NONE: producer, outcome, coordinator epoch, partition; in order of writing."""

    def service(self) -> Service:
        return Service(methods.LEADER, {methods.WRITE_TXN_MARKERS: self.write_markers})

    async def write_markers(
        self, request: leader_pb2.WriteTxnMarkersRequest, payload: memoryview
    ) -> leader_pb2.WriteTxnMarkersResponse:
        self.calls.append((asyncio.get_running_loop().time(), list(request.markers)))
        await asyncio.sleep(self.delays_s.pop(0) if self.delays_s else 0)
        answer = leader_pb2.WriteTxnMarkersResponse()
        for marker in request.markers:
            for place in marker.partitions:
                codes = self.codes.get(place.partition)
                code = codes.pop(0) if codes else E.NONE
                if code is E.NONE:
                    producer = (marker.producer_id, marker.producer_epoch)
                    written = (producer, marker.committed, marker.coordinator_epoch, place.partition)
                    self.written.append(written)
                answer.results.add(
                    producer_id=marker.producer_id,
                    topic_id=place.topic_id,
                    partition=place.partition,
                    error_code=code,
                )
        return answer

    @property
    def partitions(self) -> list[list[int]]:
        """Of each call, the partitions of its markers."""
        return [[place.partition for marker in markers for place in marker.partitions] for _, markers in self.calls]

    @property
    def coordinator_epochs(self) -> list[int]:
        return [marker.coordinator_epoch for _, markers in self.calls for marker in markers]


class TransactionCluster(CoordinatorCluster):
    """A coordinator with scripted leaders at "leader:<node id>"; topic "orders" has its partitions on them in turn."""

    def __init__(self, configs: dict[str, str] | None = None) -> None:
        super().__init__({**CONFIGS, **(configs or {})})
        self.leaders: dict[int, ScriptedLeader] = {}
        self.servers: dict[int, Server] = {}

    async def add_leader(self, node_id: int, *, registered: bool = True) -> ScriptedLeader:
        leader = self.leaders[node_id] = ScriptedLeader()
        await self.serve_leader(node_id)
        if registered:
            await self.register(pb.ROLE_LEADER, node_id, f"leader:{node_id}")
        return leader

    async def serve_leader(self, node_id: int) -> None:
        self.servers[node_id] = await self.network.serve(f"leader:{node_id}", [self.leaders[node_id].service()])

    async def init(
        self, transactional_id: str = "t", timeout_ms: int = 60_000, named: Producer = (-1, -1)
    ) -> tuple[E, Producer]:
        request = pb.InitProducerIdRequest(
            producer_id=named[0],
            producer_epoch=named[1],
            has_transactional_id=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        answer = await self.call(methods.INIT_PRODUCER_ID, request)
        return E(answer.error_code), (answer.producer_id, answer.producer_epoch)

    async def add(
        self, producer: Producer, partitions: Sequence[int], transactional_id: str = "t", *, verify_only: bool = False
    ) -> list[E]:
        request = pb.AddPartitionsToTxnRequest()
        transaction = request.transactions.add(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            verify_only=verify_only,
        )
        transaction.topics.add(topic_name="orders", partitions=partitions)
        answer = await self.call(methods.ADD_PARTITIONS_TO_TXN, request)
        if answer.error_code:
            return [E(answer.error_code)]
        return [E(each.error_code) for each in answer.results[0].partitions]

    async def begin(self, partitions: Sequence[int], transactional_id: str = "t") -> Producer:
        code, producer = await self.init(transactional_id)
        assert code is E.NONE
        assert set(await self.add(producer, partitions, transactional_id)) == {E.NONE}
        return producer

    async def end(
        self, producer: Producer, *, committed: bool = True, bumps: bool = False, transactional_id: str = "t"
    ) -> tuple[E, Producer]:
        request = pb.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
            bumps_epoch=bumps,
        )
        answer = await self.call(methods.END_TXN, request)
        return E(answer.error_code), (answer.producer_id, answer.producer_epoch)

    async def state_of(self, transactional_id: str = "t") -> str:
        request = pb.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (state,) = (await self.call(methods.DESCRIBE_TRANSACTIONS, request)).transaction_states
        return state.transaction_state or E(state.error_code).name


async def started(
    leaders: int = 1, partitions: int = 3, configs: dict[str, str] | None = None
) -> tuple[TransactionCluster, list[ScriptedLeader]]:
    cluster = TransactionCluster(configs)
    await cluster.start()
    found = [await cluster.add_leader(node_id) for node_id in range(1, leaders + 1)]
    await cluster.create_topic("orders", partitions)
    return cluster, found
