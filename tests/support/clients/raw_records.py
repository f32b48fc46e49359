"""Record batches as a cluster stores them: Fetch and ShareFetch by hand, over one connection."""

from __future__ import annotations

import datetime
import io
import socket
import uuid
from typing import Any

from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.share_fetch.v1.request import FetchPartition as ShareFetchPartition
from kio.schema.share_fetch.v1.request import FetchTopic as ShareFetchTopic
from kio.schema.share_fetch.v1.request import ShareFetchRequest
from kio.schema.share_fetch.v1.response import ShareFetchResponse
from kio.serial import entity_reader, entity_writer

from support.clients.raw_kafka import framed, header, read_frame

WAIT = datetime.timedelta(seconds=1)
MAX_BYTES = 100_000_000
_RESPONSE_HEADER_LENGTH = 5


def _call(connection: socket.socket, key: int, request: Any, response_type: Any) -> Any:
    body = io.BytesIO()
    entity_writer(type(request))(body, request)
    connection.sendall(framed(header(key, int(request.__version__), flexible=True) + body.getvalue()))
    answer = read_frame(connection)
    assert answer is not None, f"the connection was closed upon request {key}"
    return entity_reader(response_type)(answer, _RESPONSE_HEADER_LENGTH)[0]


def fetch_raw(connection: socket.socket, topic: str, offset: int = 0, *, partition: int = 0) -> bytes:
    """The record batches of a partition from `offset` on, as they are stored."""
    wanted: Any = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MAX_BYTES)  # type: ignore[arg-type]
    request = FetchRequest(
        max_wait=WAIT,  # type: ignore[arg-type]
        min_bytes=1,  # type: ignore[arg-type]
        topics=(FetchTopic(topic=topic, partitions=(wanted,)),),  # type: ignore[arg-type]
        forgotten_topics_data=(),
    )
    found = _call(connection, 1, request, FetchResponse).responses[0].partitions[0]
    assert found.error_code == 0, found.error_code
    return bytes(found.records or b"")


def share_fetch_raw(connection: socket.socket, group: str, member: uuid.UUID, topic_id: uuid.UUID) -> bytes:
    """The record batches of partition 0 that a new share session gets; the group's state must be initialised."""
    partition: Any = ShareFetchPartition(partition_index=0, acknowledgement_batches=())  # type: ignore[arg-type]
    request = ShareFetchRequest(
        group_id=group,  # type: ignore[arg-type]
        member_id=str(member),
        share_session_epoch=0,  # type: ignore[arg-type]
        max_wait=WAIT,  # type: ignore[arg-type]
        min_bytes=1,  # type: ignore[arg-type]
        max_bytes=MAX_BYTES,  # type: ignore[arg-type]
        max_records=500,  # type: ignore[arg-type]
        batch_size=500,  # type: ignore[arg-type]
        topics=(ShareFetchTopic(topic_id=topic_id, partitions=(partition,)),),
        forgotten_topics_data=(),
    )
    answer = _call(connection, 78, request, ShareFetchResponse)
    assert answer.error_code == 0, answer.error_code
    found = answer.responses[0].partitions[0]
    assert found.error_code == 0, found.error_code
    return bytes(found.records or b"")
