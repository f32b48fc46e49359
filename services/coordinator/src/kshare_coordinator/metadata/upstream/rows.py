"""The rows of all partitions of metadata after the records of a log: a pure function of the records that count.

Appends are numbered without gaps. The rows are *whole* if all appends up to `next_number` are in them: read from the
first append on, or from a complete snapshot on. A snapshot's pieces may have appends between them, which are applied
to it once its last piece is there. Readers that are whole skip snapshots, unless they replace what the log has lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kshare_coordinator.metadata.upstream.records import apply_to, log_record_of, writes_of
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_runtime.ports import Write
from kshare_upstream.fenced_log.fold import CountedBatch
from kshare_wire.record_reading import open_records

Writes = Mapping[int, Sequence[Write]]


@dataclass(slots=True)
class _Snapshot:
    """A snapshot whose pieces are being read."""

    offset: int
    number: int
    replaces: bool
    pieces: list[bytes] = field(default_factory=list)
    since: list[Writes] = field(default_factory=list)
    """Appends after its first piece."""


class LogRows:
    """The rows; see the module's text."""

    def __init__(self) -> None:
        self.is_whole = True
        """Readers of a log that does not begin with its very first record set it to False."""
        self.next_number = 0
        self.snapshot_offset = 0
        """The offset of the newest complete snapshot's first piece; 0: there is none."""
        self.snapshot_bytes = 0
        self.partitions: dict[int, dict[tuple[str, bytes], bytes]] = {}
        self._append: list[bytes] = []
        self._snapshot: _Snapshot | None = None

    def take(self, batch: CountedBatch) -> list[Writes | None]:
        """Applies the next batch that counts; returns its appends, and None where all rows were replaced.

        StorageFailure for damaged records. After a gap in the numbers the rows are no longer whole.
        """
        found: list[Writes | None] = []
        for record in open_records(batch.data):
            taken = log_record_of(record.value, record.offset)
            if taken.kind == pb.MetadataLogRecord.APPEND:
                writes = self._append_piece(taken)
                if writes is not None:
                    found.append(writes)
            elif self._snapshot_piece(taken, record.offset):
                found.append(None)
        return found

    def fold(self, batch: CountedBatch) -> None:
        """`take` for readers that need the rows only."""
        self.take(batch)

    def apply(self, writes: Writes) -> None:
        """Applies the next append."""
        self.next_number += 1
        if self._snapshot is not None:
            self._snapshot.since.append(writes)
        for partition, of_one in writes.items():
            apply_to(self.partitions, partition, of_one)

    def owned(self) -> LogRows:
        """These rows, for an owner: it reads no more, and would keep all appends since a snapshot without its end."""
        self._append, self._snapshot = [], None
        return self

    def of(self, partition: int) -> list[Write]:
        """All rows of one partition."""
        return [Write(family, key, value) for (family, key), value in self.partitions.get(partition, {}).items()]

    def _append_piece(self, record: pb.MetadataLogRecord) -> Writes | None:
        if record.piece == 0:
            self._append = []
        if record.piece != len(self._append):
            self._lost()
            return None
        self._append.append(record.data)
        if not record.is_last:
            return None
        data, self._append = b"".join(self._append), []
        if record.number != self.next_number and self.is_whole:
            self._lost()
        if not self.is_whole and self._snapshot is None:
            return None
        writes: dict[int, list[Write]] = {}
        for partition, some in writes_of(data):
            writes.setdefault(partition, []).extend(some)
        if self.is_whole:
            self.apply(writes)
            return writes
        assert self._snapshot is not None
        if record.number != self._snapshot.number + len(self._snapshot.since):
            self._snapshot = None
        else:
            self._snapshot.since.append(writes)
        return None

    def _snapshot_piece(self, record: pb.MetadataLogRecord, offset: int) -> bool:
        """Takes a snapshot's piece; whether all rows were replaced."""
        if record.piece == 0:
            if record.number > self.next_number and self.is_whole:
                self._lost()
            self._snapshot = _Snapshot(offset, record.number, record.replaces)
        snapshot = self._snapshot
        if snapshot is None or record.number != snapshot.number or record.piece != len(snapshot.pieces):
            self._snapshot = None
            return False
        snapshot.pieces.append(record.data)
        if not record.is_last:
            return False
        self._snapshot = None
        self.snapshot_offset = snapshot.offset
        self.snapshot_bytes = sum(map(len, snapshot.pieces))
        if self.is_whole and not snapshot.replaces:
            return False
        self.partitions = {}
        for partition, some in writes_of(b"".join(snapshot.pieces)):
            apply_to(self.partitions, partition, some)
        self.next_number = snapshot.number
        for writes in snapshot.since:
            self.apply(writes)
        self.is_whole = True
        return True

    def _lost(self) -> None:
        """A record is missing: only a snapshot makes the rows whole again."""
        self.is_whole = False
        self._append = []
        self._snapshot = None
        self.partitions = {}
