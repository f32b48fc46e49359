"""ClassicGroupDraft, a pending change of one classic group (the fields of Kafka's ClassicGroup), and its decision.

A draft starts from the current group, is changed step by step, and ends as a Decision: the changed group, its durable
record if `is_stored` was set, and the collected effects. `requests` and `rebalance` decide the
protocol's steps; the draft keeps the tables of the group consistent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect
from kshare_coordinator.machine.groups.classic.group import (
    ClassicGroup,
    ClassicGroupInMemory,
    ClassicGroupState,
    ClassicMember,
    Protocol,
    metadata_record,
    topics_of_members,
)
from kshare_coordinator.machine.groups.classic.timers import (
    ClassicTimer,
    ClassicTimerCancelled,
    ClassicTimerSet,
    TimerKind,
    WaitingCallAnswered,
)
from kshare_coordinator.machine.records import AnyRecord
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

Answer = TypeVar("Answer")


class ClassicGroupDraft:
    """See the module's text. `group` is the group as it is at this step; its tables are this draft's own."""

    def __init__(self, group: ClassicGroup, now_ms: int) -> None:
        self._now_ms = now_ms
        self._members = dict(group.members)
        self._pending_members = dict(group.pending_members)
        self._pending_syncs = dict(group.pending_syncs)
        self._static_members = dict(group.static_members)
        self._protocol_counts = dict(group.protocol_counts)
        self.group = replace(
            group,
            members=self._members,
            pending_members=self._pending_members,
            pending_syncs=self._pending_syncs,
            static_members=self._static_members,
            protocol_counts=self._protocol_counts,
        )
        self.is_stored = False
        """Whether the group is to be written as it is at the end."""
        self.records: list[AnyRecord] = []
        """Beside the group's own, before it."""
        self.effects: list[Effect] = []

    def decision(self, answer: Answer) -> Decision[AnyRecord, Answer, Effect]:
        found = list(self.records)
        if self.is_stored:
            found.append(records.classic_group(self.group.group_id, metadata_record(self.group)))
        found.append(ClassicGroupInMemory(self.group))
        return Decision(found, answer, self.effects)

    # The group

    def change_state(self, state: ClassicGroupState) -> None:
        self.group = replace(self.group, state=state, previous_state=self.group.state, state_timestamp_ms=self._now_ms)

    def begin_generation(self) -> None:
        """The next generation: Empty, or a protocol is chosen and the members have to sync (initNextGeneration)."""
        group = self.group
        protocol_name = self.selected_protocol() if group.members else ""
        self.group = replace(
            group,
            generation_id=group.generation_id + 1,
            protocol_name=protocol_name,
            awaits_rebalance=False,
            subscribed_topics=topics_of_members(group.protocol_type, protocol_name, group.members.values()),
        )
        is_empty = not group.members
        self.change_state(ClassicGroupState.EMPTY if is_empty else ClassicGroupState.COMPLETING_REBALANCE)
        self._pending_syncs.clear()

    def selected_protocol(self) -> str:
        """Of the protocols that all members support, the one that most members like best."""
        count = len(self._members)
        votes: dict[str, int] = {}
        for member in self._members.values():
            name = next(name for name, _ in member.protocols if self._protocol_counts[name] == count)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def elect_leader(self) -> bool:
        """Whether the leader's join waits, or that of a member that now becomes the leader (maybeElectNewJoinedLeader).

        False too in a group without members, which has no leader."""
        if not self.group.leader_id:
            return False
        if self._members[self.group.leader_id].awaiting_join is not None:
            return True
        joined = next((name for name, member in self._members.items() if member.awaiting_join is not None), None)
        if joined is None:
            return False
        self.group = replace(self.group, leader_id=joined)
        return True

    def settle_initial_delay(self, delay_ms: int, remaining_ms: int) -> None:
        """The last value of the first rebalance's timer; no member has joined since."""
        self.group = replace(
            self.group, new_member_added=False, initial_delay_ms=delay_ms, initial_remaining_ms=remaining_ms
        )

    def note_new_member(self) -> None:
        self.group = replace(self.group, new_member_added=True)

    # Members

    def add(self, member_id: str, member: ClassicMember, protocol_type: str) -> None:
        """The first member brings its protocol type, and leads."""
        if member.group_instance_id:
            self._static_members[member.group_instance_id] = member_id
        self.group = replace(
            self.group,
            protocol_type=self.group.protocol_type if self._members else protocol_type,
            leader_id=self.group.leader_id or member_id,
            waiting_joins=self.group.waiting_joins + (member.awaiting_join is not None),
        )
        self._members[member_id] = member
        self._count(member, 1)
        self._pending_members.pop(member_id, None)

    def remove(self, member_id: str) -> None:
        """Removes a member, or an id that was only handed out; the oldest member becomes the leader."""
        member = self._members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.group_instance_id:
                self._static_members.pop(member.group_instance_id, None)
            waits = member.awaiting_join is not None
            self.group = replace(self.group, waiting_joins=self.group.waiting_joins - waits)
        if self.group.leader_id == member_id:
            self.group = replace(self.group, leader_id=next(iter(self._members), ""))
        self._pending_members.pop(member_id, None)
        self._pending_syncs.pop(member_id, None)

    def put(self, member_id: str, member: ClassicMember) -> None:
        """A member that is in the group, changed."""
        old = self._members[member_id]
        self._count(old, -1)
        self._count(member, 1)
        waiting = (member.awaiting_join is not None) - (old.awaiting_join is not None)
        self.group = replace(self.group, waiting_joins=self.group.waiting_joins + waiting)
        self._members[member_id] = member

    def join_again(
        self, member_id: str, request: pb.JoinGroupRequest, protocols: tuple[Protocol, ...], call_id: int | None
    ) -> None:
        """Updates a rejoining member; an earlier join gets REBALANCE_IN_PROGRESS; `call_id` None: no join waits."""
        self.answer_join(member_id, refused_join(member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        self.put(
            member_id,
            replace(
                self._members[member_id],
                protocols=protocols,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                session_timeout_ms=request.session_timeout_ms,
                awaiting_join=call_id,
            ),
        )

    def replace_static(self, group_instance_id: str, old_id: str, new_id: str) -> None:
        """Gives the member another id; calls that wait under the old id are fenced (replaceStaticMember).

        A sync that is awaited of the old id is awaited of the new one. Kafka keeps waiting for the old one, which
        never comes, and rebalances when it has waited long enough.
        """
        self.answer_join(old_id, refused_join(old_id, ErrorCode.FENCED_INSTANCE_ID))
        self.answer_sync(old_id, pb.SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        self.cancel(ClassicTimer(TimerKind.SESSION, self.group.group_id, old_id))
        renamed = {(new_id if name == old_id else name): member for name, member in self._members.items()}
        self._members.clear()
        self._members.update(renamed)
        self._static_members[group_instance_id] = new_id
        if old_id in self._pending_syncs:
            del self._pending_syncs[old_id]
            self._pending_syncs[new_id] = None
        if self.group.leader_id == old_id:
            self.group = replace(self.group, leader_id=new_id)

    def assign(self, assignments: dict[str, bytes]) -> None:
        """A member that is not named gets an empty assignment."""
        for member_id, member in self._members.items():
            self._members[member_id] = replace(member, assignment=assignments.get(member_id, b""))

    def settle_member(self, member_id: str) -> None:
        """Its join was answered: it is new no longer, and has to sync."""
        self._members[member_id] = replace(self._members[member_id], is_new=False)
        self._pending_syncs[member_id] = None

    def await_sync(self, member_id: str, call_id: int) -> None:
        """The member's sync waits, in place of one that may have waited."""
        self.answer_sync(member_id, pb.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self._members[member_id] = replace(self._members[member_id], awaiting_sync=call_id)

    def add_pending(self, member_id: str) -> None:
        self._pending_members[member_id] = None

    def synced(self, member_id: str) -> None:
        """Cancels the timer for syncs once all members have synced."""
        self._pending_syncs.pop(member_id, None)
        if not self._pending_syncs:
            self.cancel(self.timer(TimerKind.SYNC))

    def forget_syncs(self) -> None:
        self._pending_syncs.clear()
        self.cancel(self.timer(TimerKind.SYNC))

    def _count(self, member: ClassicMember, sign: int) -> None:
        self.group = replace(self.group, stored_bytes=self.group.stored_bytes + sign * member.stored_bytes)
        for name, _ in member.protocols:
            count = self._protocol_counts.get(name, 0) + sign
            if count:
                self._protocol_counts[name] = count
            else:
                self._protocol_counts.pop(name, None)

    # Answers and timers

    def answer_join(self, member_id: str, answer: pb.JoinGroupResponse) -> None:
        """The member's join, where one waits."""
        member = self._members[member_id]
        if member.awaiting_join is not None:
            self.effects.append(WaitingCallAnswered(call_id=member.awaiting_join, answer=answer))
            self.put(member_id, replace(member, awaiting_join=None))

    def answer_sync(self, member_id: str, answer: pb.SyncGroupResponse) -> bool:
        """The member's sync; False where none waits."""
        member = self._members[member_id]
        if member.awaiting_sync is None:
            return False
        self.effects.append(WaitingCallAnswered(call_id=member.awaiting_sync, answer=answer))
        self._members[member_id] = replace(member, awaiting_sync=None)
        return True

    def joined(self, member_id: str, *, with_members: bool, skip_assignment: bool = False) -> pb.JoinGroupResponse:
        """The answer to a member that is in the group's generation."""
        group = self.group
        return pb.JoinGroupResponse(
            generation_id=group.generation_id,
            has_protocol=True,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_id,
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=self._described_members() if with_members else (),
        )

    def _described_members(self) -> list[pb.JoinGroupResponse.Member]:
        return [
            pb.JoinGroupResponse.Member(
                member_id=member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.group.protocol_name),
            )
            for member_id, member in self._members.items()
        ]

    def timer(self, kind: TimerKind) -> ClassicTimer:
        """Of the group, in this generation."""
        return ClassicTimer(kind, self.group.group_id, generation_id=self.group.generation_id)

    def set_timer(self, timer: ClassicTimer, delay_ms: int) -> None:
        self.effects.append(ClassicTimerSet(timer=timer, delay_ms=delay_ms))

    def cancel(self, timer: ClassicTimer) -> None:
        self.effects.append(ClassicTimerCancelled(timer=timer))

    def renew_session(self, member_id: str, timeout_ms: int | None = None) -> None:
        """For the member's own session timeout, where nothing else is said."""
        own_ms = self._members[member_id].session_timeout_ms if timeout_ms is None else timeout_ms
        self.set_timer(ClassicTimer(TimerKind.SESSION, self.group.group_id, member_id), own_ms)

    def end_session(self, member_id: str) -> None:
        self.cancel(ClassicTimer(TimerKind.SESSION, self.group.group_id, member_id))


def refused_join(member_id: str, code: ErrorCode) -> pb.JoinGroupResponse:
    return pb.JoinGroupResponse(error_code=code, generation_id=-1, member_id=member_id)
