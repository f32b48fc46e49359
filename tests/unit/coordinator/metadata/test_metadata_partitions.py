"""Where rows and commands belong: complete tables, Kafka's hash, and parts of the state that come and go as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.groups.classic.group import ClassicGroup, ClassicGroupInMemory
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, TimerKind
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_coordinator.machine.metadata_partitions import (
    GROUP_OF_KEY,
    partition_of_group,
    partition_of_record,
    partition_of_row,
)
from kshare_coordinator.machine.records import GroupsGained, GroupsLost, Key, Record
from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.ports import Write
from support.coordinator.driver import CoordinatorDriver


def test_every_kind_of_row_has_a_place() -> None:
    kinds = {field.name for field in Key.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert GROUP_OF_KEY.keys() == kinds


def test_every_command_has_a_home() -> None:
    bases = {Command, commands.CatalogCommand, commands.GroupCommand, commands.GroupRequest}
    found = {
        each
        for _, each in inspect.getmembers(commands, inspect.isclass)
        if issubclass(each, Command) and each not in bases
    }
    assert all(each.homes is not Command.homes for each in found)
    machine = CoordinatorDriver().machine
    assert machine._deciders.keys() == found


def test_every_row_of_a_group_is_in_the_groups_partition() -> None:
    member = Key.Member(group_id="payments", member_id="m")
    keys = [
        Key(share_group="payments"),
        Key(share_group_member=member),
        Key(share_group_partitions="payments"),
        Key(share_group_target_assignment=member),
        Key(committed_offset=Key.CommittedOffsetKey(group_id="payments", topic_id=b"t" * 16, partition=1)),
        Key(pending_offset=Key.PendingOffsetKey(producer_id=1, group_id="payments", topic_id=b"t" * 16, partition=1)),
        Key(classic_group="payments"),
        Key(consumer_group="payments"),
        Key(consumer_group_member=member),
        Key(consumer_group_assignment="payments"),
        Key(consumer_group_target_assignment=member),
        Key(consumer_group_current_assignment=member),
        Key(consumer_group_regular_expression=Key.RegularExpressionKey(group_id="payments", regular_expression="a.*")),
    ]
    assert {key.WhichOneof("kind") for key in keys} == {kind for kind, of_group in GROUP_OF_KEY.items() if of_group}
    assert {partition_of_record(Record(key=key)) for key in keys} == {partition_of_group("payments")}


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (Key(cluster=records.CATALOG_VERSION), CATALOG),
        (Key(cluster=records.DELETED_SHARE_GROUP_EPOCH), CATALOG),
        (Key(cluster=records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION + "17"), 17),
        (Key(topic=b"t" * 16), CATALOG),
        (Key(group_config="payments"), CATALOG),
        (Key(transaction="payments"), CATALOG),
        (Key(), CATALOG),
    ],
)
def test_other_rows_are_the_catalogs_but_for_what_is_kept_of_deleted_groups(key: Key, partition: int) -> None:
    assert partition_of_record(Record(key=key)) == partition
    assert partition_of_row(Write(records.FAMILY, key.SerializeToString(), b"")) == partition


def test_a_row_whose_key_is_damaged_is_a_storage_failure() -> None:
    with pytest.raises(StorageFailure, match="ff"):
        partition_of_row(Write(records.FAMILY, b"\xff\xff", b""))


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("g", 3), ("payments", 13), ("console-consumer-1", 24), ("polygenelubricants", 0), ("\U0001f600", 49)],
)
def test_the_partition_of_a_group_is_kafkas(group_id: str, partition: int) -> None:
    """Worked out with Java: Utils.abs(groupId.hashCode()) % 50; "polygenelubricants" hashes to Integer.MIN_VALUE."""
    units = group_id.encode("utf-16-be")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    assert partition_of_group(group_id) == (0 if signed == -(1 << 31) else abs(signed)) % GROUP_PARTITIONS == partition


@pytest.mark.parametrize(
    ("command", "homes"),
    [
        (commands.DeleteTopics(request=pb.DeleteTopicsRequest()), [CATALOG]),
        (commands.ShareGroupHeartbeat(request=pb.ShareGroupHeartbeatRequest(group_id="g")), ["g"]),
        (commands.ExpireMember(group_id="g", member_id="m"), ["g"]),
        (commands.ClassicTimerExpired(timer=ClassicTimer(TimerKind.SESSION, "g", "m")), ["g"]),
        (commands.TxnOffsetCommit(request=pb.TxnOffsetCommitRequest(group_id="g")), [CATALOG, "g"]),
        (
            commands.TxnOffsetCommit(request=pb.TxnOffsetCommitRequest(group_id="g"), transaction_code=ErrorCode.NONE),
            ["g"],
        ),
        (commands.CompleteTransactionOffsets(producer_id=1, committed=True, group_ids=("g", "h")), ["g", "h"]),
        (commands.ReconcileTopics(), []),
    ],
)
def test_homes_of_commands(command: Command[Any], homes: list[int | str]) -> None:
    assert command.homes() == tuple(partition_of_group(home) if isinstance(home, str) else home for home in homes)


def busy_driver() -> CoordinatorDriver:
    driver = CoordinatorDriver()
    driver.now_ms = 1_000
    driver.register(pb.ROLE_LEADER)
    driver.create_topic("t", 3)
    for group_id in ("one", "two", "three"):
        driver.heartbeat("m1", 0, ["t"], group_id)
        driver.initialize_all(group_id)
    for group_id in ("commits", "one-more"):
        request = pb.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1)
        request.offsets.add(topic_name="t", partition=1, committed_offset=5)
        driver.run(commands.OffsetCommit(request=request))
    heartbeat = pb.ConsumerGroupHeartbeatRequest(
        api_version=1,
        group_id="consumers",
        member_id="m",
        rebalance_timeout_ms=5,
        has_subscribed_topic_names=True,
        subscribed_topic_names=["t"],
        has_owned_partitions=True,
    )
    driver.run(commands.ConsumerGroupHeartbeat(request=heartbeat, new_member_id=""))
    driver.machine.replay(ClassicGroupInMemory(ClassicGroup(group_id="classic")))
    return driver


def changes_of_everything(driver: CoordinatorDriver) -> list[Callable[[], object]]:
    return [
        lambda: driver.create_topic("another", 2),
        lambda: driver.delete("t"),
        lambda: driver.heartbeat("m2", 0, ["t", "another"], "one"),
        lambda: driver.heartbeat("m1", -1, None, "two"),
        lambda: driver.register(pb.ROLE_SHARE_COORDINATOR, 3),
        lambda: driver.run(commands.ExpireMember(group_id="consumers", member_id="m")),
        lambda: driver.run(commands.DeleteGroup(group_id="commits")),
    ]


@pytest.mark.parametrize("index", range(7))
def test_a_copy_of_the_machine_does_not_change_with_it(index: int) -> None:
    driver, twin = busy_driver(), busy_driver()
    assert driver.state == twin.state
    copy = driver.machine.copy()
    assert copy.state == driver.state
    assert copy.state.topics_generation == driver.state.topics_generation
    changes_of_everything(driver)[index]()
    assert driver.state != twin.state, "the change does something"
    assert copy.state == twin.state, "the copy is as it was"
    assert [change.version for change in copy.state.changes] == [change.version for change in twin.state.changes]


def test_a_group_partition_that_is_lost_is_forgotten_whole_and_comes_back_whole() -> None:
    driver = busy_driver()
    whole = driver.load().state
    state = driver.load().state
    state.group_partitions = dict.fromkeys(range(GROUP_PARTITIONS))
    rows = [records.record_of(*row) for row in sorted(driver.rows.items())]
    of_groups = {partition_of_record(row) for row in rows} - {CATALOG}
    assert len(of_groups) >= 4
    for partition in sorted(of_groups):
        state.replay(GroupsLost(partition))
        assert not state.has_group_partition(partition)
        kept = [row for row in rows if partition_of_record(row) != partition]
        assert state == CoordinatorMachine(driver.configs, kept, broker_id=1).state
        state.replay(GroupsGained(partition, [row for row in rows if partition_of_record(row) == partition]))
        assert state.has_group_partition(partition)
        assert state == whole


def test_the_old_number_of_deleted_groups_counts_for_all_and_new_ones_for_their_partition() -> None:
    driver = CoordinatorDriver()
    driver.machine.replay(records.cluster_number(records.DELETED_SHARE_GROUP_EPOCH, 7))
    driver.create_topic("t")
    assert driver.heartbeat("m", 0, ["t"], "g").member_epoch == 2
    assert driver.state.share_groups["g"].state_epoch == 9
    driver.heartbeat("m", -1, None, "g")
    driver.initialize_all("g")
    driver.run(commands.DeleteGroup(group_id="g"))
    driver.initialize_all("g")
    assert "g" not in driver.state.share_groups
    highest = driver.state.deleted_share_group_epoch(partition_of_group("g"))
    assert highest > 7
    assert driver.state.deleted_share_group_epochs == {partition_of_group("g"): highest}
    other = next(name for name in map(str, range(100)) if partition_of_group(name) != partition_of_group("g"))
    for group_id, state_epoch in ((other, 9), ("g", highest + 2)):  # another partition's number is not raised
        assert driver.heartbeat("m", 0, ["t"], group_id).member_epoch == 2
        assert driver.state.share_groups[group_id].state_epoch == state_epoch
    assert driver.load().state.deleted_share_group_epochs == driver.state.deleted_share_group_epochs
