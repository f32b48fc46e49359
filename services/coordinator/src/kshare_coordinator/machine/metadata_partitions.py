"""The metadata partition of each row.

A row of a group belongs to the group's partition, by Kafka's hash of the group id; every other row to CATALOG. The
commands say which partitions must be owned where they are decided (`commands.Command.homes`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from kshare_coordinator.machine import records
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
    "security": None,
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
    """The partition of a stored row; StorageFailure if its key cannot be decoded."""
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
