"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup (KIP-848).

A group may have members of both protocols while its clients are being changed from one to the other. The coordinator
assigns for all of them; a member of the classic protocol follows with the requests that it has (Kafka 4.3.1,
classicGroupJoinToConsumerGroup and the like in GroupMetadataManager):
- JoinGroup corresponds to a full heartbeat: the member sends its subscription and owned partitions, takes a step
  towards its target and is answered at once, without waiting for other members. Its generation is its member epoch;
  there is no leader. It then has its rebalance timeout to sync.
- SyncGroup returns the partitions that the member may consume.
- Heartbeat answers REBALANCE_IN_PROGRESS if the member has a step to take; it then has its rebalance timeout to join.
- LeaveGroup removes any members, including those of the consumer protocol.
- All members of the classic protocol have a protocol in common, so that they could form a classic group.
- With group.consumer.migration.policy=disabled, joins with the classic protocol are rejected.

When a static member of the consumer protocol rejoins with the classic one, and no other member uses the former, the
group becomes a classic group (`downgrade`).

A classic heartbeat brings the group up to date, like one of the consumer protocol. Kafka leaves that to members of the
consumer protocol and to joins. If a downgrade is not allowed and only classic members are left, the partitions of
members that left would then stay unassigned. Expressions are resolved by heartbeats of the consumer protocol only: its
members are those that subscribe to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kshare_coordinator.machine.commands import (
    ClassicHeartbeat,
    ClassicTimerExpired,
    Effect,
    JoinGroup,
    LeaveGroup,
    SessionRenewed,
    SyncGroup,
)
from kshare_coordinator.machine.groups.classic.consumer_protocol import (
    SUBSCRIPTION_LIMIT,
    NamedPartitions,
    Subscription,
    assignment_bytes,
    subscription_of,
    version_of,
)
from kshare_coordinator.machine.groups.classic.draft import refused_join
from kshare_coordinator.machine.groups.classic.group import CONSUMER_PROTOCOL_TYPE, Protocol
from kshare_coordinator.machine.groups.classic.requests import ClassicSettings, protocols_of
from kshare_coordinator.machine.groups.classic.timers import (
    ClassicTimer,
    ClassicTimerCancelled,
    ClassicTimerSet,
    TimerKind,
)
from kshare_coordinator.machine.groups.consumer.downgrade import (
    Joining,
    by_topic,
    downgraded,
    is_last_consumer_replaced,
    named_partitions,
)
from kshare_coordinator.machine.groups.consumer.draft import ConsumerGroupDraft
from kshare_coordinator.machine.groups.consumer.fencing import all_timers_ended, without_members
from kshare_coordinator.machine.groups.consumer.rebalance import (
    ConsumerGroupContext,
    assign_targets,
    bring_up_to_date,
    reconciled,
    subscription_changed,
)
from kshare_coordinator.machine.groups.consumer.subscriptions import existing_topics
from kshare_coordinator.machine.groups.consumer.values import (
    NEW,
    ClassicMetadata,
    ConsumerGroup,
    CurrentAssignment,
    Member,
    MemberState,
)
from kshare_coordinator.machine.records import AnyRecord
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

JoinDecision = Decision[AnyRecord, pb.JoinGroupResponse | None, Effect]
SyncDecision = Decision[AnyRecord, pb.SyncGroupResponse | None, Effect]


def has_members(state: CoordinatorState, group_id: str) -> bool:
    """Whether requests of the classic protocol for this group are decided here."""
    group = state.consumer_groups.get(group_id)
    return group is not None and bool(group.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A join being decided: the member before and after it; `replaced` is the member whose place it takes."""

    request: pb.JoinGroupRequest
    protocols: tuple[Protocol, ...]
    member_id: str
    old: Member
    current: CurrentAssignment
    replaced: str | None
    subscription: Subscription

    @property
    def member(self) -> Member:
        request = self.request
        return replace(
            self.old,
            instance_id=request.group_instance_id or self.old.instance_id,
            rack_id=self.subscription.rack_id or self.old.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            subscribed_topic_names=tuple(sorted(set(self.subscription.topics))),
            subscribed_topic_regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            classic=ClassicMetadata(session_timeout_ms=request.session_timeout_ms, protocols=self.protocols),
        )

    def answer(self, current: CurrentAssignment) -> pb.JoinGroupResponse:
        return pb.JoinGroupResponse(
            generation_id=current.member_epoch,
            has_protocol=True,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=self.protocols[0][0],
            member_id=self.member_id,
        )


def decide_join_to_consumer(
    context: ConsumerGroupContext, command: JoinGroup, settings: ClassicSettings, now_ms: int
) -> JoinDecision:
    """The group has members."""
    request, group = command.request, context.state.consumer_groups[command.request.group_id]
    if not settings.accepts_session_timeout(request.session_timeout_ms):
        return Decision((), refused_join(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
    protocols = protocols_of(request)
    code = _join_refusal(context, group, request, protocols)
    if code:
        return Decision((), refused_join("", code))
    member_id = request.member_id or command.new_member_suffix
    if request.requires_known_member_id and not request.group_instance_id and not request.member_id:
        return Decision((), refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED))
    if request.group_instance_id and request.member_id:
        code = _member_refusal(group, request.member_id, request.group_instance_id)
    subscription = subscription_of(protocols[0][1])
    if code or subscription is None:
        return Decision((), refused_join("", code or ErrorCode.UNKNOWN_SERVER_ERROR))
    if len(subscription.topics) > SUBSCRIPTION_LIMIT:
        return Decision((), refused_join("", ErrorCode.INVALID_REQUEST))
    replaced = group.static_members.get(request.group_instance_id) if not request.member_id else None
    current = group.current.get(replaced or member_id, NEW)
    join = _Join(
        request=request,
        protocols=protocols,
        member_id=member_id,
        old=group.members.get(replaced or member_id, Member()),
        current=replace(current, member_epoch=0, previous_member_epoch=0) if replaced is not None else current,
        replaced=replaced,
        subscription=subscription,
    )
    return _joined(context, group, join, now_ms)


def _join_refusal(
    context: ConsumerGroupContext, group: ConsumerGroup, request: pb.JoinGroupRequest, protocols: tuple[Protocol, ...]
) -> ErrorCode:
    settings = context.settings
    if not settings.allows_upgrade and not settings.allows_downgrade:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if len(group.members) >= settings.max_members and request.member_id not in group.members:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    names = [name for name, _ in protocols]
    is_supported = any(group.classic_protocols.get(name, 0) == group.classic_count for name in names)
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not is_supported:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _joined(context: ConsumerGroupContext, group: ConsumerGroup, join: _Join, now_ms: int) -> JoinDecision:
    state, member_id, member = context.state, join.member_id, join.member
    former = join.replaced or member_id
    is_last = bool(member.instance_id) and former in group.members
    is_last = is_last and is_last_consumer_replaced(group, context.settings, former)
    draft = ConsumerGroupDraft(state, group)
    if join.replaced is not None:
        draft.replace_member(join.replaced, member_id, join.current)
    draft.put_member(member_id, member)
    changed = subscription_changed(join.old, member)
    bring_up_to_date(context, group, draft, changed=changed)
    if not is_last:
        assign_targets(context, group, draft, now_ms)
    current = join.current
    if not is_last or draft.assignment_epoch >= draft.epoch:
        owned = _partitions(state, join.subscription.owned)
        current = reconciled(state, group, draft, member_id, current, owned=owned, changed=changed)
    if is_last:
        is_settled = current.is_reconciled_to(draft.epoch) and _are_others_settled(group, former)
        joining = Joining(member_id, member, former)
        found, effects = downgraded(state, group, now_ms, joining=joining, rebalance=not is_settled)
        return Decision(found, join.answer(current), [*all_timers_ended(group, group.members), *effects])
    if current != join.current:
        draft.put_current(member_id, current)
    ended = all_timers_ended(group, [former] if former in group.members else [])
    return Decision(draft.records, join.answer(current), [*ended, *_awaiting_sync(join)])


def _are_others_settled(group: ConsumerGroup, member_id: str) -> bool:
    """Whether every other member owns exactly its target."""
    return all(
        group.current.get(name, NEW).is_reconciled_to(group.epoch) for name in group.members if name != member_id
    )


def _awaiting_sync(join: _Join) -> list[Effect]:
    group_id = join.request.group_id
    timer = ClassicTimer(TimerKind.MEMBER_SYNC, group_id, join.member_id)
    return [
        _session_renewed(group_id, join.member_id, join.request.session_timeout_ms),
        ClassicTimerSet(timer=timer, delay_ms=join.request.rebalance_timeout_ms),
    ]


def _session_renewed(group_id: str, member_id: str, timeout_ms: int) -> SessionRenewed:
    return SessionRenewed(group_id=group_id, member_id=member_id, session_timeout_ms=timeout_ms)


def _partitions(state: CoordinatorState, named: NamedPartitions) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic_id, number)
        for name, numbers in named
        for topic_id in existing_topics(state, [name])
        for number in numbers
    )


def _member_refusal(group: ConsumerGroup, member_id: str, instance_id: str) -> ErrorCode:
    """Whether the member is in the group, and still the one with its instance id (validateConsumerGroupMember)."""
    if not instance_id:
        return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
    holder = group.static_members.get(instance_id)
    if holder is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if holder == member_id else ErrorCode.FENCED_INSTANCE_ID


def _generation_refusal(group: ConsumerGroup, member_id: str, instance_id: str, generation_id: int) -> ErrorCode:
    """Whether the member uses the classic protocol, with the generation that it has."""
    code = _member_refusal(group, member_id, instance_id)
    if code:
        return code
    if group.members[member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_right = generation_id == group.current.get(member_id, NEW).member_epoch
    return ErrorCode.NONE if is_right else ErrorCode.ILLEGAL_GENERATION


def decide_sync_to_consumer(context: ConsumerGroupContext, command: SyncGroup) -> SyncDecision:
    """The group has members."""
    request, group = command.request, context.state.consumer_groups[command.request.group_id]
    member_id = request.member_id
    code = _generation_refusal(group, member_id, request.group_instance_id, request.generation_id)
    if code:
        return Decision((), pb.SyncGroupResponse(error_code=code))
    member, current = group.members[member_id], group.current.get(member_id, NEW)
    assert member.classic is not None, "only members of the classic protocol have a generation"
    protocol_name, metadata = member.classic.protocols[0]
    if request.protocol_type not in ("", CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in ("", protocol_name):
        return Decision((), pb.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    if group.assignment_epoch > current.member_epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        refused = pb.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return Decision((), refused, [_join_awaited(group.group_id, member_id, member)])
    synced = pb.SyncGroupResponse(
        has_protocol=bool(request.protocol_type),
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=_assignment(context.state, current, version_of(metadata)),
    )
    effects: list[Effect] = [
        ClassicTimerCancelled(timer=ClassicTimer(TimerKind.MEMBER_SYNC, group.group_id, member_id)),
        _session_renewed(group.group_id, member_id, member.classic.session_timeout_ms),
    ]
    return Decision((), synced, effects)


def _assignment(state: CoordinatorState, current: CurrentAssignment, version: int) -> bytes:
    return assignment_bytes(named_partitions(state, by_topic(current.assigned)), version)


def _join_awaited(group_id: str, member_id: str, member: Member) -> ClassicTimerSet:
    """A member must rejoin within its rebalance timeout after the first notice."""
    timer = ClassicTimer(TimerKind.MEMBER_JOIN, group_id, member_id)
    return ClassicTimerSet(timer=timer, delay_ms=member.rebalance_timeout_ms, only_if_absent=True)


def decide_heartbeat_to_consumer(
    context: ConsumerGroupContext, command: ClassicHeartbeat, now_ms: int
) -> Decision[AnyRecord, ErrorCode, Effect]:
    """The group has members."""
    request, group = command.request, context.state.consumer_groups[command.request.group_id]
    member_id = request.member_id
    code = _generation_refusal(group, member_id, request.group_instance_id, request.generation_id)
    if code:
        return Decision((), code)
    member, current = group.members[member_id], group.current.get(member_id, NEW)
    assert member.classic is not None, "only members of the classic protocol have a generation"
    draft = ConsumerGroupDraft(context.state, group)
    bring_up_to_date(context, group, draft, changed=False)
    assign_targets(context, group, draft, now_ms)
    effects: list[Effect] = [_session_renewed(group.group_id, member_id, member.classic.session_timeout_ms)]
    if not _has_step_to_take(group, draft, member_id, current):
        return Decision(draft.records, ErrorCode.NONE, effects)
    effects.append(_join_awaited(group.group_id, member_id, member))
    return Decision(draft.records, ErrorCode.REBALANCE_IN_PROGRESS, effects)


def _has_step_to_take(
    group: ConsumerGroup, draft: ConsumerGroupDraft, member_id: str, current: CurrentAssignment
) -> bool:
    if current.member_epoch < draft.assignment_epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is MemberState.STABLE:
        return False
    return not any(
        TopicPartition(topic_id, number) in group.owners
        for topic_id, numbers in draft.targets.get(member_id, {}).items()
        for number in numbers
        if TopicPartition(topic_id, number) not in current.assigned
    )


def decide_leave_consumer(
    context: ConsumerGroupContext, command: LeaveGroup, now_ms: int
) -> Decision[AnyRecord, pb.LeaveGroupResponse, Effect]:
    """The group has members. Each gets a result of its own; the group changes once, for all who left."""
    request, group = command.request, context.state.consumer_groups[command.request.group_id]
    answer = pb.LeaveGroupResponse()
    leaving: dict[str, None] = {}
    for identity in request.members:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        code = _member_refusal(group, member_id or group.static_members.get(instance_id, ""), instance_id)
        answer.members.add(member_id=member_id, group_instance_id=instance_id, error_code=code)
        if not code:
            leaving[member_id or group.static_members[instance_id]] = None
    found, effects = without_members(context, group, leaving, now_ms)
    return Decision(found, answer, effects)


def decide_member_timer_expired(
    context: ConsumerGroupContext, command: ClassicTimerExpired, now_ms: int
) -> Decision[AnyRecord, None, Effect]:
    """A member did not join, or did not sync, in its rebalance timeout."""
    timer = command.timer
    group = context.state.consumer_groups.get(timer.group_id)
    member = group.members.get(timer.member_id) if group is not None else None
    if group is None or member is None or member.classic is None:
        return Decision((), None)
    found, effects = without_members(context, group, [timer.member_id], now_ms)
    return Decision(found, None, effects)


MEMBER_TIMERS = (TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC)
"""Those of members of consumer groups."""
