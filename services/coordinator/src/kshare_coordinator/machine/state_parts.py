"""Removal of one group partition's state, used when several coordinators share the work; and copies of the state.

State derived from the rows of one group belongs to the group's partition; everything else to the catalog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.offsets.table import OffsetTable

FIELDS_OF_GROUPS = (
    "share_groups",
    "classic_groups",
    "consumer_groups",
    "offsets",
    "deleted_share_group_epochs",
    "group_partitions",
)
"""Of CoordinatorState; the other fields are the catalog's."""


def copied(value: Any) -> Any:
    """A value that does not change with the original: mutable containers and dataclasses are copied.

    Records and frozen dataclasses are never changed, so they are shared.
    """
    kind = type(value)
    if kind is dict:
        return {key: copied(each) if _can_change(type(each)) else each for key, each in value.items()}
    if kind is deque:
        return deque((copied(each) for each in value), maxlen=value.maxlen)
    if _can_change(kind):
        return kind(**{field.name: copied(getattr(value, field.name)) for field in fields(value)})
    return value


def _can_change(kind: type) -> bool:
    if kind in (dict, deque):
        return True
    return is_dataclass(kind) and not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def forget_groups(state: Any, partition: int) -> None:
    """Takes out everything of the groups of one group partition; `state` is a CoordinatorState."""
    for groups in (state.share_groups, state.classic_groups, state.consumer_groups):
        for group_id in _of_partition(groups, partition):
            del groups[group_id]
    _forget_offsets(state.offsets, partition)
    state.deleted_share_group_epochs.pop(partition, None)


def _forget_offsets(offsets: OffsetTable, partition: int) -> None:
    for group_id in _of_partition(offsets.committed, partition):
        for key in list(offsets.committed[group_id]):
            offsets.put_committed(group_id, key, None)
    gone = dict.fromkeys(_of_partition(offsets.open_producers, partition))
    for producer_id, rows in list(offsets.pending.items()):
        for pending_key in [each for each in rows if each.group_id in gone]:
            offsets.put_pending(producer_id, pending_key, None)


def _of_partition(group_ids: Iterable[str], partition: int) -> list[str]:
    return [group_id for group_id in group_ids if partition_of_group(group_id) == partition]
