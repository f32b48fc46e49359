"""Log slices for a share group: the batches whose records may be delivered, and the offsets that they cover.

- A slice ends before the readable end: the high watermark, or the last stable offset for read_committed groups
  (share.isolation.level). So an open transaction holds the end.
- A slice has no control batches and, for read_committed groups, no batches of aborted transactions. The producer ids
  in the batch headers and the log's index of aborted transactions identify the latter; no batch is
  opened. Left-out offsets are archived like offsets removed by compaction.
- A slice has no batches that consumers cannot read, which an older version may have stored (`log.old_batches`), or an
  existing cluster (`upstream.unreadable_batches`). A batch that is not validated yet holds the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from kshare_leader.ports import AbortedTransaction, StoredBatch, TopicLog

_BY_LAST_OFFSET = attrgetter("last_offset")


class LogSlice(NamedTuple):
    """All batches with deliverable records, from the offset that was read to `covered_end` (exclusive)."""

    batches: list[StoredBatch]
    covered_end: int


def readable_end(log: TopicLog, *, read_committed: bool) -> int:
    """The first offset that must not be delivered to the group yet."""
    return log.last_stable_offset if read_committed else log.high_watermark


def read_slice(log: TopicLog, fetch_offset: int, max_bytes: int, *, read_committed: bool) -> LogSlice | None:
    """Reads at most `max_bytes` from `fetch_offset` on, but at least one batch; None if nothing is readable there yet.

    Also None while the records are being fetched from an existing cluster. Raises StorageFailure.
    """
    end_offset = readable_end(log, read_committed=read_committed)
    if fetch_offset >= end_offset:
        return None
    read = log.read(fetch_offset, max_bytes, read_committed=read_committed)
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
    """Whether one of the producer's aborted transactions, which ascend and do not overlap, contains the batch."""
    index = bisect_left(transactions, batch.base_offset, key=_BY_LAST_OFFSET)
    return index < len(transactions) and transactions[index].first_offset <= batch.base_offset
