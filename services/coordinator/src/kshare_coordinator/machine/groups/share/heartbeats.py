"""Decisions for share groups: heartbeats, member expiry, assignment, and the effects of topic changes.

Rules of ShareGroupHeartbeat (KIP-932; GroupCoordinatorService and GroupMetadataManager of Kafka 4.3.1):
- A member chooses its id, a uuid. Epoch 0 joins or rejoins; -1 leaves. Any other epoch must be the member's current
  or previous one (its newest response may have been lost); otherwise the answer is FENCED_MEMBER_EPOCH.
- The first heartbeat of a group creates it and records the partitions to initialize; the response has an empty
  assignment (creation flow, step a). The shell then calls the share coordinators (b, c) and passes their answers to
  the machine, which makes the partitions assignable (d).
- While a subscribed topic is being initialized, the member gets a short heartbeat interval, so that its first records
  are not delayed.
- The response has the assignment when the member joins, sends its subscription, or when the assignment changed.
  Unlike in Kafka it also has it when the member sends its previous epoch, since the earlier response may be lost.
- A member that joins, changes its subscription or leaves raises the group epoch. Subscribed topics that were created,
  grown or deleted, and newly initialized partitions, raise it at the next heartbeat, which also computes the target
  assignment. Clients thus see the same sequence of epochs as with Kafka 4.3.1.
- A group that is being deleted rejects members with COORDINATOR_LOAD_IN_PROGRESS, which clients retry.
"""

from __future__ import annotations

from dataclasses import replace

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import (
    CompleteGroupState,
    Effect,
    ExpireMember,
    SessionEnded,
    SessionRenewed,
    ShareGroupHeartbeat,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.namespace import GroupType, check_room, group_type
from kshare_coordinator.machine.groups.share.draft import AssignmentTime, ShareGroupDraft, TopicLookup
from kshare_coordinator.machine.groups.share.given_up_state import GivenUpState
from kshare_coordinator.machine.groups.share.group import Member, ShareGroup
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.topic_names import NAME_LENGTH_LIMIT
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
INITIAL_EPOCH = 1
"""Epoch of a new group without members, as in Kafka 4.3.1; its first member raises it to 2."""
INITIALIZATION_HEARTBEAT_INTERVAL_MS = 200
"""Heartbeat interval of members while one of their topics is being initialized."""
MEMBER_ID_LENGTH_LIMIT = 36
"""The length of a uuid, as in Kafka (KafkaApis.isMemberIdValid)."""

HeartbeatDecision = Decision[Record, pb.ShareGroupHeartbeatResponse, Effect]
QuietDecision = Decision[Record, None, Effect]


@decides(ShareGroupHeartbeat)
def decide_heartbeat(
    state: CoordinatorState, command: ShareGroupHeartbeat, settings: GroupSettings, now_ms: int
) -> HeartbeatDecision:
    """Decides a heartbeat that joins, stays or leaves; KafkaError if the request is rejected."""
    request = command.request
    _check_request(request, settings.max_subscribed_topics)
    if request.member_epoch == LEAVE_EPOCH:
        return _leave(state, request, settings, now_ms)
    group = _group_for(state, request, settings)
    old = group.members.get(request.member_id)
    after, found, effects = _heard(state, group, request, settings, now_ms)
    member = after.members[request.member_id]
    pending = after.partitions.initializing and after.awaits_initialization(member.subscribed_topic_names)
    configured_ms = settings.heartbeat_interval_ms(state, group.group_id)
    answer = pb.ShareGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=min(configured_ms, INITIALIZATION_HEARTBEAT_INTERVAL_MS) if pending else configured_ms,
    )
    is_full = request.has_subscribed_topic_names or old is None or request.member_epoch != old.member_epoch
    if is_full or old is None or old.assignment != member.assignment:
        answer.has_assignment = True
        answer.assignment.extend(named_assignment(state, member))
    timeout_ms = settings.session_timeout_ms(state, group.group_id)
    renewed = SessionRenewed(group_id=group.group_id, member_id=request.member_id, session_timeout_ms=timeout_ms)
    return Decision(found, answer, [renewed, *effects])


def _heard(
    state: CoordinatorState,
    group: ShareGroup,
    request: pb.ShareGroupHeartbeatRequest,
    settings: GroupSettings,
    now_ms: int,
) -> tuple[ShareGroup, list[Record], list[Effect]]:
    """The group after the heartbeat, with records and effects; most heartbeats change nothing and return early."""
    old = group.members.get(request.member_id)
    member = _updated(old or Member(), request)
    if (
        member is old
        and group.is_settled
        and member.member_epoch == group.epoch
        and member.assignment == group.targets.get(request.member_id, {})
    ):
        return group, [], []
    draft = draft_of(state, group, settings, now_ms)
    draft.members[request.member_id] = member
    draft.settle()
    draft.reconcile(request.member_id)
    return draft.group(), draft.records(), draft.effects()


def draft_of(state: CoordinatorState, group: ShareGroup, settings: GroupSettings, now_ms: int) -> ShareGroupDraft:
    """A draft for changes of the group, which may be new."""
    time = AssignmentTime(now_ms, settings.assignment_interval_ms(state, group.group_id))
    draft = ShareGroupDraft(group, topic_lookup(state), time, is_new=group.group_id not in state.share_groups)
    given_up = GivenUpState.of(state.state_partitions, state.state_partition_count)
    if given_up.newest > group.partitions.given_up_epoch:  # before other partitions are recorded as initialized
        draft.begin_anew(given_up)
    return draft


def _check_request(request: pb.ShareGroupHeartbeatRequest, max_subscribed_topics: int) -> None:
    """Validates the request without the group's state (throwIfShareGroupHeartbeatRequestIsInvalid)."""
    problem = None
    max_length = max_subscribed_topics * NAME_LENGTH_LIMIT
    if not request.member_id.strip():
        problem = "MemberId must not be empty: a member of a share group generates its own id, a uuid"
    elif len(request.member_id) > MEMBER_ID_LENGTH_LIMIT:
        problem = f"MemberId has {len(request.member_id)} characters; at most {MEMBER_ID_LENGTH_LIMIT} are allowed"
    elif not request.group_id.strip():
        problem = "GroupId can't be empty."
    elif request.member_epoch < LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    elif request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        problem = "SubscribedTopicNames must be set in first request."
    elif (count := len(request.subscribed_topic_names)) > max_subscribed_topics:
        problem = (
            f"SubscribedTopicNames has {count} names; kshare.share.max.subscribed.topics allows {max_subscribed_topics}"
        )
    elif (length := sum(map(len, request.subscribed_topic_names))) > max_length:
        problem = f"SubscribedTopicNames has names of {length} characters together; at most {max_length} are allowed"
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _group_for(state: CoordinatorState, request: pb.ShareGroupHeartbeatRequest, settings: GroupSettings) -> ShareGroup:
    """The group that the member is in or may join, after validation of the member's epoch."""
    joins = request.member_epoch == JOIN_EPOCH
    group = (
        existing_or_new_group(state, request.group_id, settings) if joins else existing_group(state, request.group_id)
    )
    if request.member_id not in group.members and len(group.members) >= settings.max_members:
        text = f"Group {request.group_id} has {len(group.members)} members; group.share.max.size allows no more"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
    if joins:
        check_not_deleting(group)
    else:
        _check_epoch(group, request.member_id, request.member_epoch)
    return group


def existing_or_new_group(state: CoordinatorState, group_id: str, settings: GroupSettings) -> ShareGroup:
    """The share group of this id, or a new one; KafkaError if another type has the id, or at the limit of groups."""
    if group_type(state, group_id) is not None:
        return existing_group(state, group_id)
    check_room(state, settings.max_groups)
    # State epochs must be above those of a deleted group of the same id, with which a leader may still write.
    base = state.deleted_share_group_epoch(partition_of_group(group_id))
    return ShareGroup(group_id=group_id, epoch=INITIAL_EPOCH, assignment_epoch=INITIAL_EPOCH, state_epoch_base=base)


def existing_group(state: CoordinatorState, group_id: str) -> ShareGroup:
    """The share group of this id; KafkaError GROUP_ID_NOT_FOUND if there is none."""
    group = state.share_groups.get(group_id)
    if group is None:
        found = group_type(state, group_id)
        text = f"Group {group_id} is not a share group."
        if found is None or found is GroupType.SHARE:
            text = f"Share group {group_id} not found."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
    return group


def check_not_deleting(group: ShareGroup) -> None:
    if group.is_deleting:
        text = f"Share group {group.group_id} is being deleted; it can be used again when its state is gone"
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)


def _existing_member(group: ShareGroup, member_id: str) -> Member:
    member = group.members.get(member_id)
    if member is None:
        text = f"Member {member_id} is not a member of group {group.group_id}."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return member


def _check_epoch(group: ShareGroup, member_id: str, member_epoch: int) -> None:
    """Accepts only the member's current or previous epoch (ShareGroup.validateMemberEpoch)."""
    member = _existing_member(group, member_id)
    if member_epoch not in (member.member_epoch, member.previous_member_epoch):
        is_newer = member_epoch > member.member_epoch
        text = (
            f"The share group member has a {'greater' if is_newer else 'smaller'} member epoch ({member_epoch}) than "
            f"the one known by the group coordinator ({member.member_epoch})"
        )
        if not is_newer:
            text += f", and it does not match the previous member epoch ({member.previous_member_epoch})"
        text += ". The member must abandon all its partitions and rejoin."
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _updated(member: Member, request: pb.ShareGroupHeartbeatRequest) -> Member:
    """The member with the values of the request; the same object if nothing changed."""
    names = member.subscribed_topic_names
    if request.has_subscribed_topic_names or request.subscribed_topic_names:
        names = tuple(sorted(set(request.subscribed_topic_names)))
    rack_id = request.rack_id or member.rack_id
    known = (member.rack_id, member.client_id, member.client_host, member.subscribed_topic_names)
    if known == (rack_id, request.client_id, request.client_host, names):
        return member
    return replace(
        member,
        rack_id=rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=names,
    )


def _leave(
    state: CoordinatorState, request: pb.ShareGroupHeartbeatRequest, settings: GroupSettings, now_ms: int
) -> HeartbeatDecision:
    group = existing_group(state, request.group_id)
    _existing_member(group, request.member_id)
    answer = pb.ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
    found, effects = _without(state, group, request.member_id, settings, now_ms)
    return Decision(found, answer, effects)


def decide_expire_member(
    state: CoordinatorState, command: ExpireMember, settings: GroupSettings, now_ms: int
) -> QuietDecision:
    group = state.share_groups.get(command.group_id)
    if group is None or command.member_id not in group.members:
        return Decision((), None, (SessionEnded(group_id=command.group_id, member_id=command.member_id),))
    found, effects = _without(state, group, command.member_id, settings, now_ms)
    return Decision(found, None, effects)


def _without(
    state: CoordinatorState, group: ShareGroup, member_id: str, settings: GroupSettings, now_ms: int
) -> tuple[list[Record], list[Effect]]:
    draft = draft_of(state, group, settings, now_ms)
    draft.remove(member_id)
    return draft.records(), [SessionEnded(group_id=group.group_id, member_id=member_id), *draft.effects()]


@decides(CompleteGroupState)
def decide_complete_group_state(
    state: CoordinatorState, command: CompleteGroupState, settings: GroupSettings, now_ms: int
) -> QuietDecision:
    """Step d of the creation flow: initialized partitions become assignable, deleted ones are removed."""
    group = state.share_groups.get(command.group_id)
    if group is None:
        return Decision((), None)
    draft = draft_of(state, group, settings, now_ms)
    draft.complete(command.initialized)
    draft.complete_deletion(command.deleted)
    return Decision([*draft.records(), *records_at_the_end(state, draft)], None, draft.effects())


def records_at_the_end(state: CoordinatorState, draft: ShareGroupDraft) -> list[Record]:
    """The record that survives a deleted group: its highest state epoch."""
    if not draft.is_gone:
        return []
    partition, epoch = partition_of_group(draft.group_id), draft.group().state_epoch
    if epoch <= state.deleted_share_group_epoch(partition):
        return []
    return [records.cluster_number(f"{records.DELETED_SHARE_GROUP_EPOCH_OF_PARTITION}{partition}", epoch)]


def decide_topics_changed(
    state: CoordinatorState,
    topics: TopicLookup,
    created: list[str],
    deleted: list[bytes],
    settings: GroupSettings,
    now_ms: int,
) -> tuple[list[Record], list[Effect]]:
    """Applies created, grown and deleted topics to every group; `topics` looks them up as after the change."""
    found: list[Record] = []
    effects: list[Effect] = []
    for group_id, group in sorted(state.share_groups.items()):
        if not (group.subscribes_to(created) or any(group.partitions.known(topic_id) for topic_id in deleted)):
            continue
        time = AssignmentTime(now_ms, settings.assignment_interval_ms(state, group_id))
        draft = ShareGroupDraft(group, topics, time)
        draft.change_topics(created, deleted)
        found.extend(draft.records())
        effects.extend(draft.effects())
    return found, effects


def topic_lookup(state: CoordinatorState) -> TopicLookup:
    def lookup(name: str) -> tuple[bytes, int] | None:
        topic = state.topic_named(name)
        return None if topic is None else (topic.topic_id, len(topic.placements))

    return lookup


def named_assignment(state: CoordinatorState, member: Member) -> list[pb.TopicPartitions]:
    """The member's assignment with topic names, without topics deleted since."""
    found = []
    for topic_id, partitions in sorted(member.assignment.items()):
        topic = state.topics.get(topic_id)
        if topic is not None:
            found.append(pb.TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=partitions))
    return found
