"""A piece of an upstream log: what one fetch brought, as batches, and which transactions were aborted among them.

A broker tells with the records of a read_committed fetch which producers had a transaction that was aborted, and where
it began; where it ended is said by its marker, a control batch in the log (FetchResponse, KIP-98).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kshare_core.errors import KafkaError
from kshare_leader.ports import STORED_BATCH_OVERHEAD_BYTES, AbortedTransaction, StoredBatch
from kshare_wire.record_batches import BatchHeader, read_header
from kshare_wire.record_reading import open_records

PIECE_OVERHEAD_BYTES = 360
"""What a window needs for each piece, beside its batches. Measured: 355 to 380."""

_LENGTH_AT = 8
_LENGTH_END = 12
_ABORT = 0
"""The type of an ABORT marker (ControlRecordType), the second int16 of its key."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The whole log from `first_offset` to `end_offset` (exclusive); compaction may have left holes between batches."""

    first_offset: int
    end_offset: int
    batches: Sequence[StoredBatch]
    aborted: Sequence[AbortedTransaction] = ()
    """The aborted transactions with records here, cut to this piece, by their last offsets."""
    size_bytes: int = field(default=0)
    """What it needs in memory: records, and what holds them."""


def piece_of(
    fetch_offset: int,
    records: bytes | memoryview,
    aborted: Iterable[tuple[int, int]] = (),
    unreadable: Collection[int] = (),
) -> Piece | None:
    """The piece that a fetch from `fetch_offset` brought; None where it brought no whole batch.

    `aborted` has producer id and first offset of each aborted transaction, as the broker told. `unreadable` has the
    base offsets of batches that no consumer can read. A last batch that was cut off by the fetch's limit is left out.
    KafkaError CORRUPT_MESSAGE where the records are damaged.
    """
    view = memoryview(records)
    headers = list(_whole_headers(view))
    batches = [
        StoredBatch(
            header.base_offset,
            header.base_offset + header.last_offset_delta,
            bytes(view[header.position : header.position + header.size]),
            header.is_control,
            header.is_transactional,
            header.producer_id,
            header.base_offset in unreadable,
        )
        for header in headers
    ]
    if not batches:
        return None
    first_offset, end_offset = min(fetch_offset, batches[0].base_offset), batches[-1].last_offset + 1
    size = PIECE_OVERHEAD_BYTES + sum(batch.length + STORED_BATCH_OVERHEAD_BYTES for batch in batches)
    return Piece(first_offset, end_offset, batches, _aborted_runs(batches, aborted, end_offset), size)


def _whole_headers(view: memoryview) -> Iterable[BatchHeader]:
    position = 0
    while len(view) - position >= _LENGTH_END:
        length = int.from_bytes(view[position + _LENGTH_AT : position + _LENGTH_END], signed=True)
        if length >= 0 and position + _LENGTH_END + length > len(view):
            return
        try:
            header = read_header(view, position)
        except KafkaError:
            if position == 0:
                raise
            return  # the batches before it are whole; the next fetch begins with it, and fails
        yield header
        position += header.size


def _aborted_runs(
    batches: Sequence[StoredBatch], aborted: Iterable[tuple[int, int]], end_offset: int
) -> list[AbortedTransaction]:
    """From where to where each aborted transaction reaches within the piece: to its marker, or to the piece's end."""
    begun = sorted(aborted, key=lambda each: each[1])
    open_since: dict[int, int] = {}
    runs: list[AbortedTransaction] = []
    for batch in batches:
        while begun and begun[0][1] <= batch.last_offset:
            producer_id, first_offset = begun.pop(0)
            open_since.setdefault(producer_id, first_offset)
        if batch.is_control and batch.producer_id in open_since and _is_abort(batch):
            runs.append(AbortedTransaction(batch.producer_id, open_since.pop(batch.producer_id), batch.last_offset))
    runs += [AbortedTransaction(producer_id, first, end_offset - 1) for producer_id, first in open_since.items()]
    return sorted(runs, key=lambda run: run.last_offset)


def _is_abort(batch: StoredBatch) -> bool:
    try:
        (marker,) = open_records(batch.data)
    except (KafkaError, ValueError):
        return False
    key = marker.key or b""
    return len(key) >= 4 and int.from_bytes(key[2:4]) == _ABORT
