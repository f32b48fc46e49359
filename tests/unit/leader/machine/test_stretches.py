"""Batches without a gap between them are looked up once, and a request is refused as if each stood alone."""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import AcknowledgeType
from kshare_leader.machine.acknowledgement import AcknowledgementBatch, stretches_of
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from support.leader.share.group_limits import group_limits

ACCEPT, RELEASE = bytes([AcknowledgeType.ACCEPT]), bytes([AcknowledgeType.RELEASE])
LIMITS = group_limits(lock_duration_ms=30_000, delivery_count_limit=5)
MEMBER, OTHER = Owner("member-1", 1, "gateway"), Owner("member-2", 1, "gateway")


def batch(first_offset: int, last_offset: int, types: bytes = ACCEPT) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset, last_offset, types)


def acquired(*lengths: int) -> SharePartition:
    """Records from offset 0 that MEMBER and OTHER hold in turn."""
    machine = SharePartition(start_offset=0)
    first = 0
    for number, length in enumerate(lengths):
        limits = FetchLimits(owner=OTHER if number % 2 else MEMBER, max_records=length, batch_size=length, group=LIMITS)
        machine.acquire(limits, 0, first, [(first, first + length - 1)], first + length)
        first += length
    return machine


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], []),
        ([batch(0, 3), batch(4, 4, RELEASE)], [(0, [(4, 1), (5, 2)])]),
        ([batch(0, 3), batch(5, 6)], [(0, [(4, 1)]), (5, [(7, 1)])]),
        ([batch(0, 2, b"\1\2\2"), batch(3, 3)], [(0, [(1, 1), (3, 2), (4, 1)])]),
        ([batch(0, 3), batch(3, 3)], [(0, [(4, 1)]), (3, [(4, 1)])]),
    ],
    ids=["none", "no gap", "a gap", "a type for each offset", "the same offset twice"],
)
def test_joined_where_one_follows_the_other(
    batches: list[AcknowledgementBatch], expected: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    assert stretches_of(batches) == expected


@pytest.mark.parametrize(
    ("batches", "code", "named"),
    [
        ([batch(0, 3), batch(4, 5)], ErrorCode.INVALID_RECORD_STATE, "4-5"),
        ([batch(0, 3), batch(4, 9)], ErrorCode.INVALID_REQUEST, "4-9"),
        ([batch(0, 4), batch(5, 9)], ErrorCode.INVALID_RECORD_STATE, "0-4"),
        ([batch(0, 3), batch(3, 3)], ErrorCode.INVALID_RECORD_STATE, "3-3"),
    ],
    ids=["another's records", "beyond the end", "another's records before that", "twice"],
)
def test_the_first_batch_that_cannot_be_applied_decides_and_nothing_changes(
    batches: list[AcknowledgementBatch], code: ErrorCode, named: str
) -> None:
    machine = acquired(4, 3)
    before = repr(machine.runs())
    with pytest.raises(KafkaError, match=f"batch {named}:") as refused:
        machine.acknowledge(MEMBER, 1, batches, LIMITS)
    assert refused.value.code is code
    assert repr(machine.runs()) == before
