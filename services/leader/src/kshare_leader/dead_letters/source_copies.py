"""Records of an existing cluster's log that dead letters copy, fetched when they are needed.

A leader's window may have dropped them, and reading there would take the window away from consumers. At most
FETCHES_LIMIT fetches are made for a batch of dead letters; what they do not cover is left for the next batch. Offsets
without a record, because retention or compaction removed it, are covered too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.ports import StoredBatch
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog, Records, Refused

FETCHES_LIMIT = 16
FETCH_BYTES = 1 << 20
END_OF_LOG = 1 << 62
SLOW_READ_WAIT_MS = 500


class FetchedCopies:
    """Implements `letters.ReadableLog` on batches that were fetched, in the order of their offsets."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.end_offset = 0
        """What is wanted below it was fetched, or is not in the log."""
        self.size_bytes = 0
        self._batches: list[StoredBatch] = []

    def read(self, fetch_offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        index = bisect_left(self._batches, fetch_offset, key=_last_offset)
        return self._batches[index : index + 1]

    async def fetch(self, log: PartitionLog, offset: int) -> None:
        """Fetches batches from the one with `offset` on; Refused, OutcomeUnknown, KafkaError CORRUPT_MESSAGE."""
        try:
            records = await self._read(log, offset)
        except Refused as refused:
            if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            start = await log.offset_at(EARLIEST_TIMESTAMP)
            self.end_offset = start if start > offset else END_OF_LOG
            return
        self.end_offset = END_OF_LOG  # nothing follows
        for header, data in whole_batches(records.data):
            last_offset = header.base_offset + header.last_offset_delta
            self._batches.append(StoredBatch(header.base_offset, last_offset, bytes(data), header.is_control))
            self.size_bytes += len(data)
            self.end_offset = last_offset + 1

    async def _read(self, log: PartitionLog, offset: int) -> Records:
        """An empty answer is the end of the log only where the leader knows its high watermark (KIP-207).

        A new leader's is behind for a while. It refuses ListOffsets then, but not Fetch.
        """
        records = await log.read(offset, max_bytes=FETCH_BYTES)
        if records.data:
            return records
        end_offset = await log.offset_at(LATEST_TIMESTAMP)
        records = await log.read(offset, max_bytes=FETCH_BYTES, wait_ms=SLOW_READ_WAIT_MS)
        # Of yet another leader; or the records are in remote storage, which did not bring them in time (KIP-405).
        if not records.data and (records.high_watermark < end_offset or offset < records.high_watermark):
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "Fetch")
        return records


async def fetch_copies(
    topic_partition: TopicPartition, log: PartitionLog, runs: Sequence[ArchivingRun], limit_bytes: int
) -> tuple[list[ArchivingRun], FetchedCopies]:
    """The records of `runs`, up to `limit_bytes` or a little more, and the runs that they cover."""
    copies = FetchedCopies(topic_partition)
    fetches = 0
    for run in runs:
        while (offset := max(run.first_offset, copies.end_offset)) <= run.last_offset:
            if fetches == FETCHES_LIMIT or copies.size_bytes >= limit_bytes:
                return _below(runs, offset), copies
            fetches += 1
            await copies.fetch(log, offset)
    return list(runs), copies


def _below(runs: Sequence[ArchivingRun], end_offset: int) -> list[ArchivingRun]:
    return [
        run._replace(last_offset=min(run.last_offset, end_offset - 1)) for run in runs if run.first_offset < end_offset
    ]


def _last_offset(batch: StoredBatch) -> int:
    return batch.last_offset
