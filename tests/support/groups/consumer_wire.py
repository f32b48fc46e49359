"""ConsumerGroupHeartbeat (version 1) and ConsumerGroupDescribe byte by byte, for requests that no client sends."""

from __future__ import annotations

import datetime
import io
import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from uuid import UUID

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import ConsumerGroupDescribeResponse, DescribedGroup
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest, TopicPartitions
from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
from kio.serial import entity_reader, entity_writer

from support.clients.raw_kafka import framed, header, read_frame

HEARTBEAT, DESCRIBE, VERSION = 68, 69, 1
UNREADY_CODES = (14, 15, 16)
"""Apache Kafka makes the topic of its groups when they are first asked for."""
TIMEOUT_S = 60.0

Owned = Mapping[UUID, Sequence[int]]


class GroupConnection:
    """One connection; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)

    def __enter__(self) -> GroupConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def heartbeat(
        self,
        group: str,
        member_id: str,
        member_epoch: int,
        *,
        names: Sequence[str] | None = None,
        regex: str | None = None,
        owned: Owned | None = None,
        instance_id: str | None = None,
        rack_id: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = -1,
    ) -> ConsumerGroupHeartbeatResponse:
        """Asks again while the coordinator is not ready."""
        fields: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "member_epoch": member_epoch,
            "instance_id": instance_id,
            "rack_id": rack_id,
            "rebalance_timeout": datetime.timedelta(milliseconds=rebalance_timeout_ms),
            "subscribed_topic_names": None if names is None else tuple(names),
            "subscribed_topic_regex": regex,
            "server_assignor": assignor,
            "topic_partitions": None
            if owned is None
            else tuple(TopicPartitions(topic_id=topic, partitions=tuple(parts)) for topic, parts in owned.items()),  # type: ignore[arg-type]
        }
        request = ConsumerGroupHeartbeatRequest(**fields)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer: ConsumerGroupHeartbeatResponse = self._call(HEARTBEAT, request, ConsumerGroupHeartbeatResponse)
            if answer.error_code not in UNREADY_CODES:
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def join(self, group: str, member_id: str, names: Sequence[str] | None = None, **fields: Any) -> Any:
        settings = {"owned": {}, "rebalance_timeout_ms": 60_000, **fields}
        return self.heartbeat(group, member_id, 0, names=names, **settings)

    def describe(self, group: str) -> DescribedGroup:
        fields: dict[str, Any] = {"group_ids": (group,), "include_authorized_operations": False}
        answer = self._call(DESCRIBE, ConsumerGroupDescribeRequest(**fields), ConsumerGroupDescribeResponse)
        found: DescribedGroup = answer.groups[0]
        return found

    def _call(self, key: int, request: Any, response_type: Any) -> Any:
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        self._socket.sendall(framed(header(key, VERSION, flexible=True) + body.getvalue()))
        answer = read_frame(self._socket)
        assert answer is not None, "the connection was closed"
        return entity_reader(response_type)(answer, 5)[0]
