"""Alterations and deletions of share groups in the machine: every error, epochs, records, and restarts."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.groups import administration as group_administration
from kshare_coordinator.machine.groups.share import queries as group_queries
from kshare_coordinator.machine.groups.share.group import InitializingPartitions, PartitionMetadata, TopicPartitionSet
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver, assigned

AlteredTopic = pb.AlterShareGroupOffsetsRequest.Topic
AlteredPartition = pb.AlterShareGroupOffsetsRequest.Partition


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"kshare.max.groups": "2"})
    made.create_topic("t", 2)
    made.create_topic("u", 1)
    return made


def with_state(driver: CoordinatorDriver) -> int:
    """A group with initialized share-partitions of `t` that nobody is in; its epoch."""
    driver.heartbeat("m", 0, ["t"])
    driver.initialize_all()
    driver.heartbeat("m", -1)
    return driver.state.share_groups["group"].epoch


def epoch_of(driver: CoordinatorDriver, member_id: str) -> int:
    return driver.state.share_groups["group"].members[member_id].member_epoch


def topic_id(driver: CoordinatorDriver, name: str = "t") -> bytes:
    return driver.state.topic_ids[name]


def partitions(driver: CoordinatorDriver) -> PartitionMetadata:
    return driver.state.share_groups["group"].partitions


def alter(driver: CoordinatorDriver, group_id: str = "group", **topics: dict[int, int]) -> list[tuple[str, int, E]]:
    request = pb.AlterShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[
            AlteredTopic(
                topic_name=name,
                partitions=[AlteredPartition(partition=part, start_offset=at) for part, at in offsets.items()],
            )
            for name, offsets in topics.items()
        ],
    )
    answer = driver.run(commands.AlterShareGroupOffsets(request=request))
    return [(result.topic_name, result.partition, E(result.error_code)) for result in answer.results]


def delete_offsets(driver: CoordinatorDriver, *names: str, group_id: str = "group") -> list[tuple[str, E]]:
    request = pb.DeleteShareGroupOffsetsRequest(group_id=group_id, topic_names=names)
    answer = driver.run(commands.DeleteShareGroupOffsets(request=request))
    return [(result.topic_name, E(result.error_code)) for result in answer.results]


def delete_group(driver: CoordinatorDriver, group_id: str = "group") -> E:
    return driver.run(commands.DeleteGroup(group_id=group_id))


def complete(driver: CoordinatorDriver, **fields: int) -> None:
    """Each alteration that is pending meets `fields`: existing_state_epoch, or nothing."""
    initialized = tuple(
        commands.Initialized(topic_id=entry.topic_id, partition=part, state_epoch=entry.state_epoch, **fields)
        for entry in partitions(driver).initializing
        for part in entry.partitions
    )
    driver.run(commands.CompleteGroupState(group_id="group", initialized=initialized))


def refusal(driver: CoordinatorDriver, call: object) -> E:
    """The code that a call is refused with; nothing may be written."""
    rows = dict(driver.rows)
    with pytest.raises(KafkaError) as refused:
        call()  # type: ignore[operator]
    assert driver.rows == rows
    return refused.value.code


def test_requests_that_are_refused_as_a_whole(driver: CoordinatorDriver) -> None:
    assert refusal(driver, lambda: alter(driver, "", t={0: 1})) is E.INVALID_GROUP_ID
    assert refusal(driver, lambda: delete_offsets(driver, "t", group_id="")) is E.INVALID_GROUP_ID
    assert refusal(driver, lambda: delete_offsets(driver, "t")) is E.GROUP_ID_NOT_FOUND
    assert delete_group(driver) is E.GROUP_ID_NOT_FOUND
    driver.heartbeat("m", 0, ["t"])
    assert refusal(driver, lambda: alter(driver, t={0: 1})) is E.NON_EMPTY_GROUP
    assert refusal(driver, lambda: delete_offsets(driver, "t")) is E.NON_EMPTY_GROUP
    assert delete_group(driver) is E.NON_EMPTY_GROUP
    alter(driver, "second", t={0: 1})
    assert refusal(driver, lambda: alter(driver, "third", t={0: 1})) is E.GROUP_MAX_SIZE_REACHED


def test_the_id_of_a_consumer_group(driver: CoordinatorDriver) -> None:
    offset = pb.CommittedOffset(topic_id=topic_id(driver), topic_name="t", partition=0, committed_offset=1)
    request = pb.OffsetCommitRequest(group_id="plain", generation_id_or_member_epoch=-1, offsets=[offset])
    driver.run(commands.OffsetCommit(request=request))
    assert refusal(driver, lambda: alter(driver, "plain", t={0: 1})) is E.GROUP_ID_NOT_FOUND
    assert refusal(driver, lambda: delete_offsets(driver, "t", group_id="plain")) is E.GROUP_ID_NOT_FOUND
    assert refusal(driver, lambda: driver.heartbeat("m", 0, ["t"], "plain")) is E.GROUP_ID_NOT_FOUND


def test_altering_takes_a_new_epoch_and_leaves_nothing_assigned_with_the_old_state(driver: CoordinatorDriver) -> None:
    epoch = with_state(driver)
    assert alter(driver, t={0: 7, 1: 7}) == [("t", 0, E.NONE), ("t", 1, E.NONE)]
    entry = InitializingPartitions(
        topic_id=topic_id(driver),
        topic_name="t",
        partitions=(0, 1),
        state_epoch=epoch + 1,
        start_offset=7,
        is_alteration=True,
        known_partition_count=2,
    )
    assert partitions(driver) == PartitionMetadata(initializing=(entry,))
    assert driver.effects == [commands.GroupStatePending(group_id="group")]
    driver.restart()
    assert partitions(driver).initializing == (entry,), "an interrupted coordinator goes on with it"
    answer = driver.heartbeat("n", 0, ["t"])
    assert assigned(answer) == {}, "whoever joins waits until the state is replaced"
    assert answer.heartbeat_interval_ms == 200
    complete(driver)
    assert assigned(driver.heartbeat("n", answer.member_epoch)) == {"t": [0, 1]}
    assert partitions(driver).initialized[topic_id(driver)].partitions == (0, 1)


def test_altering_twice_supersedes(driver: CoordinatorDriver) -> None:
    epoch = with_state(driver)
    alter(driver, t={0: 7, 1: 7})
    late = tuple(
        commands.Initialized(topic_id=topic_id(driver), partition=part, state_epoch=epoch + 1) for part in (0, 1)
    )
    alter(driver, t={0: 3})
    driver.run(commands.CompleteGroupState(group_id="group", initialized=late))
    assert [(entry.partitions, entry.state_epoch, entry.start_offset) for entry in partitions(driver).initializing] == [
        ((0,), epoch + 2, 3)
    ]
    assert partitions(driver).initialized[topic_id(driver)].partitions == (1,)


def test_an_alteration_replaces_state_that_the_coordinator_does_not_know(driver: CoordinatorDriver) -> None:
    epoch = with_state(driver)
    alter(driver, t={0: 7})
    complete(driver, existing_state_epoch=epoch + 40)
    (entry,) = partitions(driver).initializing
    assert (entry.state_epoch, entry.start_offset) == (epoch + 41, 7)
    group = driver.state.share_groups["group"]
    assert (group.epoch, group.state_epoch) == (epoch, epoch + 41), "clients see none of it"
    complete(driver)
    assert partitions(driver).initializing == ()


def test_altering_a_group_that_does_not_exist_makes_it(driver: CoordinatorDriver) -> None:
    assert alter(driver, t={1: 5}) == [("t", 1, E.NONE)]
    complete(driver)
    group = driver.state.share_groups["group"]
    assert (group.state, group.epoch, group.assignment_epoch) == ("Empty", 1, 1)
    driver.heartbeat("m", 0, ["t"])
    (entry,) = partitions(driver).initializing
    assert (entry.partitions, entry.start_offset) == ((0,), -1), "not added later: share.auto.offset.reset decides"


def test_partitions_added_after_an_alteration_start_at_0(driver: CoordinatorDriver) -> None:
    alter(driver, t={1: 5})
    complete(driver)
    growth = pb.CreatePartitionsRequest.Topic(name="t", count=4, assigned_count=-1)
    driver.run(commands.CreatePartitions(request=pb.CreatePartitionsRequest(topics=[growth])))
    driver.heartbeat("m", 0, ["t"])
    assert {entry.partitions: entry.start_offset for entry in partitions(driver).initializing} == {(0,): -1, (2, 3): 0}


def test_each_partition_has_its_own_answer(driver: CoordinatorDriver) -> None:
    assert alter(driver, t={0: -7, 2: 1, -1: 1}, missing={0: 1}) == [
        ("t", 0, E.NONE),
        ("t", 2, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, E.INVALID_REQUEST),
        ("missing", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [(entry.partitions, entry.start_offset) for entry in partitions(driver).initializing] == [((0,), 0)]
    rows = dict(driver.rows)
    assert alter(driver, "second", missing={0: 1}) == [("missing", 0, E.UNKNOWN_TOPIC_OR_PARTITION)]
    assert driver.rows == rows, "where nothing is right no group is made"


def test_deleting_offsets_by_topic(driver: CoordinatorDriver) -> None:
    epoch = with_state(driver)
    assert delete_offsets(driver, "t", "u", "missing", "t") == [
        ("t", E.NONE),
        ("u", E.UNKNOWN_TOPIC_OR_PARTITION),
        ("missing", E.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    gone = {topic_id(driver): TopicPartitionSet(topic_name="t", partitions=(0, 1))}
    assert partitions(driver) == PartitionMetadata(deleting=gone)
    assert delete_offsets(driver, "t") == [("t", E.NONE)], "again, while it is not done"
    assert driver.state.share_groups["group"].epoch == epoch
    driver.restart()
    driver.initialize_all()
    assert partitions(driver) == PartitionMetadata()
    assert delete_offsets(driver, "t") == [("t", E.UNKNOWN_TOPIC_OR_PARTITION)]
    driver.heartbeat("m", 0, ["t"])
    (entry,) = partitions(driver).initializing
    assert (entry.partitions, entry.start_offset) == ((0, 1), -1), "the topic is new to the group"


def test_a_member_that_joins_while_offsets_are_deleted(driver: CoordinatorDriver) -> None:
    with_state(driver)
    delete_offsets(driver, "t")
    driver.heartbeat("m", 0, ["t"])
    assert partitions(driver).initializing[0].partitions == (0, 1)
    assert topic_id(driver) in partitions(driver).deleting, "the old state goes first"


def test_deleting_a_group_waits_for_its_state(driver: CoordinatorDriver) -> None:
    with_state(driver)
    alter(driver, u={0: 3})
    assert delete_group(driver) is E.NONE
    assert {name: topic.partitions for name, topic in partitions(driver).deleting.items()} == {
        topic_id(driver): (0, 1),
        topic_id(driver, "u"): (0,),
    }
    driver.restart()
    assert driver.state.share_groups["group"].state == "Dead"
    listed = group_administration.list_groups(driver.state, pb.ListGroupsRequest(states_filter=["dead"]))
    assert [group.group_id for group in listed.groups] == ["group"]
    loading = E.COORDINATOR_LOAD_IN_PROGRESS
    assert refusal(driver, lambda: driver.heartbeat("m", 0, ["t"])) is loading
    assert refusal(driver, lambda: alter(driver, t={0: 1})) is loading
    assert refusal(driver, lambda: delete_offsets(driver, "t")) is loading
    assert delete_group(driver) is E.NONE, "again, while it is not done"
    driver.initialize_all()
    assert driver.state.share_groups == {}
    kinds = {records.Key.FromString(key).WhichOneof("kind") for key in driver.rows}
    assert kinds == {"cluster", "topic"}, "nothing of the group is left"
    assert driver.load().state == driver.state


def test_a_group_without_state_is_deleted_at_once(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["nothing-of-this-name"])
    driver.heartbeat("m", -1)
    assert delete_group(driver) is E.NONE
    assert driver.state.share_groups == {}


def test_state_epochs_of_new_groups_are_above_those_of_deleted_ones(driver: CoordinatorDriver) -> None:
    """Late writes with a state epoch of the former group are fenced; the epochs that clients see begin as in Kafka."""
    with_state(driver)
    alter(driver, t={0: 1})
    highest = driver.state.share_groups["group"].state_epoch
    delete_group(driver)
    driver.initialize_all()
    driver.restart()
    assert driver.heartbeat("m", 0, ["t"]).member_epoch == 2
    (entry,) = partitions(driver).initializing
    assert entry.state_epoch > highest


def test_deleting_a_group_with_lower_state_epochs_changes_nothing_for_new_groups(driver: CoordinatorDriver) -> None:
    """Of all groups that were deleted in a group partition the highest state epoch counts, in whatever order."""
    partition = partition_of_group("group")
    other = next(name for name in map(str, range(1_000)) if partition_of_group(name) == partition)
    driver.heartbeat("n", 0, ["nothing-of-this-name"], other)
    driver.heartbeat("n", -1, None, other)
    with_state(driver)
    alter(driver, t={0: 1})
    assert driver.state.share_groups[other].state_epoch < driver.state.share_groups["group"].state_epoch
    delete_group(driver)
    driver.initialize_all()
    highest = driver.state.deleted_share_group_epoch(partition)
    assert delete_group(driver, other) is E.NONE
    assert driver.state.deleted_share_group_epoch(partition) == highest
    assert driver.load().state.deleted_share_group_epoch(partition) == highest


def test_the_state_of_a_deleted_topic_joins_what_is_being_deleted(driver: CoordinatorDriver) -> None:
    with_state(driver)
    gone = topic_id(driver)
    delete_offsets(driver, "t")
    alter(driver, t={1: 5})
    driver.delete("t")
    assert partitions(driver) == PartitionMetadata(
        deleting={gone: TopicPartitionSet(topic_name="t", partitions=(0, 1))}
    )


# The interval of assignments

SECOND = 1_000


def test_a_target_stands_for_the_interval(driver: CoordinatorDriver) -> None:
    """Whoever joins meanwhile has a share at once; nothing is taken from the others before the interval is over."""
    driver.now_ms = 1_000_000
    first = driver.heartbeat("a", 0, ["t"])
    driver.now_ms += 20
    driver.initialize_all()  # the first target had nothing to assign, so it does not count
    assert assigned(driver.heartbeat("a", first.member_epoch)) == {"t": [0, 1]}

    driver.now_ms += 300
    joined = driver.heartbeat("b", 0, ["t"])
    group = driver.state.share_groups["group"]
    assert (group.epoch, group.assignment_epoch, joined.member_epoch) == (4, 3, 3)
    assert assigned(joined) == {"t": [0]}, "a share beside the other's"
    assert assigned(driver.heartbeat("a", 3)) is None, "and a keeps what it has"

    driver.restart()
    driver.now_ms += 699
    assert assigned(driver.heartbeat("a", 3)) is None
    driver.now_ms += 1
    assert assigned(driver.heartbeat("a", 3)) == {"t": [1]}
    assert assigned(driver.heartbeat("b", 3)) is None, "b keeps what it was given"
    assert [epoch_of(driver, member) for member in "ab"] == [4, 4]


def test_a_heartbeat_after_the_interval_computes_the_target(driver: CoordinatorDriver) -> None:
    driver.now_ms = 1_000_000
    driver.heartbeat("a", 0, ["t"])
    driver.initialize_all()
    driver.heartbeat("a", 2)
    driver.heartbeat("b", 0, ["t"])
    driver.now_ms += SECOND
    answer = driver.heartbeat("a", 3)
    assert (answer.member_epoch, assigned(answer)) == (4, {"t": [1]})
    assert driver.state.share_groups["group"].assignment_epoch == 4


def test_a_target_that_changes_nothing_does_not_hold_up_the_next(driver: CoordinatorDriver) -> None:
    """A heartbeat notices a new topic, and the next one, 200 ms later, has its partitions."""
    driver.now_ms = 1_000_000
    driver.heartbeat("a", 0, ["t", "later"])
    driver.initialize_all()
    assert assigned(driver.heartbeat("a", 2)) == {"t": [0, 1]}
    driver.create_topic("later", 1)
    driver.now_ms += 5 * SECOND
    noticed = driver.heartbeat("a", 3)
    assert (noticed.member_epoch, assigned(noticed), noticed.heartbeat_interval_ms) == (4, None, 200)
    driver.initialize_all()
    driver.now_ms += 200
    answer = driver.heartbeat("a", 4)
    assert (answer.member_epoch, assigned(answer)) == (5, {"t": [0, 1], "later": [0]})


def test_a_changed_subscription_counts_at_once(driver: CoordinatorDriver) -> None:
    driver.now_ms = 1_000_000
    alter(driver, t={0: 0, 1: 0}, u={0: 0})
    complete(driver)
    assert assigned(driver.heartbeat("a", 0, ["t"])) == {"t": [0, 1]}
    answer = driver.heartbeat("a", 2, ["u"])
    assert assigned(answer) == {"u": [0]}
    assert not driver.state.share_groups["group"].is_settled


def test_a_group_without_members_is_not_assigned(driver: CoordinatorDriver) -> None:
    with_state(driver)
    group = driver.state.share_groups["group"]
    assert (group.epoch, group.assignment_epoch, dict(group.targets)) == (3, 2, {})
    described = group_queries.describe(driver.state, pb.ShareGroupDescribeRequest(group_ids=["group"])).groups[0]
    assert (described.group_epoch, described.assignment_epoch) == (3, 2)


@pytest.mark.parametrize(
    ("of_group", "of_brokers", "expected"), [(None, None, 1000), ("0", None, 0), (None, "3000", 3000), ("0", "3000", 0)]
)
def test_the_interval_is_configured(
    driver: CoordinatorDriver, of_group: str | None, of_brokers: str | None, expected: int
) -> None:
    driver.now_ms = 1_000_000
    for kind, name, config, value in (
        (32, "group", "share.assignment.interval.ms", of_group),
        (4, "", "group.share.assignment.interval.ms", of_brokers),
    ):
        if value is not None:
            change = pb.IncrementalAlterConfigsRequest.AlterableConfig(name=config, value=value)
            resource = pb.IncrementalAlterConfigsRequest.Resource(
                resource_type=kind, resource_name=name, configs=[change]
            )
            request = pb.IncrementalAlterConfigsRequest(resources=[resource])
            answer = driver.run(commands.IncrementalAlterConfigs(request=request))
            assert answer.results[0].error_code == 0, answer.results[0].error_message
    driver.heartbeat("a", 0, ["t"])
    driver.initialize_all()
    driver.heartbeat("a", 2)
    driver.now_ms += max(0, expected - 1)
    epoch = driver.heartbeat("b", 0, ["t"]).member_epoch
    assert epoch == (3 if expected else 4)
    driver.now_ms += 1
    assert driver.heartbeat("b", epoch).member_epoch == 4


def test_a_clock_that_was_set_back_holds_nothing_up(driver: CoordinatorDriver) -> None:
    driver.now_ms = 1_000_000
    driver.heartbeat("a", 0, ["t"])
    driver.initialize_all()
    driver.heartbeat("a", 2)
    driver.now_ms = 5
    driver.heartbeat("b", 0, ["t"])
    assert driver.state.share_groups["group"].is_settled
