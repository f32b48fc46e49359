"""The rows of whole topic partitions in the store: read in pages, written in pages, removed.

A partition that is reassigned has a mark in the `meta` family: the epoch of its reassignment. The receiver writes the
mark before the first row, the sender before it sends the fenced rest. Rows are removed only where a mark is older than
the catalog's placement of the partition on another node. Without a mark nothing is ever removed, whatever a catalog
says, and a catalog older than the reassignment removes nothing.

Rows are read and written as they are stored. A batch that is damaged on the sender's disk is damaged in the copy too:
each read of a batch from a disk checks it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import TOPIC_ID_LENGTH, TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.deleted_topics.stray_topics import StrayTopics
from kshare_leader.log.producers.seen_ids import SeenProducerIds
from kshare_leader.log.stored_batches import StoredBatches
from kshare_runtime.checksummed_rows import CorruptRow
from kshare_runtime.ports import KeyRange, KeyValueStore, Write

MARK = b"moving-partition/"
END_OF_MARKS = b"moving-partition0"
"""The first key after all that start with MARK."""
FAMILIES = (keys.LOG, *(family for family in keys.PARTITION_FAMILIES if family != keys.LOG))
"""The families in the order of copying: batches first, most of which are copied while the partition is served."""
_EPOCH_BYTES = 4


class Row(NamedTuple):
    """A row of a partition: its key without the partition's prefix, and its value."""

    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value)


class Place(NamedTuple):
    """The position after a row: next is the family's next key, else the first key of the next family."""

    family: str
    key: bytes


class Page(NamedTuple):
    """Rows of one family in key order; `is_last`: no row follows now."""

    family: str
    rows: list[Row]
    is_last: bool

    @property
    def size_bytes(self) -> int:
        return sum([row.size for row in self.rows])


class LogExtent(NamedTuple):
    """The start and end offsets of a log."""

    start_offset: int
    end_offset: int


class PartitionRows:
    """The rows and marks of a store; marks are cached in memory. All methods and the constructor: StorageFailure."""

    def __init__(
        self,
        store: KeyValueStore,
        seen_ids: SeenProducerIds | None = None,
        strays: StrayTopics | None = None,
        *,
        rows: KeyValueStore | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`rows` are those below the checksums: one damaged mark does not hide the others."""
        self._store = store
        self._seen_ids = seen_ids or SeenProducerIds(store)
        self._strays = strays or StrayTopics(store)
        self._marks: dict[TopicPartition, int] = {}
        self._damaged: dict[TopicPartition, CorruptRow] = {}
        """Partitions with marks that cannot be read: whether their rows are a whole log is not known."""
        for key, _ in (rows or store).scan(keys.META, MARK, END_OF_MARKS):
            try:
                value = store.get(keys.META, key)
            except CorruptRow as damage:
                self._damaged[_marked(key)] = damage
                report(f"a partition that was reassigned is not removed, copied or taken over here: {damage}")
                continue
            if value is not None:
                self._marks[_marked(key)] = int.from_bytes(value, "big")

    # Marks

    def marked(self) -> list[TopicPartition]:
        return list(self._marks)

    def mark(self, key: TopicPartition) -> int | None:
        """The epoch of the newest reassignment of the partition that this node took part in."""
        self._check(key)
        return self._marks.get(key)

    def set_mark(self, key: TopicPartition, move_epoch: int | None) -> None:
        """Stores the mark durably; None removes it."""
        if self._marks.get(key) == move_epoch and key not in self._damaged:
            return
        value = None if move_epoch is None else move_epoch.to_bytes(_EPOCH_BYTES, "big")
        self._strays.write(Write(keys.META, MARK + keys.partition_prefix(key), value))
        self._damaged.pop(key, None)
        if move_epoch is None:
            self._marks.pop(key, None)
        else:
            self._marks[key] = move_epoch

    def _check(self, key: TopicPartition) -> None:
        if key in self._damaged:
            raise self._damaged[key]

    def may_be_removed(self, key: TopicPartition) -> bool:
        """Whether the rows of a partition that the catalog does not know are those of a deleted topic."""
        return not self._strays.keeps(key.topic_id)

    # Rows

    def page(self, key: TopicPartition, families: Sequence[str], after: Place | None, max_bytes: int) -> Page:
        """The durable rows after a place (None: from the first one); at least one row where any is left."""
        self._store.finish_writes()
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
        """The family's rows from `start` up to `max_bytes`, and whether these are all."""
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
        """Writes the rows in one durable write."""
        if not rows:
            return
        prefix = keys.partition_prefix(key)
        writes = [Write(family, prefix + row.key, row.value) for row in rows]
        if family == keys.PRODUCERS:
            self._seen_ids.write(writes, [int.from_bytes(row.key, "big") for row in rows])
        else:
            self._store.write(writes)

    def last_batch(self, key: TopicPartition) -> Place | None:
        """The place of the last stored batch, where a copy continues; None where no batch is stored."""
        prefix = keys.partition_prefix(key)
        for found, _ in self._store.scan(keys.LOG, prefix, keys.after_prefix(prefix), reverse=True):
            return Place(keys.LOG, found[len(prefix) :])
        return None

    def extent(self, key: TopicPartition) -> LogExtent:
        """The extent of a log that is opened on these rows; StorageFailure also where they are not a complete log.

        Here a batch that the opening finds damaged is one too many: it may have been read wrongly for the copy only.
        """
        try:
            opened = StoredBatches(self._store, key).open_extent()
        except (KafkaError, struct.error) as error:
            raise StorageFailure(f"the rows of partition {key.partition} are damaged: {error}") from error
        return LogExtent(opened.positions.start_offset, opened.end_offset)

    def discard_unfinished_copy(self, key: TopicPartition, given_up_epoch: int) -> None:
        """Removes an unfinished copy from a leader that was given up since: the rows are not a complete log.

        Called before this node opens the partition. Rows without an older mark stay.
        """
        if given_up_epoch > 0:
            self._check(key)
        mark = self._marks.get(key)
        if mark is not None and mark < given_up_epoch:
            self.remove(key)
            self.set_mark(key, None)

    def remove(self, key: TopicPartition) -> None:
        """Removes all rows; the mark stays, so that the removal is repeated after a crash."""
        prefix = keys.partition_prefix(key)
        end = keys.after_prefix(prefix)
        if end is None:
            raise StorageFailure(f"no range of keys ends after those that begin with {prefix.hex()}")
        self._store.delete_ranges([KeyRange(family, prefix, end) for family in FAMILIES])


def _marked(key: bytes) -> TopicPartition:
    prefix = key[len(MARK) :]
    return TopicPartition(prefix[:TOPIC_ID_LENGTH], int.from_bytes(prefix[TOPIC_ID_LENGTH:], "big"))
