"""The rows of one partition in etcd; pure, except for `read_partition` and `read_pieces`.

The rows are the snapshot that the head names, followed by the journal's entries from the head's first sequence on,
without gaps. All other keys are leftovers: entries that the snapshot already holds, and pieces of large appends that
never took effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from kshare_coordinator.metadata.etcd.port import Etcd, EtcdCompacted, KeyValue, end_of_prefix, read_range
from kshare_coordinator.metadata.layout import Layout, sequence_of, writes_of
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_runtime.ports import Write

PAGE = 500
"""Journal entries that are read at once; journals are short or their entries are small."""
PIECES_PAGE = 16
"""Pieces of snapshots and large appends that are read at once; each may have up to a megabyte."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One append's changes of the partition. `large`: the append id, if its pieces are beside the journal."""

    sequence: int
    writes: Sequence[Write]
    size: int
    large: str | None = None


@dataclass(slots=True)
class PartitionRows:
    """The rows of one partition and the state of its journal; updated as appends become durable."""

    generation: int = 0
    """Generation of the snapshot; 0: there is none."""
    head_revision: int = 0
    """Mod revision of the head's key."""
    first_sequence: int = 0
    """First sequence of the entries that are not in the snapshot."""
    next_sequence: int = 0
    snapshot_bytes: int = 0
    journal_bytes: int = 0
    """Total size of the entries that are not in the snapshot; `sizes` has each."""
    sizes: dict[int, int] = field(default_factory=dict)
    rows: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    large: dict[int, str] = field(default_factory=dict)
    """Append ids of large entries that are not in the snapshot, by sequence."""
    orphans: dict[str, None] = field(default_factory=dict)
    """Append ids of pieces that can be removed."""

    def apply(self, entry: Entry) -> None:
        """Applies the next entry of the journal."""
        assert entry.sequence == self.next_sequence, f"entry {entry.sequence} instead of {self.next_sequence}"
        self.next_sequence += 1
        self.journal_bytes += entry.size
        self.sizes[entry.sequence] = entry.size
        if entry.large is not None:
            self.large[entry.sequence] = entry.large
            self.orphans.pop(entry.large, None)  # its pieces were read before it, while another was writing it
        self.put(entry.writes)

    def head_changed(self, head: pb.MetadataHead, revision: int) -> None:
        """Switches to another snapshot, which holds only entries that are applied already."""
        assert head.first_sequence <= self.next_sequence, f"the snapshot is newer than entry {self.next_sequence}"
        for sequence in range(self.first_sequence, head.first_sequence):
            self.journal_bytes -= self.sizes.pop(sequence)
            if sequence in self.large:
                self.orphans[self.large.pop(sequence)] = None
        self.generation, self.head_revision = head.generation, revision
        self.first_sequence, self.snapshot_bytes = head.first_sequence, head.snapshot_bytes

    def put(self, writes: Sequence[Write]) -> None:
        for family, key, value in writes:
            if value is None:
                self.rows.pop((family, key), None)
            else:
                self.rows[family, key] = value

    def writes(self) -> list[Write]:
        return [Write(family, key, value) for (family, key), value in self.rows.items()]


def head_of(pair: KeyValue | None) -> pb.MetadataHead:
    """Decodes the head, an empty one if there is none yet; StorageFailure if that fails."""
    if pair is None:
        return pb.MetadataHead()
    try:
        return pb.MetadataHead.FromString(pair.value)
    except DecodeError as error:
        raise StorageFailure(f"{pair.key!r} in etcd cannot be read: {error}") from error


def journal_entry_of(pair: KeyValue) -> pb.MetadataJournalEntry:
    """Decodes a journal entry; StorageFailure if that fails."""
    try:
        return pb.MetadataJournalEntry.FromString(pair.value)
    except DecodeError as error:
        raise StorageFailure(f"{pair.key!r} in etcd cannot be read: {error}") from error


def entry_of(pair: KeyValue, pieces: Mapping[str, Sequence[bytes]]) -> Entry:
    """A journal entry with its writes; `pieces` by append id. StorageFailure if it is unreadable or lacks a piece."""
    stored = journal_entry_of(pair)
    if not stored.chunks:
        return Entry(sequence_of(pair.key), writes_of(stored.writes), len(pair.value))
    found = pieces.get(stored.append_id, ())
    if len(found) < stored.chunks:
        raise StorageFailure(f"{pair.key!r} in etcd has {stored.chunks} pieces, but only {len(found)} are there")
    data = b"".join(found[: stored.chunks])
    return Entry(sequence_of(pair.key), writes_of(data), len(data), large=stored.append_id)


async def read_partition(etcd: Etcd, layout: Layout, partition: int) -> PartitionRows:
    """Reads all rows as of one revision; StorageFailure if they are unreadable, or errors of the port."""
    while True:
        try:
            return await _read_partition(etcd, layout, partition)
        except EtcdCompacted:
            await asyncio.sleep(0)


async def _read_partition(etcd: Etcd, layout: Layout, partition: int) -> PartitionRows:
    pairs, revision = await read_range(etcd, *layout.head_to_large(partition), page=PAGE)
    head_key, journal_start = layout.head(partition), layout.journal(partition, 0)
    large_prefix = layout.all_large(partition)
    head_pair = next((pair for pair in pairs if pair.key == head_key), None)
    head = head_of(head_pair)
    rows = PartitionRows(
        generation=head.generation,
        head_revision=0 if head_pair is None else head_pair.mod_revision,
        first_sequence=head.first_sequence,
        next_sequence=head.first_sequence,
        snapshot_bytes=head.snapshot_bytes,
    )
    if head.generation:
        data = await _read_snapshot(etcd, layout.snapshot(partition, head.generation), head.chunks, revision)
        rows.put(writes_of(data))
    pieces: dict[str, list[bytes]] = {}
    for pair in pairs:
        if pair.key.startswith(large_prefix):
            append_id = pair.key.removeprefix(large_prefix).partition(b"/")[0].decode()
            pieces.setdefault(append_id, []).append(pair.value)
    for pair in pairs:
        if journal_start <= pair.key < large_prefix and sequence_of(pair.key) >= rows.first_sequence:
            if sequence_of(pair.key) != rows.next_sequence:
                raise StorageFailure(f"in etcd, entry {rows.next_sequence} is missing before {pair.key!r}")
            rows.apply(entry_of(pair, pieces))
    used = dict.fromkeys(rows.large.values())
    rows.orphans = dict.fromkeys(append_id for append_id in pieces if append_id not in used)
    return rows


async def _read_snapshot(etcd: Etcd, prefix: bytes, chunks: int, revision: int) -> bytes:
    pairs, _ = await read_range(etcd, prefix, end_of_prefix(prefix), page=PIECES_PAGE, revision=revision)
    if len(pairs) < chunks:
        raise StorageFailure(f"{prefix!r} in etcd has {chunks} pieces, but only {len(pairs)} are there")
    return b"".join(pair.value for pair in pairs[:chunks])


async def read_pieces(etcd: Etcd, layout: Layout, partition: int, append_id: str, revision: int) -> list[bytes]:
    """The pieces of a large append as of a revision at which its entry existed."""
    prefix = layout.large(partition, append_id)
    pairs, _ = await read_range(etcd, prefix, end_of_prefix(prefix), page=PIECES_PAGE, revision=revision)
    return [pair.value for pair in pairs]
