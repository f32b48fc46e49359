"""The classic group protocol at the gateway, in every version: calls to the coordinator, and responses."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_gateway.connections.request_parts import REPETITIONS
from kshare_gateway.handlers.groups.join_group import call_timeout_ms
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run, versions_of

PROTOCOLS = [{"name": "range", "metadata": b"\0\1"}]


@pytest.mark.parametrize("version", versions_of(ApiKey.JOIN_GROUP))
def test_join_group(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        member = pb.JoinGroupResponse.Member(member_id="m", group_instance_id="i", metadata=b"\0\1")
        answer = pb.JoinGroupResponse(
            generation_id=3,
            has_protocol=True,
            protocol_type="consumer",
            protocol_name="range",
            leader="m",
            member_id="m",
            skip_assignment=True,
            members=[member, pb.JoinGroupResponse.Member(member_id="n")],
        )
        harness.catalog.answers["JoinGroup"] = lambda request, payload: answer
        fields: dict[str, Any] = {"group_id": "g", "session_timeout": 7_000, "member_id": "m"}
        fields |= {"protocol_type": "consumer", "protocols": PROTOCOLS}
        if version >= 1:
            fields["rebalance_timeout"] = 9_000
        if version >= 5:
            fields["group_instance_id"] = "i"
        if version >= 8:
            fields["reason"] = "why"
        joined = await harness.client().ask(ApiKey.JOIN_GROUP, version, **fields)
        assert (joined.generation_id, joined.protocol_name, joined.leader, joined.member_id) == (3, "range", "m", "m")
        assert [(each.member_id, each.metadata) for each in joined.members] == [("m", b"\0\1"), ("n", b"")]
        if version >= 5:
            assert [each.group_instance_id for each in joined.members] == ["i", None]
        if version >= 7:
            assert joined.protocol_type == "consumer"
        if version >= 9:
            assert joined.skip_assignment
        (request,) = harness.catalog.requests("JoinGroup")
        assert request == pb.JoinGroupRequest(
            group_id="g",
            session_timeout_ms=7_000,
            rebalance_timeout_ms=9_000 if version >= 1 else 7_000,
            member_id="m",
            group_instance_id="i" if version >= 5 else "",
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=b"\0\1")],
            client_id="tester",
            client_host="/10.1.2.3",
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
            reason="why" if version >= 8 else "",
        )

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.JOIN_GROUP))
def test_a_join_that_is_refused(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        refusal = pb.JoinGroupResponse(error_code=E.MEMBER_ID_REQUIRED, generation_id=-1, member_id="new")
        harness.catalog.answers["JoinGroup"] = lambda request, payload: refusal
        fields: dict[str, Any] = {"group_id": "g", "session_timeout": 1, "member_id": "", "protocol_type": "consumer"}
        answer = await harness.client().ask(ApiKey.JOIN_GROUP, version, **fields, protocols=PROTOCOLS)
        assert (int(answer.error_code), answer.generation_id, answer.member_id) == (E.MEMBER_ID_REQUIRED, -1, "new")
        assert answer.protocol_name == (None if version >= 7 else "")

    run(scenario)


@pytest.mark.parametrize(
    ("rebalance_ms", "session_ms", "timeout_ms"),
    [(300_000, 10_000, 313_000), (5_000, 45_000, 58_000), (-1, 6_000, 19_000)],
)
def test_a_join_may_wait_as_long_as_its_member(rebalance_ms: int, session_ms: int, timeout_ms: int) -> None:
    request = pb.JoinGroupRequest(rebalance_timeout_ms=rebalance_ms, session_timeout_ms=session_ms)
    assert call_timeout_ms(request, 3_000) == timeout_ms


@pytest.mark.parametrize("version", versions_of(ApiKey.SYNC_GROUP))
def test_sync_group(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.SyncGroupResponse(
            has_protocol=True, protocol_type="consumer", protocol_name="range", assignment=b"\2"
        )
        harness.catalog.answers["SyncGroup"] = lambda request, payload: answer
        fields: dict[str, Any] = {"group_id": "g", "generation_id": 3, "member_id": "m"}
        fields["assignments"] = [{"member_id": "m", "assignment": b"\2"}]
        if version >= 3:
            fields["group_instance_id"] = "i"
        if version >= 5:
            fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        synced = await harness.client().ask(ApiKey.SYNC_GROUP, version, **fields)
        assert synced.assignment == b"\2"
        if version >= 5:
            assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        (request,) = harness.catalog.requests("SyncGroup")
        assert request == pb.SyncGroupRequest(
            group_id="g",
            generation_id=3,
            member_id="m",
            group_instance_id="i" if version >= 3 else "",
            protocol_type="consumer" if version >= 5 else "",
            protocol_name="range" if version >= 5 else "",
            assignments=[pb.SyncGroupRequest.Assignment(member_id="m", assignment=b"\2")],
        )

    run(scenario)


@pytest.mark.parametrize("fields", [{"protocol_type": "consumer"}, {"protocol_name": "range"}, {}])
def test_a_sync_must_name_its_protocol_from_version_5_on(fields: dict[str, str]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        who = {"group_id": "g", "generation_id": 3, "member_id": "m", "assignments": []}
        answer = await harness.client().ask(ApiKey.SYNC_GROUP, 5, **who, **fields)
        assert (int(answer.error_code), answer.assignment) == (E.INCONSISTENT_GROUP_PROTOCOL, b"")
        assert harness.catalog.requests("SyncGroup") == []

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.HEARTBEAT))
def test_heartbeat(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.HeartbeatResponse(error_code=E.REBALANCE_IN_PROGRESS)
        harness.catalog.answers["Heartbeat"] = lambda request, payload: answer
        fields: dict[str, Any] = {"group_instance_id": "i"} if version >= 3 else {}
        beat = await harness.client().ask(
            ApiKey.HEARTBEAT, version, group_id="g", generation_id=3, member_id="m", **fields
        )
        assert int(beat.error_code) == E.REBALANCE_IN_PROGRESS
        (request,) = harness.catalog.requests("Heartbeat")
        assert request == pb.HeartbeatRequest(
            group_id="g", generation_id=3, member_id="m", group_instance_id="i" if version >= 3 else ""
        )

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.LEAVE_GROUP))
def test_leave_group(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        results = [
            pb.LeaveGroupResponse.MemberResponse(member_id="m", error_code=E.UNKNOWN_MEMBER_ID),
            pb.LeaveGroupResponse.MemberResponse(group_instance_id="i"),
        ]
        answer = pb.LeaveGroupResponse(members=results if version >= 3 else results[:1])
        harness.catalog.answers["LeaveGroup"] = lambda request, payload: answer
        client = harness.client()
        if version < 3:
            left = await client.ask(ApiKey.LEAVE_GROUP, version, group_id="g", member_id="m")
            assert int(left.error_code) == E.UNKNOWN_MEMBER_ID
        else:
            members = [{"member_id": "m"}, {"member_id": "", "group_instance_id": "i"}]
            left = await client.ask(ApiKey.LEAVE_GROUP, version, group_id="g", members=members)
            found = [(each.member_id, each.group_instance_id, int(each.error_code)) for each in left.members]
            assert (int(left.error_code), found) == (0, [("m", None, E.UNKNOWN_MEMBER_ID), ("", "i", 0)])
        (request,) = harness.catalog.requests("LeaveGroup")
        asked = [(each.member_id, each.group_instance_id) for each in request.members]
        assert asked == ([("m", ""), ("", "i")] if version >= 3 else [("m", "")])

    run(scenario)


@pytest.mark.parametrize("times", [3, 2_000])
def test_a_group_that_is_named_again_is_described_a_few_times(times: int) -> None:
    """Its members may have megabytes, and a name takes three bytes."""

    async def scenario(harness: GatewayHarness) -> None:
        asked: list[str] = []

        def describe(request: pb.DescribeGroupsRequest, payload: memoryview) -> pb.DescribeGroupsResponse:
            asked.extend(request.group_ids)
            answer = pb.DescribeGroupsResponse()
            for group_id in request.group_ids:
                answer.groups.add(group_id=group_id, group_state="Stable")
            return answer

        harness.catalog.answers["DescribeGroups"] = describe
        answer = await harness.client().ask(ApiKey.DESCRIBE_GROUPS, 5, groups=["g", "h"] * times)
        assert asked == ["g", "h"] * min(times, REPETITIONS) == [group.group_id for group in answer.groups]

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.DescribeGroupsResponse()
        group = answer.groups.add(group_id="g", group_state="Stable", protocol_type="consumer", protocol_data="range")
        group.members.add(
            member_id="m", group_instance_id="i", client_id="c", client_host="/h", metadata=b"\1", assignment=b"\2"
        )
        answer.groups.add(
            group_id="x", group_state="Dead", error_code=E.GROUP_ID_NOT_FOUND, error_message="no such group"
        )
        harness.catalog.answers["DescribeGroups"] = lambda request, payload: answer
        found, missing = (await harness.client().ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g", "x"])).groups
        assert (found.group_id, found.group_state, found.protocol_type, found.protocol_data) == (
            "g",
            "Stable",
            "consumer",
            "range",
        )
        (member,) = found.members
        assert (member.member_id, member.client_id, member.client_host) == ("m", "c", "/h")
        assert (member.member_metadata, member.member_assignment) == (b"\1", b"\2")
        assert (missing.group_id, missing.group_state, missing.members) == ("x", "Dead", ())
        assert int(missing.error_code) == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)

    run(scenario)


@pytest.mark.parametrize("version", versions_of(ApiKey.DELETE_GROUPS))
def test_delete_groups(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.DeleteGroupsResponse()
        answer.results.add(group_id="g")
        answer.results.add(group_id="h", error_code=E.NON_EMPTY_GROUP)
        harness.catalog.answers["DeleteGroups"] = lambda request, payload: answer
        deleted = await harness.client().ask(ApiKey.DELETE_GROUPS, version, groups_names=["g", "h"])
        assert [(each.group_id, int(each.error_code)) for each in deleted.results] == [("g", 0), ("h", 68)]

    run(scenario)


def test_offset_delete() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.OffsetDeleteResponse()
        for topic, partition, code in (("t", 0, 0), ("t", 1, E.GROUP_SUBSCRIBED_TO_TOPIC), ("u", 0, 3)):
            answer.results.add(topic_name=topic, partition=partition, error_code=code)
        harness.catalog.answers["OffsetDelete"] = lambda request, payload: answer
        topics = [
            {"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
            {"name": "u", "partitions": [{"partition_index": 0}]},
        ]
        deleted = await harness.client().ask(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=topics)
        assert [
            (topic.name, [(each.partition_index, int(each.error_code)) for each in topic.partitions])
            for topic in deleted.topics
        ] == [("t", [(0, 0), (1, E.GROUP_SUBSCRIBED_TO_TOPIC)]), ("u", [(0, 3)])]
        (request,) = harness.catalog.requests("OffsetDelete")
        assert [(topic.topic_name, list(topic.partitions)) for topic in request.topics] == [("t", [0, 1]), ("u", [0])]

    run(scenario)


def test_the_coordinator_is_away() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        who = {"group_id": "g", "member_id": "m"}
        generation = {**who, "generation_id": 1}
        joined = await client.ask(
            ApiKey.JOIN_GROUP, 9, **who, session_timeout=1, protocol_type="consumer", protocols=PROTOCOLS
        )
        assert (joined.generation_id, joined.protocol_name, joined.member_id) == (-1, None, "m")
        synced = await client.ask(
            ApiKey.SYNC_GROUP, 5, **generation, assignments=[], protocol_type="consumer", protocol_name="range"
        )
        answers = [
            joined,
            synced,
            await client.ask(ApiKey.HEARTBEAT, 4, **generation),
            await client.ask(ApiKey.LEAVE_GROUP, 5, group_id="g", members=[{"member_id": "m"}]),
            await client.ask(ApiKey.LEAVE_GROUP, 0, **who),
            (await client.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=["g"])).groups[0],
            (await client.ask(ApiKey.DELETE_GROUPS, 2, groups_names=["g"])).results[0],
            await client.ask(ApiKey.OFFSET_DELETE, 0, group_id="g", topics=[]),
        ]
        assert {int(answer.error_code) for answer in answers} == {E.COORDINATOR_NOT_AVAILABLE}

    run(scenario)
