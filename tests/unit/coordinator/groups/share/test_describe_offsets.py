"""DescribeShareGroupOffsets on virtual time: the response, the rule of the lag, and unreachable roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kshare_coordinator.handlers.share_group_offsets import ATTEMPTS, CALL_TIMEOUT_MS, PARTITIONS_PER_CALL
from kshare_coordinator.machine.groups.share.offsets import (
    Described,
    EndOffset,
    Summary,
    answer_of,
    described,
    summary_of,
)
from kshare_core.errors import ErrorCode as E
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb
from kshare_rpc.network import Service
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.coordinator.driver import CoordinatorDriver

Result = pb.DescribeShareGroupOffsetsResponse.Result
SummaryResult = share_pb.ReadShareGroupStateSummaryResponse.Result
TOPIC_ID = bytes([7] * 16)
ENTRY = Described("t", TopicPartition(TOPIC_ID, 2))


# The rules


@pytest.mark.parametrize(
    ("start_offset", "count", "end_offset", "lag"),
    [
        (0, 0, 10, 10),
        (3, 0, 10, 7),
        (3, 4, 10, 3),
        (10, 0, 10, 0),
        (0, 10, 10, 0),
        (-1, -1, None, -1),
        (-1, 0, None, -1),
        (5, -1, None, -1),
    ],
)
def test_the_lag(start_offset: int, count: int, end_offset: int | None, lag: int) -> None:
    summary = Summary(start_offset, 6, count)
    assert summary.needs_end_offset == (end_offset is not None)
    end = None if end_offset is None else EndOffset(end_offset)
    assert answer_of(ENTRY, summary, end) == Result(
        topic_id=TOPIC_ID, topic_name="t", partition=2, start_offset=start_offset, leader_epoch=6, lag=lag
    )


def test_a_leader_that_refuses() -> None:
    end = EndOffset(-1, E.LEADER_NOT_AVAILABLE, "nobody")
    answer = answer_of(ENTRY, Summary(3, 6, 0), end)
    assert (answer.error_code, answer.error_message) == (E.LEADER_NOT_AVAILABLE, "nobody")
    assert (answer.start_offset, answer.leader_epoch, answer.lag) == (-1, 0, -1)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (E.NONE, E.NONE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE),
        (E.GROUP_ID_NOT_FOUND, E.NONE),
        (E.INVALID_REQUEST, E.NONE),
        (E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.KAFKA_STORAGE_ERROR),
        (E.CORRUPT_MESSAGE, E.CORRUPT_MESSAGE),
    ],
)
def test_what_share_coordinators_answer(code: E, shown: E) -> None:
    """Where there is nothing to know, as in Kafka, the start offset is -1 without an error."""
    result = SummaryResult(error_code=code, error_message="text", start_offset=3, leader_epoch=6)
    summary = summary_of(result)
    answer = answer_of(ENTRY, summary, EndOffset(10) if summary.needs_end_offset else None)
    assert answer.error_code == shown
    assert answer.start_offset == (3 if code == E.NONE else -1)
    assert answer.lag == (7 if code == E.NONE else -1)


def test_all_share_partitions_that_are_initialized() -> None:
    driver = CoordinatorDriver()
    driver.create_topic("u", 1)
    driver.create_topic("t", 2)

    def names() -> list[tuple[str, int]]:
        request = pb.DescribeShareGroupOffsetsRequest(group_id="group", all_topics=True)
        return [(entry.topic_name, entry.key.partition) for entry in described(driver.state, request)]

    assert names() == []
    driver.heartbeat("m", 0, ["t", "u"])
    assert names() == []
    driver.initialize_all()
    assert names() == [("t", 0), ("t", 1), ("u", 0)]
    driver.delete("t")
    assert names() == [("u", 0)]


def test_share_partitions_that_were_asked_for() -> None:
    driver = CoordinatorDriver()
    topic_id = driver.create_topic("t", 2)
    asked = [
        pb.NamedPartitions(topic_name="t", partitions=[1, 9]),
        pb.NamedPartitions(topic_name="missing", partitions=[0]),
    ]
    request = pb.DescribeShareGroupOffsetsRequest(group_id="nobody", topics=asked)
    assert described(driver.state, request) == [
        Described("t", TopicPartition(topic_id, 1)),
        Described("t", TopicPartition(topic_id, 9)),
        Described("missing", TopicPartition(bytes(16), 0)),
    ]


# The calls


class FakeRoles:
    """A share coordinator and a leader that answer from dictionaries, at addresses of their own."""

    def __init__(self, cluster: CoordinatorCluster) -> None:
        self.cluster = cluster
        self.summaries: dict[int, tuple[int, int, int]] = {}
        """Start offset, leader epoch and delivery complete count by partition."""
        self.end_offsets: dict[int, int] = {}
        self.refusals: list[int] = []
        """Codes that are answered first, one for each call."""
        self.calls: list[tuple[str, int]] = []
        """Method and number of partitions of each call."""
        self.leader_epochs: list[int] = []
        self.delay_s = 0.0

    async def start(self) -> None:
        share = {methods.READ_SHARE_GROUP_STATE_SUMMARY: self.summary}
        await self.cluster.network.serve("share:1", [Service(methods.SHARE_COORDINATOR, share)])
        leader = {methods.LIST_OFFSETS: self.list_offsets}
        await self.cluster.network.serve("leader:1", [Service(methods.LEADER, leader)])
        await self.cluster.register(pb.ROLE_SHARE_COORDINATOR, 1, "share:1")
        await self.cluster.register(pb.ROLE_LEADER, 1, "leader:1")

    async def summary(
        self, request: share_pb.ReadShareGroupStateSummaryRequest, payload: memoryview
    ) -> share_pb.ReadShareGroupStateSummaryResponse:
        self.calls.append(("summary", len(request.partitions)))
        await asyncio.sleep(self.delay_s)
        refusal = self.refusals.pop(0) if self.refusals else 0
        answer = share_pb.ReadShareGroupStateSummaryResponse()
        for entry in request.partitions:
            start_offset, leader_epoch, count = self.summaries.get(entry.partition, (-1, 0, -1))
            answer.results.add(
                topic_id=entry.topic_id,
                partition=entry.partition,
                error_code=refusal,
                start_offset=start_offset,
                leader_epoch=leader_epoch,
                delivery_complete_count=count,
            )
        return answer

    async def list_offsets(
        self, request: leader_pb2.ListOffsetsRequest, payload: memoryview
    ) -> leader_pb2.ListOffsetsResponse:
        self.calls.append(("end", len(request.partitions)))
        refusal = self.refusals.pop(0) if self.refusals else 0
        answer = leader_pb2.ListOffsetsResponse()
        for entry in request.partitions:
            assert (entry.timestamp, request.isolation_level) == (-1, 0)
            self.leader_epochs.append(entry.current_leader_epoch)
            offset = -1 if refusal else self.end_offsets[entry.partition]
            answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, error_code=refusal, offset=offset)
        return answer

    async def describe(self, *partitions: int, topic_name: str = "t") -> list[tuple[int, int, int, int]]:
        """Start offset, leader epoch, lag and error code of the partitions asked for."""
        request = pb.DescribeShareGroupOffsetsRequest(group_id="group")
        request.topics.add(topic_name=topic_name, partitions=partitions)
        answer = await self.cluster.call(methods.DESCRIBE_SHARE_GROUP_OFFSETS, request)
        assert answer.error_code == 0
        assert [result.partition for result in answer.results] == list(partitions)
        return [(result.start_offset, result.leader_epoch, result.lag, result.error_code) for result in answer.results]


def run(scenario: Callable[[CoordinatorCluster, FakeRoles], Awaitable[None]], partitions: int = 3) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        roles = FakeRoles(cluster)
        await roles.start()
        await cluster.create_topic("t", partitions)
        await scenario(cluster, roles)
        await cluster.node.stop(0)

    run_virtually(main)


def test_figures_come_from_the_share_coordinator_and_the_leader() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        roles.summaries = {0: (3, 5, 2), 1: (4, 6, 0)}
        roles.end_offsets = {0: 10, 1: 4}
        assert await roles.describe(1, 0, 2, 7) == [(4, 6, 0, 0), (3, 5, 5, 0), (-1, 0, -1, 0), (-1, 0, -1, 0)]
        assert roles.calls == [("summary", 4), ("end", 2)]
        (topic,) = (await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)).topics
        assert set(roles.leader_epochs) == {topic.partitions[0].leader_epoch}

    run(scenario)


def test_a_topic_that_does_not_exist_causes_no_call() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        assert await roles.describe(0, topic_name="missing") == [(-1, 0, -1, 0)]
        assert roles.calls == []

    run(scenario)


def test_an_unknown_group_is_empty() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        request = pb.DescribeShareGroupOffsetsRequest(group_id="nobody", all_topics=True)
        answer = await cluster.call(methods.DESCRIBE_SHARE_GROUP_OFFSETS, request)
        assert answer == pb.DescribeShareGroupOffsetsResponse()

    run(scenario)


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
@pytest.mark.parametrize("refusals", [1, ATTEMPTS - 1, ATTEMPTS])
def test_a_share_coordinator_that_is_not_ready_is_asked_again(code: E, refusals: int) -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        roles.summaries, roles.end_offsets = {0: (3, 5, 2)}, {0: 10}
        roles.refusals = [code] * refusals
        answer = await roles.describe(0)
        assert answer == ([(-1, 0, -1, code)] if refusals == ATTEMPTS else [(3, 5, 5, 0)])

    run(scenario)


def test_a_refusal_that_stays_is_not_asked_again() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        roles.refusals = [E.KAFKA_STORAGE_ERROR]
        assert await roles.describe(0) == [(-1, 0, -1, E.KAFKA_STORAGE_ERROR)]
        assert roles.calls == [("summary", 1)]

    run(scenario)


def test_a_leader_that_heard_of_nothing_yet_is_asked_again() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        roles.summaries, roles.end_offsets = {0: (3, 5, 2)}, {0: 10}
        roles.refusals = [0, E.UNKNOWN_LEADER_EPOCH]
        assert await roles.describe(0) == [(3, 5, 5, 0)]
        assert [method for method, _ in roles.calls] == ["summary", "end", "end"]

    run(scenario)


def test_a_share_coordinator_that_gives_no_answer() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        roles.delay_s = 2 * CALL_TIMEOUT_MS / 1000
        started = asyncio.get_running_loop().time()
        request = pb.DescribeShareGroupOffsetsRequest(group_id="group")
        request.topics.add(topic_name="t", partitions=[0, 1])
        channel = cluster.network.connect("coordinator:1")
        answer, _ = await channel.call(methods.DESCRIBE_SHARE_GROUP_OFFSETS, request, timeout_ms=60_000)
        assert [result.error_code for result in answer.results] == [E.COORDINATOR_NOT_AVAILABLE] * 2
        assert "share:1" in answer.results[0].error_message
        assert asyncio.get_running_loop().time() - started < ATTEMPTS * (CALL_TIMEOUT_MS / 1000 + 1)

    run(scenario)


def test_the_state_has_no_owner_or_the_partition_no_leader() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        roles = FakeRoles(cluster)
        await cluster.create_topic("t", 1)
        assert await roles.describe(0) == [(-1, 0, -1, E.COORDINATOR_NOT_AVAILABLE)]
        share = {methods.READ_SHARE_GROUP_STATE_SUMMARY: roles.summary}
        await cluster.network.serve("share:1", [Service(methods.SHARE_COORDINATOR, share)])
        await cluster.register(pb.ROLE_SHARE_COORDINATOR, 1, "share:1")
        assert await roles.describe(0) == [(-1, 0, -1, 0)]
        roles.summaries = {0: (3, 5, 2)}
        assert await roles.describe(0) == [(-1, 0, -1, E.LEADER_NOT_AVAILABLE)]
        await cluster.node.stop(0)

    run_virtually(main)


def test_many_share_partitions_are_asked_for_in_portions() -> None:
    async def scenario(cluster: CoordinatorCluster, roles: FakeRoles) -> None:
        count = PARTITIONS_PER_CALL + 1
        roles.summaries = {partition: (0, 0, 0) for partition in range(count)}
        roles.end_offsets = dict.fromkeys(range(count), 1)
        assert await roles.describe(*range(count)) == [(0, 0, 1, 0)] * count
        assert sorted(roles.calls) == [
            ("end", 1),
            ("end", PARTITIONS_PER_CALL),
            ("summary", 1),
            ("summary", PARTITIONS_PER_CALL),
        ]

    run(scenario, PARTITIONS_PER_CALL + 1)
