"""Follower of the catalog's journal in etcd: it delivers other coordinators' appends, each entry once and in order.

It reads new entries, then watches. Entries carry their sequence, so duplicates are skipped and gaps are detected. After
a gap, a lost watch or a compaction it reads the missing entries. Only if those are already in a snapshot, the whole
catalog is loaded anew. The head is followed, too, because the next owner of the catalog continues trimming it.

While this coordinator owns the catalog, no other one writes it. The watch then shows this coordinator's own appends,
and `rows` has those that are durable. When the catalog is lost, an append with an unknown outcome may have taken
effect, so the whole catalog is reloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from kshare_coordinator.metadata.etcd.port import Changes, Etcd, EtcdCompacted, EtcdError, KeyValue, read_range
from kshare_coordinator.metadata.layout import Layout, sequence_of
from kshare_coordinator.metadata.partition_rows import (
    PAGE,
    Entry,
    PartitionRows,
    entry_of,
    head_of,
    journal_entry_of,
    read_partition,
    read_pieces,
)
from kshare_coordinator.metadata.port import CATALOG, MetadataListener
from kshare_coordinator.metadata.problems import Problems
from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import StorageFailure

RETRY_INTERVAL_MS = 200
AREA = "catalog"


class CatalogFollower:
    """The follower; see the module's text.

    While the catalog is owned, the session sets `is_owned` and applies its own appends to `rows`.
    """

    def __init__(self, etcd: Etcd, layout: Layout, listener: MetadataListener, problems: Problems) -> None:
        self._etcd = etcd
        self._layout = layout
        self._listener = listener
        self._problems = problems
        self._is_loaded = False
        self.is_owned = False
        self.rows = PartitionRows()

    def lost(self) -> None:
        """Notes the loss of the catalog; `run` must be restarted."""
        self.is_owned = False
        self._is_loaded = False

    async def run(self) -> None:
        """Follows the catalog until cancelled, or until an unexpected error, which remains a problem of the node."""
        while True:
            try:
                revision = await self.catch_up()
                start, end = self._layout.head_and_journal(CATALOG)
                async with aclosing(self._etcd.watch(start, end, revision + 1)) as watch:
                    async for changes in watch:
                        if not await self._happened(changes):
                            break
            except EtcdCompacted:
                continue
            except (EtcdError, StorageFailure) as error:
                self._problems.note(AREA, f"the catalog cannot be followed: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            except Exception as bug:
                report_contained_bug("following the catalog failed with an unexpected error", bug)
                self._problems.note(AREA, f"the catalog is no longer followed, restart this coordinator: {bug!r}")
                return

    async def catch_up(self) -> int:
        """Reads new entries; returns the revision up to which all are read. StorageFailure, or errors of the port."""
        while True:
            try:
                answer = await self._etcd.range(self._layout.head(CATALOG))
                head = head_of(answer.pairs[0] if answer.pairs else None)
                if not self._is_loaded or head.first_sequence > self.rows.next_sequence:
                    await self._load()
                    continue
                entries = await self._read_entries(answer.revision)
            except EtcdCompacted:
                await asyncio.sleep(0)
                continue
            if not (self._deliver(entries) and self._head_changed(answer.pairs)):
                raise StorageFailure(f"in etcd, entry {self.rows.next_sequence} of the catalog's journal is missing")
            self._problems.clear(AREA)
            return answer.revision

    async def _load(self) -> None:
        rows = await read_partition(self._etcd, self._layout, CATALOG)
        if self.is_owned or (self._is_loaded and rows.next_sequence <= self.rows.next_sequence):
            return
        self._is_loaded = True
        self.rows = rows
        self._listener.catalog_loaded(rows.writes())

    async def _read_entries(self, revision: int) -> list[Entry]:
        start, end = self._layout.journal_range(CATALOG, self.rows.next_sequence)
        pairs, _ = await read_range(self._etcd, start, end, page=PAGE, revision=revision)
        return [await self._entry(pair, revision) for pair in pairs]

    async def _happened(self, changes: Changes) -> bool:
        """Applies changes of the watch; False if entries are missing and have to be read."""
        puts = [event for event in changes.events if isinstance(event, KeyValue)]
        head = self._layout.head(CATALOG)
        entries = [
            await self._entry(pair, pair.mod_revision)
            for pair in puts
            if pair.key != head and sequence_of(pair.key) >= self.rows.next_sequence
        ]
        return self._deliver(entries) and self._head_changed([pair for pair in puts if pair.key == head])

    async def _entry(self, pair: KeyValue, revision: int) -> Entry:
        stored = journal_entry_of(pair)
        if not stored.chunks:
            return entry_of(pair, {})
        pieces = await read_pieces(self._etcd, self._layout, CATALOG, stored.append_id, revision)
        return entry_of(pair, {stored.append_id: pieces})

    def _deliver(self, entries: Sequence[Entry]) -> bool:
        """Delivers entries to the listener; False if there is a gap."""
        for entry in entries:
            if self.is_owned or not self._is_loaded or entry.sequence < self.rows.next_sequence:
                continue
            if entry.sequence > self.rows.next_sequence:
                return False
            self.rows.apply(entry)
            self._listener.catalog_changed(entry.writes)
        return True

    def _head_changed(self, pairs: Sequence[KeyValue]) -> bool:
        """Applies a new head; False if its snapshot holds entries that have not been read."""
        for pair in pairs:
            if self.is_owned or not self._is_loaded or pair.mod_revision <= self.rows.head_revision:
                continue
            head = head_of(pair)
            if head.first_sequence > self.rows.next_sequence:
                return False
            self.rows.head_changed(head, pair.mod_revision)
        return True
