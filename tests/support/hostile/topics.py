"""Ids of topics, as Metadata tells them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from kshare_wire.generated.api_keys import ApiKey
from support.clients.raw_kafka import read_frame
from support.gateway.harness import build, request_frame

VERSION = 12


def topic_ids(bootstrap: str, topics: Sequence[str]) -> list[bytes]:
    host, _, port = bootstrap.rpartition(":")
    request = build(ApiKey.METADATA, VERSION, {"topics": [{"name": name} for name in topics]})
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(request_frame(ApiKey.METADATA, VERSION, 1, request))
        answer = read_frame(connection)
    assert answer is not None
    response: Any
    response, _ = entity_reader(load_response_schema(ApiKey.METADATA, VERSION))(answer, 5)
    found = {topic.name: topic.topic_id.bytes for topic in response.topics if topic.topic_id is not None}
    return [found[name] for name in topics]
