"""The records of appends and snapshots in the log; protos: MetadataLogRecord in coordinator_metadata.proto.

The bytes of an append or a snapshot are one MetadataLogWrites, cut at any byte: joined pieces parse as one message, as
concatenated messages merge. Keys name the kind, for readers of the topic; nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from google.protobuf.message import DecodeError

from kshare_core.errors import StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_runtime.ports import Write
from kshare_upstream.fenced_log.owner import LogRecord

PIECE_BYTES = 500_000
"""Limit of one record's data; a batch has one record, and at most MAX_BATCH_BYTES."""
APPEND_KEY, SNAPSHOT_KEY = b"append", b"snapshot"
ROWS_PER_MESSAGE = 1_000
"""Rows of a snapshot that are encoded at once."""

Rows = Mapping[int, Mapping[tuple[str, bytes], bytes]]
"""Rows by partition of metadata, then by family and key."""


def append_bytes(writes: Mapping[int, Sequence[Write]]) -> bytes:
    """The bytes of an append, before they are cut into pieces."""
    message = pb.MetadataLogWrites()
    for partition, of_one in writes.items():
        part = message.parts.add(partition=partition)
        for family, key, value in of_one:
            part.writes.add(family=family, key=key, value=value)
    return message.SerializeToString()


def append_records(number: int, data: bytes, piece_bytes: int) -> list[LogRecord]:
    """The records of an append, each for a batch of its own."""
    cut = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)] or [b""]
    return [
        LogRecord(APPEND_KEY, _record(pb.MetadataLogRecord.APPEND, number, piece, part, piece == len(cut) - 1))
        for piece, part in enumerate(cut)
    ]


def snapshot_records(number: int, rows: Rows, piece_bytes: int, *, replaces: bool) -> Iterator[LogRecord]:
    """The records of a snapshot, encoded one after the other; `rows` must not change meanwhile."""
    kind, piece, rest = pb.MetadataLogRecord.SNAPSHOT, 0, b""
    for data in _encoded(rows):
        rest += data
        while len(rest) > piece_bytes:
            value = _record(kind, number, piece, rest[:piece_bytes], is_last=False, replaces=replaces)
            yield LogRecord(SNAPSHOT_KEY, value)
            piece, rest = piece + 1, rest[piece_bytes:]
    yield LogRecord(SNAPSHOT_KEY, _record(kind, number, piece, rest, is_last=True, replaces=replaces))


def log_record_of(value: bytes | None, offset: int) -> pb.MetadataLogRecord:
    """Decodes a record; StorageFailure for one that is damaged or of a later kshare."""
    try:
        record = pb.MetadataLogRecord.FromString(value or b"")
    except DecodeError as error:
        raise StorageFailure(f"the metadata record at offset {offset} cannot be read: {error}") from error
    if record.kind not in (pb.MetadataLogRecord.APPEND, pb.MetadataLogRecord.SNAPSHOT):
        raise StorageFailure(f"the metadata record at offset {offset} has kind {record.kind}, of a later kshare")
    return record


def writes_of(data: bytes) -> list[tuple[int, list[Write]]]:
    """Decodes joined pieces: writes by partition, in order; StorageFailure."""
    try:
        message = pb.MetadataLogWrites.FromString(data)
    except DecodeError as error:
        raise StorageFailure(f"metadata in the log cannot be read: {error}") from error
    return [
        (
            part.partition,
            [Write(one.family, one.key, one.value if one.HasField("value") else None) for one in part.writes],
        )
        for part in message.parts
    ]


def _record(
    kind: pb.MetadataLogRecord.Kind.ValueType,
    number: int,
    piece: int,
    data: bytes,
    is_last: bool,
    replaces: bool = False,
) -> bytes:
    record = pb.MetadataLogRecord(kind=kind, number=number, piece=piece, data=data, is_last=is_last, replaces=replaces)
    return record.SerializeToString()


def _encoded(rows: Rows) -> Iterator[bytes]:
    for partition, of_one in rows.items():
        some: list[Write] = []
        for (family, key), value in of_one.items():
            some.append(Write(family, key, value))
            if len(some) == ROWS_PER_MESSAGE:
                yield append_bytes({partition: some})
                some = []
        if some:
            yield append_bytes({partition: some})


def apply_to(rows: dict[int, dict[tuple[str, bytes], bytes]], partition: int, writes: Iterable[Write]) -> None:
    """Applies writes to the rows of a partition."""
    of_one = rows.setdefault(partition, {})
    for family, key, value in writes:
        if value is None:
            of_one.pop((family, key), None)
        else:
            of_one[family, key] = value
