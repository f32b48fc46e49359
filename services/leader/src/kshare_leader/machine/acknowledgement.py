"""Acknowledgement batches of requests: their validation, and their split into runs of one type.

The rules are those of Kafka's `SharePartition.validateAcknowledgementBatches`: batches ascend, a batch has
one type or one type per offset, and RENEW requires a request with IsRenewAck (KIP-1222).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.states import AcknowledgeType, RecordState
from kshare_leader.machine.interval_map import NO_WRITE, Owner, Run

_ALLOWED_TYPES = bytes(AcknowledgeType)
_RUN_OF_ONE_TYPE = re.compile(rb"(.)\1*", re.DOTALL)


class AcknowledgementBatch(NamedTuple):
    """Offsets first..last and their types: one byte for all of them, or one byte per offset."""

    first_offset: int
    last_offset: int
    acknowledge_types: bytes


class EndedAcquisitions(NamedTuple):
    """The offsets that an administrator's command ended, as ranges first..last, and the id of the write to wait for."""

    spans: list[tuple[int, int]]
    write_id: int


def is_held(run: Run) -> bool:
    """Whether the run is Acquired and no change of it waits for its write."""
    return run.state is RecordState.ACQUIRED and run.write_id == NO_WRITE


def check_batches(batches: Sequence[AcknowledgementBatch], *, renew_allowed: bool) -> None:
    """Raises KafkaError with INVALID_REQUEST for the first batch that is malformed."""
    previous_last = -1
    for batch in batches:
        problem = _problem(batch, previous_last, renew_allowed)
        if problem:
            raise refused(batch, ErrorCode.INVALID_REQUEST, problem)
        previous_last = batch.last_offset


def _problem(batch: AcknowledgementBatch, previous_last: int, renew_allowed: bool) -> str | None:
    first, last, types = batch
    if first < 0:
        return "its first offset is negative"
    if first > last:
        return "its first offset is greater than its last offset"
    if first < previous_last:
        return f"it begins before the end {previous_last} of the batch before it"
    if not types:
        return "it has no acknowledge types"
    if len(types) > 1 and len(types) != last - first + 1:
        return f"it has {len(types)} acknowledge types for {last - first + 1} offsets; one, or one an offset is allowed"
    unknown = types.translate(None, _ALLOWED_TYPES)
    if unknown:
        return f"acknowledge type {unknown[0]} is unknown; 0 to 4 are allowed"
    if AcknowledgeType.RENEW in types and not renew_allowed:
        return "RENEW is only allowed in a request with IsRenewAck"
    return None


def renews_last_of(batch: AcknowledgementBatch) -> bool:
    """Whether the next batch may begin with this one's last offset, which a RENEW leaves Acquired."""
    return batch.acknowledge_types[-1] == AcknowledgeType.RENEW


def without_below(batches: Sequence[AcknowledgementBatch], offset: int) -> Sequence[AcknowledgementBatch]:
    """Well-formed batches without their offsets below `offset`."""
    if not batches or batches[0].first_offset >= offset:
        return batches
    kept: list[AcknowledgementBatch] = []
    for first, last, types in batches:
        if first >= offset:
            kept.append(AcknowledgementBatch(first, last, types))
        elif last >= offset:
            types = types[offset - first :] if len(types) > 1 else types
            kept.append(AcknowledgementBatch(offset, last, types))
    return kept


def steps_of(batch: AcknowledgementBatch) -> list[tuple[int, int]]:
    """The batch as runs of one type, in order: the offset after each, and its type."""
    first, last, types = batch
    if types.count(types[0]) == len(types):
        return [(last + 1, types[0])]
    ends = [match.end() for match in _RUN_OF_ONE_TYPE.finditer(types)]
    return [(first + end, types[end - 1]) for end in ends]


class Stretch(NamedTuple):
    """Batches that follow each other without a gap, as one: the runs of all of them are looked up and cut once."""

    first_offset: int
    steps: list[tuple[int, int]]
    """See `steps_of`."""

    @property
    def last_offset(self) -> int:
        return self.steps[-1][0] - 1


def stretches_of(batches: Sequence[AcknowledgementBatch]) -> list[Stretch]:
    """Well-formed batches, joined where one follows the other, as a worker's verdicts on what it fetched do."""
    found: list[Stretch] = []
    following = -1
    steps: list[tuple[int, int]] = []
    for batch in batches:
        if batch.first_offset != following:
            steps = []
            found.append(Stretch(batch.first_offset, steps))
        steps += steps_of(batch)
        following = batch.last_offset + 1
    return found


def not_held(run: Run, owner: Owner, delivered_fetch_number: int, now_ms: int) -> str | None:
    """Why `owner` cannot acknowledge the run; None if it can."""
    if run.state is not RecordState.ACQUIRED:
        return f"is {run.state.name}, not ACQUIRED"
    if run.owner != owner:
        return "is held by another member"
    if run.fetch_number > delivered_fetch_number:
        return "was acquired again by a fetch whose response was not delivered yet"
    if run.write_id != NO_WRITE:
        return "already waits for an earlier change to be stored"
    if run.lock_deadline_ms <= now_ms:
        return "is no longer acquired: its acquisition lock expired"
    return None


def refused(batch: AcknowledgementBatch, code: ErrorCode, problem: str) -> KafkaError:
    """The error of a batch that is not applied."""
    return KafkaError(code, f"Acknowledgement batch {batch.first_offset}-{batch.last_offset}: {problem}")
