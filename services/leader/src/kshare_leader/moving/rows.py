"""The rows of whole topic partitions in the store: read in pages, written in pages, removed.

A partition that moves has a mark in the `meta` family: the epoch of its move. The receiver writes it before the first
row, the sender before it gives out what it served last. Rows are removed only where there is a mark that is older than
the catalog's placement of the partition on another node: without one nothing is ever removed, whatever a catalog says,
and an older catalog than the move removes nothing.

Rows are read and written as they are stored. A batch that is damaged on the sender's disk is damaged in the copy, too:
each read of a batch from a disk checks it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import TOPIC_ID_LENGTH, TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.stored_batches import StoredBatches
from kshare_runtime.ports import KeyValueStore, Write

MARK = b"moving-partition/"
END_OF_MARKS = b"moving-partition0"
"""The first key after all that start with MARK."""
FAMILIES = (keys.LOG, *(family for family in keys.PARTITION_FAMILIES if family != keys.LOG))
"""In the order in which they are copied: batches first, of which most are copied while they are served."""
_EPOCH_BYTES = 4


class Row(NamedTuple):
    """A key without its partition, and the value."""

    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)


class Place(NamedTuple):
    """A row that is known already: the next one is the next key of its family, else the first of the next family."""

    family: str
    key: bytes


class Page(NamedTuple):
    """Some rows of one family in the order of their keys; `is_last`: there is no other row now."""

    family: str
    rows: list[Row]
    is_last: bool

    @property
    def size_bytes(self) -> int:
        return sum([row.size for row in self.rows])


class LogExtent(NamedTuple):
    """Where a log starts and ends."""

    start_offset: int
    end_offset: int


class PartitionRows:
    """Marks are kept in memory, too. Every method may raise StorageFailure, and so may making it."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._marks: dict[TopicPartition, int] = {}
        for key, value in store.scan(keys.META, MARK, END_OF_MARKS):
            self._marks[_marked(key)] = int.from_bytes(value, "big")

    # Marks

    def marked(self) -> list[TopicPartition]:
        return list(self._marks)

    def mark(self, key: TopicPartition) -> int | None:
        """The epoch of the newest move of the partition that this node had a part in."""
        return self._marks.get(key)

    def set_mark(self, key: TopicPartition, move_epoch: int | None) -> None:
        """Durable when it returns; None takes it away."""
        if self._marks.get(key) == move_epoch:
            return
        value = None if move_epoch is None else move_epoch.to_bytes(_EPOCH_BYTES, "big")
        self._store.write([Write(keys.META, MARK + keys.partition_prefix(key), value)])
        if move_epoch is None:
            del self._marks[key]
        else:
            self._marks[key] = move_epoch

    # Rows

    def page(self, key: TopicPartition, families: Sequence[str], after: Place | None, max_bytes: int) -> Page:
        """The rows after a place (None: from the first one on), at least one where there is one."""
        prefix = keys.partition_prefix(key)
        first = 0 if after is None else families.index(after.family)
        for index, family in enumerate(families[first:], first):
            start = prefix
            if after is not None and family == after.family:
                start = prefix + after.key + b"\0"
            rows, is_whole = self._rows(family, prefix, start, max_bytes)
            if rows:
                return Page(family, rows, is_whole and index == len(families) - 1)
        return Page(families[-1], [], True)

    def _rows(self, family: str, prefix: bytes, start: bytes, max_bytes: int) -> tuple[list[Row], bool]:
        """And whether no more follow in the family."""
        rows: list[Row] = []
        size = 0
        for found, value in self._store.scan(family, start, keys.after_prefix(prefix)):
            row = Row(found[len(prefix) :], value)
            if rows and size + row.size > max_bytes:
                return rows, False
            rows.append(row)
            size += row.size
        return rows, True

    def write_page(self, key: TopicPartition, family: str, rows: Sequence[Row]) -> None:
        """One durable batch."""
        prefix = keys.partition_prefix(key)
        if rows:
            self._store.write([Write(family, prefix + row.key, row.value) for row in rows])

    def last_batch(self, key: TopicPartition) -> Place | None:
        """Where the copy of the log has got to; None at its beginning."""
        prefix = keys.partition_prefix(key)
        for found, _ in self._store.scan(keys.LOG, prefix, keys.after_prefix(prefix), reverse=True):
            return Place(keys.LOG, found[len(prefix) :])
        return None

    def extent(self, key: TopicPartition) -> LogExtent:
        """What a log that is opened on these rows has; StorageFailure also where they are no whole log."""
        try:
            opened = StoredBatches(self._store, key).open_extent()
        except (KafkaError, struct.error) as error:
            raise StorageFailure(f"the rows of partition {key.partition} are damaged: {error}") from error
        return LogExtent(opened.positions.start_offset, opened.end_offset)

    def discard_unfinished_copy(self, key: TopicPartition, given_up_epoch: int) -> None:
        """Removes what was copied from a leader that was given up since: the rows are no whole log.

        Called before this node opens the partition. Rows without an older mark stay.
        """
        mark = self._marks.get(key)
        if mark is not None and mark < given_up_epoch:
            self.remove(key)
            self.set_mark(key, None)

    def remove(self, key: TopicPartition) -> None:
        """Removes all rows; the mark stays, so that what a crash leaves is found again."""
        prefix = keys.partition_prefix(key)
        end = keys.after_prefix(prefix)
        if end is None:
            raise StorageFailure(f"no range of keys ends after those that begin with {prefix.hex()}")
        for family in FAMILIES:
            self._store.delete_range(family, prefix, end)


def _marked(key: bytes) -> TopicPartition:
    prefix = key[len(MARK) :]
    return TopicPartition(prefix[:TOPIC_ID_LENGTH], int.from_bytes(prefix[TOPIC_ID_LENGTH:], "big"))
