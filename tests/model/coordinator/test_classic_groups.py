"""Clients of a classic group in any order of requests: join, sync, heartbeat, leave, fall silent, restart.

What must hold is said from the outside, by what the clients were told:
- a generation has one leader and one protocol, and the leader was told of everybody who is in it;
- a sync gives a member what the leader of its generation gave it;
- generations never go back, but for those that a restart forgot, which nobody had an assignment of;
- a heartbeat is right for exactly the members of the newest generation;
- from wherever the group is, when all clients behave it is stable soon, with all of them and nobody else.
After each step the group's tables agree with each other, and a machine loaded from the rows has what must survive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_coordinator.machine.groups.classic.group import counted_protocols
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, TimerKind
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.groups.classic_driver import GROUP, RANGE, REBALANCE_MS, SESSION_MS, STICKY, ClassicGroupDriver

CLIENTS = ["dynamic 1", "dynamic 2", "dynamic 3", "old", "static 1", "static 2"]
NAMES = st.sampled_from(CLIENTS)
PROTOCOLS = st.sampled_from([(RANGE,), (RANGE, STICKY), (STICKY, RANGE)])
SETTLED_AFTER_MS = 600_000
STEP_MS = 2_000


@dataclass(slots=True)
class Client:
    """What one client knows. `call` is its join or sync that waits."""

    name: str
    member_id: str = ""
    generation_id: int = -1
    protocols: tuple[tuple[str, bytes], ...] = (RANGE,)
    call: int | None = None
    joined: pb.JoinGroupResponse | None = None
    """Set while the client has to sync."""
    assignment: bytes | None = None

    @property
    def instance(self) -> str:
        return self.name if self.name.startswith("static") else ""

    def forget(self) -> None:
        """Its member id is worth nothing any more."""
        self.member_id, self.generation_id, self.joined, self.assignment = "", -1, None, None


@dataclass(slots=True)
class Generation:
    """What clients were told of a generation."""

    leader: str
    protocol: str
    members: set[str] = field(default_factory=set)
    told_leader: set[str] | None = None
    assignments: dict[str, bytes] | None = None


class ClassicGroupModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = ClassicGroupDriver()
        self.clients = {name: Client(name) for name in CLIENTS}
        self.generations: dict[int, Generation] = {}
        self.newest = 0
        self.durable = 0
        """The newest generation that somebody has an assignment of."""

    # What clients do

    @rule(name=NAMES, protocols=PROTOCOLS)
    def join(self, name: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
        client = self.clients[name]
        if client.call is None:
            client.protocols = protocols
            self._join(client)

    def _join(self, client: Client) -> None:
        client.joined = client.assignment = None
        client.call = self.driver.join(
            client.member_id,
            instance=client.instance,
            protocols=client.protocols,
            version=3 if client.name == "old" else 9,
        )
        self._hear()

    @rule(name=NAMES)
    def give_up_and_join_anew(self, name: str) -> None:
        """A client process that was started again: what waited is nobody's any more."""
        self.clients[name] = Client(name)
        self._join(self.clients[name])

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        client = self.clients[name]
        if client.call is None and client.joined is not None:
            self._sync(client)

    def _sync(self, client: Client) -> None:
        assert client.joined is not None
        assignments = None
        if client.joined.leader == client.member_id:
            assignments = {
                member.member_id: f"{client.generation_id} {member.member_id}".encode()
                for member in client.joined.members
            }
            if self._is_current(client) and self.driver.group().state == "CompletingRebalance":
                self.generations[client.generation_id].assignments = assignments
                self.durable = client.generation_id
        client.call = self.driver.sync(client.member_id, client.generation_id, assignments, instance=client.instance)
        self._hear()

    def _is_current(self, client: Client) -> bool:
        group = self.driver.coordinator.state.classic_groups.get(GROUP)
        return group is not None and client.member_id in group.members and client.generation_id == group.generation_id

    @rule(name=NAMES)
    def heartbeat(self, name: str) -> None:
        client = self.clients[name]
        if client.call is None and client.member_id and client.generation_id >= 0:
            self._heartbeat(client)

    def _heartbeat(self, client: Client) -> E:
        current = self._is_current(client)
        code = self.driver.heartbeat(client.member_id, client.generation_id, instance=client.instance)
        assert (code in (E.NONE, E.REBALANCE_IN_PROGRESS)) == current, code
        if code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            client.forget()
        return code

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        client = self.clients[name]
        if client.member_id:
            member = client.member_id
            (code,) = self.driver.leave((member, client.instance))
            assert code in (E.NONE, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID)
            self._hear()
            client.forget()
            group = self.driver.coordinator.state.classic_groups.get(GROUP)
            assert group is None or member not in group.members or code is E.FENCED_INSTANCE_ID

    @rule(delay_ms=st.sampled_from([1, 1_000, 2_999, 3_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, delay_ms: int) -> None:
        self.driver.advance(delay_ms)
        self._hear()

    @rule()
    def restart(self) -> None:
        self.driver.restart()
        for client in self.clients.values():
            client.call = None  # its connection is lost
        stored = self.driver.coordinator.state.classic_groups.get(GROUP)
        kept = stored.generation_id if stored is not None else 0
        assert kept >= self.durable
        for generation_id in [each for each in self.generations if each > kept]:
            assert self.generations[generation_id].assignments is None
            del self.generations[generation_id]
        self.newest = kept

    # What clients are told

    def _hear(self) -> None:
        for client in self.clients.values():
            if client.call is None or client.call not in self.driver.answers:
                continue
            answer = self.driver.answers[client.call]
            client.call = None
            if isinstance(answer, pb.JoinGroupResponse):
                self._hear_join(client, answer)
            else:
                self._hear_sync(client, answer)

    def _hear_join(self, client: Client, answer: pb.JoinGroupResponse) -> None:
        code = E(answer.error_code)
        if code is E.MEMBER_ID_REQUIRED:
            assert not client.member_id and not client.instance and client.name != "old"
            client.member_id = answer.member_id
        elif code is E.NONE:
            client.member_id, client.generation_id, client.joined = answer.member_id, answer.generation_id, answer
            self._note_generation(client, answer)
        else:
            assert code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.REBALANCE_IN_PROGRESS), code
            if code is not E.REBALANCE_IN_PROGRESS:
                client.forget()

    def _note_generation(self, client: Client, answer: pb.JoinGroupResponse) -> None:
        assert answer.generation_id >= self.newest
        self.newest = answer.generation_id
        known = self.generations.setdefault(answer.generation_id, Generation(answer.leader, answer.protocol_name))
        assert answer.protocol_name == known.protocol
        assert answer.protocol_name in [name for name, _ in client.protocols]
        if not client.instance:  # a static leader may have come back under another id meanwhile
            known.members.add(answer.member_id)
        if answer.members:
            assert answer.leader == client.member_id
            known.told_leader = {member.member_id for member in answer.members}
            assert client.member_id in known.told_leader
        if known.told_leader is not None:
            assert known.members <= known.told_leader

    def _hear_sync(self, client: Client, answer: pb.SyncGroupResponse) -> None:
        code = E(answer.error_code)
        if code is E.NONE:
            known = self.generations[client.generation_id]
            assert known.assignments is not None, "only the leader's sync makes an assignment"
            if not client.instance:
                assert answer.assignment == known.assignments[client.member_id]
            client.assignment = answer.assignment
        elif code in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
            client.forget()
        else:
            assert code in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION), code
        client.joined = None

    # What must hold

    @invariant()
    def tables_agree(self) -> None:
        group = self.driver.coordinator.state.classic_groups.get(GROUP)
        if group is None:
            return
        members = group.members
        assert group.waiting_joins == sum(member.awaiting_join is not None for member in members.values())
        assert group.protocol_counts == counted_protocols(members.values())
        assert group.stored_bytes == sum(member.stored_bytes for member in members.values())
        assert group.static_members == {
            member.group_instance_id: name for name, member in members.items() if member.group_instance_id
        }
        assert not set(group.pending_members) & set(members)
        assert set(group.pending_syncs) <= set(members)
        assert (group.leader_id in members) if members else group.leader_id == ""
        if group.state == "Empty":
            assert not members
        if group.state in ("Stable", "CompletingRebalance"):
            assert members
            assert group.waiting_joins == 0
        if group.state != "CompletingRebalance":
            assert all(member.awaiting_sync is None for member in members.values())

    @invariant()
    def everything_ends(self) -> None:
        """Whatever is under way has a timer that ends it."""
        group = self.driver.coordinator.state.classic_groups.get(GROUP)
        if group is None:
            return
        timers = self.driver.timers
        for name, member in group.members.items():
            assert ClassicTimer(TimerKind.SESSION, GROUP, name) in timers or member.is_waiting
        assert all(ClassicTimer(TimerKind.SESSION, GROUP, name) in timers for name in group.pending_members)
        kinds = {timer.kind for timer in timers if timer.generation_id == group.generation_id}
        if group.state == "PreparingRebalance":
            assert kinds & {TimerKind.JOIN, TimerKind.INITIAL_JOIN}
        if group.pending_syncs:
            assert TimerKind.SYNC in kinds

    @invariant()
    def what_must_survive_is_stored(self) -> None:
        live = self.driver.coordinator.state.classic_groups.get(GROUP)
        loaded = self.driver.coordinator.load().state.classic_groups.get(GROUP)
        assert (live is None) == (loaded is None)
        if live is None or loaded is None:
            return
        assert loaded.generation_id >= self.durable
        if live.state in ("Stable", "Empty"):
            assert (loaded.state, loaded.generation_id) == (live.state, live.generation_id)
            assert {name: member.assignment for name, member in loaded.members.items()} == {
                name: member.assignment for name, member in live.members.items()
            }

    def teardown(self) -> None:
        """All clients behave from now on: soon the group is stable, with all of them and nobody else."""
        if not hasattr(self, "driver"):
            return
        for _ in range(SETTLED_AFTER_MS // STEP_MS):
            for client in self.clients.values():
                self._behave(client)
            self.driver.advance(STEP_MS)
            self._hear()
        group = self.driver.group()
        assert group.state == "Stable"
        assert sorted(group.members) == sorted(client.member_id for client in self.clients.values())
        assert {client.generation_id for client in self.clients.values()} == {group.generation_id}
        for client in self.clients.values():
            assert client.assignment == group.members[client.member_id].assignment != b""

    def _behave(self, client: Client) -> None:
        if client.call is not None:
            return
        if client.joined is not None:
            self._sync(client)
        elif client.assignment is None or self._heartbeat(client) is not E.NONE:
            self._join(client)


TestClassicGroups = ClassicGroupModel.TestCase
TestClassicGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
