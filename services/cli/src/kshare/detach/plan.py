"""What a share group's counterpart in the cluster gets, and what forbids it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kshare.commands.offsets import NamedPartition
from kshare.commands.state.group_state import SharePartitionState
from kshare_core.states import RecordState

NAMES_SHOWN = 10
"""Members and partitions that a text names; it counts the rest."""
FINISHED = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAtKshare:
    """The group as kshare has it. `members` are names with client ids."""

    group_id: str
    members: Sequence[str]
    states: Sequence[SharePartitionState]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAtCluster:
    """The group of the same id in the cluster; `kind` is empty while there is none.

    `known_configs` are the names of group configs that the cluster has, `configs` those set on this group.
    """

    kind: str
    members: Sequence[str]
    start_offsets: Mapping[NamedPartition, int]
    configs: Mapping[str, str]
    known_configs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """A start offset for the cluster's group; `before` is the one that it has, -1: none.

    `again` counts records above the start offset that are finished at kshare: the cluster will deliver them again.
    """

    topic: str
    partition: int
    start_offset: int
    before: int
    again: int

    @property
    def name(self) -> NamedPartition:
        return (self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachPlan:
    """A group's part. With a `problem` nothing of the group may be changed."""

    group_id: str
    partitions: Sequence[PartitionPlan]
    configs: Mapping[str, str]
    left_out: Mapping[str, str]
    problem: str | None

    @property
    def offsets_to_set(self) -> dict[NamedPartition, int]:
        return {each.name: each.start_offset for each in self.partitions if each.before != each.start_offset}

    @property
    def again(self) -> int:
        return sum(each.again for each in self.partitions)


def plan_group(
    ours: GroupAtKshare, theirs: GroupAtCluster, topic_ids: Mapping[str, bytes], *, may_go_back: bool
) -> DetachPlan:
    """`topic_ids` are the cluster's. `may_go_back` allows a start offset below the one that the cluster's group has."""
    partitions = [
        PartitionPlan(
            topic=state.topic,
            partition=state.key.partition,
            start_offset=first_unfinished(state),
            before=theirs.start_offsets.get((state.topic, state.key.partition), -1),
            again=finished_above_start(state),
        )
        for state in ours.states
        if state.problem is None and state.start_offset >= 0
    ]
    missing = {name: value for name, value in ours.configs.items() if name not in theirs.configs}
    return DetachPlan(
        group_id=ours.group_id,
        partitions=partitions,
        configs={name: value for name, value in missing.items() if name in theirs.known_configs},
        left_out={name: value for name, value in missing.items() if name not in theirs.known_configs},
        problem=_of_group(ours, theirs)
        or _of_states(ours, topic_ids)
        or (None if may_go_back else _of_offsets(ours.group_id, partitions)),
    )


def first_unfinished(state: SharePartitionState) -> int:
    """The start offset, moved over finished records.

    The stored one may lie before them: a leader moves it in memory, and stores it with the next write.
    """
    offset = state.start_offset
    for run in state.runs:
        if run.first_offset > offset or (run.last_offset >= offset and run.state not in FINISHED):
            break
        offset = max(offset, run.last_offset + 1)
    return offset


def finished_above_start(state: SharePartitionState) -> int:
    """Records above the first unfinished one that are acknowledged, archived or on their way to a dead-letter topic."""
    start = first_unfinished(state)
    return sum(
        run.last_offset - max(run.first_offset, start) + 1
        for run in state.runs
        if run.state not in (RecordState.AVAILABLE, RecordState.ACQUIRED) and run.last_offset >= start
    )


def _of_group(ours: GroupAtKshare, theirs: GroupAtCluster) -> str | None:
    group = f"group {ours.group_id}"
    if ours.members:
        return f"{group} has members at kshare, stop them first: {_some(ours.members)}"
    if theirs.kind not in ("", "share"):
        return f"{group} exists in the cluster as a group of type {theirs.kind}, where ids are shared by all types"
    if theirs.members:
        return f"{group} has members in the cluster already, stop them first: {_some(theirs.members)}"
    return None


def _of_states(ours: GroupAtKshare, topic_ids: Mapping[str, bytes]) -> str | None:
    group = f"group {ours.group_id}"
    for state in ours.states:
        if state.problem is not None:
            return f"the state of {group} in {state.topic}:{state.key.partition} cannot be read: {state.problem}"
        if topic_ids.get(state.topic) != state.key.topic_id:
            known = "another topic id" if state.topic in topic_ids else "no such topic"
            return f"{group} reads topic {state.topic}, and --to has {known}: it is not the cluster of this kshare"
    return None


def _of_offsets(group_id: str, partitions: Sequence[PartitionPlan]) -> str | None:
    ahead = [
        f"{each.topic}:{each.partition} (at {each.before}, kshare's at {each.start_offset})"
        for each in partitions
        if each.before > each.start_offset
    ]
    if not ahead:
        return None
    text = "a group of the cluster that has gone on stays as it is, unless --overwrite is given"
    return f"group {group_id} is further in the cluster than at kshare in {_some(ahead)}; {text}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"
