"""The committed records of a partition up to its end, whatever transactions of other producers are still open.

A read_committed fetch ends at the last stable offset, which any open transaction holds back. Here the markers in the
log decide instead: a producer's records count from its COMMIT marker on, and without one not at all. So whoever knows
that a transaction has ended finds its records, without waiting for others. The cleaner of a compacted log keeps the
marker of every transaction that still has records.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare_core.errors import ErrorCode
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog, Refused
from kshare_wire.record_reading import OpenedRecord, open_records

READ_BYTES = 4 * 1024 * 1024
COMMIT = 1
"""The type of a COMMIT marker (ControlRecordType), the second int16 of its key."""


async def read_committed_records(log: PartitionLog, is_wanted: Callable[[OpenedRecord], bool]) -> list[OpenedRecord]:
    """The wanted ones, in the order of their commits; Refused, OutcomeUnknown, KafkaError CORRUPT_MESSAGE."""
    committed: list[OpenedRecord] = []
    pending: dict[int, list[OpenedRecord]] = {}
    end = await log.offset_at(LATEST_TIMESTAMP)
    offset = await log.offset_at(EARLIEST_TIMESTAMP)
    while offset < end:
        try:
            records = await log.read(offset, max_bytes=READ_BYTES)
        except Refused as refused:
            if refused.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            offset = max(offset + 1, await log.offset_at(EARLIEST_TIMESTAMP))  # the log was shortened meanwhile
            continue
        following = offset
        for header, data in whole_batches(records.data):
            following = header.base_offset + header.last_offset_delta + 1
            if header.is_control:
                (marker,) = open_records(data)
                ended = pending.pop(header.producer_id, [])
                if marker.key is not None and int.from_bytes(marker.key[2:4]) == COMMIT:
                    committed += ended
                continue
            found = [record for record in open_records(data) if is_wanted(record)]
            if header.is_transactional:
                pending.setdefault(header.producer_id, []).extend(found)
            else:
                committed += found
        if following <= offset:
            if records.high_watermark < end:  # a new leader's is behind for a while (KIP-207)
                raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "Fetch")
            return committed  # compaction has left nothing up to the end
        offset = following
    return committed
