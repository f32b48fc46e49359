"""Offsets of classic groups: commits, deletion and expiry; groups of all types are listed and deleted."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups import administration as group_administration
from kshare_coordinator.machine.groups import namespace as group_namespace
from kshare_coordinator.machine.groups.classic import queries as classic_group_queries
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.groups.classic_driver import GROUP, RANGE, SESSION_MS, ClassicGroupDriver, subscription

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
EVERYTHING = [("t", 0), ("t", 1), ("other", 0)]


@pytest.fixture
def driver() -> ClassicGroupDriver:
    made = ClassicGroupDriver()
    made.coordinator.create_topic("t", 2)
    made.coordinator.create_topic("other", 1)
    return made


def commit(
    driver: ClassicGroupDriver,
    member_id: str = "",
    generation_id: int = -1,
    *,
    instance: str = "",
    group_id: str = GROUP,
    topic: str = "t",
    partition: int = 0,
) -> E:
    request = pb.OffsetCommitRequest(
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=generation_id,
        group_instance_id=instance,
        offsets=[pb.CommittedOffset(topic_name=topic, partition=partition, committed_offset=5)],
        api_version=9,
    )
    (result,) = driver.coordinator.run(commands.OffsetCommit(request=request)).results
    driver.carry_out()
    return E(result.error_code)


def committed(driver: ClassicGroupDriver, group_id: str = GROUP) -> list[tuple[str, int]]:
    state = driver.coordinator.state
    rows = state.offsets.committed.get(group_id, {})
    return sorted((state.topics[key.topic_id].name, key.partition) for key in rows)


def delete_offsets(
    driver: ClassicGroupDriver, *topics: tuple[str, list[int]], group_id: str = GROUP
) -> E | list[tuple[str, int, E]]:
    named = [pb.NamedPartitions(topic_name=name, partitions=partitions) for name, partitions in topics]
    request = pb.OffsetDeleteRequest(group_id=group_id, topics=named)
    answer = driver.coordinator.run(commands.DeleteOffsets(request=request))
    if answer.error_code:
        return E(answer.error_code)
    return [(result.topic_name, result.partition, E(result.error_code)) for result in answer.results]


def expire(driver: ClassicGroupDriver) -> int:
    return driver.coordinator.run(commands.ExpireOffsets(group_ids=(GROUP,)))


def test_members_commit_with_their_generation(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    assert commit(driver, member, 1) is E.NONE
    assert commit(driver, member, 0) is E.ILLEGAL_GENERATION
    assert commit(driver, member, 2) is E.ILLEGAL_GENERATION
    assert commit(driver, member, -1) is E.ILLEGAL_GENERATION
    assert commit(driver, "nobody", 1) is E.UNKNOWN_MEMBER_ID
    assert commit(driver, member, 1, instance="nobody") is E.UNKNOWN_MEMBER_ID
    assert commit(driver, "", -1) is E.UNKNOWN_MEMBER_ID  # the group has members
    assert committed(driver) == [("t", 0)]


def test_a_former_static_member_cannot_commit(driver: ClassicGroupDriver) -> None:
    call = driver.join(instance="i")
    driver.advance(3_000)
    old = driver.joined(call).member_id
    driver.sync(old, 1, {})
    new = driver.joined(driver.join(instance="i")).member_id
    assert commit(driver, old, 1, instance="i") is E.FENCED_INSTANCE_ID
    assert commit(driver, new, 1, instance="i") is E.NONE


def test_a_commit_is_a_sign_of_life_and_is_refused_while_syncs_are_awaited(driver: ClassicGroupDriver) -> None:
    first, second = driver.stable(2)
    for _ in range(2):
        driver.advance(SESSION_MS - 1)
        assert commit(driver, first, 1) is E.NONE
    assert list(driver.group().members) == [first]
    driver.new_member()
    assert commit(driver, first, 1) is E.NONE  # what was consumed before the rebalance
    driver.advance(SESSION_MS - 1)
    assert first in driver.group().members
    driver.join(first)
    assert driver.group().state == "CompletingRebalance"
    assert commit(driver, first, driver.group().generation_id) is E.REBALANCE_IN_PROGRESS
    assert second not in driver.group().members


def test_an_empty_group_accepts_commits_without_a_member(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    driver.leave((member, ""))
    assert commit(driver) is E.NONE
    assert commit(driver, member, 1) is E.UNKNOWN_MEMBER_ID


def test_transactional_commits_of_members(driver: ClassicGroupDriver) -> None:
    init = pb.InitProducerIdRequest(
        producer_id=-1, producer_epoch=-1, has_transactional_id=True, transactional_id="x", transaction_timeout_ms=1000
    )
    producer = driver.coordinator.run(commands.InitTransactionalProducer(request=init))
    (member,) = driver.stable(1)

    def commit_in_transaction(member_id: str, generation_id: int, instance: str = "") -> E:
        request = pb.TxnOffsetCommitRequest(
            transactional_id="x",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=GROUP,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=instance,
            add_to_transaction=True,
            offsets=[pb.CommittedOffset(topic_name="t", partition=0, committed_offset=5)],
        )
        (result,) = driver.coordinator.run(commands.TxnOffsetCommit(request=request)).results
        return E(result.error_code)

    assert commit_in_transaction(member, 1) is E.NONE
    assert commit_in_transaction(member, 0) is E.ILLEGAL_GENERATION
    assert commit_in_transaction("nobody", 1) is E.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(member, 1, "nobody") is E.UNKNOWN_MEMBER_ID
    assert commit_in_transaction("", -1) is E.NONE  # a producer that knows nothing of groups


def test_offsets_of_topics_that_a_group_consumes_are_not_deleted(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    for topic, partition in EVERYTHING:
        commit(driver, member, 1, topic=topic, partition=partition)
    asked = (("t", [0, 7]), ("other", [0, 1]), ("none", [0]))
    assert delete_offsets(driver, *asked) == [
        ("t", 0, E.GROUP_SUBSCRIBED_TO_TOPIC),
        ("t", 7, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("other", 0, E.NONE),
        ("other", 1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("none", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert committed(driver) == [("t", 0), ("t", 1)]
    driver.leave((member, ""))
    assert delete_offsets(driver, ("t", [0])) == [("t", 0, E.NONE)]
    assert committed(driver) == [("t", 1)]


def test_offsets_that_cannot_be_deleted(driver: ClassicGroupDriver) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    assert delete_offsets(driver, group_id="") is E.INVALID_GROUP_ID
    assert delete_offsets(driver, group_id="none") is E.GROUP_ID_NOT_FOUND
    assert delete_offsets(driver, group_id="share") is E.GROUP_ID_NOT_FOUND
    driver.join(protocol_type="connect", version=3)
    assert delete_offsets(driver, ("t", [0])) is E.NON_EMPTY_GROUP


def test_a_group_whose_subscriptions_cannot_be_read_consumes_everything(driver: ClassicGroupDriver) -> None:
    call = driver.join(protocols=[("range", b"?")], version=3)
    driver.advance(3_000)
    commit(driver, driver.joined(call).member_id, 1)
    assert delete_offsets(driver, ("t", [0])) == [("t", 0, E.GROUP_SUBSCRIBED_TO_TOPIC)]


def test_offsets_of_a_group_with_members_expire_only_where_it_does_not_consume(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    for topic, partition in EVERYTHING:
        commit(driver, member, 1, topic=topic, partition=partition)
    driver.coordinator.now_ms += RETENTION_MS
    assert expire(driver) == 1
    assert committed(driver) == [("t", 0), ("t", 1)]
    driver.join(member, protocols=[("range", subscription("other")), RANGE])
    driver.coordinator.now_ms += RETENTION_MS
    assert expire(driver) == 0  # nothing expires during a rebalance


def test_offsets_of_a_group_that_became_empty_expire_counted_from_then(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    commit(driver, member, 1)
    driver.coordinator.now_ms += RETENTION_MS
    driver.heartbeat(member, 1)
    driver.leave((member, ""))
    driver.restart()
    driver.coordinator.now_ms += RETENTION_MS - 1
    assert expire(driver) == 0
    driver.coordinator.now_ms += 1
    assert expire(driver) == 1
    assert group_namespace.group_type(driver.coordinator.state, GROUP) is None
    assert GROUP not in driver.coordinator.load().state.classic_groups


def test_an_empty_group_without_offsets_is_deleted_unless_a_member_is_joining(driver: ClassicGroupDriver) -> None:
    driver.join()
    expire(driver)
    assert GROUP in driver.coordinator.state.classic_groups
    driver.advance(SESSION_MS)
    expire(driver)
    assert GROUP not in driver.coordinator.state.classic_groups
    driver.stable(1)
    expire(driver)
    assert GROUP in driver.coordinator.state.classic_groups


def delete(driver: ClassicGroupDriver, group_id: str = GROUP) -> E:
    return driver.coordinator.run(commands.DeleteGroup(group_id=group_id))


def test_groups_are_deleted_only_when_they_are_empty(driver: ClassicGroupDriver) -> None:
    (member,) = driver.stable(1)
    commit(driver, member, 1)
    assert delete(driver) is E.NON_EMPTY_GROUP
    driver.join(member)
    assert delete(driver) is E.NON_EMPTY_GROUP
    driver.leave((member, ""))
    assert delete(driver) is E.NONE
    assert delete(driver) is E.GROUP_ID_NOT_FOUND
    loaded = driver.coordinator.load().state
    assert not loaded.classic_groups and not loaded.offsets.row_count


def test_a_simple_group_is_deleted_with_its_offsets(driver: ClassicGroupDriver) -> None:
    commit(driver)
    commit(driver, topic="other")
    assert delete(driver) is E.NONE
    assert group_namespace.group_type(driver.coordinator.state, GROUP) is None


def test_the_namespace_is_one(driver: ClassicGroupDriver) -> None:
    state = driver.coordinator.state
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    driver.stable(1)
    commit(driver, group_id="simple")
    kinds = {group_id: group_namespace.group_type(state, group_id) for group_id in ("share", GROUP, "simple", "none")}
    assert kinds == {"share": "share", GROUP: "classic", "simple": "classic", "none": None}
    assert [group_namespace.is_simple(state, group_id) for group_id in kinds] == [False, False, True, False]
    assert group_namespace.group_ids(state) == [GROUP, "share", "simple"]
    assert group_namespace.group_count(state) == 3
    assert [group_namespace.is_full(state, limit) for limit in (2, 3, 4)] == [True, True, False]
    assert commit(driver, group_id="share") is E.GROUP_ID_NOT_FOUND
    assert E(driver.joined(driver.join(group_id="share")).error_code) is E.INCONSISTENT_GROUP_PROTOCOL


def test_a_simple_group_becomes_one_with_members_and_keeps_its_offsets(driver: ClassicGroupDriver) -> None:
    commit(driver)
    driver.stable(1)
    assert committed(driver) == [("t", 0)]
    assert not group_namespace.is_simple(driver.coordinator.state, GROUP)
    assert group_namespace.group_count(driver.coordinator.state) == 1


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["empty", "new", "share", "simple", "stable"]),
        (["STABLE"], [], ["share", "stable"]),
        (["Empty"], ["Classic"], ["empty", "simple"]),
        ([" preparingrebalance "], [], ["new"]),
        (["unheard of"], [], []),
        ([], ["unheard of"], []),
        ([], ["share", "unheard of"], ["share"]),
        ([], ["consumer"], []),
    ],
)
def test_groups_are_listed(driver: ClassicGroupDriver, states: list[str], types: list[str], found: list[str]) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    commit(driver, group_id="simple")
    for group_id in ("empty", "stable"):
        call = driver.join(group_id=group_id, version=3)
        driver.advance(3_000)
        driver.sync(driver.joined(call).member_id, 1, {}, group_id=group_id)
        if group_id == "empty":
            driver.leave((driver.joined(call).member_id, ""), group_id=group_id)
    driver.join(group_id="new", version=3)
    request = pb.ListGroupsRequest(states_filter=states, types_filter=types)
    answer = group_administration.list_groups(driver.coordinator.state, request)
    assert [group.group_id for group in answer.groups] == found
    kinds = {group.group_id: (group.group_type, group.protocol_type) for group in answer.groups}
    assert kinds.get("simple", ("classic", "")) == ("classic", "")
    assert kinds.get("stable", ("classic", "consumer")) == ("classic", "consumer")


def test_groups_are_described(driver: ClassicGroupDriver) -> None:
    driver.coordinator.heartbeat("member", 0, ["t"], "share")
    commit(driver, group_id="simple")
    (member,) = driver.stable(1)
    request = pb.DescribeGroupsRequest(group_ids=[GROUP, "simple", "share", "none"])
    stable, simple, share, none = classic_group_queries.describe(driver.coordinator.state, request).groups
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    (described,) = stable.members
    assert (described.member_id, described.metadata, described.assignment) == (member, RANGE[1], member.encode())
    assert (described.client_id, described.client_host) == ("client", "/host")
    assert (simple.group_state, simple.protocol_type, simple.error_code) == ("Empty", "", 0)
    assert [(E(each.error_code), each.group_state) for each in (share, none)] == [(E.GROUP_ID_NOT_FOUND, "Dead")] * 2
    driver.join(member)
    (completing,) = classic_group_queries.describe(
        driver.coordinator.state, pb.DescribeGroupsRequest(group_ids=[GROUP])
    ).groups
    assert (completing.group_state, completing.protocol_data) == ("CompletingRebalance", "")
    assert completing.members[0].metadata == b""
