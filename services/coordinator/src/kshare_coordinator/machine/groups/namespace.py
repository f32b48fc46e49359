"""One namespace of group ids: which type of group an id belongs to, for every API that takes a group id.

An id has one type at a time (Group.GroupType of Kafka):
- SHARE: `state.share_groups`.
- CONSUMER: `state.consumer_groups` (KIP-848).
- CLASSIC: `state.classic_groups`, and ids that have nothing but committed offsets ("simple" groups): a client that
  commits by hand makes one, and the first member that joins makes it a group of the member's type.

A consumer group of either protocol may have committed offsets; they stay when an empty group changes its protocol. A
share group has none.
"""

from __future__ import annotations

from enum import StrEnum

from kshare_coordinator.machine.groups.classic.group import ClassicGroup
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError


class GroupType(StrEnum):
    """As ListGroups spells them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


def group_type(state: CoordinatorState, group_id: str) -> GroupType | None:
    """None: there is no such group."""
    if group_id in state.share_groups:
        return GroupType.SHARE
    if group_id in state.consumer_groups:
        return GroupType.CONSUMER
    if group_id in state.classic_groups or state.offsets.has_group(group_id):
        return GroupType.CLASSIC
    return None


def is_simple(state: CoordinatorState, group_id: str) -> bool:
    """Whether the id has committed offsets and nothing else."""
    return state.offsets.has_group(group_id) and not _has_members_table(state, group_id)


def _has_members_table(state: CoordinatorState, group_id: str) -> bool:
    return group_id in state.classic_groups or group_id in state.consumer_groups or group_id in state.share_groups


def classic_group(state: CoordinatorState, group_id: str) -> ClassicGroup | None:
    """A simple group looks like a classic one that is empty and never had a member."""
    return ClassicGroup(group_id=group_id) if is_simple(state, group_id) else state.classic_groups.get(group_id)


def group_ids(state: CoordinatorState) -> list[str]:
    """All of them, in order, each once."""
    return sorted(
        {**state.share_groups, **state.consumer_groups, **state.classic_groups}.keys() | state.offsets.group_ids()
    )


def group_count(state: CoordinatorState) -> int:
    """Groups of all types; looks at every group that is in a table."""
    committed, in_transactions = state.offsets.committed, state.offsets.open_producers
    tables = (state.classic_groups, state.consumer_groups, state.share_groups)
    in_both = sum(sum(map(committed.__contains__, table)) for table in tables)
    in_both += sum(group_id not in committed and _has_members_table(state, group_id) for group_id in in_transactions)
    return _table_count(state) + state.offsets.group_count() - in_both


def is_full(state: CoordinatorState, max_groups: int) -> bool:
    """Whether there are `max_groups` groups (kshare.max.groups); counts exactly only where bounds do not tell.

    Most groups are in a table and have offsets, so the exact count begins at half the limit.
    """
    table_count, offset_count = _table_count(state), state.offsets.group_count()
    if table_count + offset_count < max_groups:
        return False
    if max(table_count, offset_count) >= max_groups:
        return True
    return group_count(state) >= max_groups


def _table_count(state: CoordinatorState) -> int:
    return len(state.share_groups) + len(state.consumer_groups) + len(state.classic_groups)


def check_room(state: CoordinatorState, max_groups: int) -> None:
    """KafkaError GROUP_MAX_SIZE_REACHED where no further group may be made."""
    if is_full(state, max_groups):
        text = f"There are {group_count(state)} groups; kshare.max.groups allows {max_groups}"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
