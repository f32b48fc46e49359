"""Committed offsets against dictionaries: commits, transactions, retention, topics that come and go, restarts.

The naive model writes down every commit with the number of its step. After each step a machine loaded from the rows
equals the live one, and fetches say what the dictionaries say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode
from support.coordinator.committed_offsets import Partition, TransactionalProducer, commit, fetched
from support.coordinator.driver import CoordinatorDriver

RETENTION_MS = 60_000
PARTITIONS = 2
TOPIC_NAMES = ["t", "u"]
TOPICS = st.sampled_from(TOPIC_NAMES)
GROUPS = st.sampled_from(["g1", "g2"])
PRODUCERS = st.sampled_from(["p1", "p2"])
PLACES = st.tuples(TOPICS, st.integers(0, PARTITIONS))
"""The last partition number is one that never exists."""
OFFSETS = st.dictionaries(PLACES, st.integers(0, 1000), min_size=1, max_size=6)


class Committed(NamedTuple):
    offset: int
    step: int
    commit_ms: int


@dataclass
class NaiveOffsets:
    committed: dict[tuple[str, Partition], Committed] = field(default_factory=dict)
    pending: dict[str, dict[tuple[str, Partition], Committed]] = field(default_factory=dict)
    """By transactional id."""

    def unstable(self) -> set[tuple[str, Partition]]:
        return {place for places in self.pending.values() for place in places}

    def end(self, transactional_id: str, committed: bool, now_ms: int) -> None:
        for place, value in self.pending.pop(transactional_id, {}).items():
            known = self.committed.get(place)
            if committed and (known is None or known.step < value.step):
                self.committed[place] = value._replace(commit_ms=now_ms)

    def forget_topic(self, name: str) -> None:
        for places in (self.committed, *self.pending.values()):
            for place in [place for place in places if place[1][0] == name]:
                del places[place]


class CommittedOffsetsModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = CoordinatorDriver({"offsets.retention.minutes": "1"})
        self.naive = NaiveOffsets()
        self.topics: set[str] = set()
        self.producers: dict[str, TransactionalProducer] = {}
        self.ongoing: set[str] = set()
        self.steps = 0
        for name in TOPIC_NAMES:
            self.create(name)

    def exists(self, partition: Partition) -> bool:
        return partition[0] in self.topics and partition[1] < PARTITIONS

    def note(
        self, target: dict[tuple[str, Partition], Committed], group_id: str, offsets: dict[Partition, int]
    ) -> list[int]:
        """Writes the commit down; the codes that the machine must answer."""
        self.steps += 1
        codes: list[int] = []
        for partition, offset in offsets.items():
            if self.exists(partition):
                target[group_id, partition] = Committed(offset, self.steps, self.driver.now_ms)
            codes.append(ErrorCode.NONE if self.exists(partition) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return codes

    @rule(group_id=GROUPS, offsets=OFFSETS)
    def commit(self, group_id: str, offsets: dict[Partition, int]) -> None:
        expected = self.note(self.naive.committed, group_id, offsets)
        assert commit(self.driver, offsets, group_id=group_id) == expected

    @rule(transactional_id=PRODUCERS, group_id=GROUPS, offsets=OFFSETS)
    def commit_in_transaction(self, transactional_id: str, group_id: str, offsets: dict[Partition, int]) -> None:
        if transactional_id not in self.producers:
            self.producers[transactional_id] = TransactionalProducer(self.driver, transactional_id)
        expected = self.note(self.naive.pending.setdefault(transactional_id, {}), group_id, offsets)
        assert self.producers[transactional_id].commit(offsets, group_id=group_id) == expected
        if ErrorCode.NONE in expected:
            self.ongoing.add(transactional_id)

    @rule(transactional_id=PRODUCERS, committed=st.booleans())
    def end(self, transactional_id: str, committed: bool) -> None:
        if transactional_id in self.ongoing:
            self.ongoing.discard(transactional_id)
            self.producers[transactional_id].end(committed=committed)
            self.naive.end(transactional_id, committed, self.driver.now_ms)

    @rule(transactional_id=PRODUCERS)
    def replace_producer(self, transactional_id: str) -> None:
        if transactional_id in self.producers:
            old = self.producers[transactional_id]
            self.producers[transactional_id] = TransactionalProducer(self.driver, transactional_id)
            self.ongoing.discard(transactional_id)
            self.naive.end(transactional_id, False, self.driver.now_ms)
            if "t" in self.topics:
                assert old.commit({("t", 0): 1}) == [ErrorCode.INVALID_PRODUCER_EPOCH]

    @rule(
        passed_ms=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS - 1, RETENTION_MS]),
        group_ids=st.sampled_from([{"g1", "g2"}, {"g1"}]),
    )
    def expire(self, passed_ms: int, group_ids: set[str]) -> None:
        self.driver.now_ms += passed_ms
        unstable = self.naive.unstable()
        gone = [
            place
            for place, value in self.naive.committed.items()
            if place[0] in group_ids and place not in unstable and self.driver.now_ms - value.commit_ms >= RETENTION_MS
        ]
        for place in gone:
            del self.naive.committed[place]
        assert self.driver.run(commands.ExpireOffsets(group_ids=tuple(sorted(group_ids)))) == len(gone)

    @rule(name=TOPICS)
    def create(self, name: str) -> None:
        if name not in self.topics:
            self.driver.create_topic(name, PARTITIONS)
            self.topics.add(name)

    @rule(name=TOPICS)
    def delete(self, name: str) -> None:
        if name in self.topics:
            self.driver.delete(name)
            self.topics.discard(name)
            self.naive.forget_topic(name)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @invariant()
    def a_loaded_machine_equals_the_live_one(self) -> None:
        assert self.driver.load().state == self.driver.state

    @invariant()
    def fetches_say_what_the_dictionaries_say(self) -> None:
        unstable = self.naive.unstable()
        for group_id in ("g1", "g2"):
            known = {place[1]: value.offset for place, value in self.naive.committed.items() if place[0] == group_id}
            assert fetched(self.driver.state, group_id) == known
            stable = {
                partition: -ErrorCode.UNSTABLE_OFFSET_COMMIT if (group_id, partition) in unstable else offset
                for partition, offset in known.items()
            }
            assert fetched(self.driver.state, group_id, require_stable=True) == stable

    @invariant()
    def nothing_else_is_kept(self) -> None:
        table = self.driver.state.offsets
        assert table.row_count == len(self.naive.committed) + sum(map(len, self.naive.pending.values()))
        groups = {place[0] for place in self.naive.committed} | {place[0] for place in self.naive.unstable()}
        assert table.group_ids() == sorted(groups) and table.group_count() == len(groups)


TestCommittedOffsets = CommittedOffsetsModel.TestCase
TestCommittedOffsets.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
