"""A leader node with kshare.engine=kafka in virtual time: share groups on the logs of a cluster in memory, no disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID, SharePartitionKey
from kshare_leader.node import LeaderNode
from kshare_leader.settings import LeaderSettings
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import (
    COORDINATOR,
    DEREGISTER_NODE,
    DESCRIBE_CATALOG,
    FETCH,
    LIST_OFFSETS,
    LIST_STATE_SUMMARIES,
    PRODUCE,
    READ_SHARE_GROUP_STATE,
    REGISTER_NODE,
    SHARE_ACKNOWLEDGE,
    SHARE_COORDINATOR,
    SHARE_FETCH,
    TRUNCATE_SHARE_GROUP_STATE,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import CallFailed, Service
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_share_coordinator.machine.operations import InitializeState, ReadState
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import UpstreamPartitionName
from kshare_upstream.topics import create_topic, delete_topic
from kshare_wire.record_batches import build_end_transaction_marker
from kshare_wire.record_reading import open_records
from kshare_wire.record_writing import BatchWriter
from support.leader.log.leader_logs import StillClock
from support.leader.share.service import OWNER_EPOCH, StateChannel, entries, owner
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream
from support.wire.record_building import build_batch

COORDINATOR_ADDRESS, STATE_ADDRESS = "coordinator:1", "share-coordinator:1"
NODE_ID, LEADER_EPOCH = 7, 5
AT = UpstreamPartitionName("orders", 0)
STATE_RPCS = (READ_SHARE_GROUP_STATE, WRITE_SHARE_GROUP_STATE, TRUNCATE_SHARE_GROUP_STATE, LIST_STATE_SUMMARIES)
ACCEPT = b"\x01"


class Catalog:
    """A coordinator that shows one topic with one partition, and the configs of one group."""

    def __init__(self, topic_id: bytes, group_configs: dict[str, str]) -> None:
        self.version = 1
        self.nodes: list[coordinator_pb2.Node] = []
        self.left: list[str] = []
        """Incarnations of nodes that left the catalog."""
        self.topic = coordinator_pb2.Topic(topic_id=topic_id, name="orders")
        self.topic.partitions.add(partition=0, leader_node_id=NODE_ID, leader_epoch=LEADER_EPOCH)
        self._group = coordinator_pb2.GroupConfig(group_id="group")
        for name, value in group_configs.items():
            self._group.configs.add(name=name, value=value)
        self._changed = asyncio.Event()

    def service(self) -> Service:
        return Service(
            COORDINATOR,
            {
                REGISTER_NODE: self._register,
                DEREGISTER_NODE: self._deregister,
                WATCH_CATALOG: self._watch,
                DESCRIBE_CATALOG: self._describe,
            },
        )

    def change(self) -> None:
        self.version += 1
        self._changed.set()

    async def _register(self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview) -> Any:
        self.nodes.append(request.node)
        return coordinator_pb2.RegisterNodeResponse(node_epoch=1, lease_ms=10_000)

    async def _deregister(self, request: coordinator_pb2.DeregisterNodeRequest, payload: memoryview) -> Any:
        self.left.append(request.incarnation)
        return coordinator_pb2.DeregisterNodeResponse()

    async def _describe(self, request: coordinator_pb2.DescribeCatalogRequest, payload: memoryview) -> Any:
        return coordinator_pb2.DescribeCatalogResponse(version=self.version)

    async def _watch(self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview) -> Any:
        if request.after_version == self.version:
            self._changed.clear()
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await self._changed.wait()
            except TimeoutError:
                return coordinator_pb2.WatchCatalogResponse(version=self.version)
        keeper = coordinator_pb2.Node(role=coordinator_pb2.ROLE_SHARE_COORDINATOR, node_id=2, rpc_address=STATE_ADDRESS)
        answer = coordinator_pb2.WatchCatalogResponse(
            version=self.version,
            full=True,
            topics=[self.topic],
            nodes=[*self.nodes, keeper],
            group_configs=[self._group],
            cluster_id="cluster",
            state_partition_count=1,
        )
        answer.state_partition_owners.add(state_partition=0, node_id=2, owner_epoch=OWNER_EPOCH)
        return answer


class Bench:
    """A leader, its coordinator, the share coordinator's machine, and the cluster with the records."""

    def __init__(self, upstream: MemoryUpstream, topic_id: bytes, group_configs: dict[str, str]) -> None:
        self.upstream = upstream
        self.log = PartitionLog(upstream, AT)
        self.network = InProcessNetwork()
        self.catalog = Catalog(topic_id, group_configs)
        self.states = StateChannel()
        self.node = self.new_node()
        self.values: dict[int, bytes] = {}
        """The records that were delivered, by offset."""

    def new_node(self) -> LeaderNode:
        def no_store(name: str) -> KeyValueStore:
            raise AssertionError(f"a leader on an existing cluster opens the store {name}")

        return LeaderNode(
            environment=Environment(clock=StillClock(), random=random.Random(1), open_store=no_store),
            network=self.network,
            settings=LeaderSettings(
                node_id=NODE_ID,
                listen="leader:0",
                coordinator_address=COORDINATOR_ADDRESS,
                configs=Configs(PROCESS_CONFIGS, {"kshare.engine": "kafka"}),
            ),
            open_upstream=lambda: self.upstream,
        )

    async def start(self) -> None:
        await self.network.serve(COORDINATOR_ADDRESS, [self.catalog.service()])

        def forwarded(method: Any) -> Any:
            async def handle(request: Any, payload: memoryview) -> Any:
                answer, _ = await self.states.call(method, request, timeout_ms=1_000)
                return answer

            return handle

        service = Service(SHARE_COORDINATOR, {method: forwarded(method) for method in STATE_RPCS})
        await self.network.serve(STATE_ADDRESS, [service])
        await self.node.start()

    async def append(self, *values: bytes) -> int:
        writer = BatchWriter(1 << 20)
        for value in values:
            assert writer.append(1_000, None, value, ())
        return await self.log.append(writer.build())

    async def append_transactional(self, producer_id: int, *values: bytes) -> None:
        batch = build_batch(values, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        await self.log.append(batch)

    async def append_abort_marker(self, producer_id: int) -> None:
        marker = build_end_transaction_marker(
            base_offset=0,
            leader_epoch=0,
            timestamp_ms=1_000,
            producer_id=producer_id,
            producer_epoch=0,
            committed=False,
            coordinator_epoch=0,
        )
        self.upstream.logs[AT].sequences.pop(producer_id)  # a marker has no sequence number
        await self.log.append(marker)

    async def call(self, method: Any, request: Any) -> tuple[Any, bytes]:
        channel = self.network.connect(self.node.address)
        answer, payload = await channel.call(method, request, timeout_ms=60_000)
        await channel.close()
        return answer.partitions[0], bytes(payload)

    async def fetch(self, *, max_wait_ms: int = 500, max_records: int = 500) -> list[tuple[int, int, int]]:
        """The acquired runs; the values are noted."""
        partition, payload = await self.call(SHARE_FETCH, self.share_fetch_request(max_wait_ms, max_records))
        assert partition.error_code == ErrorCode.NONE, partition
        position = 0
        found: dict[int, bytes] = {}
        for batch in partition.batches:
            data = payload[position : position + batch.length]
            position += batch.length
            found |= {record.offset: record.value or b"" for record in open_records(data)}
        runs = entries(partition)
        for first, last, _ in runs:
            self.values |= {offset: found[offset] for offset in range(first, last + 1)}
        return runs

    def share_fetch_request(self, max_wait_ms: int, max_records: int) -> leader_pb2.ShareFetchRequest:
        wanted = leader_pb2.ShareFetchRequest.Partition(topic_id=self.topic_id, partition=0, fetch=True)
        return leader_pb2.ShareFetchRequest(
            owner=owner("m1"),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=max_records,
            batch_size=max_records,
            partitions=[wanted],
        )

    async def acknowledge(self, first: int, last: int, types: bytes = ACCEPT) -> int:
        request = leader_pb2.ShareAcknowledgeRequest(owner=owner("m1"))
        entry = request.partitions.add(topic_id=self.topic_id, partition=0)
        entry.acknowledgement_batches.add(first_offset=first, last_offset=last, acknowledge_types=types)
        partition, _ = await self.call(SHARE_ACKNOWLEDGE, request)
        return int(partition.error_code)

    async def latest(self) -> int:
        request = leader_pb2.ListOffsetsRequest()
        request.partitions.add(topic_id=self.topic_id, partition=0, current_leader_epoch=-1, timestamp=-1)
        partition, _ = await self.call(LIST_OFFSETS, request)
        return int(partition.offset)

    @property
    def topic_id(self) -> bytes:
        return self.catalog.topic.topic_id

    @property
    def key(self) -> SharePartitionKey:
        return SharePartitionKey("group", self.topic_id, 0)

    def state(self) -> ShareGroupOffset:
        state = self.states.run(ReadState(self.key, -1)).state
        assert state is not None
        return state


EARLIEST = {"share.auto.offset.reset": "earliest"}


def run(
    body: Callable[[Bench], Coroutine[Any, Any, None]],
    *,
    records: Sequence[bytes] = (),
    group_configs: dict[str, str] | None = None,
    has_topic_ids: bool = True,
) -> None:
    """The topic has `records`, in batches of two, when the leader starts."""

    async def test() -> None:
        upstream = MemoryUpstream()
        assert await create_topic(upstream, "orders", partitions=1, replicas=1, configs={})
        topic_id = (await upstream.describe(["orders"])).topics["orders"].topic_id
        bench = Bench(upstream, topic_id, EARLIEST | (group_configs or {}))
        if not has_topic_ids:
            upstream.topic_ids.clear()
            bench.catalog.topic.topic_id, bench.catalog.topic.upstream_topic_id = b"invented".ljust(16), ZERO_TOPIC_ID
        for index in range(0, len(records), 2):
            await bench.append(*records[index : index + 2])
        bench.states.run(InitializeState(bench.key, 3, -1))
        await bench.start()
        try:
            await body(bench)
        finally:
            await bench.node.stop(1000)

    loop = VirtualLoop(time_limit=3600.0)
    loop.run(test())
    assert not loop.problems, loop.problems


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_records_are_delivered_acknowledged_and_delivered_on_by_the_next_leader_without_a_disk() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.fetch(max_records=4) == [(0, 3, 1)]
        assert await bench.acknowledge(0, 3) == ErrorCode.NONE
        assert await bench.fetch() == [(4, 9, 1)]
        assert list(bench.values.values()) == values(10)
        assert bench.node.problems() == []
        await bench.node.stop(1000)
        assert bench.catalog.left == [bench.catalog.nodes[0].incarnation], "others take over at once"
        bench.node = bench.new_node()
        bench.catalog.topic.partitions[0].leader_epoch = LEADER_EPOCH + 1
        bench.catalog.change()
        await bench.node.start()
        assert await bench.fetch() == [(4, 9, 1)]

    run(body, records=values(10))


def test_a_waiting_fetch_gets_records_when_they_are_appended() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.fetch(max_wait_ms=100) == []
        waiting = asyncio.ensure_future(bench.fetch(max_wait_ms=30_000))
        await asyncio.sleep(2)
        assert not waiting.done()
        await bench.append(b"a", b"b")
        async with asyncio.timeout(0.5):
            assert await waiting == [(0, 1, 1)]
        assert bench.values == {0: b"a", 1: b"b"}

    run(body)


def test_only_records_that_are_here_are_acquired() -> None:
    """The window has room for some of the records: a fetch acquires those that it delivers, and the next goes on."""

    async def body(bench: Bench) -> None:
        done = 0
        while done < 200:
            for first, last, count in await bench.fetch():
                assert (first, count) == (done, 1)
                assert await bench.acknowledge(first, last) == ErrorCode.NONE
                done = last + 1
        assert bench.values == {offset: b"%d" % offset * 1000 for offset in range(200)}

    run(body, records=[value * 1000 for value in values(200)])


def test_a_fetch_of_a_gateway_gets_what_is_here_and_the_end_is_asked_for() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.sleep(1)  # the log is open then
        request = leader_pb2.FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20)
        request.partitions.add(
            topic_id=bench.topic_id, partition=0, current_leader_epoch=-1, fetch_offset=2, partition_max_bytes=1 << 20
        )
        partition, payload = await bench.call(FETCH, request)
        found = [record.value for record in open_records(payload[: partition.records_length])]
        assert (partition.error_code, partition.high_watermark, found) == (ErrorCode.NONE, 4, [b"2", b"3"])
        await asyncio.sleep(60)  # nobody reads any more
        await bench.append(b"x")
        assert await bench.latest() == 5
        try:
            await bench.call(PRODUCE, leader_pb2.ProduceRequest())
        except CallFailed:
            return
        raise AssertionError("a leader on an existing cluster accepted Produce")

    run(body, records=values(4))


def test_a_group_without_earliest_begins_where_the_log_ends_when_it_first_fetches() -> None:
    async def body(bench: Bench) -> None:
        await asyncio.sleep(1)
        await bench.append(b"before the group", b"came")
        assert await bench.fetch(max_wait_ms=500) == []
        await bench.append(b"after")
        assert await bench.fetch() == [(2, 2, 1)]

    run(body, group_configs={"share.auto.offset.reset": "latest"})


def test_a_truncated_log_is_read_anew_and_its_states_are_cut() -> None:
    """The cluster elects a leader that has not the last four records, and gets six others: none of them is skipped."""

    async def body(bench: Bench) -> None:
        assert await bench.fetch() == [(0, 9, 1)]
        assert await bench.acknowledge(0, 9) == ErrorCode.NONE
        assert bench.upstream.lose_newest(AT, 2) == 2
        for number in range(6):
            await bench.append(b"new %d" % number)
        bench.values.clear()
        while len(bench.values) < 6:
            try:
                await bench.fetch()
            except AssertionError as dropped:  # the share-partition is loaded again
                assert "truncated" in str(dropped) or "closed" in str(dropped)
        assert bench.values == {6 + number: b"new %d" % number for number in range(6)}
        assert len(bench.states.truncations) == 1

    run(body, records=values(10))


def test_a_state_is_not_cut_while_the_cluster_is_only_behind_or_away() -> None:
    """Brokers' epochs grow far above the leader epoch of kshare, and the leader is another one each time."""

    async def body(bench: Bench) -> None:
        for generation in range(40):
            first = 10 + generation
            bench.upstream.elect(AT, 100 + generation)
            await bench.append(b"one more")
            assert (await bench.fetch())[-1][1] == first
            assert await bench.acknowledge(0 if generation == 0 else first, first) == ErrorCode.NONE
        await bench.node.stop(1000)
        for generation in range(40):
            bench.upstream.elect(AT, 200 + generation)
            await bench.append(b"while no leader was up")
        bench.node = bench.new_node()
        bench.catalog.topic.partitions[0].leader_epoch = LEADER_EPOCH + 1
        bench.catalog.change()
        await bench.node.start()
        assert await bench.fetch() == [(50, 89, 1)]
        assert bench.states.truncations == []

    run(body, records=values(10))


def test_records_of_aborted_transactions_are_not_delivered_to_read_committed_groups() -> None:
    async def body(bench: Bench) -> None:
        log = bench.upstream.logs[AT]
        await bench.append(b"committed")
        log.open_from = 1
        await bench.append_transactional(9, b"aborted", b"too")
        await bench.append(b"behind")
        assert await bench.fetch() == [(0, 0, 1)]
        assert await bench.fetch(max_wait_ms=200) == []
        await bench.append_abort_marker(9)
        log.aborted.append((9, 1, 4))
        log.open_from = None
        assert await bench.fetch() == [(3, 3, 1)]
        assert bench.values == {0: b"committed", 3: b"behind"}

    run(body, group_configs={"share.isolation.level": "read_committed"})


def test_nothing_is_lost_while_the_cluster_is_away_and_it_comes_back_by_itself() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.fetch(max_records=4) == [(0, 3, 1)]
        bench.upstream.flaws.is_away = True
        await asyncio.sleep(2)
        assert await bench.acknowledge(0, 1) == ErrorCode.NONE
        await bench.fetch(max_wait_ms=100)  # what the window still has
        assert await bench.fetch(max_wait_ms=100) == []
        assert any("cannot be reached" in problem for problem in bench.node.problems()), bench.node.problems()
        await asyncio.sleep(120)
        bench.upstream.flaws.is_away = False
        await bench.append(b"new")
        while 10 not in bench.values:
            await bench.fetch()
        assert bench.values == dict(enumerate([*values(10), b"new"]))
        assert bench.node.problems() == []

    run(body, records=values(10))


def test_a_leader_that_starts_while_the_cluster_is_away_waits_for_it() -> None:
    async def body(bench: Bench) -> None:
        await bench.node.stop(1000)
        bench.upstream.flaws.is_away = True
        bench.node = bench.new_node()
        bench.catalog.topic.partitions[0].leader_epoch = LEADER_EPOCH + 1
        bench.catalog.change()
        await bench.node.start()
        assert await bench.fetch(max_wait_ms=500) == []
        await asyncio.sleep(15)
        assert await bench.fetch(max_wait_ms=500) == []
        assert any("opening of partition orders-0" in problem for problem in bench.node.problems())
        bench.upstream.flaws.is_away = False
        assert await bench.fetch(max_wait_ms=10_000) == [(0, 1, 1)]

    run(body, records=values(2))


def test_a_topic_that_was_made_anew_is_not_taken_for_the_old_one() -> None:
    async def body(bench: Bench) -> None:
        assert await bench.fetch() == [(0, 9, 1)]
        assert await bench.acknowledge(0, 9) == ErrorCode.NONE
        await delete_topic(bench.upstream, "orders")
        assert await create_topic(bench.upstream, "orders", partitions=1, replicas=1, configs={})
        for number in range(20):
            await bench.append(b"of the new topic %d" % number)
        bench.values.clear()
        for _ in range(20):
            try:
                await bench.fetch(max_wait_ms=500)
            except AssertionError as refused:  # the share-partition is dropped
                assert "truncated" in str(refused) or "closed" in str(refused)
        assert bench.values == {} and bench.states.truncations == []
        assert any("in the catalog" in problem for problem in bench.node.problems()), bench.node.problems()

    run(body, records=values(10))


@pytest.mark.parametrize("catalog_is_first", [False, True])
def test_a_topic_is_read_on_when_the_cluster_gives_it_an_id(catalog_is_first: bool) -> None:
    """The catalog keeps the id that it invented, and has the cluster's id beside it."""
    of_cluster = b"c" * 16

    def change_catalog(bench: Bench) -> None:
        bench.catalog.topic.upstream_topic_id = of_cluster
        bench.catalog.change()

    async def next_leader(bench: Bench) -> None:
        await bench.node.stop(1000)
        bench.node = bench.new_node()
        bench.catalog.topic.partitions[0].leader_epoch += 1
        bench.catalog.change()
        await bench.node.start()

    async def body(bench: Bench) -> None:
        assert await bench.fetch(max_records=4) == [(0, 3, 1)]
        assert await bench.acknowledge(0, 3) == ErrorCode.NONE
        bench.upstream.topic_ids["orders"] = of_cluster
        if catalog_is_first:
            change_catalog(bench)
            assert await bench.fetch(max_records=2) == [(4, 5, 1)], "the open log"
            assert await bench.acknowledge(4, 5) == ErrorCode.NONE
        await next_leader(bench)
        done = 6 if catalog_is_first else 4
        assert await bench.fetch() == [(done, 9, 1)]
        assert await bench.acknowledge(done, 9) == ErrorCode.NONE
        if not catalog_is_first:
            change_catalog(bench)
        await bench.append(b"10", b"11")
        assert await bench.fetch() == [(10, 11, 1)] and bench.node.problems() == []
        assert list(bench.values.values()) == values(12)
        bench.upstream.topic_ids["orders"] = b"d" * 16  # made again
        await bench.append(b"other", b"other")
        await bench.call(SHARE_FETCH, bench.share_fetch_request(500, 500))
        await asyncio.sleep(10)
        assert any("in the catalog" in problem for problem in bench.node.problems()), bench.node.problems()

    run(body, records=values(10), has_topic_ids=False)
