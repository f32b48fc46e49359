"""The rule of fenced logs: which batches count, by what the rule says; logs made by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kshare_upstream.fenced_log.claim import Claim, ControlKind, ControlRecord, control_batch
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_wire.record_writing import BatchWriter, ProducerSequence
from support.simulation.history import History
from support.simulation.loop import VirtualLoop
from support.simulation.network import SimulatedFabric
from support.simulation.rules.fenced_logs import Confirmation, confirmations_count, counted
from support.simulation.upstream.cluster import SimulatedTopic, SimulatedUpstream
from support.simulation.upstream.partitions import Replicas, SimulatedPartition

AT = Name("state", 0)
EARLIER, LATER = 1, 2
"""Producer ids of two owners."""


class Scene:
    """A log of one replica, which two owners append to as a case says."""

    def __init__(self) -> None:
        loop = self.loop = VirtualLoop()
        self.upstream = SimulatedUpstream(SimulatedFabric(loop, random.Random(1), History()), random.Random(1))
        replicas = Replicas(lambda leader, follower: True, lambda leader, follower: 0.0)
        self.partition = SimulatedPartition(loop, AT, [1], replicas, random.Random(1))
        self.upstream.topics[AT.topic] = SimulatedTopic(AT.topic, bytes(16), {}, [self.partition], 0.0)
        self._sequences = {EARLIER: 0, LATER: 0}

    def control(self, kind: ControlKind, producer_id: int, epoch: int) -> int:
        record = ControlRecord(kind, Claim(epoch, 0, producer_id, bytes(16)))
        return self._append(control_batch(record, self._next(producer_id), 0))

    def data(self, producer_id: int, value: bytes) -> int:
        writer = BatchWriter(1 << 10, producer=self._next(producer_id))
        writer.append(0, b"key", value, ())
        return self._append(writer.build())

    def told(self, *confirmed: tuple[int, bytes | None]) -> list[str]:
        """The rules that are broken if these were confirmed: offset and value, None for a claim."""
        given = [
            Confirmation(None, AT, offset, () if value is None else ((b"key", value),)) for offset, value in confirmed
        ]
        return [violation.rule for violation in confirmations_count(self.upstream, given)]

    def _next(self, producer_id: int) -> ProducerSequence:
        sequence = self._sequences[producer_id]
        self._sequences[producer_id] += 1
        return ProducerSequence(producer_id, 0, sequence)

    def _append(self, batch: bytes) -> int:
        return self.partition.log.append(batch, 0).base_offset


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.loop.close()


def test_what_an_owner_appended_before_its_successor_counts(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, EARLIER, 1)
    offset = scene.data(EARLIER, b"a")
    claim = scene.control(ControlKind.CLAIM, LATER, 2)
    assert scene.told((offset, b"a"), (claim, None), (scene.data(LATER, b"b"), b"b")) == []


def test_what_came_after_the_successors_claim_was_not_to_be_confirmed(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, EARLIER, 1)
    scene.control(ControlKind.CLAIM, LATER, 2)
    assert scene.told((scene.data(EARLIER, b"a"), b"a")) == ["confirmed, and it does not count"]


def test_a_claim_of_an_older_epoch_changes_nothing(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, LATER, 2)
    claim = scene.control(ControlKind.CLAIM, EARLIER, 1)
    assert scene.told((claim, None)) == ["confirmed, and it does not count"]
    assert scene.told((scene.data(LATER, b"b"), b"b")) == []


def test_other_records_than_the_confirmed_ones_are_found(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, EARLIER, 1)
    offset = scene.data(EARLIER, b"a")
    assert scene.told((offset, b"other")) == ["confirmed, and it does not count"]
    assert scene.told((offset + 5, b"a")) == ["confirmed, and it does not count"]


def test_a_log_is_pruned_at_a_mark_and_counts_as_before(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, EARLIER, 1)
    old = scene.data(EARLIER, b"a")
    mark = scene.control(ControlKind.MARK, EARLIER, 1)
    new = scene.data(EARLIER, b"b")
    scene.partition.log.delete_before(mark)
    assert scene.told((old, b"a"), (new, b"b")) == []
    assert set(counted([batch.data for batch in scene.partition.log.batches])) == {mark, new}


def test_a_log_that_was_pruned_elsewhere_is_found(scene: Scene) -> None:
    scene.control(ControlKind.CLAIM, EARLIER, 1)
    scene.data(EARLIER, b"a")
    new = scene.data(EARLIER, b"b")
    scene.partition.log.delete_before(1)
    assert scene.told((new, b"b")) == ["a pruned log counts otherwise"]
