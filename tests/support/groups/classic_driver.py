"""Classic groups without a shell: a machine, its timers on a clock that the test moves, and the calls that wait.

driver = ClassicGroupDriver()
call = driver.join("group", client_id="a")      # 9 is the newest version; see `requires_known_member_id`
driver.answer(call)                             # None while it waits
driver.advance(3_000)                           # timers that are due run out, in order
driver.restart()                                # what is not stored is lost
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic.group import ClassicGroup
from kshare_coordinator.machine.groups.classic.timers import (
    ClassicTimer,
    ClassicTimerCancelled,
    ClassicTimerSet,
    WaitingCallAnswered,
)
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

GROUP = "group"
SESSION_MS, REBALANCE_MS = 10_000, 60_000


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription in version 0, without user data."""
    names = b"".join(struct.pack(">h", len(name.encode())) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE = ("range", subscription("t"))
STICKY = ("sticky", subscription("t"))


class ClassicGroupDriver:
    """See the module's text. `now_ms` is the clock's time; the answers of all calls that waited are kept."""

    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        self.coordinator = CoordinatorDriver(configs)
        self.timers: dict[ClassicTimer, int] = {}
        self.sessions: dict[str, int] = {}
        """Session timeouts of members of consumer groups of KIP-848."""
        self.answers: dict[int, pb.JoinGroupResponse | pb.SyncGroupResponse] = {}
        self.expired = 0
        """Timers that ran out."""
        self._calls = itertools.count(1)

    @property
    def now_ms(self) -> int:
        return self.coordinator.now_ms

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        return self.coordinator.state.classic_groups[group_id]

    def carry_out(self) -> None:
        """The effects of the newest command."""
        for effect in self.coordinator.effects:
            if isinstance(effect, ClassicTimerSet):
                if effect.only_if_absent and effect.timer in self.timers:
                    continue
                self.timers[effect.timer] = self.now_ms + max(0, effect.delay_ms)
            elif isinstance(effect, ClassicTimerCancelled):
                self.timers.pop(effect.timer, None)
            elif isinstance(effect, commands.SessionRenewed):
                self.sessions[effect.member_id] = effect.session_timeout_ms
            elif isinstance(effect, commands.SessionEnded):
                self.sessions.pop(effect.member_id, None)
            elif isinstance(effect, WaitingCallAnswered):
                assert effect.call_id not in self.answers, "a call is answered once"
                self.answers[effect.call_id] = effect.answer

    def advance(self, delay_ms: int) -> None:
        """The clock goes on; what runs out on the way runs out in order."""
        end = self.now_ms + delay_ms
        while due := sorted((when, timer) for timer, when in self.timers.items() if when <= end):
            when, timer = due[0]
            self.coordinator.now_ms = when
            del self.timers[timer]
            self.expired += 1
            self.coordinator.run(commands.ClassicTimerExpired(timer=timer))
            self.carry_out()
        self.coordinator.now_ms = end

    def restart(self) -> None:
        """Members whose calls waited never hear of them."""
        self.coordinator.restart()
        self.timers.clear()
        self.coordinator.run(commands.ResumeClassicGroups())
        self.carry_out()

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance: str = "",
        client_id: str = "client",
        protocols: Sequence[tuple[str, bytes]] = (RANGE,),
        protocol_type: str = "consumer",
        version: int = 9,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> int:
        """The id of the call; its answer is that of `answer`."""
        call_id = next(self._calls)
        request = pb.JoinGroupRequest(
            group_id=group_id,
            member_id=member_id,
            group_instance_id=instance,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=[pb.JoinGroupRequest.Protocol(name=name, metadata=data) for name, data in protocols],
            client_id=client_id,
            client_host="/host",
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        )
        command = commands.JoinGroup(request=request, call_id=call_id, new_member_suffix=f"uuid{call_id}")
        self._note(call_id, self.coordinator.run(command))
        return call_id

    def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = GROUP,
        instance: str = "",
        protocol_type: str = "",
        protocol_name: str = "",
    ) -> int:
        call_id = next(self._calls)
        request = pb.SyncGroupRequest(
            group_id=group_id,
            member_id=member_id,
            generation_id=generation_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        )
        self._note(call_id, self.coordinator.run(commands.SyncGroup(request=request, call_id=call_id)))
        return call_id

    def _note(self, call_id: int, answer: pb.JoinGroupResponse | pb.SyncGroupResponse | None) -> None:
        if answer is not None:
            self.answers[call_id] = answer
        self.carry_out()

    def join_answer(self, call_id: int) -> pb.JoinGroupResponse | None:
        """None while it waits."""
        answer = self.answers.get(call_id)
        assert answer is None or isinstance(answer, pb.JoinGroupResponse)
        return answer

    def joined(self, call_id: int) -> pb.JoinGroupResponse:
        """The answer of a join that was answered."""
        answer = self.join_answer(call_id)
        assert answer is not None, "the join waits"
        return answer

    def synced(self, call_id: int) -> pb.SyncGroupResponse:
        answer = self.answers[call_id]
        assert isinstance(answer, pb.SyncGroupResponse)
        return answer

    def heartbeat(self, member_id: str, generation_id: int, *, group_id: str = GROUP, instance: str = "") -> ErrorCode:
        request = pb.HeartbeatRequest(
            group_id=group_id, member_id=member_id, generation_id=generation_id, group_instance_id=instance
        )
        code = self.coordinator.run(commands.ClassicHeartbeat(request=request))
        self.carry_out()
        return code

    def leave(self, *members: tuple[str, str], group_id: str = GROUP) -> list[ErrorCode]:
        """Pairs of member id and group instance id."""
        identities = [
            pb.LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance)
            for member_id, instance in members
        ]
        request = pb.LeaveGroupRequest(group_id=group_id, members=identities)
        answer = self.coordinator.run(commands.LeaveGroup(request=request))
        self.carry_out()
        if answer.error_code:
            return [ErrorCode(answer.error_code)]
        return [ErrorCode(result.error_code) for result in answer.members]

    # Whole steps

    def new_member(self, **fields: str) -> tuple[str, int]:
        """A dynamic member's id, and its join that waits."""
        first = self.joined(self.join(client_id=fields.get("client_id", "client")))
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, client_id=fields.get("client_id", "client"))

    def stable(self, count: int = 1) -> list[str]:
        """A new group with so many members, each with its own id as assignment; the first one leads."""
        members = [self.new_member() for _ in range(count)]
        self.advance(6_000)
        names = [member_id for member_id, _ in members]
        generation_id = self.group().generation_id
        for member_id in reversed(names):  # the leader last
            self.sync(member_id, generation_id, {name: name.encode() for name in names})
        assert self.group().state == "Stable"
        return names
