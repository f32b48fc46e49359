"""The keys of coordinators in etcd, and the bytes of their values (protos: coordinator_metadata.proto).

Below the prefix:

    coordinators/<node id>                    a live coordinator; bound to its lease
    owners/<partition>                        the partition's owner; bound to the owner's lease
    rows/<partition>/head                     the snapshot in force, and the first sequence of the journal after it
    rows/<partition>/journal/<sequence>       the changes of one append
    rows/<partition>/large/<append id>/<n>    pieces of an append that is too large for one value
    rows/<partition>/snapshot/<generation>/<n>  pieces of all rows

Bytes of writes are MetadataWrites, cut at any byte: joined pieces parse as one message, as concatenated messages merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from kshare_coordinator.metadata.etcd.port import end_of_prefix
from kshare_coordinator.metadata.port import CoordinatorMember
from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_runtime.ports import Write

ROWS_PER_MESSAGE = 1_000
"""Rows of a snapshot that are encoded at once."""


class Layout:
    """The keys below one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._members = self._prefix + b"coordinators/"
        self._owners = self._prefix + b"owners/"

    def member(self, node_id: int) -> bytes:
        return self._members + b"%d" % node_id

    def owner(self, partition: int) -> bytes:
        return self._owners + b"%d" % partition

    def coordination(self) -> tuple[bytes, bytes]:
        """The range of exactly all members and owners."""
        return self._members, end_of_prefix(self._owners)

    def is_member(self, key: bytes) -> bool:
        return key.startswith(self._members)

    def partition_of_owner(self, key: bytes) -> int | None:
        """The partition of an owner's key; None for other keys."""
        text = key.removeprefix(self._owners)
        if text == key or not text.removeprefix(b"-").isdigit():
            return None
        return int(text)

    def head(self, partition: int) -> bytes:
        return self._rows(partition) + b"head"

    def journal(self, partition: int, sequence: int) -> bytes:
        return self._rows(partition) + b"journal/%020d" % sequence

    def journal_range(self, partition: int, first: int = 0, end: int | None = None) -> tuple[bytes, bytes]:
        """The range of entries with first <= sequence < end."""
        last = end_of_prefix(self._rows(partition) + b"journal/") if end is None else self.journal(partition, end)
        return self.journal(partition, first), last

    def head_and_journal(self, partition: int) -> tuple[bytes, bytes]:
        """The range of exactly the head and the journal."""
        return self.head(partition), self.journal_range(partition)[1]

    def large(self, partition: int, append_id: str) -> bytes:
        """The prefix of the keys of an append's pieces."""
        return self.all_large(partition) + append_id.encode() + b"/"

    def all_large(self, partition: int) -> bytes:
        """The prefix of the keys of all pieces of large appends."""
        return self._rows(partition) + b"large/"

    def snapshot(self, partition: int, generation: int) -> bytes:
        """The prefix of the keys of a snapshot's pieces."""
        return self._rows(partition) + b"snapshot/%020d/" % generation

    def former_snapshots(self, partition: int, generation: int) -> tuple[bytes, bytes]:
        """The range of all snapshots before this generation."""
        return self.snapshot(partition, 0), self.snapshot(partition, generation)

    def head_to_large(self, partition: int) -> tuple[bytes, bytes]:
        """The range of all keys of a partition except snapshots."""
        return self.head(partition), end_of_prefix(self.all_large(partition))

    def _rows(self, partition: int) -> bytes:
        return self._prefix + b"rows/%d/" % partition


def piece(prefix: bytes, number: int) -> bytes:
    """The key of a piece of a snapshot or of a large append."""
    return prefix + b"%08d" % number


def sequence_of(key: bytes) -> int:
    """The sequence in a journal key."""
    return int(key[-20:])


def member_bytes(member: CoordinatorMember) -> bytes:
    return pb.MetadataMember(
        node_id=member.node_id, incarnation=member.incarnation, rpc_address=member.rpc_address
    ).SerializeToString()


def member_of(value: bytes) -> CoordinatorMember:
    """Decodes a member; StorageFailure if that fails."""
    try:
        member = pb.MetadataMember.FromString(value)
    except DecodeError as error:
        raise StorageFailure(f"a coordinator in etcd cannot be read: {error}") from error
    return CoordinatorMember(member.node_id, member.incarnation, member.rpc_address)


def owner_bytes(member: CoordinatorMember) -> bytes:
    return pb.MetadataOwner(node_id=member.node_id, incarnation=member.incarnation).SerializeToString()


def owner_of(value: bytes) -> int:
    """Decodes an owner's node id; StorageFailure if that fails."""
    try:
        return pb.MetadataOwner.FromString(value).node_id
    except DecodeError as error:
        raise StorageFailure(f"an owner in etcd cannot be read: {error}") from error


def writes_bytes(writes: Iterable[Write]) -> bytes:
    message = pb.MetadataWrites()
    for family, key, value in writes:
        message.writes.add(family=family, key=key, value=value)
    return message.SerializeToString()


def writes_of(data: bytes) -> list[Write]:
    """Decodes writes; StorageFailure if that fails."""
    try:
        message = pb.MetadataWrites.FromString(data)
    except DecodeError as error:
        raise StorageFailure(f"rows in etcd cannot be read: {error}") from error
    return [Write(one.family, one.key, one.value if one.HasField("value") else None) for one in message.writes]


def pieces_of(data: bytes, limit: int) -> list[bytes]:
    """The data in pieces of at most `limit` bytes."""
    return [data[start : start + limit] for start in range(0, len(data), limit)]


def snapshot_pieces(rows: Sequence[Write], limit: int) -> Iterator[bytes]:
    """All rows in pieces of at most `limit` bytes, encoded one after the other."""
    rest = b""
    for start in range(0, len(rows), ROWS_PER_MESSAGE):
        rest += writes_bytes(rows[start : start + ROWS_PER_MESSAGE])
        while len(rest) >= limit:
            yield rest[:limit]
            rest = rest[limit:]
    if rest:
        yield rest
