"""Kafka requests of a simulated client: kio for the messages, aiokafka's builder for record batches.

`KafkaClient` keeps one connection to one gateway address, opened when it is first needed and again after it was lost.
"""

from __future__ import annotations

import asyncio
import datetime
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.schema.request_header.v1 import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2 import RequestHeader as RequestHeaderV2
from kio.schema.response_header.v0 import ResponseHeader as ResponseHeaderV0
from kio.schema.response_header.v1 import ResponseHeader as ResponseHeaderV1
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from support.simulation.connections import ClientConnection, ClientListeners, ConnectionLost

T = TypeVar("T")

REQUEST_TIMEOUT_S = 15.0
BATCH_HEADER_LENGTH = 61


_writers: dict[Any, Any] = {}
_readers: dict[Any, Any] = {}


def _writer(kind: Any) -> Any:
    if kind not in _writers:
        _writers[kind] = entity_writer(kind)
    return _writers[kind]


def _reader(kind: Any) -> Any:
    if kind not in _readers:
        _readers[kind] = entity_reader(kind)
    return _readers[kind]


def milliseconds(value: int) -> i32Timedelta:
    return i32Timedelta.parse(datetime.timedelta(milliseconds=value))


class KafkaClient:
    """Requests to one gateway. ConnectionLost where there is no answer; the connection is then closed."""

    def __init__(self, listeners: ClientListeners, client_host: str, address: str) -> None:
        self._listeners = listeners
        self._client_host = client_host
        self.address = address
        self.connection: ClientConnection | None = None

    @property
    def connected(self) -> bool:
        return self.connection is not None and not self.connection.lost

    async def connect(self) -> ClientConnection:
        if self.connection is None or self.connection.lost:
            self.connection = await self._listeners.connect(self._client_host, self.address)
        return self.connection

    async def call(self, request: Any, response_type: type[T], *, timeout_s: float = REQUEST_TIMEOUT_S) -> T:
        """Connects when needed, sends, waits."""
        return await self.send(await self.connect(), request, response_type, timeout_s=timeout_s)

    async def send(
        self,
        connection: ClientConnection,
        request: Any,
        response_type: type[T],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> T:
        """Like `call`, on this connection only."""
        correlation_id = connection.next_correlation_id()
        buffer = io.BytesIO()
        header_type = RequestHeaderV2 if request.__flexible__ else RequestHeaderV1
        header = header_type(
            request_api_key=i16(request.__api_key__),
            request_api_version=i16(request.__version__),
            correlation_id=i32(correlation_id),
            client_id=self._client_host,
        )
        _writer(header_type)(buffer, header)
        _writer(type(request))(buffer, request)
        try:
            frame = await asyncio.wait_for(connection.send(correlation_id, buffer.getvalue()), timeout_s)
        except TimeoutError:
            connection.cut()
            raise ConnectionLost(f"no answer of {connection.gateway} in {timeout_s} s") from None
        header_kind = response_type.__header_schema__  # type: ignore[attr-defined]
        assert header_kind in (ResponseHeaderV0, ResponseHeaderV1)
        view = memoryview(frame)
        _, header_length = _reader(header_kind)(view, 0)
        response, length = _reader(response_type)(view, header_length)
        if header_length + length != len(frame):
            rest = len(frame) - header_length - length
            raise AssertionError(f"{rest} bytes after a {response_type.__name__}")
        return response  # type: ignore[no-any-return]

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class ReadRecord(NamedTuple):
    offset: int
    value: str
    committed: bool = True
    """False: of a transaction that was aborted."""
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ReadPart(NamedTuple):
    """What whole batches had; `next_offset` is the offset after them, -1 where there were none."""

    records: list[ReadRecord]
    next_offset: int
    markers: list[int]
    """The offsets of control records."""


def build_batch(
    values: Sequence[str],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_ms: int,
    transactional: bool = False,
) -> bytes:
    """One record batch of magic 2 without compression."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        batch_size=1 << 20,
    )
    for index, value in enumerate(values):
        assert builder.append(index, timestamp_ms, None, value.encode(), []) is not None
    return bytes(builder.build())


def read_part(data: bytes, aborted: Iterable[tuple[int, int]] = ()) -> ReadPart:
    """The records of one whole batch after the other, without markers; a batch with a wrong CRC raises.

    `aborted`: producer id and first offset of each aborted transaction, as a Fetch with isolation level read_committed
    answers them.
    """
    waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted)
    aborting: dict[int, None] = {}
    records: list[ReadRecord] = []
    markers: list[int] = []
    next_offset = -1
    position = 0
    while position < len(data):
        length = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        batch = DefaultRecordBatch(bytearray(data[position : position + length]))
        if len(data) < position + length or not batch.validate_crc():
            raise AssertionError(f"a broken batch at byte {position} of {len(data)}")
        position += length
        next_offset = batch.next_offset
        while waiting and waiting[0][0] < next_offset:
            aborting[waiting.pop(0)[1]] = None
        if batch.is_control_batch:
            markers.extend(range(batch.base_offset, batch.next_offset))
            aborting.pop(batch.producer_id, None)
            continue
        committed = not (batch.is_transactional and batch.producer_id in aborting)
        records.extend(
            ReadRecord(record.offset, (record.value or b"").decode(), committed, tuple(record.headers))
            for record in batch
        )
    return ReadPart(records, next_offset, markers)


def read_batches(data: bytes) -> list[ReadRecord]:
    """The records alone."""
    return read_part(data).records
