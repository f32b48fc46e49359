"""Decisions for classic consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and expired timers.

Rules (GroupCoordinatorService and GroupMetadataManager of Kafka 4.3.1):
- A dynamic member that is not known yet gets an id, and MEMBER_ID_REQUIRED: it must come back with it (KIP-394); older
  clients join at once. A static member (KIP-345) is known by its group instance id: when it comes back without a member
  id it continues under a new one, without a rebalance if possible; requests with the old id get FENCED_INSTANCE_ID.
- The group is stored in one record of at most kshare.group.max.bytes. The members may take half of it; a join beyond
  that is refused. Assignments that make the record too large are answered with UNKNOWN_SERVER_ERROR, as in Kafka.
- A join that changes the group calls for a rebalance and waits for its end, see `rebalance`. A member
  that joins again with what is known already is answered at once.
- A group id that a share group has is INCONSISTENT_GROUP_PROTOCOL. What is asked of a consumer group of KIP-848 with
  members is decided in `groups.consumer.classic_members`; one without members makes room.
- A sync waits for the leader's assignment. Members heartbeat with their generation and hear REBALANCE_IN_PROGRESS when
  they have to join again.
- A member without a heartbeat for its session timeout is removed; a waiting call of the member keeps it alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import (
    ClassicHeartbeat,
    ClassicTimerExpired,
    Effect,
    JoinGroup,
    LeaveGroup,
    ResumeClassicGroups,
    SyncGroup,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.classic.draft import ClassicGroupDraft, refused_join
from kshare_coordinator.machine.groups.classic.group import (
    ClassicGroup,
    ClassicGroupState,
    ClassicMember,
    Protocol,
    member_refusal,
    metadata_record,
)
from kshare_coordinator.machine.groups.classic.rebalance import (
    complete_join,
    complete_join_phase,
    complete_sync,
    expire_syncs,
    fail_sync,
    initial_delay_over,
    prepare_rebalance,
    rebalance_or_complete,
    remove_member,
    remove_pending,
    synced,
)
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, ClassicTimerSet, TimerKind
from kshare_coordinator.machine.groups.consumer.records import records_without_group
from kshare_coordinator.machine.groups.namespace import GroupType, classic_group, group_type, is_full
from kshare_coordinator.machine.metadata_partitions import partition_of_group
from kshare_coordinator.machine.records import AnyRecord
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long the first join of a member may wait (classicGroupNewMemberJoinTimeoutMs)."""

State = ClassicGroupState
JoinDecision = Decision[AnyRecord, pb.JoinGroupResponse | None, Effect]
SyncDecision = Decision[AnyRecord, pb.SyncGroupResponse | None, Effect]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """From the broker's configs."""

    min_session_timeout_ms: int
    max_session_timeout_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    max_member_ids: int
    max_groups: int
    max_bytes: int

    def accepts_session_timeout(self, timeout_ms: int) -> bool:
        """group.min.session.timeout.ms and group.max.session.timeout.ms; else INVALID_SESSION_TIMEOUT."""
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms

    @classmethod
    def of(cls, configs: Configs) -> ClassicSettings:
        return cls(
            min_session_timeout_ms=configs.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=configs.integer("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=configs.integer("group.initial.rebalance.delay.ms"),
            max_size=configs.integer("group.max.size"),
            max_member_ids=configs.integer("kshare.max.classic.members"),
            max_groups=configs.integer("kshare.max.groups"),
            max_bytes=configs.integer("kshare.group.max.bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """A join that is being decided."""

    request: pb.JoinGroupRequest
    protocols: tuple[Protocol, ...]
    call_id: int
    new_member_id: str
    draft: ClassicGroupDraft
    settings: ClassicSettings

    def refused(self, member_id: str, code: ErrorCode) -> JoinDecision:
        """An error response that leaves the group unchanged."""
        return Decision((), refused_join(member_id, code))


def decide_join(state: CoordinatorState, command: JoinGroup, settings: ClassicSettings, now_ms: int) -> JoinDecision:
    request = command.request
    code = _join_refusal(state, request, settings)
    if code:
        return Decision((), refused_join("" if code in _WITHOUT_MEMBER_ID else request.member_id, code))
    draft = _draft(state, request.group_id, now_ms)
    prefix = request.group_instance_id or request.client_id
    join = _Join(
        request=request,
        protocols=protocols_of(request),
        call_id=command.call_id,
        new_member_id=f"{prefix}-{command.new_member_suffix}",
        draft=draft,
        settings=settings,
    )
    if not _has_room(draft.group, request.member_id, settings):
        draft.remove(request.member_id)
        draft.end_session(request.member_id)
        return draft.decision(refused_join("", ErrorCode.GROUP_MAX_SIZE_REACHED))
    if not _has_bytes_left(join):
        return join.refused(request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not draft.group.supports(request.protocol_type, join.protocols):
        return join.refused(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return _join_known(join) if request.member_id else _join_unknown(join)


def _draft(state: CoordinatorState, group_id: str, now_ms: int) -> ClassicGroupDraft:
    """A group that is new is written as an empty one, so that it exists from now on."""
    known = classic_group(state, group_id)
    if known is not None:
        return ClassicGroupDraft(known, now_ms)
    group = ClassicGroup(group_id=group_id, state_timestamp_ms=now_ms)
    draft = ClassicGroupDraft(group, now_ms)
    if _is_empty_consumer_group(state, group_id):
        draft.records += records_without_group(state.consumer_groups[group_id])
    draft.records.append(records.classic_group(group_id, metadata_record(group)))
    return draft


_WITHOUT_MEMBER_ID = (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.GROUP_MAX_SIZE_REACHED)


def _join_refusal(state: CoordinatorState, request: pb.JoinGroupRequest, settings: ClassicSettings) -> ErrorCode:
    """Validates the request without the group's state."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not settings.accepts_session_timeout(request.session_timeout_ms):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    kind = group_type(state, request.group_id)
    if _is_empty_consumer_group(state, request.group_id):
        return ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.NONE
    if kind is None:
        if request.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.GROUP_MAX_SIZE_REACHED if is_full(state, settings.max_groups) else ErrorCode.NONE
    return ErrorCode.NONE if kind is GroupType.CLASSIC else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _is_empty_consumer_group(state: CoordinatorState, group_id: str) -> bool:
    """Whether a consumer group of KIP-848 makes room for a classic one; its committed offsets stay."""
    group = state.consumer_groups.get(group_id)
    return group is not None and not group.members


def protocols_of(request: pb.JoinGroupRequest) -> tuple[Protocol, ...]:
    """Each name once, the first that is given."""
    found: dict[str, bytes] = {}
    for protocol in request.protocols:
        found.setdefault(protocol.name, protocol.metadata)
    return tuple(found.items())


def _has_room(group: ClassicGroup, member_id: str, settings: ClassicSettings) -> bool:
    """Whether the size limits admit the member; a rebalance counts only members that joined (acceptJoiningMember)."""
    member = group.members.get(member_id)
    is_known = member is not None or member_id in group.pending_members
    if not is_known and len(group.members) + len(group.pending_members) >= settings.max_member_ids:
        return False
    if group.is_empty:
        return True
    if group.state is State.PREPARING_REBALANCE:
        waits = member is not None and member.awaiting_join is not None
        return waits or group.waiting_joins < settings.max_size
    return member is not None or len(group.members) < settings.max_size


def _has_bytes_left(join: _Join) -> bool:
    """Whether the record has room for the member, in place of what it has in it."""
    group, request = join.draft.group, join.request
    known = group.members.get(request.member_id or group.static_members.get(request.group_instance_id, ""))
    stored_bytes = _member_of(join).stored_bytes
    if known is not None and stored_bytes <= known.stored_bytes:
        return True
    return group.stored_bytes - (known.stored_bytes if known else 0) + stored_bytes <= join.settings.max_bytes // 2


def _join_unknown(join: _Join) -> JoinDecision:
    """A member without an id (classicGroupJoinNewMember)."""
    draft, request = join.draft, join.request
    if request.group_instance_id:
        old_id = draft.group.static_members.get(request.group_instance_id)
        return _add(join, join.new_member_id) if old_id is None else _replace_static(join, old_id)
    if not request.requires_known_member_id:
        return _add(join, join.new_member_id)
    draft.add_pending(join.new_member_id)
    timer = ClassicTimer(TimerKind.SESSION, request.group_id, join.new_member_id)
    draft.set_timer(timer, request.session_timeout_ms)
    return draft.decision(refused_join(join.new_member_id, ErrorCode.MEMBER_ID_REQUIRED))


def _join_known(join: _Join) -> JoinDecision:
    """A member that names its id (classicGroupJoinExistingMember)."""
    draft, request, group = join.draft, join.request, join.draft.group
    member_id = request.member_id
    if member_id in group.pending_members and not request.group_instance_id:
        return _add(join, member_id)
    code = member_refusal(group, member_id, request.group_instance_id)
    if code:
        return join.refused(member_id, code)
    is_leader = member_id == group.leader_id
    is_same = group.members[member_id].protocols == join.protocols
    if group.state is State.COMPLETING_REBALANCE and is_same:
        return Decision((), draft.joined(member_id, with_members=is_leader))
    if group.state is State.STABLE and is_same and not is_leader:
        return Decision((), draft.joined(member_id, with_members=False))
    draft.join_again(member_id, request, join.protocols, join.call_id)
    return _rebalanced(join)


def _member_of(join: _Join) -> ClassicMember:
    """As a new one."""
    request = join.request
    return ClassicMember(
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=join.protocols,
        awaiting_join=join.call_id,
        is_new=True,
    )


def _add(join: _Join, member_id: str) -> JoinDecision:
    draft, request = join.draft, join.request
    if draft.group.state is State.PREPARING_REBALANCE and draft.group.previous_state is State.EMPTY:
        draft.note_new_member()
    draft.add(member_id, _member_of(join), request.protocol_type)
    draft.renew_session(member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
    return _rebalanced(join)


def _rebalanced(join: _Join) -> JoinDecision:
    """The join waits; where it was the last one, it is answered by the rebalance that it completes."""
    rebalance_or_complete(join.draft, join.settings.initial_rebalance_delay_ms)
    return join.draft.decision(None)


def _replace_static(join: _Join, old_id: str) -> JoinDecision:
    """A static member that comes back without its member id (updateStaticMemberThenRebalanceOrCompleteJoin)."""
    draft, request, new_id = join.draft, join.request, join.new_member_id
    old_leader = draft.group.leader_id
    draft.replace_static(request.group_instance_id, old_id, new_id)
    draft.join_again(new_id, request, join.protocols, join.call_id)
    draft.renew_session(new_id)
    if draft.group.state is not State.STABLE:
        if draft.group.state is State.COMPLETING_REBALANCE:
            prepare_rebalance(draft, join.settings.initial_rebalance_delay_ms)
        else:
            complete_join_phase(draft)
        return draft.decision(None)
    if draft.selected_protocol() != draft.group.protocol_name:
        return _rebalanced(join)
    draft.put(new_id, replace(draft.group.members[new_id], awaiting_join=None))
    draft.is_stored = True
    if request.supports_skipping_assignment:
        is_leader = new_id == draft.group.leader_id
        return draft.decision(draft.joined(new_id, with_members=is_leader, skip_assignment=is_leader))
    answer = draft.joined(new_id, with_members=False)
    answer.leader = old_leader  # so that the member does not take itself for the leader, and keeps the assignment
    return draft.decision(answer)


def decide_sync(state: CoordinatorState, command: SyncGroup, settings: ClassicSettings, now_ms: int) -> SyncDecision:
    request = command.request
    group = state.classic_groups.get(request.group_id)
    code = _sync_refusal(group, request)
    if code or group is None:
        return Decision((), pb.SyncGroupResponse(error_code=code))
    draft = ClassicGroupDraft(group, now_ms)
    draft.synced(request.member_id)
    if group.state is State.STABLE:
        return draft.decision(synced(draft, group.members[request.member_id].assignment))
    draft.await_sync(request.member_id, command.call_id)
    if request.member_id == group.leader_id:
        assignments = {each.member_id: each.assignment for each in request.assignments}
        if _is_too_large(group, assignments, settings):
            fail_sync(draft, settings.initial_rebalance_delay_ms)
        else:
            complete_sync(draft, assignments)
    return draft.decision(None)


def _is_too_large(group: ClassicGroup, assignments: Mapping[str, bytes], settings: ClassicSettings) -> bool:
    """Whether the group's record would be."""
    assigned_bytes = sum(len(assignments.get(member_id, b"")) for member_id in group.members)
    return group.stored_bytes + assigned_bytes > settings.max_bytes


def _sync_refusal(group: ClassicGroup | None, request: pb.SyncGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None or group.is_empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = member_refusal(group, request.member_id, request.group_instance_id)
    if code:
        return code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING_REBALANCE else ErrorCode.NONE


def _differs(given: str, known: str) -> bool:
    """Whether a protocol differs; an absent one does not differ (isProtocolInconsistent)."""
    return bool(given) and given != known


def decide_classic_heartbeat(
    state: CoordinatorState, command: ClassicHeartbeat
) -> Decision[AnyRecord, ErrorCode, Effect]:
    request = command.request
    if not request.group_id:
        return Decision((), ErrorCode.INVALID_GROUP_ID)
    group = state.classic_groups.get(request.group_id)
    if group is None:
        return Decision((), ErrorCode.UNKNOWN_MEMBER_ID)
    code = member_refusal(group, request.member_id, request.group_instance_id)
    if code or request.generation_id != group.generation_id:
        return Decision((), code or ErrorCode.ILLEGAL_GENERATION)
    member = group.members[request.member_id]
    timer = ClassicTimer(TimerKind.SESSION, request.group_id, request.member_id)
    is_rebalancing = group.state is State.PREPARING_REBALANCE
    return Decision(
        (),
        ErrorCode.REBALANCE_IN_PROGRESS if is_rebalancing else ErrorCode.NONE,
        (ClassicTimerSet(timer=timer, delay_ms=member.session_timeout_ms),),
    )


def decide_leave(
    state: CoordinatorState, command: LeaveGroup, settings: ClassicSettings, now_ms: int
) -> Decision[AnyRecord, pb.LeaveGroupResponse, Effect]:
    """Each member gets a result of its own; the group rebalances once, for all who left."""
    request = command.request
    if not request.group_id:
        return Decision((), pb.LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
    group = classic_group(state, request.group_id) if group_type(state, request.group_id) is GroupType.CLASSIC else None
    draft = ClassicGroupDraft(group or ClassicGroup(group_id=request.group_id), now_ms)
    answer = pb.LeaveGroupResponse()
    for identity in request.members:
        code = _leave(draft, identity.member_id, identity.group_instance_id)
        answer.members.add(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
    if all(result.error_code for result in answer.members):
        return Decision((), answer)
    if draft.group.state in (State.COMPLETING_REBALANCE, State.STABLE):
        rebalance_or_complete(draft, settings.initial_rebalance_delay_ms)
    else:
        complete_join_phase(draft)
    return draft.decision(answer)


def _leave(draft: ClassicGroupDraft, member_id: str, group_instance_id: str) -> ErrorCode:
    """Removes the member with the id, or without an id the member with the group instance id."""
    group = draft.group
    if not member_id:
        member_id = group.static_members.get(group_instance_id, "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_members:
        code = member_refusal(group, member_id, group_instance_id)
        if code:
            return code
    if member_id in group.members:
        draft.answer_join(member_id, refused_join("", ErrorCode.UNKNOWN_MEMBER_ID))
        draft.answer_sync(member_id, pb.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    draft.remove(member_id)
    draft.end_session(member_id)
    return ErrorCode.NONE


def decide_timer_expired(
    state: CoordinatorState, command: ClassicTimerExpired, settings: ClassicSettings, now_ms: int
) -> Decision[AnyRecord, None, Effect]:
    timer, delay_ms = command.timer, settings.initial_rebalance_delay_ms
    group = state.classic_groups.get(timer.group_id)
    if group is None or (timer.kind is not TimerKind.SESSION and timer.generation_id != group.generation_id):
        return Decision((), None)
    draft = ClassicGroupDraft(group, now_ms)
    if timer.kind is TimerKind.SESSION:
        _expire_session(draft, timer.member_id, delay_ms)
    elif timer.kind is TimerKind.SYNC:
        expire_syncs(draft, delay_ms)
    elif group.state is State.PREPARING_REBALANCE:
        if timer.kind is TimerKind.INITIAL_JOIN:
            initial_delay_over(draft, delay_ms)
        else:
            complete_join(draft)
    return draft.decision(None)


def _expire_session(draft: ClassicGroupDraft, member_id: str, initial_delay_ms: int) -> None:
    member = draft.group.members.get(member_id)
    if member_id in draft.group.pending_members:
        remove_pending(draft, member_id)
    elif member is not None and not member.is_waiting:
        remove_member(draft, member_id, initial_delay_ms)


@decides(ResumeClassicGroups)
def decide_resume(
    state: CoordinatorState, command: ResumeClassicGroups, settings: ClassicSettings, now_ms: int
) -> Decision[AnyRecord, None, Effect]:
    """A group that is larger than is allowed now rebalances, as in Kafka (onLoaded); so does one that was about to."""
    found: list[AnyRecord] = []
    effects: list[Effect] = []
    for group in state.classic_groups.values():
        if command.group_partition not in (None, partition_of_group(group.group_id)):
            continue
        draft = ClassicGroupDraft(group, now_ms)
        for member_id in group.members:
            draft.renew_session(member_id)
        if len(group.members) > settings.max_size or group.awaits_rebalance:
            prepare_rebalance(draft, settings.initial_rebalance_delay_ms)
            found.extend(draft.decision(None).records)
        effects.extend(draft.effects)
    return Decision(found, None, effects)
