"""Pipelined requests of one connection: those whose answers could tell wait for the earlier ones, the others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kshare_gateway.connections.request_order import WAITS_FOR
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, run


class Asked(NamedTuple):
    """A request, and the call that it makes."""

    api_key: ApiKey
    version: int
    values: dict[str, Any]
    method: str
    answer: Callable[[Any], Any]

    def send(self, client: GatewayClient) -> asyncio.Future[Any]:
        return client.send(self.api_key, self.version, **self.values)


def offsets(name: str, **fields: Any) -> dict[str, Any]:
    return {"topics": [{"name": name, "partitions": [{"partition_index": 0, **fields}]}]}


def produced(request: Any) -> Any:
    stored = [leader_pb2.ProduceResponse.Partition(topic_id=each.topic_id) for each in request.partitions]
    return leader_pb2.ProduceResponse(partitions=stored)


def listed(request: Any) -> Any:
    found = [leader_pb2.ListOffsetsResponse.Partition(topic_id=each.topic_id) for each in request.partitions]
    return leader_pb2.ListOffsetsResponse(partitions=found)


def deleted(request: Any) -> Any:
    answer = leader_pb2.DeleteRecordsResponse()
    for each in request.partitions:
        answer.results.add(topic_id=each.topic_id, partition=each.partition)
    return answer


def committed(request: Any) -> Any:
    results = [coordinator_pb2.OffsetCommitResponse.Result()] * len(request.offsets)
    return coordinator_pb2.OffsetCommitResponse(results=results)


RECORDS = [{"name": "orders", "partition_data": [{"index": 0, "records": bytes(80)}]}]
FETCHED = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, "partition_max_bytes": 10}]}]
COMMITTED = {"group_id": "group", **offsets("orders", committed_offset=1)}
WANTED = {"group_id": "group", "topics": [{"name": "orders", "partition_indexes": [0]}]}

PRODUCE = Asked(ApiKey.PRODUCE, 9, {"acks": -1, "topic_data": RECORDS}, "Produce", produced)
PRODUCE_UNANSWERED = PRODUCE._replace(values={"acks": 0, "topic_data": RECORDS})
DELETE_RECORDS = Asked(ApiKey.DELETE_RECORDS, 2, offsets("orders", offset=1), "DeleteRecords", deleted)
LIST_OFFSETS = Asked(ApiKey.LIST_OFFSETS, 7, offsets("orders", timestamp=-1), "ListOffsets", listed)
FETCH = Asked(
    *(ApiKey.FETCH, 13, {"max_wait": 100, "session_epoch": -1, "topics": FETCHED}, "Fetch"),
    lambda request: leader_pb2.FetchResponse(),
)
OFFSET_COMMIT = Asked(ApiKey.OFFSET_COMMIT, 8, COMMITTED, "OffsetCommit", committed)
OFFSET_FETCH = Asked(ApiKey.OFFSET_FETCH, 5, WANTED, "OffsetFetch", lambda _: coordinator_pb2.OffsetFetchResponse())
LEAVE_GROUP = Asked(
    *(ApiKey.LEAVE_GROUP, 2, {"group_id": "group", "member_id": "member"}, "LeaveGroup"),
    lambda request: coordinator_pb2.LeaveGroupResponse(),
)
LIST_GROUPS = Asked(ApiKey.LIST_GROUPS, 3, {}, "ListGroups", lambda _: coordinator_pb2.ListGroupsResponse())
DELETE_GROUPS = Asked(
    *(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["group"]}, "DeleteGroups"),
    lambda request: coordinator_pb2.DeleteGroupsResponse(),
)

ORDERED = [
    *((PRODUCE, LIST_OFFSETS), (PRODUCE_UNANSWERED, LIST_OFFSETS), (PRODUCE, FETCH), (PRODUCE, DELETE_RECORDS)),
    *((DELETE_RECORDS, LIST_OFFSETS), (DELETE_RECORDS, PRODUCE)),
    *((OFFSET_COMMIT, OFFSET_FETCH), (OFFSET_COMMIT, DELETE_GROUPS)),
    *((OFFSET_COMMIT, LEAVE_GROUP), (LEAVE_GROUP, LIST_GROUPS), (DELETE_GROUPS, LIST_GROUPS)),
]
CONCURRENT = [
    *((PRODUCE, PRODUCE), (PRODUCE_UNANSWERED, PRODUCE), (OFFSET_COMMIT, OFFSET_COMMIT), (OFFSET_COMMIT, FETCH)),
    *((FETCH, PRODUCE), (FETCH, LIST_OFFSETS), (LIST_OFFSETS, PRODUCE), (OFFSET_FETCH, OFFSET_COMMIT)),
]


class Calls:
    """The calls that reach the roles; those of the first request wait for `release`."""

    def __init__(self, harness: GatewayHarness, *requests: Asked) -> None:
        self.begun: list[str] = []
        self.release = asyncio.Event()
        for asked in requests:
            for role in (harness.catalog, *harness.leaders.values()):
                role.answers[asked.method] = self._answering(asked)

    def _answering(self, asked: Asked) -> Any:
        async def answer(request: Any, payload: memoryview) -> Any:
            is_first = not self.begun
            self.begun.append(asked.method)
            if is_first:
                await self.release.wait()
            return asked.answer(request)

        return answer


def pair_name(asked: Asked) -> str:
    return asked.api_key.api_name


@pytest.mark.parametrize(("earlier", "later"), ORDERED, ids=pair_name)
def test_a_request_waits_for_an_earlier_one_that_changes_what_it_reads(earlier: Asked, later: Asked) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        calls = Calls(harness, earlier, later)
        client = harness.client()
        earlier.send(client)
        answer = later.send(client)
        await harness.settle()
        assert calls.begun == [earlier.method]
        await asyncio.wait_for(later.send(harness.client()), 5)  # other connections do not wait
        calls.release.set()
        await asyncio.wait_for(answer, 5)
        assert calls.begun == [earlier.method, later.method, later.method]

    run(scenario)


@pytest.mark.parametrize(("earlier", "later"), CONCURRENT, ids=pair_name)
def test_other_requests_do_not_wait(earlier: Asked, later: Asked) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        calls = Calls(harness, earlier, later)
        client = harness.client()
        earlier.send(client)
        answer = later.send(client)
        await harness.settle()
        assert sorted(calls.begun) == sorted([earlier.method, later.method]) and not answer.done()
        calls.release.set()
        await asyncio.wait_for(answer, 5)

    run(scenario)


def test_requests_behind_one_that_waits_do_not_overtake_it() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        calls = Calls(harness, PRODUCE, LIST_OFFSETS, OFFSET_COMMIT)
        client = harness.client()
        answers = [asked.send(client) for asked in (PRODUCE, LIST_OFFSETS, OFFSET_COMMIT)]
        await harness.settle()
        assert calls.begun == ["Produce"] and not client.transport.reading
        calls.release.set()
        await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert sorted(calls.begun) == ["ListOffsets", "OffsetCommit", "Produce"]
        assert client.answered == [1, 2, 3] and client.transport.reading

    run(scenario)


@pytest.mark.parametrize(("count", "waits"), [(400, False), (1_200, True)])
def test_a_request_does_not_come_between_the_parts_of_a_long_one(count: int, waits: bool) -> None:
    """Else an older offset of the long one would be committed after the newer one."""

    def commit(client: GatewayClient, partitions: range, offset: int) -> asyncio.Future[Any]:
        wanted = [{"partition_index": partition, "committed_offset": offset} for partition in partitions]
        return client.send(ApiKey.OFFSET_COMMIT, 8, group_id="group", topics=[{"name": "orders", "partitions": wanted}])

    async def scenario(harness: GatewayHarness) -> None:
        release, calls = asyncio.Event(), []

        async def answer(request: Any, payload: memoryview) -> Any:
            calls.append({each.committed_offset for each in request.offsets})
            if calls[-1] == {100}:
                await release.wait()
            return committed(request)

        harness.catalog.answers["OffsetCommit"] = answer
        client = harness.client()
        answers = [commit(client, range(count), 100), commit(client, range(count - 1, count), 200)]
        await harness.settle()
        assert ({200} in calls) is not waits
        release.set()
        await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert calls[-1] == {200} or not waits

    run(scenario)


def test_no_request_waits_for_one_that_waits_for_records() -> None:
    waited_for = frozenset[ApiKey]().union(*WAITS_FOR.values())
    assert not waited_for & {ApiKey.FETCH, ApiKey.SHARE_FETCH}
    assert ApiKey.PRODUCE not in WAITS_FOR[ApiKey.PRODUCE]


def test_one_request_that_waits_for_members_at_a_time_and_the_others_do_not_wait_for_it() -> None:
    protocols = [{"name": "range", "metadata": b"\0\1"}]
    joining = {"group_id": "group", "session_timeout": 7_000, "protocol_type": "consumer", "protocols": protocols}
    join = Asked(
        *(ApiKey.JOIN_GROUP, 3, {**joining, "rebalance_timeout": 9_000}, "JoinGroup"),
        lambda request: coordinator_pb2.JoinGroupResponse(),
    )
    sync = Asked(
        *(ApiKey.SYNC_GROUP, 3, {"group_id": "group", "generation_id": 1}, "SyncGroup"),
        lambda request: coordinator_pb2.SyncGroupResponse(),
    )

    async def scenario(harness: GatewayHarness) -> None:
        calls = Calls(harness, join, sync, OFFSET_COMMIT)
        client = harness.client()
        answers = [asked.send(client) for asked in (join, OFFSET_COMMIT, sync, join)]
        await harness.settle()
        assert sorted(calls.begun) == ["JoinGroup", "OffsetCommit"]
        assert client.transport.reading, "the end of the connection must be seen"
        calls.release.set()
        await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert client.answered == [1, 2, 3, 4]

    run(scenario)
