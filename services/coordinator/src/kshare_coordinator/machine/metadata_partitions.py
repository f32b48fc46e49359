"""The metadata partition of each row, and the metadata partitions that a command's coordinator must own.

A row of a group belongs to the group's partition, by Kafka's hash of the group id; every other row to CATALOG. A
command is decided where all partitions that it looks at or changes on purpose are owned. What else a decision changes
for groups that happen to be here, because topics changed, is for the coordinators of all other groups to do by a
command of their own (`reconciliation`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.records import Key, Record
from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import group_partition_of
from kshare_runtime.ports import Write

GROUPS_CACHED = 100_000
"""Group ids whose partition is remembered; the hash walks over every character."""


@lru_cache(maxsize=GROUPS_CACHED)
def partition_of_group(group_id: str) -> int:
    """0 to GROUP_PARTITIONS - 1."""
    return group_partition_of(group_id, GROUP_PARTITIONS)


GROUP_OF_KEY: dict[str, Callable[[Key], str] | None] = {
    "cluster": None,
    "topic": None,
    "group_config": None,
    "broker_config": None,
    "node": None,
    "state_partition_owner": None,
    "transaction": None,
    "share_group": lambda key: key.share_group,
    "share_group_member": lambda key: key.share_group_member.group_id,
    "share_group_partitions": lambda key: key.share_group_partitions,
    "share_group_target_assignment": lambda key: key.share_group_target_assignment.group_id,
    "committed_offset": lambda key: key.committed_offset.group_id,
    "pending_offset": lambda key: key.pending_offset.group_id,
    "classic_group": lambda key: key.classic_group,
    "consumer_group": lambda key: key.consumer_group,
    "consumer_group_member": lambda key: key.consumer_group_member.group_id,
    "consumer_group_assignment": lambda key: key.consumer_group_assignment,
    "consumer_group_target_assignment": lambda key: key.consumer_group_target_assignment.group_id,
    "consumer_group_current_assignment": lambda key: key.consumer_group_current_assignment.group_id,
    "consumer_group_regular_expression": lambda key: key.consumer_group_regular_expression.group_id,
}
"""By kind of key: the id of the group that the row is of; None for rows of the catalog."""


def partition_of_record(record: Record) -> int:
    return _partition_of_key(record.key)


def partition_of_row(row: Write) -> int:
    """Of a stored row; StorageFailure where its key is none."""
    try:
        key = Key.FromString(row.key)
    except Exception as error:
        raise StorageFailure(f"the key of a coordinator record cannot be read ({row.key.hex()}): {error}") from error
    return _partition_of_key(key)


def _partition_of_key(key: Key) -> int:
    kind = key.WhichOneof("kind")
    if kind is None:  # of a newer version
        return CATALOG
    group_of = GROUP_OF_KEY[kind]
    if group_of is not None:
        return partition_of_group(group_of(key))
    if kind == "cluster" and key.cluster.startswith(records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION):
        return int(key.cluster.removeprefix(records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION))
    return CATALOG


Partitions = tuple[int, ...]


def _catalog(command: Command[Any]) -> Partitions:
    return (CATALOG,)


def _whatever_is_here(command: Command[Any]) -> Partitions:
    return ()


def _group(command: Any) -> Partitions:
    """Of a command that names its group."""
    return (partition_of_group(command.group_id),)


def _requested_group(command: Any) -> Partitions:
    """Of a command whose request names its group."""
    return (partition_of_group(command.request.group_id),)


def _transactional_commit(command: commands.TxnOffsetCommit) -> Partitions:
    """The transaction is looked at here, too, unless the active coordinator has said what it says."""
    of_group = partition_of_group(command.request.group_id)
    return (CATALOG, of_group) if command.transaction_code is None else (of_group,)


HOMES: dict[type[Command[Any]], Callable[[Any], Partitions]] = {
    commands.Start: _catalog,
    commands.RegisterNode: _catalog,
    commands.ExpireNode: _catalog,
    commands.CompleteStatePartitionMove: _catalog,
    commands.DrainShareCoordinator: _catalog,
    commands.MovePartitions: _catalog,
    commands.AdvancePartitionMove: _catalog,
    commands.DrainLeader: _catalog,
    commands.GiveUpNode: _catalog,
    commands.CreateTopics: _catalog,
    commands.DeleteTopics: _catalog,
    commands.CreatePartitions: _catalog,
    commands.IncrementalAlterConfigs: _catalog,
    commands.AllocateProducerIds: _catalog,
    commands.InitTransactionalProducer: _catalog,
    commands.AddPartitionsToTransaction: _catalog,
    commands.AddOffsetsToTransaction: _catalog,
    commands.EndTransaction: _catalog,
    commands.CompleteTransaction: _catalog,
    commands.AbortTimedOutTransaction: _catalog,
    commands.ExpireTransactionalIds: _catalog,
    commands.NextCoordinatorEpoch: _catalog,
    commands.ShareGroupHeartbeat: _requested_group,
    commands.AlterShareGroupOffsets: _requested_group,
    commands.DeleteShareGroupOffsets: _requested_group,
    commands.ConsumerGroupHeartbeat: _requested_group,
    commands.JoinGroup: _requested_group,
    commands.SyncGroup: _requested_group,
    commands.ClassicHeartbeat: _requested_group,
    commands.LeaveGroup: _requested_group,
    commands.DeleteOffsets: _requested_group,
    commands.OffsetCommit: _requested_group,
    commands.TxnOffsetCommit: _transactional_commit,
    commands.ExpireMember: _group,
    commands.CompleteGroupState: _group,
    commands.ExpireRevocation: _group,
    commands.DeleteGroup: _group,
    commands.ClassicTimerExpired: lambda command: (partition_of_group(command.timer.group_id),),
    commands.CompleteTransactionOffsets: lambda command: tuple(map(partition_of_group, command.group_ids)),
    commands.ResumeClassicGroups: _whatever_is_here,
    commands.ReconcileTopics: _whatever_is_here,
    commands.ExpireOffsets: _whatever_is_here,
}
"""By type of command: which partitions must be owned where it is decided."""


def homes_of(command: Command[Any]) -> Partitions:
    return HOMES[type(command)](command)
