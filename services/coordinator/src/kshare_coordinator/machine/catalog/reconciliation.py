"""Reconciliation of groups with topic changes that their coordinator did not decide itself.

Where one coordinator has everything, CreateTopics, CreatePartitions and DeleteTopics change the groups in the same
decision. With several, the active one does so for its own groups only; each other coordinator brings its groups in line
when it sees the catalog change, and any coordinator does so for groups that it gains. The result is the same: a
group's state of deleted topics is marked for deletion, its subscribed but uninitialized partitions for initialization,
and offsets of deleted topics are removed. Topics are told by their ids, so one that was deleted and made again
under its name is another one.

The same holds for share-partitions whose state was given up with its share coordinator (`giving_up`).

Consumer groups of KIP-848 look at the topics by themselves, with each heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect, ReconcileTopics
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.draft import AssignmentTime, ShareGroupDraft
from kshare_coordinator.machine.groups.share.given_up_state import GivenUpState
from kshare_coordinator.machine.groups.share.group import ShareGroup
from kshare_coordinator.machine.groups.share.heartbeats import topic_lookup
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_topic
from kshare_runtime.machine import Decision


@decides(ReconcileTopics)
def decide_reconcile_topics(
    state: CoordinatorState, command: ReconcileTopics, settings: GroupSettings, now_ms: int
) -> Decision[Record, int, Effect]:
    """Nothing where all groups are in line; see the module's text."""
    found = list(_offsets_of_gone_topics(state, command.group_partition))
    effects: list[Effect] = []
    topics = topic_lookup(state)
    given_up = GivenUpState.of(state.state_partitions, state.state_partition_count)
    for group_id in sorted(each for each in state.share_groups if _is_meant(command.group_partition, each)):
        group = state.share_groups[group_id]
        gone = _gone_topics(state, group)
        missing = _names_with_missing_partitions(state, group)
        if not gone and not missing and not given_up.lost_to(group_id, group.partitions):
            continue
        draft = ShareGroupDraft(group, topics, AssignmentTime(now_ms, settings.assignment_interval_ms(state, group_id)))
        draft.change_topics(missing, gone)
        draft.begin_anew(given_up)
        found.extend(draft.records())
        effects.extend(draft.effects())
    return Decision(found, len(found), effects)


def _is_meant(group_partition: int | None, group_id: str) -> bool:
    return group_partition is None or partition_of_group(group_id) == group_partition


def _gone_topics(state: CoordinatorState, group: ShareGroup) -> list[bytes]:
    """Topics that the group has state of, or on its way, and that are no more."""
    known = {**group.partitions.initialized, **dict.fromkeys(entry.topic_id for entry in group.partitions.initializing)}
    return [topic_id for topic_id in known if topic_id not in state.topics]


def _names_with_missing_partitions(state: CoordinatorState, group: ShareGroup) -> list[str]:
    """Subscribed topics with partitions that are neither initialized nor initializing."""
    found = []
    names = {name: None for member in group.members.values() for name in member.subscribed_topic_names}
    for name in names:
        topic = state.topic_named(name)
        if topic is not None and len(group.partitions.known(topic.topic_id)) < len(topic.placements):
            found.append(name)
    return found


def _offsets_of_gone_topics(state: CoordinatorState, group_partition: int | None) -> Iterator[Record]:
    """Those in open transactions too."""
    for group_id, rows in state.offsets.committed.items():
        if _is_meant(group_partition, group_id):
            for key in rows:
                if visible_topic(state, key.topic_id) is None:
                    yield records.committed_offset(group_id, key.topic_id, key.partition, None)
    for producer_id, pending in state.offsets.pending.items():
        for group_id, partition in pending:
            if _is_meant(group_partition, group_id) and visible_topic(state, partition.topic_id) is None:
                yield records.pending_offset(producer_id, group_id, partition.topic_id, partition.partition, None)
