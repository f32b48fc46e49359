"""Appends: all writes to several partitions in one transaction, with one journal entry for each partition.

The transaction is conditional: every partition is still owned, and no entry with these sequences exists. So it is
idempotent. If its answer was lost, the retry finds its own entry.

Writes that exceed one request are first written in pieces beside the journal, each fenced. The pieces become valid with
the entry that names them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kshare_coordinator.metadata.etcd.port import Compare, Put, Target
from kshare_coordinator.metadata.layout import Layout, piece, pieces_of, writes_bytes
from kshare_coordinator.metadata.ownership import Ownership
from kshare_coordinator.metadata.partition_rows import Entry
from kshare_coordinator.metadata.port import OwnershipLost
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_runtime.ports import Write

APPEND_BYTES_LIMIT = 64 * 1024 * 1024
"""Limit of the size of all writes of one append."""


@dataclass(slots=True)
class _Part:
    """One partition's part of an append. `pieces` are stored beside the journal."""

    partition: int
    fence: Compare
    sequence: int
    writes: Sequence[Write]
    data: bytes
    pieces: list[bytes]

    def value(self, append_id: str) -> bytes:
        inline = b"" if self.pieces else self.data
        return pb.MetadataJournalEntry(append_id=append_id, writes=inline, chunks=len(self.pieces)).SerializeToString()


class Appender:
    """Writes appends; see the module's text. `lease` makes append ids unique."""

    def __init__(self, ownership: Ownership, layout: Layout, lease: int, value_bytes_limit: int) -> None:
        self._ownership = ownership
        self._layout = layout
        self._lease = lease
        self._limit = value_bytes_limit
        self._numbers = itertools.count()

    async def append(self, writes: Mapping[int, Sequence[Write]]) -> None:
        """Makes the writes durable and applies them to the owned partitions' rows; StorageFailure or OwnershipLost."""
        check_size(writes)
        append_id = f"{self._lease:x}-{next(self._numbers)}"
        owned = self._ownership.partitions
        parts = [self._part(partition, found) for partition, found in writes.items()]
        self._cut(parts)
        try:
            await self._store_pieces(parts, append_id)
            await self._store_entries(parts, append_id)
        except StorageFailure:
            for part in parts:
                if part.pieces:
                    owned[part.partition].rows.orphans[append_id] = None
            raise
        for part in parts:
            large = append_id if part.pieces else None
            owned[part.partition].rows.apply(Entry(part.sequence, part.writes, len(part.data), large))

    def _part(self, partition: int, writes: Sequence[Write]) -> _Part:
        fence = self._ownership.fence(partition)
        sequence = self._ownership.partitions[partition].rows.next_sequence
        return _Part(partition, fence, sequence, writes, writes_bytes(writes), [])

    def _cut(self, parts: Sequence[_Part]) -> None:
        """Cuts the largest parts into pieces until the rest fits into one request."""
        size = sum(len(part.data) for part in parts)
        for part in sorted(parts, key=lambda part: len(part.data), reverse=True):
            if size <= self._limit:
                return
            part.pieces = pieces_of(part.data, self._limit)
            size -= len(part.data)

    async def _store_pieces(self, parts: Sequence[_Part], append_id: str) -> None:
        for part in parts:
            prefix = self._layout.large(part.partition, append_id)
            for number, data in enumerate(part.pieces):
                answer = await self._ownership.transact([part.fence], [Put(piece(prefix, number), data)])
                if not answer.succeeded:
                    raise OwnershipLost(f"partition {part.partition} of the metadata belongs to another coordinator")

    async def _store_entries(self, parts: Sequence[_Part], append_id: str) -> None:
        puts = [Put(self._layout.journal(part.partition, part.sequence), part.value(append_id)) for part in parts]
        fences = [part.fence for part in parts]
        is_new = [Compare(put.key, Target.CREATE_REVISION, 0) for put in puts]
        answer = await self._ownership.transact([*fences, *is_new], puts, [put.key for put in puts])
        if answer.succeeded:
            return
        found = {pair.key: pair.value for pair in answer.found}
        if any(found.get(put.key) != put.value for put in puts):
            raise OwnershipLost("another coordinator owns the partition of the write")


def check_size(writes: Mapping[int, Sequence[Write]]) -> None:
    """StorageFailure above APPEND_BYTES_LIMIT, before its encoding could take longer than a lease."""
    size = sum(len(each.key) + len(each.value or b"") for found in writes.values() for each in found)
    if size > APPEND_BYTES_LIMIT:
        raise StorageFailure(f"a write of {size} bytes is too large, {APPEND_BYTES_LIMIT} are allowed")
