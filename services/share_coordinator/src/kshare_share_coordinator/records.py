"""ShareSnapshot and ShareUpdate as bytes, exactly as Kafka 4.3.1 writes them to `__share_group_state`.

A key is its record type (int16: 0 ShareSnapshot, 1 ShareUpdate), then group id (int16 length), topic id and partition.
A value is its version (int16, 0), then the flexible fields of ShareSnapshotValue or ShareUpdateValue: compact arrays
and tagged fields, DeliveryCompleteCount being tagged field 0 that is left out when it is -1. A tombstone is a
snapshot's key without a value. The golden bytes of the tests come from Kafka's generated classes.

A ShareSnapshot has two tagged fields of kshare's own, each left out when empty. Kafka's readers skip them: 10000 is
the leader epoch history of the log, 10001 the newest truncation (`LogTruncation`).

An unreadable value raises CorruptRecord, which says what is wrong. Unknown tagged fields are skipped, because a newer
Kafka may add some within version 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kshare_core.identifiers import TOPIC_ID_LENGTH, SharePartitionKey
from kshare_core.leader_epochs import decode_leader_epochs
from kshare_share_coordinator.machine.operations import batch_problem
from kshare_share_coordinator.machine.share_group_offset import (
    UNKNOWN_DELIVERY_COMPLETE_COUNT,
    CorruptRecord,
    LogTruncation,
    ShareSnapshot,
    ShareUpdate,
)
from kshare_share_coordinator.machine.state_batches import StateBatch, is_canonical

SHARE_SNAPSHOT = 0
SHARE_UPDATE = 1
RECORD_TYPES = (SHARE_SNAPSHOT, SHARE_UPDATE)
VALUE_VERSION = 0

_KEY_HEAD = Struct(">hh")  # record type, length of the group id
_PARTITION = Struct(">i")
_SNAPSHOT_HEAD = Struct(">hiiiqqq")  # version, three epochs, start offset, two timestamps
_UPDATE_HEAD = Struct(">hiiq")  # version, snapshot and leader epoch, start offset
_BATCH = Struct(">qqbhB")  # first and last offset, state, count, no tagged fields
_BATCH_FIELDS = Struct(">qqbh")
_DELIVERY_COMPLETE_COUNT = Struct(">BBBi")  # one tagged field: tag 0, 4 bytes
_INT32 = Struct(">i")
_LEADER_EPOCHS_TAG = 10_000
_TRUNCATION_TAG = 10_001
_TRUNCATION = Struct(">iqqqq")


def encode_key(record_type: int, key: SharePartitionKey) -> bytes:
    """The key of a ShareSnapshot or ShareUpdate record."""
    group_id = key.group_id.encode()
    return _KEY_HEAD.pack(record_type, len(group_id)) + group_id + key.topic_id + _PARTITION.pack(key.partition)


def decode_key(data: bytes) -> tuple[int, SharePartitionKey]:
    """The record type and the share-partition of a key."""
    try:
        record_type, length = _KEY_HEAD.unpack_from(data)
        topic_id_at = _KEY_HEAD.size + length
        if length < 0 or len(data) != topic_id_at + TOPIC_ID_LENGTH + _PARTITION.size:
            raise CorruptRecord(f"a record key of {len(data)} bytes has a group id of {length}")
        group_id = data[_KEY_HEAD.size : topic_id_at].decode()
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the record key {data.hex()} cannot be read: {error}") from None
    if record_type not in RECORD_TYPES:
        raise CorruptRecord(f"the record key {data.hex()} has the record type {record_type}; known are 0 and 1")
    (partition,) = _PARTITION.unpack_from(data, topic_id_at + TOPIC_ID_LENGTH)
    return record_type, SharePartitionKey(group_id, data[topic_id_at : topic_id_at + TOPIC_ID_LENGTH], partition)


def encode_snapshot(snapshot: ShareSnapshot) -> bytes:
    """The value of a ShareSnapshot record."""
    head = _SNAPSHOT_HEAD.pack(
        VALUE_VERSION,
        snapshot.snapshot_epoch,
        snapshot.state_epoch,
        snapshot.leader_epoch,
        snapshot.start_offset,
        snapshot.create_timestamp_ms,
        snapshot.write_timestamp_ms,
    )
    more = []
    if snapshot.leader_epochs:
        more.append((_LEADER_EPOCHS_TAG, snapshot.leader_epochs))
    if snapshot.truncation is not None:
        more.append((_TRUNCATION_TAG, _TRUNCATION.pack(*snapshot.truncation)))
    return head + _encode_tail(snapshot.state_batches, snapshot.delivery_complete_count, more)


def encode_update(update: ShareUpdate) -> bytes:
    """The value of a ShareUpdate record."""
    head = _UPDATE_HEAD.pack(VALUE_VERSION, update.snapshot_epoch, update.leader_epoch, update.start_offset)
    return head + _encode_tail(update.state_batches, update.delivery_complete_count)


def decode_snapshot(key: SharePartitionKey, value: bytes) -> ShareSnapshot:
    """A ShareSnapshot from its value."""
    reader = _Reader(f"the ShareSnapshot of share-partition {key}", value)
    version, snapshot_epoch, state_epoch, leader_epoch, start_offset, created, written = reader.fields(_SNAPSHOT_HEAD)
    reader.require(version == VALUE_VERSION, f"has version {version}; known is {VALUE_VERSION}")
    reader.require(min(snapshot_epoch, state_epoch, leader_epoch) >= 0, "has a negative epoch")
    reader.require(start_offset >= -1, f"has the start offset {start_offset}")
    batches = reader.state_batches()
    tail = reader.tail()
    return ShareSnapshot(
        key=key,
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=tail.delivery_complete_count,
        create_timestamp_ms=created,
        write_timestamp_ms=written,
        state_batches=batches,
        leader_epochs=tail.leader_epochs,
        truncation=tail.truncation,
    )


def decode_update(key: SharePartitionKey, update_number: int, value: bytes) -> ShareUpdate:
    """A ShareUpdate from its value; its number is part of the store's key."""
    reader = _Reader(f"ShareUpdate {update_number} of share-partition {key}", value)
    version, snapshot_epoch, leader_epoch, start_offset = reader.fields(_UPDATE_HEAD)
    reader.require(version == VALUE_VERSION, f"has version {version}; known is {VALUE_VERSION}")
    reader.require(min(snapshot_epoch, leader_epoch) >= 0, "has a negative epoch")
    reader.require(start_offset >= -1, f"has the start offset {start_offset}")
    batches = reader.state_batches()
    return ShareUpdate(
        key=key,
        update_number=update_number,
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=reader.tail().delivery_complete_count,
        state_batches=batches,
    )


def _encode_tail(
    batches: Sequence[StateBatch], delivery_complete_count: int, more: Sequence[tuple[int, bytes]] = ()
) -> bytes:
    """`more` are tagged fields that ascend, all of them above 0."""
    pack = _BATCH.pack
    pieces = [_unsigned_varint(len(batches) + 1), *[pack(*batch, 0) for batch in batches]]
    if delivery_complete_count == UNKNOWN_DELIVERY_COMPLETE_COUNT:
        pieces.append(bytes((len(more),)))
    else:
        pieces.append(_DELIVERY_COMPLETE_COUNT.pack(1 + len(more), 0, _INT32.size, delivery_complete_count))
    for tag, content in more:
        pieces += (_unsigned_varint(tag), _unsigned_varint(len(content)), content)
    return b"".join(pieces)


def _unsigned_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


class _Tail(NamedTuple):
    """The tagged fields of a value."""

    delivery_complete_count: int
    leader_epochs: bytes
    truncation: LogTruncation | None


class _Reader:
    """Reader of one value from its start to its end; `name` identifies the value in errors."""

    def __init__(self, name: str, data: bytes) -> None:
        self._name = name
        self._data = data
        self._position = 0

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise CorruptRecord(f"{self._name} {problem}")

    def fields(self, fields: Struct) -> tuple[int, ...]:
        end = self._position + fields.size
        self.require(end <= len(self._data), f"ends within its fields, at byte {len(self._data)}")
        values = fields.unpack_from(self._data, self._position)
        self._position = end
        return values

    def state_batches(self) -> list[StateBatch]:
        count = self._unsigned_varint() - 1
        remaining = len(self._data) - self._position
        self.require(0 <= count <= remaining // _BATCH.size, f"declares {count} state batches in {remaining} bytes")
        batches = []
        for _ in range(count):
            batch = StateBatch(*self.fields(_BATCH_FIELDS))
            problem = batch_problem(batch)
            self.require(problem is None, f"is wrong: {problem}")
            self._tagged_fields()
            batches.append(batch)
        self.require(is_canonical(batches), "has state batches that are out of order or overlap")
        return batches

    def tail(self) -> _Tail:
        """Reads the value's tagged fields, which are its end."""
        delivery_complete_count = UNKNOWN_DELIVERY_COMPLETE_COUNT
        leader_epochs = b""
        truncation = None
        for tag, content in self._tagged_fields():
            if tag == 0:
                self.require(len(content) == _INT32.size, f"has a DeliveryCompleteCount of {len(content)} bytes")
                (delivery_complete_count,) = _INT32.unpack(content)
            elif tag == _LEADER_EPOCHS_TAG:
                leader_epochs = self._leader_epochs(content)
            elif tag == _TRUNCATION_TAG:
                self.require(len(content) == _TRUNCATION.size, f"has a truncation of {len(content)} bytes")
                truncation = LogTruncation(*_TRUNCATION.unpack(content))
        self.require(delivery_complete_count >= -1, f"has the delivery complete count {delivery_complete_count}")
        self.require(self._position == len(self._data), "has bytes after its end")
        return _Tail(delivery_complete_count, leader_epochs, truncation)

    def _leader_epochs(self, content: bytes) -> bytes:
        try:
            decode_leader_epochs(content)
        except ValueError as error:
            raise CorruptRecord(f"{self._name} has {error}") from None
        return content

    def _tagged_fields(self) -> list[tuple[int, bytes]]:
        fields = []
        previous = -1
        for _ in range(self._unsigned_varint()):
            tag = self._unsigned_varint()
            length = self._unsigned_varint()
            self.require(tag > previous, f"has the tag {tag} after {previous}")
            end = self._position + length
            self.require(end <= len(self._data), f"has a tagged field of {length} bytes that is cut off")
            fields.append((tag, self._data[self._position : end]))
            self._position = end
            previous = tag
        return fields

    def _unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            self.require(self._position < len(self._data), f"ends within a number, at byte {len(self._data)}")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptRecord(f"{self._name} has a number of more than 5 bytes")
