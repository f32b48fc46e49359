"""The rows of whole state partitions in the store: read in pieces, written in pieces, removed.

Two marks in the metadata family have the owner epoch of a reassignment:
- The copied mark is written at the receiver with the last rows. Rows without the mark of the current reassignment are
  an incomplete or old copy, and are not used. The mark stays as long as the rows do, because it shows which views of
  the catalog are too old to decide about them.
- The moved mark is written at the receiver before the first row, and at the sender before it sends one. Only rows with
  this mark may be removed because another node owns the state partition: a wrong node id, or a catalog from a backup,
  must not cost any state. It goes when this node owns the state partition after the reassignment.

Rows are read and written in their stored form, with their checksums. So a corrupt row is copied unchanged, and affects
one share-partition at the new node as at the old one. A family with damaged files can be neither read nor moved; to
remove its rows, it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore, sealed, unsealed
from kshare_share_coordinator.state_store import METADATA_FAMILY, family_of, filled_state_partitions

COPIED = b"copied-state-partition/"
MOVED = b"moved-state-partition/"
END_OF_ROWS = b"\xff"
"""Above every row's key: a record's begins with a group id's length, at most 0x7fff, the topic index's with 0x80."""
_STATE_PARTITION_BYTES = 4
_EPOCH_BYTES = 4


class Row(NamedTuple):
    """One key of a state partition's family and its value in its stored form."""

    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)

    def corruption(self, state_partition: int) -> str | None:
        """The problem of a wrong checksum; None if it is right."""
        try:
            unsealed(family_of(state_partition), self.key, self.value)
        except CorruptRow as problem:
            return str(problem)
        return None


class StatePartitionRows:
    """Access to whole state partitions; every method may raise StorageFailure."""

    def __init__(self, store: ChecksummedStore) -> None:
        self._store = store

    def piece(self, state_partition: int, after_key: bytes, max_bytes: int) -> tuple[list[Row], bool]:
        """The rows after a key (b"": from the first), at least one if any exists; and whether no more follow."""
        rows: list[Row] = []
        size = 0
        start = after_key + b"\0" if after_key else b""
        for key, value in self._store.scan_stored(family_of(state_partition), start):
            row = Row(key, value)
            if rows and size + row.size > max_bytes:
                return rows, False
            rows.append(row)
            size += row.size
        return rows, True

    def copied_epoch(self, state_partition: int) -> int | None:
        """The owner epoch of the newest reassignment whose rows are all here; None if none was copied here."""
        return self._mark(COPIED, state_partition)

    def moved_epoch(self, state_partition: int) -> int | None:
        """The owner epoch of the newest reassignment from or to this node; None if this node owned it since."""
        return self._mark(MOVED, state_partition)

    def set_moved_epoch(self, state_partition: int, owner_epoch: int | None) -> None:
        """Writes the moved mark durably, or removes it."""
        stored = None if owner_epoch is None else owner_epoch.to_bytes(_EPOCH_BYTES, "big")
        self._store.write([Write(METADATA_FAMILY, _mark_key(MOVED, state_partition), stored)])

    def _mark(self, kind: bytes, state_partition: int) -> int | None:
        stored = self._store.get(METADATA_FAMILY, _mark_key(kind, state_partition))
        return None if stored is None else int.from_bytes(stored, "big")

    def begin_copy(self, state_partition: int, owner_epoch: int) -> None:
        """Writes the moved mark and removes all older rows."""
        self.set_moved_epoch(state_partition, owner_epoch)
        self._remove_rows(state_partition)

    def write_piece(self, state_partition: int, rows: Sequence[Row], copied_epoch: int | None) -> None:
        """Writes one durable batch, with the mark if these are the last rows."""
        family = family_of(state_partition)
        writes = [Write(family, row.key, row.value) for row in rows]
        if copied_epoch is not None:
            mark = copied_epoch.to_bytes(_EPOCH_BYTES, "big")
            key = _mark_key(COPIED, state_partition)
            writes.append(Write(METADATA_FAMILY, key, sealed(key, mark)))
        if writes:
            self._store.write_stored(writes)

    def remove(self, state_partition: int) -> None:
        """Removes all rows and then the marks, so that rows left by a crash in between are found again."""
        self._remove_rows(state_partition)
        if self.moved_epoch(state_partition) is not None:
            self.set_moved_epoch(state_partition, None)

    def _remove_rows(self, state_partition: int) -> None:
        family = family_of(state_partition)
        if self._store.maintained is not None and self._store.damage(family) is not None:
            self._store.maintained.drop_family(family)
        else:
            self._store.delete_range(family, b"", END_OF_ROWS)
        if self.copied_epoch(state_partition) is not None:
            self._store.write([Write(METADATA_FAMILY, _mark_key(COPIED, state_partition), None)])

    def state_partitions(self) -> list[int]:
        """State partitions that have rows or a mark here, or an unreadable family."""
        found = dict.fromkeys(filled_state_partitions(self._store))
        for kind in (COPIED, MOVED):
            for key, _ in self._store.scan(METADATA_FAMILY, kind, kind + END_OF_ROWS * (_STATE_PARTITION_BYTES + 1)):
                found[int.from_bytes(key[len(kind) :], "big")] = None
        return sorted(found)


def _mark_key(kind: bytes, state_partition: int) -> bytes:
    return kind + state_partition.to_bytes(_STATE_PARTITION_BYTES, "big")
