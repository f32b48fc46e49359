"""The coordinator's machine against a naive model: any mix of commands and restarts.

The model knows who is a member with which subscription, which topics exist, what was initialized with which state
epoch, and which groups an administrator is deleting. After each step: a machine loaded from the rows equals the live
one; epochs and versions only grow, those of groups that were deleted and made again too; what is initialized again has
a newer state epoch; a follower of deltas sees the whole catalog; and what members are given follows the rules.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.view import catalog_answer, topic_view
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.catalog import CatalogView, next_view
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

GROUPS = st.sampled_from(["g1", "g2"])
MEMBERS = st.sampled_from(["m1", "m2", "m3", "m4"])
TOPICS = st.sampled_from(["t1", "t2", "t3"])
SUBSCRIPTIONS = st.lists(TOPICS, min_size=1, max_size=3)
ROLES = st.sampled_from([pb.ROLE_LEADER, pb.ROLE_SHARE_COORDINATOR, pb.ROLE_GATEWAY])
SharePartition = tuple[bytes, int]


class CoordinatorModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = CoordinatorDriver(state_partitions=3)
        self.driver.now_ms = 1_000_000
        self.deleting: set[str] = set()
        self.state_epochs: dict[tuple[str, SharePartition], int] = {}
        """What share coordinators have, or had before it was deleted."""
        self.members: dict[str, dict[str, set[str]]] = {}
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.initialized: dict[str, set[SharePartition]] = {}
        self.client_epochs: dict[tuple[str, str], int] = {}
        self.seen_epochs: dict[str, int] = {}
        self.seen_state_epochs: dict[str, int] = {}
        """Of deleted groups too: a new group of the same id goes on above them."""
        self.seen_leader_epochs: dict[SharePartition, int] = {}
        self.seen_version = 0
        self.view = CatalogView()
        self.follow()

    def follow(self) -> None:
        self.view = next_view(self.view, catalog_answer(self.driver.state, self.view.version))

    def note(self, group_id: str, member_id: str, answer: pb.ShareGroupHeartbeatResponse) -> None:
        self.client_epochs[group_id, member_id] = answer.member_epoch

    @rule(group_id=GROUPS, member_id=MEMBERS, names=SUBSCRIPTIONS)
    def join(self, group_id: str, member_id: str, names: list[str]) -> None:
        if group_id in self.deleting:
            self.refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, group_id, member_id, 0, names)
            return
        answer = self.driver.heartbeat(member_id, 0, names, group_id)
        self.members.setdefault(group_id, {})[member_id] = set(names)
        assert answer.has_assignment
        self.note(group_id, member_id, answer)
        assignable = {pair for pair in self.initialized.get(group_id, set()) if pair in self.subscribed_by(set(names))}
        member = self.driver.state.share_groups[group_id].members[member_id]
        assert bool(flat(member.assignment)) == bool(assignable), "its first record comes at once"

    def subscribed_by(self, names: set[str]) -> set[SharePartition]:
        """All partitions of these topics."""
        topics = [topic for name, topic in self.topics.items() if name in names]
        return {(topic_id, partition) for topic_id, count in topics for partition in range(count)}

    @rule(milliseconds=st.integers(0, 1_500))
    def time_passes(self, milliseconds: int) -> None:
        self.driver.now_ms += milliseconds

    @rule(group_id=GROUPS, name=TOPICS)
    def used_and_left(self, group_id: str, name: str) -> None:
        """A group that has consumed a topic and that nobody is in: what administrators may change."""
        self.create_topic(name, 2)
        if group_id not in self.deleting:
            self.join(group_id, "m1", [name])
        self.complete(group_id, 1_000, None)
        for member_id in list(self.members.get(group_id, {})):
            self.leave(group_id, member_id, False)

    def is_unused(self, group_id: str) -> bool:
        return not self.members.get(group_id) and group_id not in self.deleting

    @rule(group_id=GROUPS, name=TOPICS, offsets=st.dictionaries(st.integers(0, 4), st.integers(-1, 9), max_size=3))
    def alter(self, group_id: str, name: str, offsets: dict[int, int]) -> None:
        topic = pb.AlterShareGroupOffsetsRequest.Topic(topic_name=name)
        for partition, offset in offsets.items():
            topic.partitions.add(partition=partition, start_offset=offset)
        request = pb.AlterShareGroupOffsetsRequest(group_id=group_id, topics=[topic])
        try:
            answer = self.driver.run(commands.AlterShareGroupOffsets(request=request))
        except KafkaError:
            assert not self.is_unused(group_id)
            return
        assert self.is_unused(group_id)
        topic_id, count = self.topics.get(name, (b"", 0))
        assert [result.partition for result in answer.results if not result.error_code] == [
            partition for partition in offsets if partition < count
        ]
        self.initialized.setdefault(group_id, set()).difference_update((topic_id, partition) for partition in offsets)

    @rule(group_id=GROUPS, name=TOPICS)
    def delete_offsets(self, group_id: str, name: str) -> None:
        request = pb.DeleteShareGroupOffsetsRequest(group_id=group_id, topic_names=[name])
        exists = group_id in self.driver.state.share_groups
        try:
            self.driver.run(commands.DeleteShareGroupOffsets(request=request))
        except KafkaError:
            assert not (exists and self.is_unused(group_id))
            return
        assert exists and self.is_unused(group_id)
        topic_id, count = self.topics.get(name, (b"", 0))
        gone = {(topic_id, partition) for partition in range(count)}
        self.initialized.setdefault(group_id, set()).difference_update(gone)

    @rule(group_id=GROUPS)
    def delete_group(self, group_id: str) -> None:
        group = self.driver.state.share_groups.get(group_id)
        code = self.driver.run(commands.DeleteGroup(group_id=group_id))
        if group is None:
            assert code is ErrorCode.GROUP_ID_NOT_FOUND
        elif group.members:
            assert code is ErrorCode.NON_EMPTY_GROUP
        else:
            assert code is ErrorCode.NONE
            self.initialized.pop(group_id, None)
            self.deleting.add(group_id)
            self.forget_what_is_gone(group_id)

    def forget_what_is_gone(self, group_id: str) -> None:
        if group_id in self.deleting and group_id not in self.driver.state.share_groups:
            self.deleting.remove(group_id)

    @rule(group_id=GROUPS, member_id=MEMBERS, names=st.none() | SUBSCRIPTIONS, lost=st.booleans())
    def stay(self, group_id: str, member_id: str, names: list[str] | None, lost: bool) -> None:
        epoch = self.client_epochs.get((group_id, member_id))
        if epoch is None:
            return
        if member_id not in self.members.get(group_id, {}):
            exists = group_id in self.driver.state.share_groups
            code = ErrorCode.UNKNOWN_MEMBER_ID if exists else ErrorCode.GROUP_ID_NOT_FOUND
            self.refused(code, group_id, member_id, max(1, epoch))
            return
        known = self.driver.state.share_groups[group_id].members[member_id]
        if epoch not in (known.member_epoch, known.previous_member_epoch):
            self.refused(ErrorCode.FENCED_MEMBER_EPOCH, group_id, member_id, epoch)
            del self.client_epochs[group_id, member_id]
            return
        answer = self.driver.heartbeat(member_id, epoch, names, group_id)
        if names is not None:
            self.members[group_id][member_id] = set(names)
        if not lost:
            self.note(group_id, member_id, answer)

    def refused(
        self, code: ErrorCode, group_id: str, member_id: str, epoch: int, names: list[str] | None = None
    ) -> None:
        rows = dict(self.driver.rows)
        try:
            self.driver.heartbeat(member_id, epoch, names, group_id)
        except KafkaError as error:
            assert error.code is code
            assert self.driver.rows == rows
        else:
            raise AssertionError(f"must be refused with {code.name}")

    @rule(group_id=GROUPS, member_id=MEMBERS)
    def wrong_epoch(self, group_id: str, member_id: str) -> None:
        if member_id in self.members.get(group_id, {}):
            self.refused(ErrorCode.FENCED_MEMBER_EPOCH, group_id, member_id, 1 << 30)

    @rule(group_id=GROUPS, member_id=MEMBERS, silently=st.booleans())
    def leave(self, group_id: str, member_id: str, silently: bool) -> None:
        if silently:
            self.driver.run(commands.ExpireMember(group_id=group_id, member_id=member_id))
        elif member_id in self.members.get(group_id, {}):
            self.driver.heartbeat(member_id, -1, None, group_id)
        self.members.get(group_id, {}).pop(member_id, None)

    @rule(name=TOPICS, partitions=st.integers(1, 4))
    def create_topic(self, name: str, partitions: int) -> None:
        if name not in self.topics:
            self.topics[name] = (self.driver.create_topic(name, partitions), partitions)

    @rule(name=TOPICS)
    def delete_topic(self, name: str) -> None:
        result = self.driver.delete(name)[0]
        assert bool(result.error_code) == (name not in self.topics)
        topic = self.topics.pop(name, None)
        if topic is not None:
            for pairs in self.initialized.values():
                pairs.difference_update({(topic[0], partition) for partition in range(topic[1])})

    @rule(group_id=GROUPS, take=st.integers(1, 8), existing=st.none() | st.integers(1, 60))
    def complete(self, group_id: str, take: int, existing: int | None) -> None:
        """Share coordinators did some of what is pending; for some of it newer state existed."""
        group = self.driver.state.share_groups.get(group_id)
        if group is None:
            return
        pending = [
            commands.Initialized(
                topic_id=entry.topic_id,
                partition=partition,
                state_epoch=entry.state_epoch,
                existing_state_epoch=None if existing is None else entry.state_epoch + existing,
            )
            for entry in group.partitions.initializing
            for partition in entry.partitions
        ][:take]
        deleting = [
            (topic_id, partition)
            for topic_id, topic in sorted(group.partitions.deleting.items())
            for partition in topic.partitions
        ][:take]
        refused = [] if existing is None else self.alterations(group_id)
        for result in pending:
            key = (group_id, (result.topic_id, result.partition))
            assert result.state_epoch > self.state_epochs.get(key, 0), "whoever has the former state is fenced"
            self.state_epochs[key] = max(result.state_epoch, result.existing_state_epoch or 0)
        self.driver.run(
            commands.CompleteGroupState(group_id=group_id, initialized=tuple(pending), deleted=tuple(deleting))
        )
        done = self.initialized.setdefault(group_id, set())
        done.update(
            (result.topic_id, result.partition)
            for result in pending
            if (result.topic_id, result.partition) not in refused
        )
        self.forget_what_is_gone(group_id)

    def alterations(self, group_id: str) -> list[SharePartition]:
        """Where an administrator chose the start offset: newer state is replaced, not taken over."""
        initializing = self.driver.state.share_groups[group_id].partitions.initializing
        return [
            (entry.topic_id, partition)
            for entry in initializing
            if entry.is_alteration
            for partition in entry.partitions
        ]

    @rule(role=ROLES, node_id=st.integers(1, 3), incarnation=st.sampled_from(["a", "b"]))
    def register(self, role: pb.Role.ValueType, node_id: int, incarnation: str) -> None:
        self.driver.register(role, node_id, incarnation)

    @rule(role=ROLES, node_id=st.integers(1, 3), incarnation=st.sampled_from(["a", "b"]))
    def expire(self, role: pb.Role.ValueType, node_id: int, incarnation: str) -> None:
        self.driver.run(commands.ExpireNode(role=role, node_id=node_id, incarnation=incarnation))

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule()
    def look(self) -> None:
        self.follow()
        whole = next_view(CatalogView(), catalog_answer(self.driver.state, 0))
        assert self.view == whole

    @rule(group_id=GROUPS)
    def settle(self, group_id: str) -> None:
        """Everything gets done and everybody is heard: each partition of a subscribed topic has its members."""
        self.complete(group_id, 1000, None)
        for member_id in self.members.get(group_id, {}):
            self.note(group_id, member_id, self.driver.heartbeat(member_id, 0, ["t1", "t2", "t3"], group_id))
            self.members[group_id][member_id] = {"t1", "t2", "t3"}
        self.complete(group_id, 1000, None)
        self.time_passes(1_000)
        for member_id in self.members.get(group_id, {}):
            epoch = self.client_epochs[group_id, member_id]
            known = self.driver.state.share_groups[group_id].members[member_id]
            if epoch in (known.member_epoch, known.previous_member_epoch):
                self.note(group_id, member_id, self.driver.heartbeat(member_id, epoch, None, group_id))
        group = self.driver.state.share_groups.get(group_id)
        if group is not None and group.members:
            every = {(topic_id, partition) for topic_id, count in self.topics.values() for partition in range(count)}
            held = [pair for member in group.members.values() for pair in flat(member.assignment)]
            assert set(held) == every
            if every:
                assert len(held) == -(-len(group.members) // len(every)) * len(every)

    @invariant()
    def loaded_equals_live(self) -> None:
        assert self.driver.load().state == self.driver.state

    @invariant()
    def members_are_those_of_the_model(self) -> None:
        for group_id, group in self.driver.state.share_groups.items():
            found = {member_id: set(member.subscribed_topic_names) for member_id, member in group.members.items()}
            assert found == self.members.get(group_id, {})
            expected = "Dead" if group_id in self.deleting else "Stable" if found else "Empty"
            assert group.state == expected

    @invariant()
    def targets_follow_the_rules(self) -> None:
        for group_id, group in self.driver.state.share_groups.items():
            initialized = self.initialized.get(group_id, set())
            subscribed = {
                (topic_id, partition)
                for name, (topic_id, count) in self.topics.items()
                for partition in range(count)
                if any(name in names for names in self.members.get(group_id, {}).values())
            }
            given = {pair for target in group.targets.values() for pair in flat(target)}
            if not group.is_settled:  # what is gone is taken away with the next target
                existing = self.subscribed_by(set(self.topics))
                assert given & existing <= initialized
            else:
                assert given == initialized & subscribed
            pending = {
                (entry.topic_id, number) for entry in group.partitions.initializing for number in entry.partitions
            }
            if not group.topics_changed:
                assert subscribed <= initialized | pending, "what is subscribed is initialized or on its way"
            assert not initialized & pending, "nothing is initialized twice"
            assert set(group.targets) <= set(group.members)
            assert group.assignment_epoch <= group.epoch
            for member_id, member in group.members.items():
                assert member.previous_member_epoch <= member.member_epoch <= group.assignment_epoch
                if member.member_epoch == group.epoch:
                    assert member.assignment == group.targets[member_id]

    @invariant()
    def epochs_only_grow(self) -> None:
        state = self.driver.state
        for group_id in self.seen_epochs.keys() - state.share_groups.keys():
            del self.seen_epochs[group_id]
            self.seen_state_epochs[group_id] += 1
        for group_id, group in state.share_groups.items():
            assert group.epoch >= self.seen_epochs.get(group_id, 0)
            self.seen_epochs[group_id] = group.epoch
            assert group.state_epoch >= self.seen_state_epochs.get(group_id, 0)
            self.seen_state_epochs[group_id] = group.state_epoch
        assert state.version >= self.seen_version
        self.seen_version = state.version
        for topic_id, topic in state.topics.items():
            for partition in topic_view(state, topic).partitions:
                key = (topic_id, partition.partition)
                assert partition.leader_epoch >= self.seen_leader_epochs.get(key, 0)
                self.seen_leader_epochs[key] = partition.leader_epoch


def flat(assignment: object) -> set[SharePartition]:
    assert isinstance(assignment, dict)
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


CoordinatorModel.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestCoordinator = CoordinatorModel.TestCase
