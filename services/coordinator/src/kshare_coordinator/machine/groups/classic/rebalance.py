"""Rebalances of a classic group, from one generation to the next (GroupMetadataManager of Kafka 4.3.1).

- PreparingRebalance: joins wait until all members have joined, or the longest rebalance timeout is over. Dynamic
  members that did not join are then removed, static ones stay. The first rebalance of an empty group is delayed by
  group.initial.rebalance.delay.ms, repeatedly while members join, at most for the longest rebalance timeout.
- CompletingRebalance: the joins are answered, the leader's with the metadata of all members; syncs wait for the
  leader's assignment. Members that do not sync within the rebalance timeout are removed, and the rebalance restarts.
- Stable: the leader's assignment is written and sent to the members.
- A group without members is Empty; that is written too.
"""

from __future__ import annotations

from kshare_coordinator.machine.groups.classic.draft import ClassicGroupDraft, refused_join
from kshare_coordinator.machine.groups.classic.group import ClassicGroupState
from kshare_coordinator.machine.groups.classic.timers import TimerKind
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

State = ClassicGroupState

MIN_RETRY_MS = 1_000
"""Minimum delay before a rebalance without joins is checked again, even if members request a shorter timeout."""


def rebalance_or_complete(draft: ClassicGroupDraft, initial_delay_ms: int) -> None:
    """Something changed that calls for a new generation (maybePrepareRebalanceOrCompleteJoin)."""
    if draft.group.state is State.PREPARING_REBALANCE:
        complete_join_phase(draft)
    else:
        prepare_rebalance(draft, initial_delay_ms)


def complete_join_phase(draft: ClassicGroupDraft) -> None:
    """The joins are answered if nothing more is to be waited for; the first rebalance waits for its timer."""
    group = draft.group
    if group.state is State.PREPARING_REBALANCE and group.previous_state is not State.EMPTY and group.has_all_joined:
        complete_join(draft)


def prepare_rebalance(draft: ClassicGroupDraft, initial_delay_ms: int) -> None:
    """Waits for joins; a new generation begins at once if all members have already joined."""
    if draft.group.state is State.COMPLETING_REBALANCE:
        _propagate(draft, {}, ErrorCode.REBALANCE_IN_PROGRESS)
    draft.forget_syncs()
    is_initial = draft.group.is_empty
    draft.change_state(State.PREPARING_REBALANCE)
    timeout_ms = draft.group.rebalance_timeout_ms
    if is_initial:
        draft.settle_initial_delay(initial_delay_ms, max(timeout_ms - initial_delay_ms, 0))
        draft.set_timer(draft.timer(TimerKind.INITIAL_JOIN), initial_delay_ms)
    elif draft.group.has_all_joined:
        complete_join(draft)
    else:
        draft.set_timer(draft.timer(TimerKind.JOIN), timeout_ms)


def initial_delay_over(draft: ClassicGroupDraft, initial_delay_ms: int) -> None:
    """Extends the delay if a member joined meanwhile and time is left (tryCompleteInitialRebalanceElseSchedule)."""
    group = draft.group
    if not group.new_member_added or group.initial_remaining_ms == 0:
        complete_join(draft)
        return
    delay_ms = min(initial_delay_ms, group.initial_remaining_ms)
    draft.settle_initial_delay(delay_ms, max(group.initial_remaining_ms - group.initial_delay_ms, 0))
    draft.set_timer(draft.timer(TimerKind.INITIAL_JOIN), delay_ms)


def complete_join(draft: ClassicGroupDraft) -> None:
    """The next generation, of those who joined (completeClassicGroupJoin)."""
    draft.cancel(draft.timer(TimerKind.INITIAL_JOIN))
    draft.cancel(draft.timer(TimerKind.JOIN))
    for member_id, member in list(draft.group.members.items()):
        if member.awaiting_join is None and not member.group_instance_id:
            draft.remove(member_id)
            draft.end_session(member_id)
    if draft.group.members and not draft.elect_leader():
        draft.set_timer(draft.timer(TimerKind.JOIN), max(draft.group.rebalance_timeout_ms, MIN_RETRY_MS))
        return
    draft.begin_generation()
    if draft.group.is_empty:
        draft.is_stored = True
        return
    for member_id in list(draft.group.members):
        draft.answer_join(member_id, draft.joined(member_id, with_members=member_id == draft.group.leader_id))
        draft.renew_session(member_id)
        draft.settle_member(member_id)
    draft.set_timer(draft.timer(TimerKind.SYNC), draft.group.rebalance_timeout_ms)


def complete_sync(draft: ClassicGroupDraft, assignments: dict[str, bytes]) -> None:
    """The leader's assignment: it is written, and then handed out to those whose sync waits."""
    _propagate(draft, assignments, ErrorCode.NONE)
    draft.change_state(State.STABLE)
    draft.is_stored = True


def fail_sync(draft: ClassicGroupDraft, initial_delay_ms: int) -> None:
    """The leader's assignment cannot be stored: the members hear so, and a new generation is prepared."""
    _propagate(draft, {}, ErrorCode.UNKNOWN_SERVER_ERROR)
    prepare_rebalance(draft, initial_delay_ms)


def _propagate(draft: ClassicGroupDraft, assignments: dict[str, bytes], code: ErrorCode) -> None:
    """To all members whose sync waits."""
    draft.assign(assignments)
    for member_id, member in list(draft.group.members.items()):
        answer = synced(draft, member.assignment) if not code else pb.SyncGroupResponse(error_code=code)
        if draft.answer_sync(member_id, answer):
            draft.renew_session(member_id)


def synced(draft: ClassicGroupDraft, assignment: bytes) -> pb.SyncGroupResponse:
    return pb.SyncGroupResponse(
        has_protocol=True,
        protocol_type=draft.group.protocol_type,
        protocol_name=draft.group.protocol_name,
        assignment=assignment,
    )


def remove_member(draft: ClassicGroupDraft, member_id: str, initial_delay_ms: int) -> None:
    """A member that was silent: its join, if one waits, is refused (removeMemberAndUpdateClassicGroup)."""
    draft.answer_join(member_id, refused_join("", ErrorCode.UNKNOWN_MEMBER_ID))
    draft.answer_sync(member_id, pb.SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    draft.remove(member_id)
    if draft.group.state in (State.STABLE, State.COMPLETING_REBALANCE):
        rebalance_or_complete(draft, initial_delay_ms)
    elif draft.group.state is State.PREPARING_REBALANCE and draft.group.has_all_joined:
        complete_join(draft)


def remove_pending(draft: ClassicGroupDraft, member_id: str) -> None:
    """An id that was handed out and never used (removePendingMemberAndUpdateClassicGroup)."""
    draft.remove(member_id)
    if draft.group.state is State.PREPARING_REBALANCE and draft.group.has_all_joined:
        complete_join(draft)


def expire_syncs(draft: ClassicGroupDraft, initial_delay_ms: int) -> None:
    """Members that have not synced in time are taken out, and a new generation is prepared (expirePendingSync)."""
    if draft.group.state not in (State.COMPLETING_REBALANCE, State.STABLE) or not draft.group.pending_syncs:
        return
    for member_id in list(draft.group.pending_syncs):
        draft.remove(member_id)
        draft.end_session(member_id)
    prepare_rebalance(draft, initial_delay_ms)
