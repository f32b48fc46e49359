"""Runs of offsets with one delivery state, and how newer runs are laid over older ones.

A list of state batches in a share-partition's state is canonical: sorted, without overlaps, and neighbours that touch
differ. Where two batches meet on an offset, the one with the higher delivery count wins, then the one with the higher
delivery state (Kafka's PersisterStateBatchCombiner). So the outcome is a maximum for each offset: it does not depend on
the order of writes, and a write that is repeated changes nothing.

Lists are never changed in place, because answers that are still on their way share them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple


class StateBatch(NamedTuple):
    """An inclusive run of offsets; `delivery_state` is one of `PERSISTED_STATES`."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


_first_offset = itemgetter(0)
_last_offset = itemgetter(1)


def combine_state_batches(
    older: Sequence[StateBatch], newer: Sequence[StateBatch], start_offset: int
) -> list[StateBatch]:
    """`newer` (in any order, overlaps allowed) laid over `older` (canonical), without all that is below `start_offset`.

    The result is canonical. A `start_offset` of -1 removes nothing.
    """
    older = _prune(older, start_offset)
    newer = _prune(_canonical(newer), start_offset)
    if not newer:
        return list(older)
    low = bisect_left(older, newer[0].first_offset - 1, key=_last_offset)
    high = bisect_right(older, newer[-1].last_offset + 1, low, key=_first_offset)
    combined = list(older)
    combined[low:high] = _overlay(older[low:high], newer) if low < high else newer
    return combined


def is_canonical(batches: Sequence[StateBatch]) -> bool:
    """Whether the batches are sorted, without overlaps, and touching neighbours differ."""
    for i in range(1, len(batches)):
        previous, batch = batches[i - 1], batches[i]
        if batch.first_offset <= previous.last_offset:
            return False
        if batch.first_offset == previous.last_offset + 1 and batch[2:] == previous[2:]:
            return False
    return True


def _canonical(batches: Sequence[StateBatch]) -> Sequence[StateBatch]:
    if is_canonical(batches):
        return batches
    middle = len(batches) // 2
    return _overlay(_canonical(batches[:middle]), _canonical(batches[middle:]))


def _prune(batches: Sequence[StateBatch], start_offset: int) -> Sequence[StateBatch]:
    if not batches or batches[0].first_offset >= start_offset:
        return batches
    kept = list(batches[bisect_left(batches, start_offset, key=_last_offset) :])
    if kept and kept[0].first_offset < start_offset:
        kept[0] = kept[0]._replace(first_offset=start_offset)
    return kept


def _overlay(left: Sequence[StateBatch], right: Sequence[StateBatch]) -> list[StateBatch]:
    """Both canonical; one sweep from the lowest offset to the highest."""
    merged: list[StateBatch] = []
    rights = iter(right)
    lefts = iter(left)
    one, other = next(lefts, None), next(rights, None)
    while one is not None and other is not None:
        if one.last_offset < other.first_offset:
            _append(merged, one)
            one = next(lefts, None)
            continue
        if other.last_offset < one.first_offset:
            _append(merged, other)
            other = next(rights, None)
            continue
        one, other = _emit_lead(merged, one, other), _emit_lead(merged, other, one)
        last_offset = min(one.last_offset, other.last_offset)
        winner = one if (one.delivery_count, one[2]) >= (other.delivery_count, other[2]) else other
        _append(merged, winner._replace(last_offset=last_offset))
        one = next(lefts, None) if one.last_offset == last_offset else one._replace(first_offset=last_offset + 1)
        other = next(rights, None) if other.last_offset == last_offset else other._replace(first_offset=last_offset + 1)
    for rest, following in ((one, lefts), (other, rights)):
        if rest is not None:
            _append(merged, rest)
            for batch in following:
                _append(merged, batch)
    return merged


def _emit_lead(merged: list[StateBatch], batch: StateBatch, other: StateBatch) -> StateBatch:
    """Emits the part of `batch` before `other` and returns the rest; the two overlap."""
    if batch.first_offset >= other.first_offset:
        return batch
    _append(merged, batch._replace(last_offset=other.first_offset - 1))
    return batch._replace(first_offset=other.first_offset)


def _append(merged: list[StateBatch], batch: StateBatch) -> None:
    if merged:
        previous = merged[-1]
        if previous.last_offset + 1 == batch.first_offset and previous[2:] == batch[2:]:
            merged[-1] = previous._replace(last_offset=batch.last_offset)
            return
    merged.append(batch)
