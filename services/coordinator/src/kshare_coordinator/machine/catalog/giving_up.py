"""Giving up a leader or a share coordinator that will not come back: its disk is lost, or its volume was removed.

In the embedded engine a node's rows are on its disk only, so the partitions of an expired node stay assigned to it. If
the node will never return, an administrator gives it up with `unsafe`, because this loses data:
- Topic partitions of a leader get a live leader, which begins them with an empty log.
- State partitions of a share coordinator get a live one, which begins them without state. The share-partitions in them
  start again at the first record of their logs: records may be delivered again, and none is skipped.
Without `unsafe` nothing changes, and the answer lists the data that would be lost.

A node with a lease cannot be given up. A node that comes back later is fenced: in the catalog its
partitions belong to other nodes, under higher epochs. A returned leader keeps its old rows on disk, because no record
says that they moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog import state_partitions
from kshare_coordinator.machine.catalog.partition_moves import PlacementDraft
from kshare_coordinator.machine.catalog.placement import draining_leaders
from kshare_coordinator.machine.commands import CatalogChanged, Effect, GiveUpNode
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.draft import AssignmentTime, ShareGroupDraft
from kshare_coordinator.machine.groups.share.given_up_state import GivenUpState, initialized_in
from kshare_coordinator.machine.groups.share.heartbeats import topic_lookup
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

NO_OFFSET = -1

Answer = pb.GiveUpNodeResponse
GiveUpDecision = Decision[Record, Answer, Effect]


@decides(GiveUpNode)
def decide_give_up_node(
    state: CoordinatorState, command: GiveUpNode, settings: GroupSettings, now_ms: int
) -> GiveUpDecision:
    """KafkaError INVALID_REQUEST where the node cannot be given up."""
    request = command.request
    answer = describe_loss(state, request)
    if not request.unsafe:
        return Decision((), answer)
    epoch = state.epoch_counter + 1
    found = [records.cluster_number(records.EPOCH_COUNTER, epoch)]
    effects: list[Effect] = [CatalogChanged(nodes=True)]
    if request.role == pb.ROLE_LEADER:
        found += _without_leader(state, request.node_id, epoch)
    else:
        of_catalog, of_groups, more_effects = _without_share_coordinator(
            state, request.node_id, epoch, settings, now_ms
        )
        found += [*of_catalog, *of_groups]
        effects += more_effects
    found.append(records.cluster_number(records.CATALOG_VERSION, state.version + 1))
    return Decision(found, answer, effects)


def describe_loss(state: CoordinatorState, request: pb.GiveUpNodeRequest) -> Answer:
    """What would be lost; KafkaError INVALID_REQUEST where the node cannot be given up."""
    if request.role == pb.ROLE_LEADER:
        has = state.partitions_placed.get(request.node_id, 0)
        _check(state, request, "leader", has, "partitions", "kshare partitions drain")
        return Answer(partitions=_lost_partitions(state, request.node_id))
    if request.role == pb.ROLE_SHARE_COORDINATOR:
        owned = [number for number, owner in sorted(state.state_partition_owners.items()) if owner == request.node_id]
        _check(state, request, "share coordinator", len(owned), "state partitions", "kshare state drain")
        return Answer(state_partitions=owned, states=_lost_states(state, owned))
    raise KafkaError(ErrorCode.INVALID_REQUEST, "Only leaders and share coordinators can be given up")


def _check(
    state: CoordinatorState, request: pb.GiveUpNodeRequest, role: str, has: int, what: str, instead: str
) -> None:
    live = state.live_nodes(request.role)
    problem = None
    if request.node_id in live:
        problem = f"it is live; {instead} {request.node_id} moves its data without a loss"
    elif not has:
        problem = f"it has no {what}"
    elif not live:
        problem = f"no live {role} can take over its {has} {what}; start one first"
    if problem:
        text = f"{role.capitalize()} {request.node_id} cannot be given up: {problem}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


# Leaders


def _lost_partitions(state: CoordinatorState, node_id: int) -> list[Answer.LostPartition]:
    committed: dict[TopicPartition, int] = {}
    for rows in state.offsets.committed.values():
        for key, value in rows.items():
            committed[key] = max(committed.get(key, NO_OFFSET), value.offset)
    return [
        Answer.LostPartition(
            topic_name=name,
            partition=placement.partition,
            highest_committed_offset=committed.get(TopicPartition(topic_id, placement.partition), NO_OFFSET),
        )
        for name, topic_id in sorted(state.topic_ids.items())
        for placement in state.topics[topic_id].placements
        if placement.leader_node_id == node_id
    ]


def _without_leader(state: CoordinatorState, node_id: int, epoch: int) -> list[Record]:
    draft = PlacementDraft(state, epoch)
    draining = draining_leaders(state)
    draft.replace_lost_leader(node_id, state.live_nodes(pb.ROLE_LEADER), draining)
    return [*_drain_is_over(f"{records.DRAINING_LEADER}{node_id}", state), *draft.records()]


def _drain_is_over(name: str, state: CoordinatorState) -> Iterable[Record]:
    return (records.cluster_gone(name),) if name in state.texts else ()


# Share coordinators


def _lost_states(state: CoordinatorState, owned: Iterable[int]) -> list[Answer.LostState]:
    """Of the groups that are here."""
    lost, count = set(owned), state.state_partition_count
    return [
        Answer.LostState(
            group_id=group_id,
            topic_name=group.partitions.initialized[topic_id].topic_name,
            partitions=partitions,
        )
        for group_id, group in sorted(state.share_groups.items())
        for topic_id, partitions in initialized_in(lost, count, group_id, group.partitions).items()
    ]


def _without_share_coordinator(
    state: CoordinatorState, node_id: int, epoch: int, settings: GroupSettings, now_ms: int
) -> tuple[list[Record], list[Record], list[Effect]]:
    """Records of the catalog and of groups; groups owned by this coordinator restart in the same decision."""
    live = state.live_nodes(pb.ROLE_SHARE_COORDINATOR)
    draining = [other for other in state_partitions.draining_nodes(state) if other != node_id]
    changed = state_partitions.owners_instead_of(state.state_partitions, node_id, live, draining, epoch)
    name = f"{records.DRAINING_SHARE_COORDINATOR}{node_id}"
    of_catalog = [*_drain_is_over(name, state), *map(records.state_partition_owner, changed)]
    owners = {**state.state_partitions, **{owner.state_partition: owner for owner in changed}}
    of_groups, effects = groups_begun_anew(state, owners, sorted(state.share_groups), settings, now_ms)
    return of_catalog, of_groups, effects


def groups_begun_anew(
    state: CoordinatorState,
    owners: Mapping[int, pb.StatePartitionOwner],
    group_ids: Sequence[str],
    settings: GroupSettings,
    now_ms: int,
) -> tuple[list[Record], list[Effect]]:
    """Brings groups in line with state partitions that were given up; nothing of those that lost no state."""
    given_up = GivenUpState.of(owners, state.state_partition_count)
    found: list[Record] = []
    effects: list[Effect] = []
    topics = topic_lookup(state)
    for group_id in group_ids:
        group = state.share_groups[group_id]
        if not given_up.lost_to(group_id, group.partitions):
            continue
        draft = ShareGroupDraft(group, topics, AssignmentTime(now_ms, settings.assignment_interval_ms(state, group_id)))
        draft.begin_anew(given_up)
        found.extend(draft.records())
        effects.extend(draft.effects())
    return found, effects
