"""Consumer groups of KIP-848 against their guarantees: heartbeats, lost responses, expiry, topics, restarts.

Members are clients that keep to the protocol (`ProtocolMember`). After every step: no partition is consumed by two
members, what a member consumes the coordinator has as its own, epochs only grow, and a machine loaded from the rows
equals the live one. At the end everybody heartbeats until nothing changes: then every partition of every subscribed
topic is consumed by a member that subscribes to it, and the group is stable.
"""

from __future__ import annotations

import re

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC_ID, STATE_TOPIC_ID
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.groups.consumer_groups import ProtocolMember, Response, request_of, send

TOPICS = st.sampled_from(["t", "u", "v"])
INSTANCES = st.sampled_from(["i", "j"])
MEMBER_LIMIT = 5
SUBSCRIPTIONS = st.one_of(
    st.lists(TOPICS, min_size=1, max_size=3, unique=True).map(lambda names: {"names": names, "regex": ""}),
    st.sampled_from(["t|u", "[uv]", ".*"]).map(lambda regex: {"names": [], "regex": regex}),
)
ASSIGNORS = st.sampled_from(["uniform", "range"])
STEPS_TO_SETTLE = 40
REJOINING = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)


class ConsumerGroupsModel(RuleBasedStateMachine):
    @initialize(interval_ms=st.sampled_from([0, 1000]))
    def begin(self, interval_ms: int) -> None:
        configs = {"group.consumer.assignment.interval.ms": str(interval_ms), "offsets.topic.num.partitions": "1"}
        self.driver = CoordinatorDriver(configs, state_partitions=1)
        self.driver.now_ms = 1_000_000
        self.members: dict[str, ProtocolMember] = {}
        self.static: dict[str, str] = {}
        """Instance ids of members that have one."""
        self.away: dict[str, ProtocolMember] = {}
        """Static members that left for a while, by instance id."""
        self.topics: dict[str, int] = {}
        self.epoch = 0
        self.processes = 0

    # What members do

    @precondition(lambda self: len(self.members) < MEMBER_LIMIT)
    @rule(subscription=SUBSCRIPTIONS, assignor=ASSIGNORS, lost=st.booleans())
    def join(self, subscription: dict[str, object], assignor: str, lost: bool) -> None:
        self.add(None, lost, assignor=assignor, **subscription)

    @precondition(lambda self: len(self.members) < MEMBER_LIMIT)
    @rule(instance_id=INSTANCES, subscription=SUBSCRIPTIONS, lost=st.booleans())
    def join_with_an_instance_id(self, instance_id: str, subscription: dict[str, object], lost: bool) -> None:
        if instance_id not in self.away and instance_id not in self.static.values():
            self.add(instance_id, lost, **subscription)

    def add(self, instance_id: str | None, lost: bool, **subscription: object) -> None:
        """Every process has an id of its own."""
        self.processes += 1
        member_id = f"m{self.processes:03}"
        if instance_id is not None:
            self.static[member_id] = instance_id
        self.members[member_id] = ProtocolMember(member_id, **{**subscription, **self._identity(member_id)})
        self.heartbeat(member_id, lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), lost=st.booleans())
    def heartbeat_of_one(self, data: st.DataObject, lost: bool) -> None:
        self.heartbeat(data.draw(st.sampled_from(sorted(self.members))), lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.members[data.draw(st.sampled_from(sorted(self.members)))].give_back()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), subscription=SUBSCRIPTIONS)
    def subscribe(self, data: st.DataObject, subscription: dict[str, object]) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.members)))
        self.members[member_id].subscribe(**self._identity(member_id), **subscription)
        self.heartbeat(member_id, False)

    def _identity(self, member_id: str) -> dict[str, object]:
        return {"instance_id": self.static[member_id]} if member_id in self.static else {}

    def heartbeat(self, member_id: str, lost: bool) -> None:
        member = self.members[member_id]
        request = member.next_request()
        if member_id in self.static and not request.has_instance_id:
            request.has_instance_id, request.instance_id = True, self.static[member_id]
        try:
            answer = send(self.driver, request)
        except KafkaError as error:
            assert error.code in REJOINING, error
            member.be_fenced()
            return
        if lost:
            member.lose_answer()
        else:
            self.check_answer(member, answer)
            member.take(answer)

    def check_answer(self, member: ProtocolMember, answer: Response) -> None:
        """The member's epoch never falls but by joining anew, and is no more than the group's."""
        assert answer.member_id == member.member_id
        assert member.epoch <= answer.member_epoch <= self.driver.state.consumer_groups["group"].epoch

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.members)))
        instance_id = self.static.pop(member_id, None)
        try:
            send(self.driver, request_of(member_id, -1, instance_id=instance_id))
        except KafkaError as error:
            assert error.code == ErrorCode.UNKNOWN_MEMBER_ID or error.code == ErrorCode.GROUP_ID_NOT_FOUND
        del self.members[member_id]

    @precondition(lambda self: self.static)
    @rule(data=st.data())
    def leave_for_a_while(self, data: st.DataObject) -> None:
        member_id = data.draw(st.sampled_from(sorted(self.static)))
        instance_id = self.static.pop(member_id)
        member = self.members.pop(member_id)
        try:
            send(self.driver, request_of(member_id, -2, instance_id=instance_id))
        except KafkaError as error:
            assert error.code == ErrorCode.UNKNOWN_MEMBER_ID
            return
        self.away[instance_id] = member

    @precondition(lambda self: self.away)
    @rule(data=st.data(), lost=st.booleans())
    def come_back(self, data: st.DataObject, lost: bool) -> None:
        instance_id = data.draw(st.sampled_from(sorted(self.away)))
        former = self.away.pop(instance_id)
        subscription = {name: value for name, value in former.subscription.items() if name != "instance_id"}
        self.add(instance_id, lost, **subscription)

    # What the coordinator does by itself

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def session_ends(self, data: st.DataObject) -> None:
        """A client whose heartbeats do not get through stops by itself before its session ends."""
        member_id = data.draw(st.sampled_from(sorted(self.members)))
        self.driver.run(commands.ExpireMember(group_id="group", member_id=member_id))
        self.members[member_id].stop()

    @rule()
    def revocations_time_out(self) -> None:
        group = self.driver.state.consumer_groups.get("group")
        for member_id, current in sorted(group.current.items()) if group else ():
            command = commands.ExpireRevocation(
                group_id="group", member_id=member_id, member_epoch=current.member_epoch
            )
            self.driver.run(command)
            if self.driver.record_count and member_id in self.members:
                self.members[member_id].stop()

    @rule(passed_ms=st.sampled_from([1, 999, 1000, -5000]))
    def time_passes(self, passed_ms: int) -> None:
        self.driver.now_ms += passed_ms

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    # Topics

    @rule(name=TOPICS, count=st.integers(1, 4))
    def create_or_grow(self, name: str, count: int) -> None:
        if name not in self.topics:
            self.driver.create_topic(name, count)
            self.topics[name] = count
        elif count > self.topics[name]:
            topic = pb.CreatePartitionsRequest.Topic(name=name, count=count, assigned_count=-1)
            self.driver.run(commands.CreatePartitions(request=pb.CreatePartitionsRequest(topics=[topic])))
            self.topics[name] = count

    @rule(name=TOPICS)
    def delete(self, name: str) -> None:
        if self.topics.pop(name, None) is not None:
            self.driver.delete(name)

    # What must hold

    @invariant()
    def no_partition_is_consumed_twice(self) -> None:
        consumed: dict[tuple[bytes, int], str] = {}
        for member_id, member in self.members.items():
            for partition in member.owned:
                assert partition not in consumed, f"{member_id} and {consumed[partition]} consume {partition}"
                consumed[partition] = member_id

    @invariant()
    def what_is_consumed_is_noted(self) -> None:
        group = self.driver.state.consumer_groups.get("group")
        for member_id, member in self.members.items():
            if group is not None and member_id in group.members:
                for topic_id, number in member.owned:
                    assert group.owners[TopicPartition(topic_id, number)] == member_id

    @invariant()
    def the_owners_are_what_the_rows_say(self) -> None:
        group = self.driver.state.consumer_groups.get("group")
        if group is None:
            return
        owned = [
            (partition, member_id)
            for member_id, current in group.current.items()
            for partition in [*current.assigned, *current.pending_revocation]
        ]
        assert len(dict(owned)) == len(owned) and dict(owned) == group.owners
        assert group.current.keys() == group.members.keys()
        assert group.epoch >= self.epoch
        self.epoch = group.epoch

    @invariant()
    def a_loaded_machine_equals_the_live_one(self) -> None:
        assert self.driver.load().state == self.driver.state

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for member in list(self.away.values()):  # their sessions end
            self.driver.run(commands.ExpireMember(group_id="group", member_id=member.member_id))
        for _ in range(STEPS_TO_SETTLE):
            self.driver.now_ms += 10_000
            for member_id, member in sorted(self.members.items()):
                member.give_back()
                self.heartbeat(member_id, False)
                self.no_partition_is_consumed_twice()
        if not self.members:
            return
        assert self.driver.state.consumer_groups["group"].state == "Stable"
        consumed = {partition: self.members[member_id] for member_id, partition in self._all_consumed()}
        expected = {
            (self.driver.state.topic_ids[name], number): name
            for name, count in self.topics.items()
            for number in range(count)
            if any(subscribes(member, name) for member in self.members.values())
        }
        if any(subscribes(member, "__") for member in self.members.values()):
            expected.update({(STATE_TOPIC_ID, 0): "__", (CONSUMER_OFFSETS_TOPIC_ID, 0): "__"})
        assert consumed.keys() == expected.keys()
        assert all(subscribes(consumed[partition], name) for partition, name in expected.items())

    def _all_consumed(self) -> list[tuple[str, tuple[bytes, int]]]:
        return [(member_id, partition) for member_id, member in self.members.items() for partition in member.owned]


def subscribes(member: ProtocolMember, name: str) -> bool:
    names, regex = member.subscription["names"], member.subscription["regex"]
    assert isinstance(names, list) and isinstance(regex, str)
    return name in names or bool(regex and re.fullmatch(regex, name))


TestConsumerGroups = ConsumerGroupsModel.TestCase
TestConsumerGroups.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
