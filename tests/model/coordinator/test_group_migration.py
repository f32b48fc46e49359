"""A group whose clients are changed from one protocol to the other, in any order, while all sorts of things happen.

Clients of both protocols keep to theirs (`ProtocolMember`, `ClassicMember`). After every step:
- no partition is consumed by two clients, whatever kind of group it is;
- what a member of a consumer group consumes the coordinator has as its own;
- a group id has one type, and every member a session;
- a machine loaded from the rows equals the live one, but for what classic groups have in memory only.
At the end all clients behave: then all partitions are consumed by members, and the group is a classic one where the
migration policy allows it and no client of the consumer protocol is left.

One thing the clients have to be helped with, in Kafka too: a cooperative client that gives partitions up has to join
again, so that others get them. If it is gone before that, and another one takes its place by the instance id, then the
group is Stable, and neither the coordinator nor that client knows that a rebalance is due. It leaves and comes back.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic.timers import TimerKind
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from support.groups.classic_driver import GROUP, ClassicGroupDriver
from support.groups.classic_members import ClassicMember
from support.groups.consumer_groups import ProtocolMember, request_of, send

TOPICS = {"t": 4, "u": 1}
CLIENT_LIMIT = 4
STEPS_TO_SETTLE = 120
STEP_MS = 1_500
REJOINING = (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND, E.FENCED_INSTANCE_ID)
INSTANCES = st.sampled_from(["", "i"])


class GroupMigrationModel(RuleBasedStateMachine):
    @initialize(
        cooperative=st.booleans(),
        policy=st.sampled_from(["bidirectional", "bidirectional", "upgrade", "downgrade", "disabled"]),
        interval_ms=st.sampled_from([0, 1000]),
    )
    def begin(self, cooperative: bool, policy: str, interval_ms: int) -> None:
        configs = {
            "group.consumer.migration.policy": policy,
            "group.consumer.assignment.interval.ms": str(interval_ms),
            "group.initial.rebalance.delay.ms": "500",
        }
        self.driver = ClassicGroupDriver(configs)
        self.driver.coordinator.now_ms = 1_000_000
        for name, count in TOPICS.items():
            self.driver.coordinator.create_topic(name, count)
        self.cooperative, self.policy = cooperative, policy
        self.classic: dict[str, ClassicMember] = {}
        self.consumers: dict[str, ProtocolMember] = {}
        self.instances: dict[str, str] = {}
        """Names of clients by instance id."""
        self.owing: dict[str, None] = {}
        """Clients in the place of one that may have had to join again."""
        self.processes = 0

    # Clients come, go and change

    @precondition(lambda self: len(self.classic) + len(self.consumers) < CLIENT_LIMIT)
    @rule(instance_id=INSTANCES, is_classic=st.booleans())
    def start_client(self, instance_id: str, is_classic: bool) -> None:
        """With an instance id it takes the place of a client that is not there any more."""
        self.processes += 1
        name = f"m{self.processes:03}"
        if instance_id:
            former = self.instances.pop(instance_id, "")
            if former in self.owing or (former in self.classic and not self.classic[former].is_settled):
                self.owing[name] = None
            self._drop(former)
        if instance_id:
            self.instances[instance_id] = name
        if is_classic:
            self.classic[name] = ClassicMember(
                self.driver, list(TOPICS), cooperative=self.cooperative, instance_id=instance_id
            )
        else:
            fields = {"instance_id": instance_id} if instance_id else {}
            self.consumers[name] = ProtocolMember(name, names=list(TOPICS), **fields)
        self.step(name)

    def _drop(self, name: str) -> None:
        """A client that is gone without a word."""
        self.classic.pop(name, None)
        self.consumers.pop(name, None)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), lost=st.booleans())
    def step_of_one(self, data: st.DataObject, lost: bool) -> None:
        self.step(data.draw(st.sampled_from(self.names)), lost)

    @precondition(lambda self: self.names)
    @rule(rounds=st.integers(1, 8))
    def everybody_behaves(self, rounds: int) -> None:
        for _ in range(rounds):
            for name in self.names:
                if name in self.consumers:
                    self.consumers[name].give_back()
                self.step(name)
                self.no_partition_is_consumed_twice()
            self.driver.advance(600)
            self._hear()
            self._notice()

    @precondition(lambda self: self.names)
    @rule(data=st.data(), for_a_while=st.booleans())
    def leave(self, data: st.DataObject, for_a_while: bool) -> None:
        name = data.draw(st.sampled_from(self.names))
        instance_id = next((each for each, holder in self.instances.items() if holder == name), "")
        client = self.classic.pop(name, None)
        if client is not None:
            if not (instance_id and for_a_while):  # a static client says nothing
                client.leave()
        else:
            del self.consumers[name]
            epoch = -2 if instance_id and for_a_while else -1
            try:
                send(self.driver.coordinator, request_of(name, epoch, instance_id=instance_id or None))
                self.driver.carry_out()
            except KafkaError as error:
                assert error.code in REJOINING, error
        if not for_a_while:
            self.instances.pop(instance_id, None)

    @property
    def names(self) -> list[str]:
        return sorted([*self.classic, *self.consumers])

    def step(self, name: str, lost: bool = False) -> None:
        if name in self.classic:
            self.classic[name].step(lost=lost)
        else:
            self._heartbeat(name, lost)
        self._hear()

    def _heartbeat(self, name: str, lost: bool) -> None:
        member = self.consumers[name]
        request = member.next_request()
        instance_id = next((each for each, holder in self.instances.items() if holder == name), "")
        request.has_instance_id, request.instance_id = bool(instance_id), instance_id
        try:
            answer = send(self.driver.coordinator, request)
        except KafkaError as error:
            if member.epoch or error.code is not E.UNRELEASED_INSTANCE_ID:
                assert error.code in REJOINING, error
            member.be_fenced()
            return
        self.driver.carry_out()
        if lost:
            member.lose_answer()
        else:
            member.take(answer)

    def _hear(self) -> None:
        for client in self.classic.values():
            client.hear()

    # What happens beside

    @rule(passed_ms=st.sampled_from([1, 500, 3_000, 10_000, 60_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.driver.advance(passed_ms)
        self._hear()
        self._notice()

    @precondition(lambda self: GROUP in self.driver.coordinator.state.consumer_groups)
    @rule(data=st.data(), is_revocation=st.booleans())
    def something_times_out(self, data: st.DataObject, is_revocation: bool) -> None:
        """The session of a member of the consumer group, or the time that it has to give something back."""
        group = self.driver.coordinator.state.consumer_groups[GROUP]
        if not group.members:
            return
        member_id = data.draw(st.sampled_from(sorted(group.members)))
        if is_revocation:
            epoch = group.current[member_id].member_epoch
            self.driver.coordinator.run(
                commands.ExpireRevocation(group_id=GROUP, member_id=member_id, member_epoch=epoch)
            )
        else:
            self.driver.coordinator.run(commands.ExpireMember(group_id=GROUP, member_id=member_id))
        self.driver.carry_out()
        self._notice()

    def _notice(self) -> None:
        """Clients that were silent for too long stop by themselves."""
        members = self._member_ids()
        for client in self.classic.values():
            if client.member_id not in members and client.owned:
                client.stop()
        for name, member in self.consumers.items():
            if name not in members:
                member.stop()

    def _member_ids(self) -> set[str]:
        state = self.driver.coordinator.state
        consumer, classic = state.consumer_groups.get(GROUP), state.classic_groups.get(GROUP)
        return {*(consumer.members if consumer else ()), *(classic.members if classic else ())}

    @rule()
    def restart(self) -> None:
        self.driver.restart()
        for client in self.classic.values():
            client.connection_lost()
        group = self.driver.coordinator.state.consumer_groups.get(GROUP)
        if group is not None:  # the shell gives everybody a session
            self.driver.sessions = dict.fromkeys(group.members, 1)

    # What must hold

    @invariant()
    def no_partition_is_consumed_twice(self) -> None:
        consumed: dict[tuple[bytes, int], str] = {}
        for name in self.names:
            client = self.classic.get(name) or self.consumers[name]
            for partition in client.owned:
                assert partition not in consumed, f"{name} and {consumed[partition]} consume {partition}"
                consumed[partition] = name

    @invariant()
    def what_is_consumed_is_noted(self) -> None:
        group = self.driver.coordinator.state.consumer_groups.get(GROUP)
        if group is None:
            return
        for name in self.names:
            client = self.classic.get(name) or self.consumers[name]
            if client.member_id in group.members:
                for topic_id, number in client.owned:
                    assert group.owners[TopicPartition(topic_id, number)] == client.member_id

    @invariant()
    def the_tables_agree(self) -> None:
        state = self.driver.coordinator.state
        group = state.consumer_groups.get(GROUP)
        if group is None:
            assert not self.driver.sessions
            return
        assert GROUP not in state.classic_groups
        assert self.driver.sessions.keys() == group.members.keys()
        classic = [member.classic for member in group.members.values() if member.classic is not None]
        assert group.classic_count == len(classic)
        if classic:  # they could be a classic group
            assert any(count == len(classic) for count in group.classic_protocols.values())
        timers = [timer for timer in self.driver.timers if timer.group_id == GROUP]
        assert {timer.kind for timer in timers} <= {TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC}
        assert {timer.member_id for timer in timers} <= group.members.keys()

    @invariant()
    def what_must_survive_is_stored(self) -> None:
        live, loaded = self.driver.coordinator.state, self.driver.coordinator.load().state
        assert loaded.consumer_groups == live.consumer_groups
        assert loaded.classic_groups.keys() == live.classic_groups.keys()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self._settle()
        owing = [name for name in self.owing if name in self.classic]
        for name in owing:
            self.classic[name].leave()
        if owing:
            self._settle()
        self._check_end()

    def _settle(self) -> None:
        for _ in range(STEPS_TO_SETTLE):
            self._expire_who_is_gone()
            self.everybody_behaves(1)
            self.driver.advance(STEP_MS)
            self._hear()

    def _expire_who_is_gone(self) -> None:
        """Members of the consumer group that are no client's. Of a classic group they expire as time goes on."""
        group = self.driver.coordinator.state.consumer_groups.get(GROUP)
        here = {(self.classic.get(name) or self.consumers[name]).member_id for name in self.names}
        for member_id in sorted(set(group.members if group else ()) - here):
            if GROUP in self.driver.coordinator.state.consumer_groups:
                self.driver.coordinator.run(commands.ExpireMember(group_id=GROUP, member_id=member_id))
                self.driver.carry_out()

    def _check_end(self) -> None:
        members = self._member_ids()
        inside = [name for name in self.names if (self.classic.get(name) or self.consumers[name]).member_id in members]
        if not inside:
            return
        state = self.driver.coordinator.state
        consumed = {
            partition for name in inside for partition in (self.classic.get(name) or self.consumers[name]).owned
        }
        assert consumed == {
            (state.topic_ids[name], number) for name, count in TOPICS.items() for number in range(count)
        }
        group = state.consumer_groups.get(GROUP) or state.classic_groups[GROUP]
        assert group.state == "Stable"
        if self.policy == "bidirectional":
            assert inside == self.names
            assert (GROUP in state.classic_groups) == (not self.consumers)


TestGroupMigration = GroupMigrationModel.TestCase
TestGroupMigration.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
