"""OffsetCommit, OffsetFetch, TxnOffsetCommit and DescribeShareGroupOffsets in every version, through real bytes."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_gateway.handlers.offsets.offset_fetch import CALLS_AT_ONCE
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from kshare_rpc.network import ChannelUnavailable
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

ILLEGAL = ErrorCode.ILLEGAL_GENERATION


def no_answer(request: Any, payload: memoryview) -> Any:
    raise ChannelUnavailable("the coordinator is gone")


def topics_of(version: int, first_with_ids: int, topics: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Topics with their partitions, named as the version names them."""
    ids = {"orders": TOPIC_ID, "mixed": OTHER_TOPIC_ID}
    return [
        {("topic_id" if version >= first_with_ids else "name"): ids[name] if version >= first_with_ids else name}
        | {"partitions": partitions}
        for name, partitions in topics.items()
    ]


def partition(index: int, offset: int, version: int, first_with_leader_epoch: int, **fields: Any) -> dict[str, Any]:
    epoch = {"committed_leader_epoch": 4} if version >= first_with_leader_epoch else {}
    return {"partition_index": index, "committed_offset": offset, **epoch, **fields}


# OffsetCommit


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_COMMIT))
def test_offset_commit(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.OffsetCommitResponse()
        for code in (0, ILLEGAL, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            answer.results.add(error_code=code)
        harness.catalog.answers["OffsetCommit"] = lambda request, payload: answer
        wanted = {
            "orders": [
                partition(0, 5, version, 6, committed_metadata="note"),
                partition(2, 6, version, 6, committed_metadata=None),
            ],
            "mixed": [partition(9, 7, version, 6, committed_metadata="")],
        }
        fields: dict[str, Any] = {"group_instance_id": "static"} if version >= 7 else {}
        committed = await harness.client().ask(
            ApiKey.OFFSET_COMMIT,
            version,
            group_id="group",
            generation_id_or_member_epoch=3,
            member_id="member",
            topics=topics_of(version, 10, wanted),
            **fields,
        )
        shown = [
            (getattr(entry, "name", None), getattr(entry, "topic_id", None), each.partition_index, int(each.error_code))
            for entry in committed.topics
            for each in entry.partitions
        ]
        orders = (None, uuid.UUID(bytes=TOPIC_ID)) if version >= 10 else ("orders", None)
        mixed = (None, uuid.UUID(bytes=OTHER_TOPIC_ID)) if version >= 10 else ("mixed", None)
        assert shown == [(*orders, 0, 0), (*orders, 2, ILLEGAL), (*mixed, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        (request,) = harness.catalog.requests("OffsetCommit")
        assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("group", 3, "member")
        assert request.group_instance_id == ("static" if version >= 7 else "")
        assert (request.api_version, request.has_retention_time) == (version, False)
        assert [
            (offset.topic_id, offset.topic_name, offset.partition, offset.committed_offset, offset.committed_metadata)
            for offset in request.offsets
        ] == [
            (TOPIC_ID, "", 0, 5, "note") if version >= 10 else (b"", "orders", 0, 5, "note"),
            (TOPIC_ID, "", 2, 6, "") if version >= 10 else (b"", "orders", 2, 6, ""),
            (OTHER_TOPIC_ID, "", 9, 7, "") if version >= 10 else (b"", "mixed", 9, 7, ""),
        ]
        expected_epoch = 4 if version >= 6 else -1
        assert {offset.committed_leader_epoch for offset in request.offsets} == {expected_epoch}

    run(scenario)


@pytest.mark.parametrize(("version", "retention_time"), [(2, 500), (4, 0), (3, -1)])
def test_offset_commit_with_a_retention_time(version: int, retention_time: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetCommit"] = lambda request, payload: pb.OffsetCommitResponse()
        await harness.client().ask(ApiKey.OFFSET_COMMIT, version, group_id="group", retention_time=retention_time)
        (request,) = harness.catalog.requests("OffsetCommit")
        assert request.has_retention_time == (retention_time >= 0)
        if request.has_retention_time:
            assert request.retention_time_ms == retention_time

    run(scenario)


@pytest.mark.parametrize("version", [2, 10])
def test_offset_commit_without_a_coordinator(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetCommit"] = no_answer
        wanted = {"orders": [partition(0, 5, version, 6), partition(1, 5, version, 6)]}
        committed = await harness.client().ask(
            ApiKey.OFFSET_COMMIT, version, group_id="group", topics=topics_of(version, 10, wanted)
        )
        codes = [(each.partition_index, int(each.error_code)) for each in committed.topics[0].partitions]
        assert codes == [(0, ErrorCode.COORDINATOR_NOT_AVAILABLE), (1, ErrorCode.COORDINATOR_NOT_AVAILABLE)]

    run(scenario)


# OffsetFetch


def read_by_anyone(resource_type: ResourceType, name: str) -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=PatternType.LITERAL,
        principal="User:*",
        host="*",
        operation=Operation.READ,
        permission_type=PermissionType.ALLOW,
    )


def fetched_offsets(request: pb.OffsetFetchRequest, payload: memoryview) -> pb.OffsetFetchResponse:
    """Offset 5 of partition 0 of "orders", none of its partition 1, and an unstable one of "mixed"."""
    answer = pb.OffsetFetchResponse()
    for topic_id, name, index, offset, code in (
        (TOPIC_ID, "orders", 0, 5, 0),
        (TOPIC_ID, "orders", 1, -1, 0),
        (OTHER_TOPIC_ID, "mixed", 1, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
    ):
        result = answer.results.add(error_code=code)
        result.offset.CopyFrom(
            pb.CommittedOffset(
                topic_id=topic_id,
                topic_name=name,
                partition=index,
                committed_offset=offset,
                committed_leader_epoch=4 if offset >= 0 else -1,
                committed_metadata="note" if offset >= 0 else "",
            )
        )
    return answer


ASKED = {"orders": [0, 1], "mixed": [1]}


def asked_topics(version: int) -> list[dict[str, Any]]:
    ids = {"orders": TOPIC_ID, "mixed": OTHER_TOPIC_ID}
    return [
        ({"topic_id": ids[name]} if version >= 10 else {"name": name}) | {"partition_indexes": partitions}
        for name, partitions in ASKED.items()
    ]


def asked_group(version: int, **group: Any) -> dict[str, Any]:
    """The fields of a request for one group."""
    return group if version < 8 else {"groups": [group]}


def answered_groups(answer: Any, version: int) -> list[Any]:
    return [answer] if version < 8 else list(answer.groups)


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
def test_offset_fetch(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetFetch"] = fetched_offsets
        member: dict[str, Any] = {"member_id": "member", "member_epoch": 6} if version >= 9 else {}
        fields = asked_group(version, group_id="group", topics=asked_topics(version), **member)
        if version >= 7:
            fields["require_stable"] = True
        answer = await harness.client().ask(ApiKey.OFFSET_FETCH, version, **fields)
        (group,) = answered_groups(answer, version)
        if version >= 2:
            assert int(group.error_code) == 0
        shown = [
            (each.partition_index, each.committed_offset, each.metadata, int(each.error_code))
            for entry in group.topics
            for each in entry.partitions
        ]
        assert shown == [(0, 5, "note", 0), (1, -1, "", 0), (1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)]
        if version >= 5:
            assert [each.committed_leader_epoch for each in group.topics[0].partitions] == [4, -1]
        if version >= 10:
            ids = [uuid.UUID(bytes=TOPIC_ID), uuid.UUID(bytes=OTHER_TOPIC_ID)]
            assert [entry.topic_id for entry in group.topics] == ids
        else:
            assert [entry.name for entry in group.topics] == ["orders", "mixed"]
        (request,) = harness.catalog.requests("OffsetFetch")
        assert (request.group_id, request.all_topics, request.require_stable) == ("group", False, version >= 7)
        assert (request.member_id, request.member_epoch) == (("member", 6) if version >= 9 else ("", -1))
        assert [(entry.topic_name, list(entry.partitions)) for entry in request.topics] == [
            ("" if version >= 10 else name, partitions) for name, partitions in ASKED.items()
        ]
        if version >= 10:
            assert [entry.topic_id for entry in request.topics] == [TOPIC_ID, OTHER_TOPIC_ID]

    run(scenario)


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_of_all_topics(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetFetch"] = fetched_offsets
        fields = asked_group(version, group_id="group", topics=None)
        await harness.client().ask(ApiKey.OFFSET_FETCH, version, **fields)
        (request,) = harness.catalog.requests("OffsetFetch")
        assert (request.all_topics, len(request.topics)) == (True, 0)

    run(scenario)


def test_an_id_that_no_topic_has_is_an_error_for_clients_without_all_permissions_too() -> None:
    def unknown(request: pb.OffsetFetchRequest, payload: memoryview) -> pb.OffsetFetchResponse:
        answer = fetched_offsets(request, payload)
        answer.results[2].offset.topic_name = ""
        answer.results[2].error_code = ErrorCode.UNKNOWN_TOPIC_ID
        return answer

    async def scenario(harness: GatewayHarness) -> None:
        for resource_type, name in ((ResourceType.TOPIC, "orders"), (ResourceType.GROUP, "group")):
            harness.catalog.acls.append(read_by_anyone(resource_type, name))
        del harness.catalog.topics["mixed"]
        harness.catalog.change()
        await harness.settle()
        harness.catalog.answers["OffsetFetch"] = unknown
        fields = asked_group(10, group_id="group", topics=asked_topics(10))
        answer = await harness.client().ask(ApiKey.OFFSET_FETCH, 10, **fields)
        (group,) = answer.groups
        assert [int(entry.partitions[0].error_code) for entry in group.topics] == [0, ErrorCode.UNKNOWN_TOPIC_ID]

    run(scenario, {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"})


@pytest.mark.parametrize("version", range(8, 11))
def test_offset_fetch_of_many_groups_keeps_their_order(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        under_way = most = 0

        async def answer(request: pb.OffsetFetchRequest, payload: memoryview) -> pb.OffsetFetchResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return pb.OffsetFetchResponse(error_code=int(request.group_id) % 2)

        harness.catalog.answers["OffsetFetch"] = answer
        names = [str(number) for number in range(2 * CALLS_AT_ONCE + 1)]
        groups = [{"group_id": name, "topics": None} for name in names]
        answered = (await harness.client().ask(ApiKey.OFFSET_FETCH, version, groups=groups)).groups
        assert [(group.group_id, int(group.error_code)) for group in answered] == [
            (name, int(name) % 2) for name in names
        ]
        assert most <= CALLS_AT_ONCE

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FETCH))
@pytest.mark.parametrize("is_silent", [True, False])
def test_offset_fetch_that_is_refused_as_a_whole(version: int, is_silent: bool) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        refusal = pb.OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        harness.catalog.answers["OffsetFetch"] = no_answer if is_silent else lambda request, payload: refusal
        fields = asked_group(version, group_id="group", topics=asked_topics(version))
        answer = await harness.client().ask(ApiKey.OFFSET_FETCH, version, **fields)
        (group,) = answered_groups(answer, version)
        if version >= 2:
            assert int(group.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert group.topics == ()
            return
        shown = [
            (entry.name, each.partition_index, each.committed_offset, int(each.error_code))
            for entry in group.topics
            for each in entry.partitions
        ]
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert shown == [("orders", 0, -1, code), ("orders", 1, -1, code), ("mixed", 1, -1, code)]

    run(scenario)


# TxnOffsetCommit


@pytest.mark.parametrize("version", versions_of(ApiKey.TXN_OFFSET_COMMIT))
def test_txn_offset_commit(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.OffsetCommitResponse()
        for code in (0, ErrorCode.TRANSACTION_ABORTABLE):
            answer.results.add(error_code=code)
        harness.catalog.answers["TxnOffsetCommit"] = lambda request, payload: answer
        wanted = {
            "orders": [partition(0, 5, version, 2, committed_metadata="note")],
            "mixed": [partition(1, 7, version, 2, committed_metadata=None)],
        }
        fields: dict[str, Any] = {}
        if version >= 3:
            fields = {"generation_id": 3, "member_id": "member", "group_instance_id": "static"}
        committed = await harness.client().ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id="producer",
            group_id="group",
            producer_id=17,
            producer_epoch=2,
            topics=topics_of(version, 99, wanted),
            **fields,
        )
        shown = [
            (entry.name, each.partition_index, int(each.error_code))
            for entry in committed.topics
            for each in entry.partitions
        ]
        abortable = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert shown == [("orders", 0, 0), ("mixed", 1, abortable)]
        (request,) = harness.catalog.requests("TxnOffsetCommit")
        assert (request.transactional_id, request.group_id) == ("producer", "group")
        assert (request.producer_id, request.producer_epoch) == (17, 2)
        assert request.add_to_transaction == (version >= 5)
        if version >= 3:
            assert (request.generation_id, request.member_id) == (3, "member")
            assert request.group_instance_id == "static"
        else:
            assert (request.generation_id, request.member_id) == (-1, "")
        assert [
            (offset.topic_name, offset.partition, offset.committed_offset, offset.committed_metadata)
            for offset in request.offsets
        ] == [("orders", 0, 5, "note"), ("mixed", 1, 7, "")]
        assert {offset.committed_leader_epoch for offset in request.offsets} == {4 if version >= 2 else -1}

    run(scenario)


def test_txn_offset_commit_without_a_coordinator() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["TxnOffsetCommit"] = no_answer
        wanted = {"orders": [partition(0, 5, 5, 2), partition(1, 5, 5, 2)]}
        committed = await harness.client().ask(ApiKey.TXN_OFFSET_COMMIT, 5, topics=topics_of(5, 99, wanted))
        codes = [int(each.error_code) for each in committed.topics[0].partitions]
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2

    run(scenario)


# DescribeShareGroupOffsets


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS))
def test_describe_share_group_offsets(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def answer(request: pb.DescribeShareGroupOffsetsRequest, payload: memoryview) -> Any:
            found = pb.DescribeShareGroupOffsetsResponse()
            if request.group_id != "workers":
                found.error_code, found.error_message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "loading"
                return found
            found.results.add(
                topic_id=TOPIC_ID, topic_name="orders", partition=0, start_offset=5, leader_epoch=3, lag=7
            )
            found.results.add(
                topic_id=TOPIC_ID,
                topic_name="orders",
                partition=1,
                start_offset=-1,
                lag=-1,
                error_code=ErrorCode.LEADER_NOT_AVAILABLE,
                error_message="nobody leads it",
            )
            found.results.add(topic_id=bytes(16), topic_name="missing", partition=0, start_offset=-1, lag=-1)
            return found

        harness.catalog.answers["DescribeShareGroupOffsets"] = answer
        groups = [
            {"group_id": "workers", "topics": [{"topic_name": "orders", "partitions": [0, 1]}]},
            {"group_id": "other", "topics": None},
        ]
        described = await harness.client().ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, groups=groups)
        workers, other = described.groups
        assert (workers.group_id, int(workers.error_code), workers.error_message) == ("workers", 0, None)
        orders, missing = workers.topics
        assert (orders.topic_name, orders.topic_id) == ("orders", uuid.UUID(bytes=TOPIC_ID))
        first, second = orders.partitions
        assert (first.start_offset, first.leader_epoch, int(first.error_code), first.error_message) == (5, 3, 0, None)
        assert (int(second.error_code), second.error_message) == (ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads it")
        assert (missing.topic_name, missing.topic_id, missing.partitions[0].start_offset) == ("missing", None, -1)
        if version >= 1:
            assert [each.lag for each in orders.partitions] == [7, -1]
        assert (other.group_id, other.topics) == ("other", ())
        assert (int(other.error_code), other.error_message) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "loading")
        by_group = {request.group_id: request for request in harness.catalog.requests("DescribeShareGroupOffsets")}
        assert (by_group["workers"].all_topics, by_group["other"].all_topics) == (False, True)
        (asked,) = by_group["workers"].topics
        assert (asked.topic_name, list(asked.partitions)) == ("orders", [0, 1])

    run(scenario)


def test_describe_share_group_offsets_without_a_coordinator() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["DescribeShareGroupOffsets"] = no_answer
        groups = [{"group_id": name, "topics": None} for name in ("one", "two")]
        described = await harness.client().ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups)
        assert [(group.group_id, int(group.error_code)) for group in described.groups] == [
            ("one", ErrorCode.COORDINATOR_NOT_AVAILABLE),
            ("two", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ]

    run(scenario)
