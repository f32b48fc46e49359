"""The share groups of a migration: what each still has to do at the old place, and its configs at the new one.

Offsets of the two places have nothing to do with each other, so no state is copied. A group at the new place starts at
share.auto.offset.reset, which must be earliest until then: with latest, Kafka's default, it would skip the records that
producers sent to the new place before its first consumer came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kshare.commands.groups.group_requests import ShareOffset, describe_share_group, list_groups, read_share_offsets
from kshare.commands.offsets import NamedPartition
from kshare.commands.resource_configs import GROUP, own_configs
from kshare.endpoint import Endpoint

RESET, EARLIEST, LATEST = "share.auto.offset.reset", "earliest", "latest"
SHARE = "share"


class Stage(StrEnum):
    """How far a group is."""

    DRAINING = "draining"
    """Records are left at the old place, or their number is unknown."""
    DRAINED = "drained"
    SWITCHED = "switched"
    """Drained, and it has started at the new place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldGroup:
    """A share group at the old place. `left` counts records not yet delivered to their end, None: unknown."""

    group_id: str
    members: int
    left: int | None
    partitions: frozenset[NamedPartition]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroup:
    """The share group of the same id at the new place; `started` are the partitions with a start offset there."""

    members: int
    started: frozenset[NamedPartition]
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group at both places; `new` is None while no kshare at the new place is known."""

    old: OldGroup
    new: NewGroup | None

    @property
    def stage(self) -> Stage:
        if self.old.left != 0:
            return Stage.DRAINING
        return Stage.SWITCHED if self.has_started else Stage.DRAINED

    @property
    def has_started(self) -> bool:
        """Whether the group has a start offset at the new place in each partition that it had at the old one."""
        return self.new is not None and bool(self.new.started) and self.old.partitions <= self.new.started

    @property
    def changes(self) -> dict[str, str]:
        """The configs to set at the new place. Those that are set there stay, except for a reset that loses records."""
        if self.new is None:
            return {}
        wanted = {name: value for name, value in self.old.configs.items() if name not in self.new.configs}
        if not self.has_started:
            wanted[RESET] = EARLIEST
        return {name: value for name, value in wanted.items() if self.new.configs.get(name) != value}

    @property
    def reset_to_give_back(self) -> str | None:
        """What the reset was at the old place, once the group has started with earliest and does not need it."""
        before = self.old.configs.get(RESET, LATEST)
        if self.new is None or not self.has_started or self.new.configs.get(RESET) != EARLIEST:
            return None
        return None if before == EARLIEST else before


def records_left(offsets: Iterable[ShareOffset], lengths: Mapping[NamedPartition, int], reset: str) -> int | None:
    """The records that a group still has to finish; None if one partition's number is unknown.

    A lag includes records that are acquired. Where the group has no start offset yet, it will start at `reset`: at the
    end of the log with latest, else at worst at its beginning.
    """
    left = 0
    for offset in offsets:
        if offset.lag >= 0:
            left += offset.lag
        elif offset.start_offset >= 0 or (length := lengths.get((offset.topic, offset.partition))) is None:
            return None
        elif reset != LATEST:
            left += length
    return left


def share_groups(cluster: Endpoint, chosen: Sequence[str]) -> list[str]:
    """The chosen groups, or all share groups, by id; CommandFailed."""
    if chosen:
        return sorted(set(chosen))
    return [group.group_id for group in list_groups(*cluster) if group.group_type == SHARE]


def read_old_groups(
    cluster: Endpoint, group_ids: Sequence[str], lengths: Mapping[NamedPartition, int]
) -> list[OldGroup]:
    """Where these groups stand at the old place; CommandFailed."""
    configs = own_configs(cluster, GROUP, group_ids)
    return [_old_group(cluster, group_id, configs[group_id], lengths) for group_id in group_ids]


def _old_group(
    cluster: Endpoint, group_id: str, configs: Mapping[str, str], lengths: Mapping[NamedPartition, int]
) -> OldGroup:
    members = describe_share_group(cluster.bootstrap, group_id, cluster.properties).members
    offsets = read_share_offsets(cluster.bootstrap, group_id, cluster.properties)
    return OldGroup(
        group_id=group_id,
        members=len(members),
        left=records_left(offsets, lengths, configs.get(RESET, LATEST)),
        partitions=frozenset((offset.topic, offset.partition) for offset in offsets),
        configs=configs,
    )


def read_new_groups(cluster: Endpoint, group_ids: Sequence[str]) -> dict[str, NewGroup]:
    """The same groups at the new place, where they may not exist yet; CommandFailed."""
    existing = set(share_groups(cluster, ()))
    configs = own_configs(cluster, GROUP, group_ids)
    return {group_id: _new_group(cluster, group_id, configs[group_id], group_id in existing) for group_id in group_ids}


def _new_group(cluster: Endpoint, group_id: str, configs: Mapping[str, str], exists: bool) -> NewGroup:
    if not exists:
        return NewGroup(members=0, started=frozenset(), configs=configs)
    offsets = read_share_offsets(cluster.bootstrap, group_id, cluster.properties)
    members = describe_share_group(cluster.bootstrap, group_id, cluster.properties).members
    started = frozenset((offset.topic, offset.partition) for offset in offsets if offset.start_offset >= 0)
    return NewGroup(members=len(members), started=started, configs=configs)
