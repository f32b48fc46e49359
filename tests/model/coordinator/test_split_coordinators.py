"""Machines that share the work against one that does all of it: the same commands leave the same rows.

Three machines have a part of the groups each, one of them the catalog. Catalog commands are decided there and followed
by the others, which bring their groups in line (ReconcileTopics); groups are handed over from one to another at any
time. After each step all rows together are those of the single machine.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_coordinator.machine.metadata_partitions import (
    partition_of_group,
    partition_of_record,
    partition_of_row,
)
from kshare_coordinator.machine.records import CatalogFollowed, CatalogLoaded, GroupsGained, GroupsLost, Record
from kshare_coordinator.metadata.port import CATALOG
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.ports import Write
from support.coordinator.driver import CoordinatorDriver, creatable

Answer = TypeVar("Answer")

GROUP_IDS = ["g1", "g2", "g3", "g4", "g5"]
GROUPS = st.sampled_from(GROUP_IDS)
MEMBERS = st.sampled_from(["m1", "m2"])
TOPICS = st.sampled_from(["t1", "t2", "t3"])
PARTS = st.integers(0, 2)


class SplitDriver(CoordinatorDriver):
    """Runs each command on the single machine, and on the part that has what it needs."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        """What the parts wrote together."""
        self.parts: list[CoordinatorMachine] = []
        self.owners: dict[int, int] = {}
        super().__init__(state_partitions=3)

    def begin(self) -> None:
        """Fresh parts over the rows that the start wrote."""
        self.stored = dict(self.rows)
        for index in range(3):
            part = CoordinatorMachine(self.configs, broker_id=1)
            part.state.group_partitions = {}
            self.parts.append(part)
            self.load_catalog(index)
        self.owners = {partition_of_group(group_id): index % 3 for index, group_id in enumerate(GROUP_IDS)}
        for partition, owner in self.owners.items():
            self.parts[owner].replay(GroupsGained(partition, []))

    def load_catalog(self, index: int) -> None:
        found = [records.record_of(*row) for row in sorted(self.stored.items()) if of_row(row) == CATALOG]
        self.parts[index].replay(CatalogLoaded(found))

    def run(self, command: Command[Answer]) -> Answer:
        refusal: KafkaError | None = None
        answer: Any = None
        try:
            answer = super().run(command)
        except KafkaError as error:
            refusal = error
        if self.parts:
            self.run_split(command, refusal, answer)
        if refusal is not None:
            raise refusal
        found: Answer = answer
        return found

    def run_split(self, command: Command[Any], refusal: KafkaError | None, answer: Any) -> None:
        homes = command.homes()
        index = 0 if homes == (CATALOG,) else self.owners[homes[0]]
        try:
            found = self.run_on(index, command)
        except KafkaError as error:
            assert refusal is not None
            assert (error.code, error.message) == (refusal.code, refusal.message)
            return
        assert refusal is None
        assert found == answer, "answered the same, wherever it is decided"

    def run_on(self, index: int, command: Command[Answer]) -> Answer:
        part = self.parts[index]
        decision = part.decide(command, self.now_ms)
        followed: list[Record] = []
        for record in decision.records:
            part.replay(record)
            if not isinstance(record, Record):
                continue
            partition = partition_of_record(record)
            assert part.state.has_group_partition(partition) or (partition == CATALOG and index == 0)
            write = records.write_of(record)
            if write.value is None:
                self.stored.pop(write.key, None)
            else:
                self.stored[write.key] = write.value
            if partition == CATALOG:
                followed.append(record)
        if followed:
            for other in (1, 2):
                self.parts[other].replay(CatalogFollowed(followed))
                self.run_on(other, commands.ReconcileTopics())
        answer: Answer = decision.response
        return answer

    def hand_over(self, partition: int, owner: int) -> None:
        self.parts[self.owners[partition]].replay(GroupsLost(partition))
        rows = [records.record_of(*row) for row in sorted(self.stored.items()) if of_row(row) == partition]
        self.owners[partition] = owner
        self.parts[owner].replay(GroupsGained(partition, rows))
        changed = self.run_on(owner, commands.ReconcileTopics(group_partition=partition))
        assert changed == 0, "its former owner had brought it in line"


def of_row(row: tuple[bytes, bytes]) -> int:
    return partition_of_row(Write(records.FAMILY, *row))


def without_sequences(rows: dict[bytes, bytes]) -> dict[bytes, Record]:
    """Sequences of commits are counted by each coordinator for its groups."""
    found = {}
    for key, value in rows.items():
        record = records.record_of(key, value)
        if record.value.HasField("committed_offset"):
            record.value.committed_offset.sequence = 0
        found[key] = record
    return found


class SplitModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = SplitDriver()
        self.driver.now_ms = 1_000_000
        self.driver.begin()
        self.epochs: dict[tuple[str, str], int] = {}

    def attempt(self, command: Command[Any]) -> Any:
        try:
            return self.driver.run(command)
        except KafkaError:
            return None

    @rule(names=st.lists(TOPICS, min_size=1, max_size=2, unique=True), partitions=st.integers(1, 3))
    def create(self, names: list[str], partitions: int) -> None:
        self.driver.create(*(creatable(name, partitions) for name in names))

    @rule(names=st.lists(TOPICS, min_size=1, max_size=2, unique=True))
    def delete(self, names: list[str]) -> None:
        self.driver.delete(*names)

    @rule(name=TOPICS, count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        topic = pb.CreatePartitionsRequest.Topic(name=name, count=count, assigned_count=-1)
        self.attempt(commands.CreatePartitions(request=pb.CreatePartitionsRequest(topics=[topic])))

    @rule(group_id=GROUPS, member_id=MEMBERS, names=st.lists(TOPICS, min_size=1, max_size=3, unique=True))
    def join(self, group_id: str, member_id: str, names: list[str]) -> None:
        request = pb.ShareGroupHeartbeatRequest(
            group_id=group_id, member_id=member_id, has_subscribed_topic_names=True, subscribed_topic_names=names
        )
        answer = self.attempt(commands.ShareGroupHeartbeat(request=request))
        if answer is not None:
            self.epochs[group_id, member_id] = answer.member_epoch

    @rule(group_id=GROUPS, member_id=MEMBERS, leaves=st.booleans())
    def heartbeat(self, group_id: str, member_id: str, leaves: bool) -> None:
        epoch = -1 if leaves else self.epochs.get((group_id, member_id), 1)
        request = pb.ShareGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch)
        answer = self.attempt(commands.ShareGroupHeartbeat(request=request))
        if answer is not None:
            self.epochs[group_id, member_id] = answer.member_epoch

    @rule(group_id=GROUPS)
    def initialize_state(self, group_id: str) -> None:
        if group_id in self.driver.state.share_groups:
            self.driver.initialize_all(group_id)

    @rule(group_id=GROUPS, name=TOPICS, partition=st.integers(0, 2))
    def commit(self, group_id: str, name: str, partition: int) -> None:
        request = pb.OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, api_version=9)
        request.offsets.add(topic_name=name, partition=partition, committed_offset=self.driver.now_ms)
        self.attempt(commands.OffsetCommit(request=request))

    @rule(group_id=GROUPS)
    def delete_group(self, group_id: str) -> None:
        self.attempt(commands.DeleteGroup(group_id=group_id))

    @rule(role=st.sampled_from([pb.ROLE_LEADER, pb.ROLE_SHARE_COORDINATOR]), number=st.integers(1, 2))
    def register(self, role: pb.Role.ValueType, number: int) -> None:
        self.driver.register(role, number, f"life {self.driver.now_ms}")

    @rule(group_id=GROUPS, part=PARTS)
    def hand_over(self, group_id: str, part: int) -> None:
        self.driver.hand_over(partition_of_group(group_id), part)

    @rule(part=st.integers(1, 2))
    def load_the_catalog_anew(self, part: int) -> None:
        """As one that was cut off does."""
        self.driver.load_catalog(part)
        assert self.driver.run_on(part, commands.ReconcileTopics()) == 0

    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds: int) -> None:
        self.driver.now_ms += seconds * 1_000

    @invariant()
    def all_rows_together_are_those_of_the_single_machine(self) -> None:
        if hasattr(self, "driver"):
            assert without_sequences(self.driver.stored) == without_sequences(self.driver.rows)

    @invariant()
    def every_part_has_what_is_stored_of_it_and_no_more(self) -> None:
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        for index, part in enumerate(driver.parts):
            mine = {CATALOG, *(partition for partition, owner in driver.owners.items() if owner == index)}
            rows = [records.record_of(*row) for row in sorted(driver.stored.items()) if of_row(row) in mine]
            assert part.state == CoordinatorMachine(driver.configs, rows, broker_id=1).state


TestSplitCoordinators = SplitModel.TestCase
TestSplitCoordinators.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
