"""The group coordinator's decisions for consumer groups of KIP-848: heartbeats, leaving, expiry (Kafka 4.3.1).

Rules of ConsumerGroupHeartbeat (GroupCoordinatorService and GroupMetadataManager):
- From version 1 on the client chooses the member id. In version 0 the coordinator assigns one if there is none.
- Epoch 0 joins or rejoins; -1 leaves; -2 means that a static member leaves temporarily and keeps its partitions until
  its session ends. Any other epoch must be the member's. The previous one is accepted if the member owns nothing that
  it should not (its newest response was lost). Anything else is FENCED_MEMBER_EPOCH.
- An instance id belongs to one member. Another member may take over the id and its assignment if the former one left
  with -2 (else UNRELEASED_INSTANCE_ID) or used the classic protocol. The former member is then FENCED_INSTANCE_ID.
  The member itself may always rejoin. Kafka answers UNRELEASED_INSTANCE_ID to a static member whose join response was
  lost, or that was fenced, which is fatal for that client.
- A heartbeat first brings the group up to date (`ConsumerGroupDraft`): subscriptions, topics, targets. Then the member
  takes one step towards its target (`reconciliation`).
- The response has the assignment when the member joins, sends all of its fields, or got another assignment.
- The next heartbeat of any member detects created, grown and deleted topics by the hash of their ids and sizes. The
  topic change itself does not touch the group.

An empty classic group with the same id is replaced; its committed offsets stay. One with members becomes a consumer
group (`upgrade`), whose members may use either protocol (`classic_members`). Without members of
the new protocol it becomes a classic group again (`fencing`).

While new targets are delayed by consumer.assignment.interval.ms, the response asks for the next heartbeat at the end of
that interval instead of after the heartbeat interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kshare_coordinator.machine.commands import (
    ConsumerGroupHeartbeat,
    Effect,
    ExpireMember,
    ExpireRevocation,
    RevocationBegun,
    SessionEnded,
    SessionRenewed,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.consumer.draft import ConsumerGroupDraft
from kshare_coordinator.machine.groups.consumer.fencing import classic_timers_ended, without_members
from kshare_coordinator.machine.groups.consumer.rebalance import (
    ConsumerGroupContext,
    assign_targets,
    bring_up_to_date,
    reconciled,
    resolve_expressions,
    revocation_ended,
    subscription_changed,
)
from kshare_coordinator.machine.groups.consumer.requests import (
    EXPRESSIONS_LIMIT,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    check_request,
    client_of,
    is_full,
    owned_partitions,
    updated_member,
)
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.upgrade import Upgrade, made_room, upgraded
from kshare_coordinator.machine.groups.consumer.values import (
    LEFT_FOR_A_WHILE_EPOCH,
    NEW,
    ConsumerGroup,
    CurrentAssignment,
    Member,
    MemberState,
)
from kshare_coordinator.machine.groups.namespace import GroupType, check_room, group_type
from kshare_coordinator.machine.records import AnyRecord
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

HeartbeatDecision = Decision[AnyRecord, pb.ConsumerGroupHeartbeatResponse, Effect]
QuietDecision = Decision[AnyRecord, None, Effect]


class Seat(NamedTuple):
    """The member that sent a heartbeat, before the change; `replaced` is the static member that it replaces."""

    member_id: str
    member: Member
    current: CurrentAssignment
    replaced: str | None = None


@decides(ConsumerGroupHeartbeat)
def decide_heartbeat(context: ConsumerGroupContext, command: ConsumerGroupHeartbeat, now_ms: int) -> HeartbeatDecision:
    """Decides a heartbeat that joins, stays or leaves; KafkaError if the request is rejected."""
    request, state, settings = command.request, context.state, context.settings
    check_request(request, settings)
    if request.member_epoch in (LEAVE_EPOCH, LEFT_FOR_A_WHILE_EPOCH):
        return _leave(context, request, now_ms)
    group, found, effects, needs_assignment = _group_for(state, request, settings)
    _check_size(group, request, settings)
    _check_expressions(group, request)
    seat = _seat(group, request, request.member_id or command.new_member_id)
    draft = ConsumerGroupDraft(state, group, found)
    if seat.replaced is not None:
        draft.replace_member(seat.replaced, seat.member_id, seat.current)
    member = updated_member(seat.member, request)
    draft.put_member(seat.member_id, member)
    changed = subscription_changed(seat.member, member)
    if seat.replaced not in (None, seat.member_id) and seat.member_id in group.members:
        changed = True  # the partitions of its former target have no owner now
    resolution = resolve_expressions(context, group, draft, member.subscribed_topic_regex, client_of(request), now_ms)
    bring_up_to_date(context, group, draft, changed=changed or resolution.changed or needs_assignment)
    intervals = settings.intervals(state, group.group_id)
    delay_ms = assign_targets(context, group, draft, now_ms)
    current = reconciled(
        state, group, draft, seat.member_id, seat.current, owned=owned_partitions(request), changed=changed
    )
    if current != seat.current:
        draft.put_current(seat.member_id, current)
    answer = pb.ConsumerGroupHeartbeatResponse(
        member_id=seat.member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=min(intervals.heartbeat_interval_ms, delay_ms or intervals.heartbeat_interval_ms),
    )
    if request.member_epoch == JOIN_EPOCH or is_full(request) or current.assigned != seat.current.assigned:
        answer.has_assignment = True
        answer.assignment.extend(assigned_topics(current))
    renewed = SessionRenewed(
        group_id=group.group_id, member_id=seat.member_id, session_timeout_ms=intervals.session_timeout_ms
    )
    return Decision(
        draft.records, answer, [*effects, *resolution.refused, renewed, *_timers(group.group_id, seat, member, current)]
    )


def _group_for(
    state: CoordinatorState, request: pb.ConsumerGroupHeartbeatRequest, settings: ConsumerGroupSettings
) -> Upgrade:
    """The member's group, or a new one for a join, with the records that remove a classic group of the same id."""
    group_id = request.group_id
    kind = group_type(state, group_id)
    if kind is GroupType.CONSUMER:
        return Upgrade(state.consumer_groups[group_id])
    if request.member_epoch != JOIN_EPOCH or kind is GroupType.SHARE:
        raise _not_found(group_id, kind)
    classic = state.classic_groups.get(group_id)
    if classic is not None:
        return made_room(classic) if classic.is_empty else upgraded(state, classic, settings)
    if kind is None:
        check_room(state, settings.max_groups)
    return Upgrade(ConsumerGroup(group_id=group_id))


def _not_found(group_id: str, kind: GroupType | None) -> KafkaError:
    what = "does not exist" if kind is None else f"is a {kind} group, not a consumer group"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}")


def _check_size(
    group: ConsumerGroup, request: pb.ConsumerGroupHeartbeatRequest, settings: ConsumerGroupSettings
) -> None:
    if len(group.members) >= settings.max_members and request.member_id not in group.members:
        text = f"Group {group.group_id} has {len(group.members)} members; group.consumer.max.size allows no more"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def _check_expressions(group: ConsumerGroup, request: pb.ConsumerGroupHeartbeatRequest) -> None:
    """Each expression is stored with the names of all topics that match it; those that are not looked up yet count."""
    regex = request.subscribed_topic_regex
    if not regex or regex in group.expressions:
        return
    subscribed = {member.subscribed_topic_regex for member in group.members.values()} - {""}
    if regex not in subscribed and len(subscribed) >= EXPRESSIONS_LIMIT:
        text = f"The members of group {group.group_id} subscribe to {len(subscribed)} regular expressions"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text}; no more than {EXPRESSIONS_LIMIT} are allowed")


def _seat(group: ConsumerGroup, request: pb.ConsumerGroupHeartbeatRequest, member_id: str) -> Seat:
    if request.has_instance_id:
        return _static_seat(group, request, member_id)
    member = group.members.get(member_id)
    if member is None:
        if request.member_epoch != JOIN_EPOCH:
            raise _unknown_member(group, member_id)
        return Seat(member_id, Member(), NEW)
    current = group.current.get(member_id, NEW)
    _check_epoch(group, member_id, current, request)
    return Seat(member_id, member, current)


def _static_seat(group: ConsumerGroup, request: pb.ConsumerGroupHeartbeatRequest, member_id: str) -> Seat:
    holder = group.static_members.get(request.instance_id)
    if request.member_epoch != JOIN_EPOCH:
        holder = _holder(group, request)
        current = group.current.get(holder, NEW)
        _check_epoch(group, holder, current, request)
        return Seat(holder, group.members[holder], current)
    if holder is None:
        return Seat(member_id, group.members.get(member_id, Member()), group.current.get(member_id, NEW))
    current = group.current.get(holder, NEW)
    is_released = current.member_epoch == LEFT_FOR_A_WHILE_EPOCH or group.members[holder].classic is not None
    if not is_released and holder == member_id:
        return Seat(holder, group.members[holder], current)
    if not is_released:
        text = (
            f"Instance id {request.instance_id} of group {group.group_id} belongs to member {holder}, which has not "
            f"left; member {member_id} cannot have it"
        )
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, text)
    current = replace(current, member_epoch=0, previous_member_epoch=0)
    return Seat(member_id, group.members[holder], current, replaced=holder)


def _holder(group: ConsumerGroup, request: pb.ConsumerGroupHeartbeatRequest) -> str:
    """The id of the member with the request's instance id, which must be the requesting member."""
    holder = group.static_members.get(request.instance_id)
    if holder is None:
        text = f"Group {group.group_id} has no member with instance id {request.instance_id}"
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if holder != request.member_id:
        text = (
            f"Member {request.member_id} of group {group.group_id} was replaced by member {holder}, which has its "
            f"instance id {request.instance_id} now"
        )
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)
    return holder


def _unknown_member(group: ConsumerGroup, member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in group {group.group_id}")


def _check_epoch(
    group: ConsumerGroup, member_id: str, current: CurrentAssignment, request: pb.ConsumerGroupHeartbeatRequest
) -> None:
    """Accepts the member's epoch, or its previous one if the member owns no more than it was assigned."""
    received = request.member_epoch
    if received in (JOIN_EPOCH, current.member_epoch):
        return
    is_older = received < current.member_epoch
    if is_older and received == current.previous_member_epoch:
        owned = owned_partitions(request)
        if owned is not None and all(partition in current.assigned for partition in owned):
            return
    text = (
        f"Member {member_id} of group {group.group_id} sent epoch {received}, which is "
        f"{'older' if is_older else 'newer'} than its epoch {current.member_epoch}; it must give up all of its "
        "partitions and join again"
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _timers(group_id: str, seat: Seat, member: Member, current: CurrentAssignment) -> list[Effect]:
    """Revocation timer effects: a member must revoke within its rebalance timeout, which each change restarts."""
    effects: list[Effect] = []
    if seat.member.classic is not None:
        effects += classic_timers_ended(group_id, seat.replaced or seat.member_id)
    if seat.replaced is not None and seat.replaced != seat.member_id:
        effects.append(SessionEnded(group_id=group_id, member_id=seat.replaced))
    if current == seat.current:
        return effects
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        begun = RevocationBegun(
            group_id=group_id,
            member_id=seat.member_id,
            member_epoch=current.member_epoch,
            timeout_ms=member.rebalance_timeout_ms,
        )
        effects.append(begun)
    elif seat.current.state is MemberState.UNREVOKED_PARTITIONS:
        effects.append(revocation_ended(group_id, seat.member_id, seat.current))
    return effects


def assigned_topics(current: CurrentAssignment) -> list[pb.TopicPartitions]:
    """The partitions that the member may consume, without topic names."""
    return topic_partitions(list(current.assigned))


def topic_partitions(partitions: Sequence[TopicPartition]) -> list[pb.TopicPartitions]:
    topics: dict[bytes, pb.TopicPartitions] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, pb.TopicPartitions(topic_id=topic_id)).partitions.append(partition)
    return list(topics.values())


def _leave(context: ConsumerGroupContext, request: pb.ConsumerGroupHeartbeatRequest, now_ms: int) -> HeartbeatDecision:
    group = context.state.consumer_groups.get(request.group_id)
    if group is None:
        raise _not_found(request.group_id, group_type(context.state, request.group_id))
    answer = pb.ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    member_id = _holder(group, request) if request.has_instance_id else request.member_id
    if member_id not in group.members:
        raise _unknown_member(group, member_id)
    current = group.current.get(member_id, NEW)
    if request.member_epoch == LEAVE_EPOCH:
        found, effects = without_members(context, group, [member_id], now_ms)
        return Decision(found, answer, effects)
    away = replace(
        current,
        member_epoch=LEFT_FOR_A_WHILE_EPOCH,
        assigned=dict.fromkeys(current.assigned, 0),
        pending_revocation={},
    )
    draft = ConsumerGroupDraft(context.state, group)
    draft.put_current(member_id, away)
    return Decision(draft.records, answer, [revocation_ended(group.group_id, member_id, current)])


def decide_expire_member(context: ConsumerGroupContext, command: ExpireMember, now_ms: int) -> QuietDecision:
    """Decides the expiry of a consumer group member's session."""
    group = context.state.consumer_groups.get(command.group_id)
    if group is None or command.member_id not in group.members:
        return Decision((), None, (SessionEnded(group_id=command.group_id, member_id=command.member_id),))
    return _fenced(context, group, command.member_id, now_ms)


@decides(ExpireRevocation)
def decide_expire_revocation(context: ConsumerGroupContext, command: ExpireRevocation, now_ms: int) -> QuietDecision:
    """Decides the expiry of a member's time to revoke the partitions asked for at this member epoch."""
    group = context.state.consumer_groups.get(command.group_id)
    current = group.current.get(command.member_id) if group is not None else None
    if (
        group is None
        or current is None
        or current.state is not MemberState.UNREVOKED_PARTITIONS
        or current.member_epoch != command.member_epoch
    ):
        return Decision((), None)
    return _fenced(context, group, command.member_id, now_ms)


def _fenced(context: ConsumerGroupContext, group: ConsumerGroup, member_id: str, now_ms: int) -> QuietDecision:
    found, effects = without_members(context, group, [member_id], now_ms)
    return Decision(found, None, effects)
