"""Trimming of a partition's journal: write a snapshot of all rows, then the head that names it, then remove leftovers.

Appends continue meanwhile: the snapshot holds the rows that were durable at its start, and replaces the entries before
that. Each step is fenced, and the head is replaced only if it is the known one, so a delayed step has no effect.
Readers see either the old snapshot and its journal, or the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_coordinator.metadata.etcd.port import Compare, Delete, Put, Target, end_of_prefix
from kshare_coordinator.metadata.layout import Layout, piece, snapshot_pieces
from kshare_coordinator.metadata.ownership import Ownership
from kshare_coordinator.metadata.partition_rows import PartitionRows
from kshare_coordinator.metadata.port import OwnershipLost
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb

DELETES_AT_ONCE = 500
"""Entries that one transaction removes."""
ORPHANS_AT_ONCE = 100


class Trimmer:
    """Trims journals that exceed a limit of entries or bytes, unless the snapshot is far larger than the journal."""

    def __init__(
        self,
        ownership: Ownership,
        layout: Layout,
        *,
        journal_limit: int,
        journal_bytes_limit: int,
        value_bytes_limit: int,
    ) -> None:
        self._ownership = ownership
        self._layout = layout
        self._journal_limit = journal_limit
        self._journal_bytes_limit = journal_bytes_limit
        self._value_bytes_limit = value_bytes_limit

    def is_needed(self, partition: int) -> bool:
        owned = self._ownership.partitions.get(partition)
        if owned is None or not owned.is_answering:
            return False
        return bool(owned.rows.orphans) or self._is_long(owned.rows)

    def _is_long(self, rows: PartitionRows) -> bool:
        entries = rows.next_sequence - rows.first_sequence
        is_long = entries > self._journal_limit or rows.journal_bytes > self._journal_bytes_limit
        pays = 2 * rows.journal_bytes >= rows.snapshot_bytes or entries > 10 * self._journal_limit
        return is_long and pays

    async def trim(self, partition: int) -> None:
        """Trims one partition; StorageFailure, or OwnershipLost if it is not owned any more."""
        fence = self._ownership.fence(partition)
        rows = self._ownership.partitions[partition].rows
        if self._is_long(rows):
            former = rows.first_sequence
            await self._snapshot(partition, fence, rows)
            await self._remove_entries(partition, fence, former, rows.first_sequence)
            await self._write(fence, [Delete(*self._layout.former_snapshots(partition, rows.generation))])
        while rows.orphans:
            gone = list(rows.orphans)[:ORPHANS_AT_ONCE]
            prefixes = [self._layout.large(partition, append_id) for append_id in gone]
            await self._write(fence, [Delete(prefix, end_of_prefix(prefix)) for prefix in prefixes])
            for append_id in gone:
                rows.orphans.pop(append_id, None)

    async def _snapshot(self, partition: int, fence: Compare, rows: PartitionRows) -> None:
        first_sequence, generation = rows.next_sequence, rows.generation + 1
        prefix = self._layout.snapshot(partition, generation)
        chunks = snapshot_bytes = 0
        for data in snapshot_pieces(rows.writes(), self._value_bytes_limit):
            await self._write(fence, [Put(piece(prefix, chunks), data)])
            chunks += 1
            snapshot_bytes += len(data)
        head = pb.MetadataHead(
            generation=generation, chunks=chunks, first_sequence=first_sequence, snapshot_bytes=snapshot_bytes
        )
        revision = await self._switch(fence, partition, rows.head_revision, head.SerializeToString())
        rows.head_changed(head, revision)

    async def _switch(self, fence: Compare, partition: int, former_revision: int, value: bytes) -> int:
        key = self._layout.head(partition)
        compares = [fence, Compare(key, Target.MOD_REVISION, former_revision)]
        answer = await self._ownership.transact(compares, [Put(key, value)], [key])
        if answer.succeeded:
            return answer.revision
        if answer.found and answer.found[0].value == value:  # an earlier attempt took effect
            return answer.found[0].mod_revision
        raise OwnershipLost(f"another coordinator trims partition {partition}")

    async def _remove_entries(self, partition: int, fence: Compare, first: int, end: int) -> None:
        """Removes entries before `end`, also those that an earlier owner left before `first`."""
        for last in range(min(first + DELETES_AT_ONCE, end), end, DELETES_AT_ONCE):
            await self._write(fence, [Delete(*self._layout.journal_range(partition, 0, last))])
        await self._write(fence, [Delete(*self._layout.journal_range(partition, 0, end))])

    async def _write(self, fence: Compare, operations: Sequence[Put | Delete]) -> None:
        answer = await self._ownership.transact([fence], operations)
        if not answer.succeeded:
            raise OwnershipLost(f"{fence.key!r} belongs to another coordinator")
