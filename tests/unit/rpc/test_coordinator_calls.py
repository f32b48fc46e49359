"""Calls among several coordinators: their targets, retries, and the caller's result when no coordinator is right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import group_partition_of
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.coordinator_calls import (
    LONGEST_BACK_OFF_MS,
    OWNER_CHANGED_GRACE_MS,
    RESTART_RETRY_MS,
    ROUTING_RETRY_MS,
    NoCoordinator,
    NotCoordinator,
    may_be_repeated,
)
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallNotStarted, CallTimeout, ChannelUnavailable, Method
from support.rpc.scripted_coordinators import (
    GROUP_PARTITIONS,
    ScriptedCoordinators,
    all_owned_by,
    group_in,
    play,
    until,
)

FIRST, SECOND = group_in(0), group_in(1)
"""With two owners in turn: node 1's and node 2's."""


def heartbeat(group_id: str) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(group_id=group_id, member_id="m")


def consumer_heartbeat(**fields: Any) -> pb.ConsumerGroupHeartbeatRequest:
    """Of a member; partial unless `fields` say everything."""
    given: dict[str, Any] = {"rebalance_timeout_ms": 300_000, **fields}
    return pb.ConsumerGroupHeartbeatRequest(group_id=FIRST, member_id="m", member_epoch=3, **given)


def answering(cluster: ScriptedCoordinators, method: Method[Any, Any], **fields: Any) -> None:
    for node in cluster.nodes.values():
        node.answers[method.name] = lambda request: method.response_type(**fields)


async def beat(follower: CatalogFollower, group_id: str) -> int:
    answer = await follower.coordinators.call_owner(group_id, methods.HEARTBEAT, heartbeat(group_id), timeout_ms=10_000)
    return answer.error_code


async def hang(request: Any) -> Any:
    await asyncio.sleep(3600)


def test_a_groups_calls_go_to_its_owner_and_all_others_to_the_active_one() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster.change(owners=all_owned_by(1, 2))
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)
        answering(cluster, methods.HEARTBEAT)
        answering(cluster, methods.END_TXN)
        assert [await beat(follower, FIRST), await beat(follower, SECOND)] == [0, 0]
        await follower.coordinators.call_active(methods.END_TXN, pb.EndTxnRequest(), timeout_ms=1_000)
        await follower.coordinator.call(methods.END_TXN, pb.EndTxnRequest(), timeout_ms=1_000)
        assert [request.group_id for name, request in cluster[1].calls if name == "Heartbeat"] == [FIRST]
        assert [request.group_id for name, request in cluster[2].calls if name == "Heartbeat"] == [SECOND]
        assert (cluster[1].count("EndTxn"), cluster[2].count("EndTxn")) == (2, 0)

    play(scenario, 1, 2)


def test_one_coordinator_is_asked_once_where_it_refuses() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.HEARTBEAT, error_code=ErrorCode.NOT_COORDINATOR)
        with pytest.raises(NotCoordinator):
            await beat(follower, FIRST)
        assert cluster[1].count("Heartbeat") == 1

    play(scenario, 1)


def test_one_coordinator_that_is_started_again_is_awaited() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.HEARTBEAT)
        answering(cluster, methods.END_TXN)
        await cluster[1].go_away()
        calls = [
            asyncio.ensure_future(beat(follower, FIRST)),
            asyncio.ensure_future(follower.coordinator.call(methods.END_TXN, pb.EndTxnRequest(), timeout_ms=1_000)),
        ]
        await asyncio.sleep(2)
        assert not any(call.done() for call in calls)
        await cluster[1].start()
        await until(lambda: all(call.done() for call in calls), seconds=1)
        assert calls[0].result() == 0 and calls[1].exception() is None
        assert (cluster[1].count("Heartbeat"), cluster[1].count("EndTxn")) == (1, 1)

    play(scenario, 1)


def test_one_coordinator_that_stays_away_is_the_callers_problem() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        await cluster[1].go_away()
        began = asyncio.get_running_loop().time()
        with pytest.raises(CallNotStarted):
            await beat(follower, FIRST)
        took_ms = (asyncio.get_running_loop().time() - began) * 1000
        assert RESTART_RETRY_MS <= took_ms < RESTART_RETRY_MS + 500

    play(scenario, 1)


def test_a_node_that_stops_does_not_wait() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        await cluster[1].go_away()
        call = asyncio.ensure_future(beat(follower, FIRST))
        await asyncio.sleep(1)
        follower.coordinators.stop_waiting()
        began = asyncio.get_running_loop().time()
        with pytest.raises(CallNotStarted):
            await call
        with pytest.raises(CallNotStarted):
            await beat(follower, FIRST)
        assert asyncio.get_running_loop().time() - began <= 2 * LONGEST_BACK_OFF_MS / 1000

    play(scenario, 1)


def test_not_coordinator_is_asked_again_until_the_view_is_right() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.JOIN_GROUP, generation_id=4)
        cluster.owners = all_owned_by(2)  # and the view does not know
        request = pb.JoinGroupRequest(group_id=FIRST)
        join = asyncio.ensure_future(
            follower.coordinators.call_owner(FIRST, methods.JOIN_GROUP, request, timeout_ms=60_000)
        )
        await asyncio.sleep(0.5)
        assert not join.done()
        assert cluster[1].count("JoinGroup") > 2
        assert cluster[2].count("JoinGroup") == 0
        cluster.change()
        await until(join.done, seconds=0.1)
        assert (await join).generation_id == 4
        assert cluster[2].count("JoinGroup") == 1

    play(scenario, 1, 2)


def test_in_the_end_a_refusal_is_the_callers() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster[1].refusals_left = 10_000
        began = asyncio.get_running_loop().time()
        call = asyncio.ensure_future(beat(follower, FIRST))
        with pytest.raises(NotCoordinator, match="another one's"):
            await call
        took_ms = (asyncio.get_running_loop().time() - began) * 1000
        assert ROUTING_RETRY_MS <= took_ms < ROUTING_RETRY_MS + 500
        assert cluster[1].count("Heartbeat") < 20, "with a growing pause"

    play(scenario, 1, 2)


def test_the_group_has_no_owner() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.HEARTBEAT)
        cluster.change(owners={1: 2})
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)
        with pytest.raises(NoCoordinator):
            await beat(follower, FIRST)
        call = asyncio.ensure_future(beat(follower, FIRST))
        await asyncio.sleep(1)
        cluster.change(owners={0: 2, 1: 2})
        assert await call == 0

    play(scenario, 1, 2)


@pytest.mark.parametrize(
    ("method", "request_", "goes_on"),
    [
        (methods.HEARTBEAT, heartbeat(FIRST), True),
        (methods.OFFSET_FETCH, pb.OffsetFetchRequest(group_id=FIRST), True),
        (methods.OFFSET_COMMIT, pb.OffsetCommitRequest(group_id=FIRST), True),
        (methods.JOIN_GROUP, pb.JoinGroupRequest(group_id=FIRST), False),
        (methods.LEAVE_GROUP, pb.LeaveGroupRequest(group_id=FIRST), False),
        (methods.TXN_OFFSET_COMMIT, pb.TxnOffsetCommitRequest(group_id=FIRST), False),
        (methods.ALTER_SHARE_GROUP_OFFSETS, pb.AlterShareGroupOffsetsRequest(group_id=FIRST), False),
        (
            methods.SHARE_GROUP_HEARTBEAT,
            pb.ShareGroupHeartbeatRequest(group_id=FIRST, member_id="m", member_epoch=3),
            True,
        ),
        (
            methods.SHARE_GROUP_HEARTBEAT,
            pb.ShareGroupHeartbeatRequest(group_id=FIRST, member_id="m", member_epoch=-1),
            False,
        ),
        (methods.CONSUMER_GROUP_HEARTBEAT, pb.ConsumerGroupHeartbeatRequest(group_id=FIRST, member_epoch=0), False),
        (methods.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat(rebalance_timeout_ms=-1), False),
        (methods.CONSUMER_GROUP_HEARTBEAT, consumer_heartbeat(has_subscribed_topic_names=True), False),
        (
            methods.CONSUMER_GROUP_HEARTBEAT,
            consumer_heartbeat(has_subscribed_topic_names=True, has_owned_partitions=True),
            True,
        ),
        (
            methods.CONSUMER_GROUP_HEARTBEAT,
            consumer_heartbeat(rebalance_timeout_ms=-1, has_subscribed_topic_names=True, has_owned_partitions=True),
            False,
        ),
        (
            methods.CONSUMER_GROUP_HEARTBEAT,
            consumer_heartbeat(has_subscribed_topic_regex=True, has_owned_partitions=True),
            True,
        ),
    ],
)
def test_which_calls_are_retried_when_their_outcome_is_unknown(
    method: Method[Any, Any], request_: Any, goes_on: bool
) -> None:
    assert may_be_repeated(method, request_) is goes_on

    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, method)
        cluster[1].answers[method.name] = hang
        call = asyncio.ensure_future(follower.coordinators.call_owner(FIRST, method, request_, timeout_ms=60_000))
        await asyncio.sleep(1)
        await cluster[1].go_away()
        cluster.change(active=2, owners=all_owned_by(2))
        if goes_on:
            await until(call.done, seconds=2)
            assert await call == method.response_type()
        else:
            with pytest.raises(ChannelUnavailable) as caught:
                await call
            assert not isinstance(caught.value, CallNotStarted)
        assert cluster[2].count(method.name) == int(goes_on)

    play(scenario, 1, 2)


def test_what_did_not_start_is_done_elsewhere_whatever_it_is() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.JOIN_GROUP, generation_id=2)
        await cluster[1].go_away()
        request = pb.JoinGroupRequest(group_id=FIRST)
        call = asyncio.ensure_future(
            follower.coordinators.call_owner(FIRST, methods.JOIN_GROUP, request, timeout_ms=60_000)
        )
        await asyncio.sleep(1)
        cluster.change(active=2, owners=all_owned_by(2))
        assert (await call).generation_id == 2

    play(scenario, 1, 2)


def test_calls_at_a_silent_former_owner_go_to_the_new_one_after_a_grace_period() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.SYNC_GROUP, protocol_name="range")
        cluster[1].answers["SyncGroup"] = hang
        request = pb.SyncGroupRequest(group_id=FIRST)
        call = asyncio.ensure_future(
            follower.coordinators.call_owner(FIRST, methods.SYNC_GROUP, request, timeout_ms=300_000)
        )
        await asyncio.sleep(100)
        assert not call.done(), "it may wait as long as it is there"
        cluster[1].silent = True
        cluster.change(active=2, owners=all_owned_by(2))
        await until(lambda: follower.view.group_partition_owners[0] == 2, seconds=5)
        took = await until(call.done, seconds=5)
        assert OWNER_CHANGED_GRACE_MS / 1000 - 0.1 < took < OWNER_CHANGED_GRACE_MS / 1000 + 0.2
        assert (await call).protocol_name == "range"

    play(scenario, 1, 2)


def test_an_answer_of_the_former_owner_within_the_grace_counts() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        async def later(request: Any) -> pb.JoinGroupResponse:
            await asyncio.sleep(5)
            return pb.JoinGroupResponse(generation_id=8)

        cluster[1].answers["JoinGroup"] = later
        request = pb.JoinGroupRequest(group_id=FIRST)
        call = asyncio.ensure_future(
            follower.coordinators.call_owner(FIRST, methods.JOIN_GROUP, request, timeout_ms=60_000)
        )
        await asyncio.sleep(4.5)
        cluster.change(owners=all_owned_by(2))
        assert (await call).generation_id == 8

    play(scenario, 1, 2)


def test_no_answer_in_time_is_not_asked_for_again() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster[1].answers["Heartbeat"] = hang
        with pytest.raises(CallTimeout):
            await beat(follower, FIRST)
        assert cluster[1].count("Heartbeat") == 1

    play(scenario, 1, 2)


def test_a_commit_that_was_refused_does_not_overtake_a_newer_one() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        answering(cluster, methods.OFFSET_COMMIT)

        def commit(offset: int, member_id: str) -> asyncio.Future[pb.OffsetCommitResponse]:
            offsets = [pb.CommittedOffset(committed_offset=offset)]
            request = pb.OffsetCommitRequest(group_id=FIRST, member_id=member_id, offsets=offsets)
            call = follower.coordinators.call_owner(
                FIRST, methods.OFFSET_COMMIT, request, timeout_ms=5_000, order_key=(FIRST, member_id)
            )
            return asyncio.ensure_future(call)

        cluster[1].refusals_left = 2
        older, others = commit(1, "m"), commit(7, "n")
        await asyncio.sleep(0)
        newer = commit(2, "m")
        await newer
        with pytest.raises(NotCoordinator):
            await older
        await others
        stored = [request.offsets[0].committed_offset for name, request in cluster[1].calls if name == "OffsetCommit"]
        assert stored == [1, 7, 2, 7]
        assert await commit(3, "m") == pb.OffsetCommitResponse()

    play(scenario, 1, 2)


# Several groups in one request

DESCRIBED = pb.DescribeGroupsResponse.DescribedGroup


def describing(cluster: ScriptedCoordinators) -> None:
    """Each coordinator describes the groups it owns, and refuses the others."""
    for node in cluster.nodes.values():

        def describe(request: Any, node: Any = node) -> pb.DescribeGroupsResponse:
            groups = [
                DESCRIBED(group_id=group_id, group_state=f"at {node.node_id}")
                if node.owns(group_id)
                else DESCRIBED(group_id=group_id, error_code=ErrorCode.NOT_COORDINATOR)
                for group_id in request.group_ids
            ]
            return pb.DescribeGroupsResponse(groups=groups)

        node.answers["DescribeGroups"] = describe


async def described(follower: CatalogFollower, group_ids: list[str]) -> list[tuple[str, str, int]]:
    found = await follower.coordinators.call_owners(
        group_ids,
        methods.DESCRIBE_GROUPS,
        request_of=lambda ids: pb.DescribeGroupsRequest(group_ids=ids),
        results_of=lambda answer: answer.groups,
        refusal_of=lambda group_id, code, text: DESCRIBED(group_id=group_id, error_code=code, error_message=text),
        timeout_ms=5_000,
    )
    return [(group.group_id, group.group_state, group.error_code) for group in found]


@pytest.mark.parametrize(
    ("partitions", "calls"),
    [
        ([], (0, 0)),
        ([0, 2, 4], (1, 0)),
        ([1, 0, 3, 2], (1, 1)),
        ([0, 1, 0, 1], (1, 1)),
        (list(range(50)), (1, 1)),
    ],
)
def test_groups_are_split_by_owner_and_come_back_in_the_order_asked(
    partitions: list[int], calls: tuple[int, int]
) -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster.change(owners=all_owned_by(1, 2))
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)
        describing(cluster)
        group_ids = [group_in(partition) for partition in partitions]
        owners = [1 + partition % 2 for partition in partitions]
        wanted = [(group_id, f"at {owner}", 0) for group_id, owner in zip(group_ids, owners, strict=True)]
        assert await described(follower, group_ids) == wanted
        assert (cluster[1].count("DescribeGroups"), cluster[2].count("DescribeGroups")) == calls

    play(scenario, 1, 2)


def test_only_groups_that_were_refused_are_asked_for_again() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        describing(cluster)
        cluster.owners = all_owned_by(1, 2)  # and the view does not know
        call = asyncio.ensure_future(described(follower, [SECOND, FIRST]))
        await asyncio.sleep(0.3)
        cluster.change()
        assert await call == [(SECOND, "at 2", 0), (FIRST, "at 1", 0)]
        asked = [list(request.group_ids) for name, request in cluster[1].calls if name == "DescribeGroups"]
        assert asked[0] == [SECOND, FIRST]
        assert all(again == [SECOND] for again in asked[1:])
        assert len(asked) > 1

    play(scenario, 1, 2)


def test_groups_of_a_coordinator_that_is_away_fail_alone() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster.change(owners=all_owned_by(1, 2))
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)
        describing(cluster)
        await cluster[2].go_away()
        assert await described(follower, [FIRST, SECOND]) == [
            (FIRST, "at 1", 0),
            (SECOND, "", ErrorCode.COORDINATOR_NOT_AVAILABLE),
        ]
        assert cluster[1].count("DescribeGroups") == 1

    play(scenario, 1, 2)


def test_calls_about_several_groups_are_not_retried_by_a_node_that_stops() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        describing(cluster)
        listing(cluster)
        cluster.owners = all_owned_by(1, 2)  # the view still names 1 for all
        calls = [asyncio.ensure_future(described(follower, [SECOND])), asyncio.ensure_future(listed(follower))]
        await asyncio.sleep(1)
        assert not any(call.done() for call in calls)
        follower.coordinators.stop_waiting()
        began = asyncio.get_running_loop().time()
        assert await calls[0] == [(SECOND, "", ErrorCode.NOT_COORDINATOR)]
        with pytest.raises(NoCoordinator):
            await calls[1]
        assert asyncio.get_running_loop().time() - began <= 2 * LONGEST_BACK_OFF_MS / 1000

    play(scenario, 1, 2)


def test_what_is_still_refused_in_the_end_stands_in_its_place() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        describing(cluster)
        cluster.owners = all_owned_by(1, 2)
        assert await described(follower, [SECOND, FIRST]) == [
            (SECOND, "", ErrorCode.NOT_COORDINATOR),
            (FIRST, "at 1", 0),
        ]

    play(scenario, 1, 2)


# All groups


def listing(cluster: ScriptedCoordinators) -> None:
    for node in cluster.nodes.values():

        def list_groups(request: Any, node: Any = node) -> pb.ListGroupsResponse:
            partitions = [each for each in range(GROUP_PARTITIONS) if cluster.owners.get(each) == node.node_id]
            groups = [pb.ListGroupsResponse.ListedGroup(group_id=group_in(each)) for each in partitions if each < 4]
            return pb.ListGroupsResponse(groups=groups, group_partitions=partitions)

        node.answers["ListGroups"] = list_groups


async def listed(follower: CatalogFollower) -> list[int]:
    answers: list[pb.ListGroupsResponse] = await follower.coordinators.call_all_owners(
        methods.LIST_GROUPS, pb.ListGroupsRequest(), covers=lambda answer: answer.group_partitions, timeout_ms=5_000
    )
    names = dict.fromkeys(group.group_id for answer in answers for group in answer.groups)
    return sorted(group_partition_of(group_id, GROUP_PARTITIONS) for group_id in names)


def test_all_owners_are_asked_once() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        cluster.change(owners=all_owned_by(1, 3))
        await until(lambda: follower.view.coordinators_version == 2, seconds=1)
        listing(cluster)
        assert await listed(follower) == [0, 1, 2, 3]
        assert [cluster[node_id].count("ListGroups") for node_id in (1, 2, 3)] == [1, 0, 1]

    play(scenario, 1, 2, 3)


def test_a_list_that_lacks_the_groups_of_some_partitions_is_none() -> None:
    async def scenario(cluster: ScriptedCoordinators, follower: CatalogFollower) -> None:
        listing(cluster)
        cluster.owners = all_owned_by(1, 2)  # 2 has half of them, and the view does not know
        with pytest.raises(NoCoordinator, match=r"group partitions \[1, 3, 5"):
            await listed(follower)
        call = asyncio.ensure_future(listed(follower))
        await asyncio.sleep(0.5)
        cluster.change()
        assert await call == [0, 1, 2, 3]
        await cluster[2].go_away()
        with pytest.raises(NoCoordinator):
            await listed(follower)

    play(scenario, 1, 2)
