"""What of a log a share group gets to see: batches with records that may be delivered, and how far they reach.

- Nothing at or beyond the readable end: the high watermark, for read_committed groups (share.isolation.level) the last
  stable offset. So an open transaction holds the end.
- Control batches are not there, and for read_committed groups neither are the batches of aborted transactions. Which
  these are is told by the producer ids in the batches' headers and the log's index of aborted transactions; no batch is
  opened. What is not there is archived like offsets that were compacted away.
- Batches that no consumer can read are not there either: an older version may have stored them (`log.old_batches`).
  While that is not known of a batch, it holds the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from kshare_leader.ports import AbortedTransaction, StoredBatch, TopicLog

_BY_LAST_OFFSET = attrgetter("last_offset")


class LogSlice(NamedTuple):
    """All batches with records that the group may get, from the offset that was read to `covered_end` (exclusive)."""

    batches: list[StoredBatch]
    covered_end: int


def readable_end(log: TopicLog, *, read_committed: bool) -> int:
    """The first offset that the group must not see yet."""
    return log.last_stable_offset if read_committed else log.high_watermark


def read_slice(log: TopicLog, fetch_offset: int, max_bytes: int, *, read_committed: bool) -> LogSlice | None:
    """At most `max_bytes` from `fetch_offset` on, at least one batch; None where the log has nothing (yet) to say.

    Raises StorageFailure.
    """
    end_offset = readable_end(log, read_committed=read_committed)
    if fetch_offset >= end_offset:
        return None
    read = log.read(fetch_offset, max_bytes)
    if not read:
        return None
    covered_end = read[-1].last_offset + 1
    if covered_end > end_offset:
        beyond = next(index for index, batch in enumerate(read) if batch.last_offset >= end_offset)
        covered_end = min(end_offset, read[beyond].base_offset)
        read = read[:beyond]
    if covered_end <= fetch_offset:
        return None
    batches = [batch for batch in read if not batch.is_control]
    if read and read[0].base_offset < log.validated_from:
        batches, unknown_from = log.readable(batches)
        if unknown_from is not None:
            if unknown_from <= fetch_offset:
                return None
            covered_end = unknown_from
    if read_committed and any(batch.is_transactional for batch in batches):
        batches = _without_aborted(log, batches)
    return LogSlice(batches, covered_end)


def _without_aborted(log: TopicLog, batches: list[StoredBatch]) -> list[StoredBatch]:
    of_producer: dict[int, list[AbortedTransaction]] = {}
    for transaction in log.aborted_transactions(batches[0].base_offset, batches[-1].last_offset + 1):
        of_producer.setdefault(transaction.producer_id, []).append(transaction)
    if not of_producer:
        return batches
    return [
        batch
        for batch in batches
        if not (batch.is_transactional and _is_aborted(batch, of_producer.get(batch.producer_id, ())))
    ]


def _is_aborted(batch: StoredBatch, transactions: Sequence[AbortedTransaction]) -> bool:
    """Whether one of the producer's aborted transactions, which ascend and do not overlap, has the batch."""
    index = bisect_left(transactions, batch.base_offset, key=_BY_LAST_OFFSET)
    return index < len(transactions) and transactions[index].first_offset <= batch.base_offset
