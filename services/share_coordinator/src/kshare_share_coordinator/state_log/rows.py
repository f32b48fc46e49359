"""The records of one state partition that are not superseded, as the bytes that are in its log.

Records are decoded when a share-partition is used, so that a log is replayed as fast as its batches are read. A row is
a snapshot with its offset, and the updates that follow it:

    <offset, 8 bytes><ShareSnapshot value>                       bytes, of nearly all share-partitions
    [<offset><ShareSnapshot value>, <ShareUpdate value>, …]      a list

Rows are in the order of their snapshots' offsets. So the first one says how much of the log is needed. Where a log
begins with an update, whose snapshot was removed with the records before it, the row has an empty snapshot. A later
snapshot or a tombstone ends such a row; if none does, the row is corrupt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, Record, ShareSnapshot, ShareUpdate, apply
from kshare_share_coordinator.records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from kshare_share_coordinator.state_log.port import Found
from kshare_upstream.fenced_log.fold import CountedBatch
from kshare_upstream.fenced_log.owner import LogRecord
from kshare_wire.record_reading import record_objects

ROW_OVERHEAD_BYTES = 250
"""Memory of a row beside its bytes: two objects and their place in the table; measured with CPython 3.11."""

_TYPE = Struct(">h")
_OFFSET = Struct(">q")
_SNAPSHOT_TYPE = _TYPE.pack(SHARE_SNAPSHOT)
_UPDATE_TYPE = _TYPE.pack(SHARE_UPDATE)

_Row = bytes | list[bytes]


class EncodedRow(NamedTuple):
    """The records of a share-partition: the snapshot's offset and value, and the values of its updates."""

    offset: int
    snapshot: bytes
    updates: Sequence[bytes]


def encoded_record(record: Record) -> LogRecord:
    """A record as Kafka's share coordinator writes it."""
    if isinstance(record, ShareSnapshot):
        return LogRecord(encode_key(SHARE_SNAPSHOT, record.key), encode_snapshot(record))
    if isinstance(record, ShareUpdate):
        return LogRecord(encode_key(SHARE_UPDATE, record.key), encode_update(record))
    return LogRecord(encode_key(SHARE_SNAPSHOT, record.key), None)


def prefix_of(key: SharePartitionKey) -> bytes:
    """The part of its records' keys that names a share-partition."""
    return encode_key(SHARE_SNAPSHOT, key)[_TYPE.size :]


class StateRows:
    """The rows of one state partition."""

    def __init__(self) -> None:
        self.record_count = 0
        self.size_bytes = 0
        """Memory, about."""
        self.ended: dict[bytes, int] | None = None
        """Offsets of tombstones by share-partition, where a dictionary is set: of those that have no row."""
        self._rows: OrderedDict[bytes, _Row] = OrderedDict()
        self._sorted: list[bytes] | None = None
        """The share-partitions in order, until one is added or ends."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self._rows

    def take(self, batch: CountedBatch) -> None:
        """Adds the records of a batch; KafkaError CORRUPT_MESSAGE or CorruptRecord."""
        for record in record_objects(batch.data):
            self.add(record.offset, record.key or b"", record.value)

    def add(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Adds the next record; CorruptRecord if its type is unknown."""
        record_type, prefix = key[: _TYPE.size], key[_TYPE.size :]
        if record_type == _SNAPSHOT_TYPE:
            former = self._rows.pop(prefix, None)
            if former is not None:
                self._count(prefix, former, -1)
            if value is not None:
                row = _OFFSET.pack(offset) + value
                self._rows[prefix] = row
                self._count(prefix, row, 1)
            elif self.ended is not None:
                self.ended[prefix] = offset
            if (former is None) != (value is None):
                self._sorted = None
        elif record_type == _UPDATE_TYPE and value is not None:
            self._add_update(offset, prefix, value)
        else:
            raise CorruptRecord(f"the record at offset {offset} has the key {key.hex()}, which is unknown")

    def _add_update(self, offset: int, prefix: bytes, value: bytes) -> None:
        row = self._rows.get(prefix)
        if row is None:
            row = _OFFSET.pack(offset)
            self._count(prefix, row, 1)
            self._sorted = None
        if isinstance(row, bytes):
            row = self._rows[prefix] = [row]
        row.append(value)
        self.record_count += 1
        self.size_bytes += len(value)

    def _count(self, prefix: bytes, row: _Row, sign: int) -> None:
        pieces = [row] if isinstance(row, bytes) else row
        self.record_count += sign * len(pieces)
        self.size_bytes += sign * (sum(map(len, pieces)) + len(prefix) + ROW_OVERHEAD_BYTES)

    def row(self, prefix: bytes) -> EncodedRow | None:
        """The row of a share-partition."""
        row = self._rows.get(prefix)
        if row is None:
            return None
        first, *updates = [row] if isinstance(row, bytes) else row
        return EncodedRow(_OFFSET.unpack_from(first)[0], first[_OFFSET.size :], updates)

    def prefixes(self) -> Iterator[bytes]:
        """All share-partitions, the one with the oldest snapshot first."""
        return iter(self._rows)

    def oldest_offset(self) -> int | None:
        """The offset of the oldest snapshot that is needed; None without rows."""
        for row in self._rows.values():
            return int(_OFFSET.unpack_from(row if isinstance(row, bytes) else row[0])[0])
        return None

    def records(self, key: SharePartitionKey) -> list[Record]:
        """The records of a share-partition, in order; CorruptRecord."""
        row = self.row(prefix_of(key))
        return [] if row is None else _decoded(key, row)

    def found(self, prefix: bytes) -> Found:
        """A share-partition that has a row."""
        key: SharePartitionKey | None = None
        row = self.row(prefix)
        assert row is not None
        try:
            _, key = decode_key(_SNAPSHOT_TYPE + prefix)
            records = _decoded(key, row)
            state = None
            for record in records:
                state = apply(state, record)
        except CorruptRecord as problem:
            return Found(key, (), str(problem))
        return Found(key, records, None)

    def page(self, start: bytes, limit: int) -> tuple[list[Found], bytes | None]:
        """See StateLog.share_partitions."""
        if self._sorted is None:
            self._sorted = sorted(self._rows)
        found: list[Found] = []
        left = limit
        for place in range(bisect_left(self._sorted, start), len(self._sorted)):
            if left <= 0 and found:
                return found, self._sorted[place]
            found.append(self.found(self._sorted[place]))
            left -= max(1, len(found[-1].records))
        return found, None


def _decoded(key: SharePartitionKey, row: EncodedRow) -> list[Record]:
    if not row.snapshot:
        raise CorruptRecord(f"share-partition {key} has ShareUpdates without a ShareSnapshot")
    updates = [decode_update(key, number, value) for number, value in enumerate(row.updates, 1)]
    return [decode_snapshot(key, row.snapshot), *updates]
