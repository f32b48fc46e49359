"""Consumer groups beside the rest: the namespace of ids, committed offsets, lists, descriptions, deletion."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.administration import list_groups
from kshare_coordinator.machine.groups.classic.timers import ClassicTimerSet
from kshare_coordinator.machine.groups.consumer import view as consumer_groups_view
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.offsets.view import fetch
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.committed_offsets import TransactionalProducer
from support.coordinator.driver import CoordinatorDriver
from support.groups.classic_driver import subscription
from support.groups.consumer_groups import Request, assigned, join_request, request_of, send


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"group.consumer.assignment.interval.ms": "0", "offsets.retention.minutes": "1"})
    made.create_topic("t", 2)
    return made


def refusal(driver: CoordinatorDriver, request: Request) -> E:
    with pytest.raises(KafkaError) as refused:
        send(driver, request)
    return refused.value.code


def commit(
    driver: CoordinatorDriver,
    member_id: str = "",
    epoch: int = -1,
    *,
    partitions: tuple[int, ...] = (0,),
    api_version: int = 9,
    group_id: str = "group",
) -> list[int]:
    offsets = [
        pb.CommittedOffset(topic_name="t", partition=partition, committed_offset=7, committed_leader_epoch=-1)
        for partition in partitions
    ]
    request = pb.OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        offsets=offsets,
        api_version=api_version,
    )
    return [result.error_code for result in driver.run(commands.OffsetCommit(request=request)).results]


def fetched(driver: CoordinatorDriver, member_id: str = "", member_epoch: int = -1) -> int:
    """The error code of the group."""
    request = pb.OffsetFetchRequest(group_id="group", member_id=member_id, member_epoch=member_epoch, all_topics=True)
    return fetch(driver.state, request).error_code


def classic_join(driver: CoordinatorDriver, group_id: str = "group") -> pb.JoinGroupResponse | None:
    request = pb.JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[pb.JoinGroupRequest.Protocol(name="range", metadata=subscription("t"))],
    )
    return driver.run(commands.JoinGroup(request=request, call_id=1, new_member_suffix="uuid"))


def test_ids_of_share_groups_and_consumer_groups_do_not_mix(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["t"], group_id="shared")
    send(driver, join_request("m", ["t"]))
    assert refusal(driver, join_request("m", ["t"], group_id="shared")) == E.GROUP_ID_NOT_FOUND
    assert refusal(driver, request_of("m", 1, group_id="shared")) == E.GROUP_ID_NOT_FOUND
    assert refusal(driver, request_of("m", -1, group_id="shared")) == E.GROUP_ID_NOT_FOUND
    with pytest.raises(KafkaError) as refused:
        driver.heartbeat("m", 0, ["t"])
    assert refused.value.code == E.GROUP_ID_NOT_FOUND


def test_an_empty_group_keeps_its_offsets_when_the_other_protocol_takes_it() -> None:
    driver = CoordinatorDriver({"group.consumer.migration.policy": "disabled"})
    driver.create_topic("t", 2)
    assert commit(driver) == [0]
    send(driver, join_request("m", ["t"]))
    assert assigned(send(driver, join_request("m", ["t"]))) is not None
    assert fetched(driver) == 0 and driver.state.offsets.has_group("group")
    answer = classic_join(driver)
    assert answer is not None and answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    send(driver, request_of("m", -1))
    classic_join(driver)
    assert "group" in driver.state.classic_groups and "group" not in driver.state.consumer_groups
    assert not any(b"consumer_group" in row for row in driver.rows) and driver.load().state.consumer_groups == {}
    assert refusal(driver, join_request("m", ["t"])) == E.GROUP_ID_NOT_FOUND
    assert driver.state.offsets.has_group("group")


def test_an_empty_classic_group_makes_room(driver: CoordinatorDriver) -> None:
    classic_join(driver)
    timers = [effect for effect in driver.effects if isinstance(effect, ClassicTimerSet)]
    member_id = next(iter(driver.state.classic_groups["group"].members))
    leaving = pb.LeaveGroupRequest(group_id="group", members=[pb.LeaveGroupRequest.MemberIdentity(member_id=member_id)])
    driver.run(commands.LeaveGroup(request=leaving))
    for timer in timers:  # the first rebalance waited for more members
        driver.now_ms += timer.delay_ms
        driver.run(commands.ClassicTimerExpired(timer=timer.timer))
    assert driver.state.classic_groups["group"].is_empty
    assert assigned(send(driver, join_request("m", ["t"]))) is not None
    assert "group" not in driver.state.classic_groups and driver.load().state == driver.state


def test_which_members_may_commit(driver: CoordinatorDriver) -> None:
    assert commit(driver, "nobody", 1) == [E.GROUP_ID_NOT_FOUND]
    send(driver, join_request("a", ["t"]))
    assert commit(driver, "a", 2) == [0]
    assert commit(driver, "a", 2, api_version=8) == [E.UNSUPPORTED_VERSION]
    assert commit(driver) == [E.UNKNOWN_MEMBER_ID]
    assert commit(driver, "x", 2) == [E.UNKNOWN_MEMBER_ID]
    assert commit(driver, "a", 3) == [E.STALE_MEMBER_EPOCH]
    assert commit(driver, "a", 1) == [E.STALE_MEMBER_EPOCH]
    send(driver, request_of("a", -1))
    assert commit(driver) == [0]
    assert commit(driver, "a", 2) == [E.UNKNOWN_MEMBER_ID]


def test_a_commit_with_an_older_epoch_is_right_for_what_the_member_had_then(driver: CoordinatorDriver) -> None:
    """One of its partitions moves to b; the commit that was under way is for what it had with epoch 2."""
    topic = driver.state.topic_ids["t"]
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("b", ["t"]))
    send(driver, request_of("a", 2))
    assert commit(driver, "a", 2, partitions=(0, 1)) == [0, 0]  # 1 is pending revocation
    send(driver, request_of("a", 2, owned={topic: [0]}))
    assert driver.state.consumer_groups["group"].current["a"].member_epoch == 3
    assert commit(driver, "a", 2) == [0]
    assert commit(driver, "a", 2, partitions=(0, 1)) == [E.STALE_MEMBER_EPOCH] * 2
    assert commit(driver, "a", 1) == [E.STALE_MEMBER_EPOCH]
    send(driver, request_of("b", 3))
    assert commit(driver, "b", 3, partitions=(1,)) == [0]
    assert commit(driver, "b", 2, partitions=(1,)) == [E.STALE_MEMBER_EPOCH]


def test_which_members_may_commit_in_a_transaction(driver: CoordinatorDriver) -> None:
    """Codes are those that producers know; a producer that names nobody is an older client."""
    topic = driver.state.topic_ids["t"]
    producer = TransactionalProducer(driver, "p")
    send(driver, join_request("a", ["t"]))
    send(driver, join_request("b", ["t"]))
    send(driver, request_of("a", 2))
    send(driver, request_of("a", 2, owned={topic: [0]}))

    def codes(member_id: str, epoch: int, partition: int = 0) -> list[int]:
        request = pb.TxnOffsetCommitRequest(
            transactional_id="p",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="group",
            member_id=member_id,
            generation_id=epoch,
            add_to_transaction=True,
            offsets=[pb.CommittedOffset(topic_name="t", partition=partition, committed_offset=7)],
        )
        return [result.error_code for result in driver.run(commands.TxnOffsetCommit(request=request)).results]

    assert codes("", -1) == [E.NONE]
    assert codes("a", 3) == codes("a", 2) == [E.NONE]
    assert codes("a", 2, 1) == codes("a", 4) == codes("a", 1) == [E.ILLEGAL_GENERATION]
    assert codes("x", 3) == codes("x", -1) == [E.UNKNOWN_MEMBER_ID]


def test_which_members_may_fetch(driver: CoordinatorDriver) -> None:
    assert fetched(driver, "nobody", 1) == E.NONE
    send(driver, join_request("a", ["t"]))
    assert [fetched(driver), fetched(driver, "a", 2)] == [0, 0]
    assert fetched(driver, "a", 1) == fetched(driver, "a", 3) == E.STALE_MEMBER_EPOCH
    assert fetched(driver, "x", 2) == fetched(driver, "x") == E.UNKNOWN_MEMBER_ID


def test_offsets_of_consumed_topics_stay_and_an_empty_group_goes_with_its_last_offset(
    driver: CoordinatorDriver,
) -> None:
    send(driver, join_request("a", ["t"]))
    assert commit(driver, "a", 2) == [0]
    driver.now_ms += 60_000
    assert driver.run(commands.ExpireOffsets(group_ids=("group",))) == 0
    delete = pb.OffsetDeleteRequest(group_id="group", topics=[pb.NamedPartitions(topic_name="t", partitions=[0])])
    answer = driver.run(commands.DeleteOffsets(request=delete))
    assert [result.error_code for result in answer.results] == [E.GROUP_SUBSCRIBED_TO_TOPIC]
    send(driver, request_of("a", -1))
    assert driver.run(commands.ExpireOffsets(group_ids=("group",))) == 1
    assert driver.state.consumer_groups == {} and driver.load().state == driver.state


def test_a_group_is_deleted_when_it_is_empty(driver: CoordinatorDriver) -> None:
    send(driver, join_request("a", regex="t"))
    commit(driver, "a", 2)
    assert driver.run(commands.DeleteGroup(group_id="group")) == E.NON_EMPTY_GROUP
    send(driver, request_of("a", -1))
    before = {row for row in driver.rows if b"group" in row}
    assert before
    assert driver.run(commands.DeleteGroup(group_id="group")) == E.NONE
    assert not {row for row in driver.rows if b"group" in row}
    assert driver.state.consumer_groups == {} and not driver.state.offsets.has_group("group")


def test_lists_and_descriptions(driver: CoordinatorDriver) -> None:
    topic = driver.state.topic_ids["t"]
    send(driver, join_request("a", ["t"], rack_id="r", assignor="range"))
    send(driver, join_request("b", regex="t", instance_id="i"))
    send(driver, request_of("a", 2))
    everything = pb.ListGroupsRequest(types_filter=["Consumer"], states_filter=["reconciling"])
    group = list_groups(driver.state, everything).groups[0]
    assert (group.group_id, group.protocol_type, group.group_state, group.group_type) == (
        "group",
        "consumer",
        "Reconciling",
        "consumer",
    )
    request = pb.ConsumerGroupDescribeRequest(group_ids=["group", "", "none"])
    answer = consumer_groups_view.describe(driver.state, ConsumerGroupSettings(driver.configs), request)
    described, empty, missing = answer.groups
    assert (empty.error_code, missing.error_code) == (E.INVALID_GROUP_ID, E.GROUP_ID_NOT_FOUND)
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (3, 3, "range")
    first, second = described.members
    assert (first.member_id, first.rack_id, first.member_epoch, list(first.subscribed_topic_names)) == (
        "a",
        "r",
        2,
        ["t"],
    )
    assert (second.instance_id, second.subscribed_topic_regex, second.client_host) == ("i", "t", "/127.0.0.1")
    shown = [
        [(topic.topic_name, list(topic.partitions)) for topic in member.assignment] for member in described.members
    ]
    wanted = [list(member.target_assignment[0].partitions) for member in described.members]
    assert shown == [[("t", [0, 1])], []] and wanted == [[1], [0]]  # static members come first
    assert first.target_assignment[0].topic_id == topic
