"""Kafka's protocol byte by byte, for requests that no client sends: frames, headers, a Produce with any bytes."""

from __future__ import annotations

import datetime
import io
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse
from kio.serial import entity_reader, entity_writer

from kshare_core.errors import ErrorCode

KNOWN_WITHIN_S = 15.0
CRC_AT = 17
"""The checksum's place in a batch; it covers what follows it."""


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, 1) + b"t" + (b"\0" if flexible else b"")


def read_frame(connection: socket.socket) -> bytes | None:
    """The next response, None where the connection was closed."""
    head = _read_exactly(connection, 4)
    return None if head is None else _read_exactly(connection, struct.unpack(">i", head)[0])


def _read_exactly(connection: socket.socket, length: int) -> bytes | None:
    found = b""
    while len(found) < length:
        try:
            piece = connection.recv(length - len(found))
        except ConnectionResetError:
            return None
        if not piece:
            return None
        found += piece
    return found


def produce_raw(connection: socket.socket, topic: str, records: bytes, known_within_s: float = KNOWN_WITHIN_S) -> int:
    """The error code of the partition in the answer to a Produce v9.

    As clients do, it asks again for a while where the leader does not know the topic: it may be a new one.
    """
    deadline = time.monotonic() + known_within_s
    while (code := _produce_once(connection, topic, records)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        if time.monotonic() > deadline:
            break
    return code


class ProducedAnswer(NamedTuple):
    """A partition in the answer to a Produce; `record_errors` are index and message."""

    code: ErrorCode
    message: str | None
    record_errors: list[tuple[int, str | None]]
    base_offset: int


def _produce_once(connection: socket.socket, topic: str, records: bytes) -> int:
    return int(produce_for_answer(connection, topic, records).code)


def produce_for_answer(connection: socket.socket, topic: str, records: bytes) -> ProducedAnswer:
    """What a Produce v9 with any bytes as records is answered with."""
    partition: Any = PartitionProduceData(index=0, records=records)  # type: ignore[arg-type]
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,  # type: ignore[arg-type]
        timeout=datetime.timedelta(seconds=5),  # type: ignore[arg-type]
        topic_data=(TopicProduceData(name=topic, partition_data=(partition,)),),  # type: ignore[arg-type]
    )
    body = io.BytesIO()
    entity_writer(ProduceRequest)(body, request)
    connection.sendall(framed(header(0, 9, flexible=True) + body.getvalue()))
    answer = read_frame(connection)
    assert answer is not None
    response, _ = entity_reader(ProduceResponse)(answer, 5)
    found = response.responses[0].partition_responses[0]
    errors = [(int(error.batch_index), error.batch_index_error_message) for error in found.record_errors]
    return ProducedAnswer(ErrorCode(int(found.error_code)), found.error_message, errors, int(found.base_offset))


def record_with_key() -> bytes:
    """As `one_record_batch`, with a key, as compacted topics need it."""
    return bytes(one_record_batch(b"key"))


def batch_with_header(name: bytes) -> bytes:
    """A batch of one record with a header whose name may be any bytes."""
    place = b"h" * len(name)
    batch = one_record_batch(headers=[(place.decode(), b"x")]).replace(place, name)
    batch[CRC_AT : CRC_AT + 4] = struct.pack(">I", crc32c(memoryview(batch)[CRC_AT + 4 :]))
    return bytes(batch)


def one_record_batch(key: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()) -> bytearray:
    """A batch of one record of now: retention removes older ones."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10_000,
    )
    builder.append(0, timestamp=time.time_ns() // 1_000_000, key=key, value=b"value", headers=list(headers))
    return bytearray(builder.build())
