"""The whole node under virtual time: its responses before, while and after it owns a share-partition."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.broker import BROKER_CONFIGS
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COORDINATOR,
    DELETE_SHARE_GROUP_STATE,
    INITIALIZE_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE,
    READ_SHARE_GROUP_STATE_SUMMARY,
    REGISTER_NODE,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Channel, Method, Service
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_runtime.ports import Environment, Write
from kshare_share_coordinator.handlers.operation_service import SHARE_PARTITIONS_PER_REQUEST_LIMIT
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.settings import ShareCoordinatorSettings
from kshare_share_coordinator.state_topic import is_state_topic_key
from support.simulation.loop import VirtualLoop

COORDINATOR_ADDRESS = "127.0.0.1:4001"
NODE_ID = 7
TOPIC_ID = bytes(range(1, 17))
TIMEOUT_MS = 60_000


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


class Catalog:
    """The coordinator's part of this: leases, and one version of the catalog that a test may change."""

    def __init__(self, *, state_partition_count: int = 50, lease_ms: int = 9_000) -> None:
        self.version = 1
        self.state_partition_count = state_partition_count
        self.lease_ms = lease_ms
        self.owner: Callable[[int], int] = lambda state_partition: NODE_ID
        self.registered: list[coordinator_pb2.Node] = []
        self.silent = False

    def service(self) -> Service:
        return Service(COORDINATOR, {REGISTER_NODE: self._register, WATCH_CATALOG: self._watch})

    async def _register(
        self, request: coordinator_pb2.RegisterNodeRequest, payload: memoryview
    ) -> coordinator_pb2.RegisterNodeResponse:
        self.registered.append(request.node)
        return coordinator_pb2.RegisterNodeResponse(node_epoch=1, lease_ms=self.lease_ms)

    async def _watch(
        self, request: coordinator_pb2.WatchCatalogRequest, payload: memoryview
    ) -> coordinator_pb2.WatchCatalogResponse:
        waited_ms = 0
        while self.silent or (request.after_version >= self.version and waited_ms < request.max_wait_ms):
            await asyncio.sleep(0.1)
            waited_ms += 100
        return coordinator_pb2.WatchCatalogResponse(
            version=self.version,
            full=True,
            nodes_changed=True,
            nodes=self.registered,
            state_partition_count=self.state_partition_count,
            state_partition_owners=[
                coordinator_pb2.StatePartitionOwner(state_partition=number, node_id=self.owner(number))
                for number in range(self.state_partition_count)
            ],
        )


class Cluster:
    """One share coordinator and the catalog."""

    def __init__(self, catalog: Catalog | None = None, disk: MemoryDisk | None = None) -> None:
        self.catalog = catalog or Catalog()
        self.disk = disk or MemoryDisk()
        self.network = InProcessNetwork()
        self.opened: list[MemoryStore] = []
        self.node = self._new_node()

    def _new_node(self) -> ShareCoordinatorNode:
        def open_store(name: str) -> MemoryStore:
            self.opened.append(self.disk.open_store(name))
            return self.opened[-1]

        return ShareCoordinatorNode(
            environment=Environment(clock=FixedClock(), random=random.Random(1), open_store=open_store),
            network=self.network,
            settings=ShareCoordinatorSettings(
                node_id=NODE_ID,
                listen="127.0.0.1:0",
                coordinator_address=COORDINATOR_ADDRESS,
                configs=Configs(BROKER_CONFIGS),
            ),
        )

    async def start(self) -> None:
        await self.network.serve(COORDINATOR_ADDRESS, [self.catalog.service()])
        await self.node.start()

    async def restart(self) -> None:
        await self.node.stop(0)
        self.node = self._new_node()
        await self.node.start()

    @property
    def channel(self) -> Channel:
        return self.network.connect(self.node.address)

    async def initialize(self, *partitions: int, state_epoch: int = 1, group_id: str = "orders") -> list[int]:
        request = messages.InitializeShareGroupStateRequest(group_id=group_id)
        for partition in partitions:
            request.partitions.add(topic_id=TOPIC_ID, partition=partition, state_epoch=state_epoch, start_offset=-1)
        answer, _ = await self.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        assert [(result.topic_id, result.partition) for result in answer.results] == [
            (TOPIC_ID, partition) for partition in partitions
        ]
        return [result.error_code for result in answer.results]

    async def write(self, *partitions: int, leader_epoch: int = 0) -> list[messages.SharePartitionResult]:
        request = messages.WriteShareGroupStateRequest(group_id="orders")
        for partition in partitions:
            written = request.partitions.add(
                topic_id=TOPIC_ID,
                partition=partition,
                state_epoch=1,
                leader_epoch=leader_epoch,
                start_offset=5,
                delivery_complete_count=2,
            )
            written.state_batches.add(first_offset=7, last_offset=8, delivery_state=2, delivery_count=1)
        answer, _ = await self.channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        return list(answer.results)

    async def read(self, partition: int, leader_epoch: int = -1) -> messages.ReadShareGroupStateResponse.Result:
        request = messages.ReadShareGroupStateRequest(group_id="orders")
        request.partitions.add(topic_id=TOPIC_ID, partition=partition, leader_epoch=leader_epoch)
        answer, _ = await self.channel.call(READ_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        (result,) = answer.results
        return result


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Runs a test under virtual time; nothing may go wrong unseen."""
    loop = VirtualLoop(time_limit=600)

    async def main() -> None:
        await test()

    loop.run(main())
    assert loop.problems == []


def codes(results: list[messages.SharePartitionResult]) -> list[int]:
    return [result.error_code for result in results]


def test_the_five_rpcs() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        assert cluster.node.problems() == []
        assert await cluster.initialize(0, 1) == [0, 0]
        assert codes(await cluster.write(0, 1, 9)) == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        found = await cluster.read(0, leader_epoch=3)
        assert (found.error_code, found.state_epoch, found.start_offset) == (0, 1, 5)
        assert list(found.state_batches) == [
            messages.StateBatch(first_offset=7, last_offset=8, delivery_state=2, delivery_count=1)
        ]
        request = messages.ReadShareGroupStateSummaryRequest(group_id="orders")
        request.partitions.add(topic_id=TOPIC_ID, partition=0)
        request.partitions.add(topic_id=TOPIC_ID, partition=9)
        answer, _ = await cluster.channel.call(READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=TIMEOUT_MS)
        assert list(answer.results) == [
            messages.ReadShareGroupStateSummaryResponse.Result(
                topic_id=TOPIC_ID,
                partition=0,
                state_epoch=1,
                leader_epoch=3,
                start_offset=5,
                delivery_complete_count=2,
            ),
            messages.ReadShareGroupStateSummaryResponse.Result(
                topic_id=TOPIC_ID, partition=9, start_offset=-1, delivery_complete_count=-1
            ),
        ]
        deletion = messages.DeleteShareGroupStateRequest(group_id="orders")
        deletion.partitions.add(topic_id=TOPIC_ID, partition=0)
        deletion.partitions.add(topic_id=TOPIC_ID, partition=9)
        deleted, _ = await cluster.channel.call(DELETE_SHARE_GROUP_STATE, deletion, timeout_ms=TIMEOUT_MS)
        assert codes(list(deleted.results)) == [0, 0]
        assert (await cluster.read(0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(test)


def test_it_registers_as_a_share_coordinator_with_a_new_incarnation_each_time() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        (node,) = cluster.catalog.registered
        assert (node.role, node.node_id) == (coordinator_pb2.ROLE_SHARE_COORDINATOR, NODE_ID)
        assert node.rpc_address == cluster.node.address
        assert len(node.incarnation) == 32

    run(test)


def test_what_was_answered_is_there_after_a_restart() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(0)
        await cluster.write(0, leader_epoch=4)
        await cluster.restart()
        found = await cluster.read(0)
        assert (found.start_offset, len(found.state_batches)) == (5, 1)
        assert codes(await cluster.write(0, leader_epoch=3)) == [ErrorCode.FENCED_LEADER_EPOCH]

    run(test)


def test_requests_of_one_turn_share_one_write() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(*range(20))
        (store,) = cluster.opened
        written: list[int] = []
        plain = store.begin_write

        def counted_write(writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
            written.append(len(writes))
            plain(writes, done)

        store.begin_write = counted_write  # type: ignore[method-assign]
        results = await asyncio.gather(*[cluster.write(partition) for partition in range(20)])
        assert [codes(result) for result in results] == [[0]] * 20
        assert written == [20 * 4]  # the record, its offset, the way back from its key, and the former offset's end

    run(test)


def test_state_partitions_of_other_nodes_are_refused() -> None:
    async def test() -> None:
        cluster = Cluster()
        foreign = state_partition_of(SharePartitionKey("orders", TOPIC_ID, 1), 50)
        assert foreign != state_partition_of(SharePartitionKey("orders", TOPIC_ID, 0), 50)
        cluster.catalog.owner = lambda number: NODE_ID + 1 if number == foreign else NODE_ID
        await cluster.start()
        assert await cluster.initialize(0, 1) == [0, ErrorCode.NOT_COORDINATOR]
        cluster.catalog.owner = lambda number: NODE_ID
        cluster.catalog.version = 2
        await asyncio.sleep(1)
        assert await cluster.initialize(0, 1) == [0, 0]

    run(test)


def test_it_is_loading_until_the_first_view() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.catalog.silent = True
        await cluster.network.serve(COORDINATOR_ADDRESS, [cluster.catalog.service()])
        starting = asyncio.get_running_loop().create_task(cluster.node.start())
        await asyncio.sleep(1)
        assert not starting.done()
        assert await cluster.initialize(0) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        assert cluster.node.problems()
        cluster.catalog.silent = False
        await starting
        assert await cluster.initialize(0) == [0]
        assert cluster.node.problems() == []

    run(test)


def test_it_stops_answering_when_its_lease_may_have_run_out() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(0)
        cluster.catalog.silent = True
        await asyncio.sleep(4)
        assert codes(await cluster.write(0)) == [0]
        await asyncio.sleep(9)
        assert codes(await cluster.write(0)) == [ErrorCode.NOT_COORDINATOR]
        assert (await cluster.read(0)).error_code == ErrorCode.NOT_COORDINATOR
        assert any("no response from the coordinator" in problem for problem in cluster.node.problems())
        cluster.catalog.silent = False
        await asyncio.sleep(15)
        assert codes(await cluster.write(0)) == [0]
        assert cluster.node.problems() == []

    run(test)


def test_a_process_that_stood_still_in_a_write_until_its_lease_ran_out_does_not_answer_with_success() -> None:
    async def test() -> None:
        cluster = Cluster(Catalog(lease_ms=9_000))
        await cluster.start()
        await cluster.initialize(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        (store,) = cluster.opened
        plain = store.begin_write

        def slow_write(writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
            loop._now += 10.0
            plain(writes, done)

        store.begin_write = slow_write  # type: ignore[method-assign]
        assert codes(await cluster.write(0)) == [ErrorCode.NOT_COORDINATOR]

    run(test)


def test_a_slow_disk_costs_no_lease() -> None:
    async def test() -> None:
        cluster = Cluster(Catalog(lease_ms=9_000))
        await cluster.start()
        await cluster.initialize(0)
        cluster.disk.sync_delay_s = lambda: 30.0
        assert codes(await cluster.write(0)) == [ErrorCode.NONE]

    run(test)


def test_a_failed_write_is_never_acknowledged_and_shows_in_the_health_check() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(0, 1)
        cluster.disk.fail_next_writes(1)
        results = await cluster.write(0, 1)
        assert codes(results) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert "No space left on device" in results[0].error_message
        assert any("No space left on device" in problem for problem in cluster.node.problems())
        assert list((await cluster.read(0)).state_batches) == []
        assert codes(await cluster.write(0, 1)) == [0, 0]
        assert cluster.node.problems() == []

    run(test)


def test_a_corrupt_record_shows_in_the_health_check_and_harms_no_other() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(0, 1)
        (store,) = cluster.opened
        family = f"state-{state_partition_of(SharePartitionKey('orders', TOPIC_ID, 0), 50)}"
        (key, *_) = [key for key, _ in store.scan(family, b"") if not is_state_topic_key(key)]
        store.write([Write(family, key, b"?")])
        await cluster.restart()
        found = await cluster.read(0)
        assert found.error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await cluster.read(1)).error_code == 0
        (problem,) = cluster.node.problems()
        assert found.error_message in problem

    run(test)


@pytest.mark.parametrize(
    ("group_id", "topic_id", "partition"),
    [("", TOPIC_ID, 0), ("orders", b"", 0), ("orders", b"short", 0), ("orders", TOPIC_ID, -1)],
)
def test_bad_names_are_refused_and_the_others_of_the_request_are_done(
    group_id: str, topic_id: bytes, partition: int
) -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        request = messages.InitializeShareGroupStateRequest(group_id=group_id)
        request.partitions.add(topic_id=topic_id, partition=partition, state_epoch=1)
        request.partitions.add(topic_id=TOPIC_ID, partition=5, state_epoch=1)
        answer, _ = await cluster.channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        bad, good = answer.results
        assert (bad.topic_id, bad.partition, bad.error_code) == (topic_id, partition, ErrorCode.INVALID_REQUEST)
        assert bad.error_message
        assert good.error_code == (0 if group_id else ErrorCode.INVALID_REQUEST)

    run(test)


def test_a_request_for_too_many_share_partitions_is_refused() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        assert await cluster.initialize(*range(SHARE_PARTITIONS_PER_REQUEST_LIMIT)) == [0] * (
            SHARE_PARTITIONS_PER_REQUEST_LIMIT
        )
        beyond = range(SHARE_PARTITIONS_PER_REQUEST_LIMIT + 1)
        assert set(await cluster.initialize(*beyond)) == {ErrorCode.INVALID_REQUEST}

    run(test)


@pytest.mark.parametrize("restarts", [False, True])
def test_another_number_of_state_partitions_does_not_hide_the_state(restarts: bool) -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.initialize(0)
        cluster.catalog.state_partition_count = 60
        cluster.catalog.version = 2
        if restarts:
            await cluster.restart()
        await asyncio.sleep(1)
        found = await cluster.read(0)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "60" in found.error_message and "50" in found.error_message
        assert found.error_message in cluster.node.problems()
        cluster.catalog.state_partition_count = 50
        cluster.catalog.version = 3
        await asyncio.sleep(1)
        assert (await cluster.read(0)).error_code == 0
        assert cluster.node.problems() == []

    run(test)


def test_no_state_partitions_yet() -> None:
    async def test() -> None:
        cluster = Cluster(Catalog(state_partition_count=0))
        await cluster.start()
        assert await cluster.initialize(0) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    run(test)


def test_a_node_stopped_before_it_was_registered_gives_its_store_free() -> None:
    async def test() -> None:
        cluster = Cluster()
        starting = asyncio.get_running_loop().create_task(cluster.node.start())
        await asyncio.sleep(1)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        with pytest.raises(StorageFailure):
            cluster.disk.open_store("share-coordinator")
        await cluster.node.stop(0)
        cluster.disk.open_store("share-coordinator").close()

    run(test)


def test_every_answer_is_a_message_of_its_method() -> None:
    async def test() -> None:
        cluster = Cluster()
        await cluster.start()
        methods: list[Method[Any, Any]] = [
            INITIALIZE_SHARE_GROUP_STATE,
            READ_SHARE_GROUP_STATE,
            WRITE_SHARE_GROUP_STATE,
            DELETE_SHARE_GROUP_STATE,
            READ_SHARE_GROUP_STATE_SUMMARY,
        ]
        for method in methods:
            answer, _ = await cluster.channel.call(method, method.request_type(), timeout_ms=TIMEOUT_MS)
            assert answer == method.response_type()

    run(test)
