"""Long work is done in slices, once, and only while a client waits for it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kshare_core.configs import BROKER_CONFIGS, GROUP_CONFIGS, DynamicConfigs
from kshare_core.errors import ErrorCode
from kshare_core.work_slices import SLICE_ELEMENTS, WorkSlices
from kshare_gateway.connections.request_parts import REPETITIONS
from kshare_gateway.connections.turns import REQUESTS_PER_TURN
from kshare_gateway.handlers.admin import describe_configs
from kshare_gateway.handlers.admin.describe_configs import ELEMENTS_OF_A_CONFIG
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, build, request_frame, run, topic

PARTITIONS = 20_000
WIDE_ID = b"wide-topic-id-16"


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1

    def stop(self) -> int:
        self._task.cancel()
        return self.count


async def with_wide_topic(harness: GatewayHarness) -> None:
    harness.catalog.topics["wide"] = topic("wide", WIDE_ID, [1] * PARTITIONS)
    await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=5_000)


@pytest.mark.parametrize("asked", [None, [{"name": "wide", "topic_id": None}]], ids=["all topics", "one topic"])
def test_metadata_of_an_unchanged_catalog_is_encoded_once_and_in_slices(asked: Any) -> None:
    """64 pipelined requests of each of two clients."""

    async def scenario(harness: GatewayHarness) -> None:
        await with_wide_topic(harness)
        clients = [harness.client(), harness.client()]
        turns = Turns()
        futures: list[asyncio.Future[bytes]] = []
        for client in clients:
            request = build(ApiKey.METADATA, 12, {"topics": asked})
            for number in range(1_000, 1_064):
                futures.append(client.expect_raw(number))
            client.connection.data_received(
                b"".join(request_frame(ApiKey.METADATA, 12, number, request) for number in range(1_000, 1_064))
            )
        answers = await asyncio.wait_for(asyncio.gather(*futures), 60)
        assert turns.stop() >= PARTITIONS // SLICE_ELEMENTS
        assert {answer for answer in answers} == {answers[0]} and len(answers[0]) > PARTITIONS * 10
        assert harness.node._gateway.metadata_fragments.built == 1
        harness.catalog.topics["other"] = topic("other", b"other-topicid-16", [1])
        await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=5_000)
        answer = await clients[0].ask(ApiKey.METADATA, 12, topics=asked)
        assert harness.node._gateway.metadata_fragments.built == 2, "a changed catalog is encoded again"
        wide = next(each for each in answer.topics if each.name == "wide")
        assert [partition.partition_index for partition in wide.partitions] == list(range(PARTITIONS))

    run(scenario)


def test_a_client_that_has_gone_is_not_answered() -> None:
    """Its requests that wait never start, and a long one that is being read stops."""

    async def scenario(harness: GatewayHarness) -> None:
        gateway = harness.node._gateway
        gone = harness.client()
        request = build(ApiKey.LIST_GROUPS, 5, {})
        entered = asyncio.Event()

        async def slow(request: Any, payload: memoryview) -> Any:
            entered.set()
            await asyncio.sleep(0.05)
            return coordinator_pb2.ListGroupsResponse()

        harness.catalog.answers["ListGroups"] = slow
        gone.connection.data_received(
            b"".join(request_frame(ApiKey.LIST_GROUPS, 5, number, request) for number in range(64))
        )
        await entered.wait()
        gone.lose()
        await asyncio.sleep(0.2)
        assert len(harness.catalog.requests("ListGroups")) == 1
        names = [{"name": f"topic-{number}", "topic_id": None} for number in range(50_000)]
        frame = request_frame(ApiKey.METADATA, 12, 1, build(ApiKey.METADATA, 12, {"topics": names}))
        gone = harness.client()
        gone.connection.data_received(frame)
        await asyncio.sleep(0)
        gone.lose()
        before = gateway.slices.slices
        await harness.settle()
        assert gateway.slices.slices - before <= 2

    run(scenario)


def test_a_request_of_many_elements_is_read_answered_and_written_in_slices() -> None:
    """Meanwhile another client is answered again and again."""
    elements = 100_000

    async def scenario(harness: GatewayHarness) -> None:
        names = [{"name": f"t{number}", "topic_id": None} for number in range(elements)]
        request = build(ApiKey.METADATA, 12, {"topics": names, "allow_auto_topic_creation": False})
        long, other = harness.client(), harness.client()
        answer = long.expect_raw(1)
        long.connection.data_received(request_frame(ApiKey.METADATA, 12, 1, request))
        asked = 0
        while not answer.done():
            await other.ask(ApiKey.API_VERSIONS, 3)
            await asyncio.sleep(0)
            asked += 1
        assert harness.node._gateway.slices.slices >= 3 * elements // SLICE_ELEMENTS
        assert asked >= elements // SLICE_ELEMENTS
        assert len(await answer) > elements * 10

    run(scenario)


def test_all_configs_of_brokers_are_described_in_slices() -> None:
    """A short request may ask for many: a broker has hundreds, and a group does not have to exist."""
    groups = 50
    shown = [definition for definition in BROKER_CONFIGS.values() if not definition.is_internal]
    of_groups = [definition for definition in GROUP_CONFIGS.values() if not definition.is_internal]

    async def scenario(harness: GatewayHarness) -> None:
        broker = {"resource_type": 4, "resource_name": "7", "configuration_keys": None}
        resources = [broker] + [{**broker, "resource_type": 32, "resource_name": f"g{at}"} for at in range(groups)]
        before = harness.node._gateway.slices.slices
        answer = await harness.client().ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
        enough = (len(shown) + groups * len(of_groups)) * ELEMENTS_OF_A_CONFIG // SLICE_ELEMENTS
        assert harness.node._gateway.slices.slices - before >= enough
        assert [len(result.configs) for result in answer.results] == [len(shown)] + [len(of_groups)] * groups

    run(scenario)


@pytest.mark.parametrize("times", [2, 40, 4_000])
def test_a_resource_that_is_named_again_is_described_a_few_times(times: int) -> None:
    """A broker's description is four thousand times as long as its name in a request."""

    async def scenario(harness: GatewayHarness) -> None:
        broker = {"resource_type": 4, "resource_name": "7", "configuration_keys": None}
        other = {**broker, "configuration_keys": ["log.dirs"]}
        answer = await harness.client().ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[broker, other] * times)
        assert [len(result.configs) > 1 for result in answer.results] == [True, False] * min(times, REPETITIONS)

    run(scenario)


@pytest.mark.parametrize("count", [5, 1_200])
def test_many_configs_are_described_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(describe_configs, "CONFIGS_LIMIT", 40)

    async def scenario(harness: GatewayHarness) -> None:
        groups = [{"resource_type": 32, "resource_name": f"g{at}", "configuration_keys": None} for at in range(count)]
        answer = await harness.client().ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=groups)
        described = [bool(result.configs) for result in answer.results]
        assert sum(described) < 4 and described == sorted(described, reverse=True)
        assert [result.error_code for result in answer.results] == [
            0 if found else ErrorCode.INVALID_REQUEST for found in described
        ]

    run(scenario)


def test_what_administrators_altered_costs_a_description_no_more_than_its_length() -> None:
    """They were sorted anew for each config of a broker."""

    class Counted(Mapping[str, str]):
        """So many configs, and how often one of them was met in a loop."""

        def __init__(self, length: int) -> None:
            self._length = length
            self.met = 0

        def __len__(self) -> int:
            return self._length

        def __getitem__(self, name: str) -> str:
            if name.startswith("unknown."):
                return ""
            raise KeyError(name)

        def __iter__(self) -> Iterator[str]:
            for number in range(self._length):
                self.met += 1
                yield f"unknown.{number}"

    async def scenario(harness: GatewayHarness) -> None:
        configs = harness.node._gateway.configs
        assert isinstance(configs, DynamicConfigs)
        configs.of_all_brokers = altered = Counted(1_000)
        resources = [{"resource_type": 4, "resource_name": "7", "configuration_keys": None}]
        answer = await harness.client().ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
        assert len(answer.results[0].configs) > 1_000
        assert altered.met <= 3 * len(altered)

    run(scenario)


def test_one_slice_runs_in_each_turn_however_many_have_long_work() -> None:
    async def main() -> None:
        slices = WorkSlices()
        most_in_a_turn = steps_in_this_turn = 0
        done: list[int] = []

        async def turns() -> None:
            nonlocal most_in_a_turn, steps_in_this_turn
            while len(done) < 10:
                most_in_a_turn = max(most_in_a_turn, steps_in_this_turn)
                steps_in_this_turn = 0
                await asyncio.sleep(0)

        async def work(number: int) -> None:
            nonlocal steps_in_this_turn
            for _ in range(20):
                await slices.next_slice()
                steps_in_this_turn += 1
            done.append(number)

        await asyncio.gather(turns(), *(work(number) for number in range(10)))
        assert most_in_a_turn == 1
        assert done == list(range(10)), "each in its turn"

    asyncio.run(main())


def test_one_connection_starts_a_bounded_number_of_requests_in_a_turn() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        request = build(ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
        frames = b"".join(request_frame(ApiKey.API_VERSIONS, 3, number, request) for number in range(100))
        futures = [client.expect_raw(number) for number in range(100)]
        client.connection.data_received(frames)
        assert len(client.answered) == REQUESTS_PER_TURN
        await asyncio.gather(*futures)

    run(scenario)


def test_a_produce_that_was_received_whole_is_carried_out_although_the_client_has_gone() -> None:
    """With acks = 0 a client may close its connection right after it."""

    async def scenario(harness: GatewayHarness) -> None:
        came = asyncio.Event()

        def store(request: Any, payload: memoryview) -> Any:
            came.set()
            return leader_pb2.ProduceResponse()

        harness.leaders[1].answers["Produce"] = store
        client = harness.client()
        topics = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(80)}]}]
        frame = request_frame(ApiKey.PRODUCE, 9, 1, build(ApiKey.PRODUCE, 9, {"acks": 0, "topic_data": topics}))
        client.connection.data_received(frame)
        client.lose()
        await asyncio.wait_for(came.wait(), 5)

    run(scenario)


def test_a_frame_that_is_cut_anywhere_counts_what_has_arrived() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        memory = harness.node._gateway.memory
        client = harness.client()
        client.connection.data_received(struct.pack(">i", 100_000_000))
        assert memory.used_bytes == 4
        client.connection.data_received(bytes(1000))
        assert memory.used_bytes == 1004
        client.lose()
        assert memory.used_bytes == 0

    run(scenario)
