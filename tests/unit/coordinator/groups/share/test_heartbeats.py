"""Share groups in the machine: every error of a heartbeat, epochs, the creation flow, topics that come and go."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.groups import administration as group_administration
from kshare_coordinator.machine.groups.share import queries as group_queries
from kshare_coordinator.machine.groups.share.group import InitializingPartitions
from kshare_coordinator.machine.groups.share.heartbeats import INITIALIZATION_HEARTBEAT_INTERVAL_MS
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver, assigned

Answer = pb.ShareGroupHeartbeatResponse


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"group.share.max.size": "3", "kshare.max.groups": "2"})
    made.create_topic("t", 2)
    return made


def joined(driver: CoordinatorDriver, *member_ids: str, names: tuple[str, ...] = ("t",)) -> None:
    """Members that have joined and got their assignment."""
    for member_id in member_ids:
        driver.heartbeat(member_id, 0, names)
    driver.initialize_all()
    for member_id in member_ids:
        driver.heartbeat(member_id, epoch_of(driver, member_id))


def epoch_of(driver: CoordinatorDriver, member_id: str) -> int:
    return driver.state.share_groups["group"].members[member_id].member_epoch


@pytest.mark.parametrize(
    ("member_id", "member_epoch", "names", "group_id", "code"),
    [
        ("", 0, ["t"], "group", E.INVALID_REQUEST),
        ("m" * 37, 0, ["t"], "group", E.INVALID_REQUEST),
        ("m", 0, ["t"], "", E.INVALID_REQUEST),
        (" ", 0, ["t"], "group", E.INVALID_REQUEST),
        ("m", 0, ["t"], " ", E.INVALID_REQUEST),
        ("m", 0, None, "group", E.INVALID_REQUEST),
        ("m", 0, [], "group", E.INVALID_REQUEST),
        ("m", -2, None, "group", E.INVALID_REQUEST),
        ("m", 0, [f"t{n}" for n in range(1_001)], "group", E.INVALID_REQUEST),
        ("m", 1, None, "no-such-group", E.GROUP_ID_NOT_FOUND),
        ("m", -1, None, "no-such-group", E.GROUP_ID_NOT_FOUND),
        ("stranger", 1, None, "group", E.UNKNOWN_MEMBER_ID),
        ("stranger", -1, None, "group", E.UNKNOWN_MEMBER_ID),
        ("a", 99, None, "group", E.FENCED_MEMBER_EPOCH),
        ("a", 1, None, "group", E.FENCED_MEMBER_EPOCH),
    ],
)
def test_refused_heartbeats(
    driver: CoordinatorDriver, member_id: str, member_epoch: int, names: list[str] | None, group_id: str, code: E
) -> None:
    joined(driver, "a", "b")
    driver.heartbeat("a", epoch_of(driver, "a"), ["t", "u"])
    assert driver.state.share_groups["group"].members["a"].previous_member_epoch > 1
    rows = dict(driver.rows)
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat(member_id, member_epoch, names, group_id)
    assert refusal.value.code is code
    assert driver.rows == rows


def test_limits_of_members_and_groups(driver: CoordinatorDriver) -> None:
    joined(driver, "a", "b", "c")
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat("d", 0, ["t"])
    assert refusal.value.code is E.GROUP_MAX_SIZE_REACHED
    driver.heartbeat("a", 0, ["t"])  # a member may join again
    driver.heartbeat("d", 0, ["t"], "second")
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat("d", 0, ["t"], "third")
    assert refusal.value.code is E.GROUP_MAX_SIZE_REACHED


def test_how_many_topics_a_member_may_subscribe_to_is_configured() -> None:
    driver = CoordinatorDriver({"kshare.share.max.subscribed.topics": "2"})
    assert driver.heartbeat("m", 0, ["t", "u"]).member_epoch == 2
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat("m", 2, ["t", "u", "v"])
    assert refusal.value.code is E.INVALID_REQUEST and "kshare.share.max.subscribed.topics" in refusal.value.message


def test_creation_flow(driver: CoordinatorDriver) -> None:
    """KIP-932: empty assignment first, -1 and the group epoch sent, then the assignment at the next heartbeat."""
    topic_id = driver.state.topic_ids["t"]
    first = driver.heartbeat("m", 0, ["t"])
    assert (first.member_epoch, assigned(first)) == (2, {})
    assert first.heartbeat_interval_ms == INITIALIZATION_HEARTBEAT_INTERVAL_MS
    assert commands.GroupStatePending(group_id="group") in driver.effects
    assert driver.state.share_groups["group"].partitions.initializing == (
        InitializingPartitions(
            topic_id=topic_id,
            topic_name="t",
            partitions=(0, 1),
            state_epoch=2,
            start_offset=-1,
            known_partition_count=2,
        ),
    )
    waiting = driver.heartbeat("m", 2)
    assert (waiting.member_epoch, assigned(waiting)) == (2, None)
    assert waiting.heartbeat_interval_ms == INITIALIZATION_HEARTBEAT_INTERVAL_MS
    assert driver.record_count == 0
    driver.initialize_all()
    ready = driver.heartbeat("m", 2)
    assert (ready.member_epoch, assigned(ready), ready.heartbeat_interval_ms) == (3, {"t": [0, 1]}, 5000)
    assert driver.load().state == driver.state


def test_only_members_that_wait_for_an_initialization_heartbeat_sooner(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    driver.create_topic("u", 1)
    assert driver.heartbeat("b", 0, ["u"]).heartbeat_interval_ms == INITIALIZATION_HEARTBEAT_INTERVAL_MS
    assert driver.state.share_groups["group"].partitions.initializing
    assert driver.heartbeat("a", epoch_of(driver, "a")).heartbeat_interval_ms == 5000


def test_only_initialized_partitions_are_assigned(driver: CoordinatorDriver) -> None:
    topic_id = driver.state.topic_ids["t"]
    driver.heartbeat("m", 0, ["t"])
    one = commands.Initialized(topic_id=topic_id, partition=1, state_epoch=2)
    driver.run(commands.CompleteGroupState(group_id="group", initialized=(one,)))
    assert driver.effects == [commands.GroupStatePending(group_id="group")]
    answer = driver.heartbeat("m", 2)
    assert (assigned(answer), answer.heartbeat_interval_ms) == ({"t": [1]}, INITIALIZATION_HEARTBEAT_INTERVAL_MS)
    driver.initialize_all()
    assert assigned(driver.heartbeat("m", 3)) == {"t": [0, 1]}


def test_concurrent_joins_initialize_once(driver: CoordinatorDriver) -> None:
    """KAFKA-19204."""
    driver.heartbeat("a", 0, ["t"])
    before = driver.state.share_groups["group"].partitions
    driver.heartbeat("b", 0, ["t"])
    assert driver.state.share_groups["group"].partitions == before
    stale = commands.Initialized(topic_id=driver.state.topic_ids["t"], partition=0, state_epoch=7)
    driver.run(commands.CompleteGroupState(group_id="group", initialized=(stale,)))
    assert driver.record_count == 0, "that is not the epoch the group sent"
    driver.initialize_all()
    driver.initialize_all()
    assert driver.record_count == 0


def test_a_member_of_an_initialized_group_is_served_at_once(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    answer = driver.heartbeat("b", 0, ["t"])
    assert answer.heartbeat_interval_ms == 5000
    other = driver.heartbeat("a", epoch_of(driver, "a"))
    assert [assigned(answer), assigned(other)] in ([{"t": [0]}, {"t": [1]}], [{"t": [1]}, {"t": [0]}])


def test_members_share_partitions_when_they_are_more(driver: CoordinatorDriver) -> None:
    joined(driver, "a", "b", "c")
    held = [driver.state.share_groups["group"].members[name].assignment for name in "abc"]
    assert all(held)
    assert {partition for assignment in held for partitions in assignment.values() for partition in partitions} == {
        0,
        1,
    }


def test_a_quiet_heartbeat_writes_nothing_and_renews_the_session(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    epoch = epoch_of(driver, "a")
    answer = driver.heartbeat("a", epoch)
    assert (answer.member_epoch, assigned(answer)) == (epoch, None)
    assert driver.record_count == 0
    assert driver.effects == [commands.SessionRenewed(group_id="group", member_id="a", session_timeout_ms=45000)]


def test_the_epoch_before_is_accepted_because_an_answer_was_lost(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    epoch = epoch_of(driver, "a")
    previous = driver.state.share_groups["group"].members["a"].previous_member_epoch
    assert previous < epoch
    again = driver.heartbeat("a", previous)
    assert (again.member_epoch, assigned(again)) == (epoch, {"t": [0, 1]})
    assert driver.record_count == 0


def test_rejoining_and_full_requests_get_the_assignment(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    epoch = epoch_of(driver, "a")
    assert assigned(driver.heartbeat("a", 0, ["t"])) == {"t": [0, 1]}
    assert assigned(driver.heartbeat("a", epoch, ["t"])) == {"t": [0, 1]}
    assert driver.record_count == 0


def test_leaving_and_expiry_end_a_membership(driver: CoordinatorDriver) -> None:
    joined(driver, "a", "b")
    before = driver.state.share_groups["group"].epoch
    answer = driver.heartbeat("a", -1)
    assert (answer.member_epoch, answer.error_code) == (-1, 0)
    assert driver.effects == [commands.SessionEnded(group_id="group", member_id="a")]
    assert driver.state.share_groups["group"].epoch == before + 1
    assert assigned(driver.heartbeat("b", epoch_of(driver, "b"))) == {"t": [0, 1]}
    driver.run(commands.ExpireMember(group_id="group", member_id="b"))
    group = driver.state.share_groups["group"]
    assert (group.state, dict(group.members), dict(group.targets)) == ("Empty", {}, {})
    driver.run(commands.ExpireMember(group_id="group", member_id="b"))
    assert driver.record_count == 0
    assert driver.load().state == driver.state
    assert assigned(driver.heartbeat("c", 0, ["t"])) == {"t": [0, 1]}, "the state is still there"


def test_a_subscription_may_change_and_be_empty(driver: CoordinatorDriver) -> None:
    driver.create_topic("u", 1)
    joined(driver, "a")
    epoch = epoch_of(driver, "a")
    answer = driver.heartbeat("a", epoch, ["u", "t", "u"])
    assert (answer.member_epoch, assigned(answer)) == (epoch + 1, {"t": [0, 1]})
    driver.initialize_all()
    assert assigned(driver.heartbeat("a", epoch + 1)) == {"t": [0, 1], "u": [0]}
    assert assigned(driver.heartbeat("a", epoch + 2, [])) == {}


def test_a_topic_that_appears_later_is_initialized_then(driver: CoordinatorDriver) -> None:
    first = driver.heartbeat("m", 0, ["later"])
    assert (assigned(first), first.heartbeat_interval_ms) == ({}, 5000)
    driver.create_topic("unrelated", 1)
    assert not driver.state.share_groups["group"].partitions.is_pending
    assert driver.state.share_groups["group"].is_settled
    topic_id = driver.create_topic("later", 1)
    assert (driver.state.share_groups["group"].epoch, first.member_epoch) == (2, 2), (
        "a heartbeat raises it, as in Kafka"
    )
    driver.restart()
    noticed = driver.heartbeat("m", 2)
    assert (noticed.member_epoch, assigned(noticed)) == (3, None)
    assert noticed.heartbeat_interval_ms == INITIALIZATION_HEARTBEAT_INTERVAL_MS
    assert commands.GroupStatePending(group_id="group") in driver.effects
    entry = driver.state.share_groups["group"].partitions.initializing[-1]
    assert (entry.topic_id, entry.state_epoch, entry.start_offset) == (topic_id, 3, -1)
    driver.initialize_all()
    assert assigned(driver.heartbeat("m", 3)) == {"later": [0]}


def test_partitions_added_to_a_known_topic_start_at_0(driver: CoordinatorDriver) -> None:
    """KAFKA-20742."""
    joined(driver, "a")
    grow(driver, "t")
    driver.heartbeat("b", 0, ["t"])
    entry = driver.state.share_groups["group"].partitions.initializing[-1]
    assert (entry.partitions, entry.start_offset) == ((2,), 0)
    assert driver.load().state == driver.state


def test_partitions_added_while_the_topic_is_initializing_start_at_0(driver: CoordinatorDriver) -> None:
    driver.heartbeat("a", 0, ["t"])
    grow(driver, "t")
    driver.heartbeat("b", 0, ["t"])
    entries = driver.state.share_groups["group"].partitions.initializing
    assert [(entry.partitions, entry.start_offset) for entry in entries] == [((0, 1), -1), ((2,), 0)]


def grow(driver: CoordinatorDriver, name: str) -> None:
    """One more partition, as a record of CreatePartitions will say it."""
    topic = driver.state.topics[driver.state.topic_ids[name]]
    grown = type(topic)()
    grown.CopyFrom(topic)
    grown.placements.add(partition=len(topic.placements), leader_node_id=-1)
    record = records.topic(grown)
    driver.machine.replay(record)
    write = records.write_of(record)
    assert write.value is not None
    driver.rows[write.key] = write.value


def test_a_deleted_topic_loses_its_state_in_two_stages(driver: CoordinatorDriver) -> None:
    other = driver.create_topic("u", 1)
    joined(driver, "a", names=("t", "u"))
    topic_id, before = driver.state.topic_ids["t"], epoch_of(driver, "a")
    driver.delete("t")
    assert commands.GroupStatePending(group_id="group") in driver.effects
    partitions = driver.state.share_groups["group"].partitions
    assert partitions.deleting[topic_id].partitions == (0, 1)
    assert list(partitions.initialized) == [other]
    answer = driver.heartbeat("a", before)
    assert (answer.member_epoch, assigned(answer)) == (before + 1, {"u": [0]})
    driver.restart()
    driver.run(commands.CompleteGroupState(group_id="group", deleted=((topic_id, 1),)))
    assert driver.effects == [commands.GroupStatePending(group_id="group")]
    driver.run(commands.CompleteGroupState(group_id="group", deleted=((topic_id, 0),)))
    assert not driver.state.share_groups["group"].partitions.is_pending
    assert epoch_of(driver, "a") == driver.state.share_groups["group"].epoch == before + 1
    assert driver.load().state == driver.state


def test_a_topic_deleted_while_initializing_and_made_again_is_a_new_topic(driver: CoordinatorDriver) -> None:
    old = driver.state.topic_ids["t"]
    driver.heartbeat("a", 0, ["t"])
    driver.delete("t")
    new = driver.create_topic("t", 1)
    driver.heartbeat("a", 2)
    partitions = driver.state.share_groups["group"].partitions
    assert list(partitions.deleting) == [old]
    assert [(entry.topic_id, entry.start_offset) for entry in partitions.initializing] == [(new, -1)]
    late = commands.Initialized(topic_id=old, partition=0, state_epoch=1)
    driver.run(commands.CompleteGroupState(group_id="group", initialized=(late,)))
    assert driver.record_count == 0


def test_newer_state_is_taken_over(driver: CoordinatorDriver) -> None:
    """FENCED_STATE_EPOCH: the state stays, and state epochs go above it; the epoch that clients see goes on as ever."""
    driver.heartbeat("a", 0, ["t"])
    topic_id = driver.state.topic_ids["t"]
    found = tuple(
        commands.Initialized(topic_id=topic_id, partition=partition, state_epoch=2, existing_state_epoch=40 + partition)
        for partition in (0, 1)
    )
    driver.run(commands.CompleteGroupState(group_id="group", initialized=found))
    answer = driver.heartbeat("a", 2)
    assert (answer.member_epoch, assigned(answer)) == (3, {"t": [0, 1]})
    assert driver.state.share_groups["group"].state_epoch == 42


def test_members_survive_a_restart_without_joining_again(driver: CoordinatorDriver) -> None:
    joined(driver, "a", "b")
    before = driver.state.share_groups["group"]
    driver.restart()
    assert driver.state.share_groups["group"] == before
    for name in "ab":
        answer = driver.heartbeat(name, epoch_of(driver, name))
        assert (answer.member_epoch, assigned(answer)) == (before.epoch, None)
    assert driver.record_count == 0


def test_describe(driver: CoordinatorDriver) -> None:
    joined(driver, "a")
    request = pb.ShareGroupDescribeRequest(group_ids=["group", "missing", ""])
    group, missing, empty = group_queries.describe(driver.state, request).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 3, 3)
    assert group.assignor_name == "simple"
    (member,) = group.members
    assert (member.member_id, member.member_epoch, list(member.subscribed_topic_names)) == ("a", 3, ["t"])
    assert [(topic.topic_name, list(topic.partitions)) for topic in member.assignment] == [("t", [0, 1])]
    assert (E(missing.error_code), missing.group_state) == (E.GROUP_ID_NOT_FOUND, "")
    assert E(empty.error_code) is E.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], ["group", "second"]),
        (["STABLE"], [], ["second"]),
        (["empty"], ["Share"], ["group"]),
        (["Empty", "stable"], ["share", "classic"], ["group", "second"]),
        (["Dead"], [], []),
        ([], ["consumer"], []),
    ],
)
def test_list_groups(driver: CoordinatorDriver, states: list[str], types: list[str], found: list[str]) -> None:
    driver.heartbeat("b", 0, ["t"], "second")
    joined(driver, "a")
    driver.heartbeat("a", -1)
    request = pb.ListGroupsRequest(states_filter=states, types_filter=types)
    answer = group_administration.list_groups(driver.state, request)
    assert [group.group_id for group in answer.groups] == found
    assert {(group.group_type, group.protocol_type) for group in answer.groups} <= {("share", "share")}
