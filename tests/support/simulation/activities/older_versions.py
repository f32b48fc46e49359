"""Nodes of an older version, which are upgraded in the middle of a history.

The older version is the one before leader epoch histories and before the checksums of rows: its leaders send none with
share-partition state and keep no rows of them, its share coordinators store and answer none and know no
TruncateShareGroupState, and what a leader appended is not marked as validated. Its gateways name all partitions of a
share session in each fetch, and its leaders remember none. A node is upgraded by a stop and a start of the new version,
which finds the rows as the older one left them. Meanwhile old and new nodes work together. Other fields that are newer
mended bugs, so an older node has them too: a history must break no rule.

The older version is the present code, whose messages (`OlderNetwork`) and rows (`with_older_rows`) are reduced to what
the older one had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from kshare_core.identifiers import TOPIC_ID_LENGTH
from kshare_leader.dead_letters.appended import decode_row, encode_row
from kshare_leader.log import keys
from kshare_leader.log.old_batches import MARK
from kshare_rpc.generated.methods import (
    READ_SHARE_GROUP_STATE,
    SHARE_FETCH,
    TRUNCATE_SHARE_GROUP_STATE,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.network import Handler, Method, Network, Payload, Server, Service, StreamChannel
from kshare_runtime import checksummed_rows
from kshare_runtime.memory_store import DiskCopy
from kshare_share_coordinator.checksummed_store import sealed, unsealed
from kshare_share_coordinator.records import SHARE_SNAPSHOT, decode_key, decode_snapshot, encode_snapshot
from kshare_share_coordinator.state_store import END_OF_SHARE_PARTITIONS, FAMILY_PREFIX

HISTORY_FIELDS = ("leader_epochs", "has_brokers_epochs", "truncation_leader_epoch", "truncation_offset")
TRUNCATION_BYTES = 4
"""The last fixed field of a row of dead letters, which older rows do not have."""
FIXED_BYTES_BEFORE_TRUNCATION = 20


def forget_histories(parts: Sequence[Any]) -> None:
    """Clears in parts of messages what the older version does not know."""
    for part in parts:
        for name in HISTORY_FIELDS:
            if name in part.DESCRIPTOR.fields_by_name:
                part.ClearField(name)


class OlderNetwork:
    """The network of an older node: requests and answers in both directions are without what it does not know."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def connect(self, address: str) -> StreamChannel:
        return _OlderChannel(self._network.connect(address))

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        older = [dataclasses.replace(service, handlers=_older_handlers(service.handlers)) for service in services]
        return await self._network.serve(address, older)


def _older_handlers(handlers: Mapping[Method[Any, Any], Handler]) -> dict[Method[Any, Any], Handler]:
    older = {method: handler for method, handler in handlers.items() if method != TRUNCATE_SHARE_GROUP_STATE}
    if SHARE_FETCH in older:
        older[SHARE_FETCH] = _older_share_fetch(older[SHARE_FETCH])
    if WRITE_SHARE_GROUP_STATE in older:
        older[WRITE_SHARE_GROUP_STATE] = _older_write(older[WRITE_SHARE_GROUP_STATE])
        older[READ_SHARE_GROUP_STATE] = _older_read(older[READ_SHARE_GROUP_STATE])
    return older


def _older_write(handler: Handler) -> Handler:
    async def handle(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        forget_histories(request.partitions)
        return await handler(request, payload)

    return handle


def _older_read(handler: Handler) -> Handler:
    async def handle(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer: Any = await handler(request, payload)
        forget_histories((answer[0] if isinstance(answer, tuple) else answer).results)
        return answer  # type: ignore[no-any-return]

    return handle


def _older_share_fetch(handler: Handler) -> Handler:
    async def handle(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        request.remember = False
        return await handler(request, payload)

    return handle


class _OlderChannel:
    """Calls of an older leader or gateway."""

    def __init__(self, channel: StreamChannel) -> None:
        self._channel = channel

    @property
    def streams_lost(self) -> int:
        return self._channel.streams_lost

    async def call(
        self, method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        if method in (WRITE_SHARE_GROUP_STATE, SHARE_FETCH):
            older = type(request)()
            older.CopyFrom(request)
            request = older
        if method == WRITE_SHARE_GROUP_STATE:
            forget_histories(request.partitions)
        elif method == SHARE_FETCH:
            request.remember = False
        answer, rest = await self._channel.call(method, request, payload, timeout_ms=timeout_ms)
        if method == READ_SHARE_GROUP_STATE:
            forget_histories(answer.results)
        return answer, rest

    async def close(self) -> None:
        await self._channel.close()


def with_older_rows(disk: DiskCopy) -> DiskCopy:
    """A disk as the older version leaves it; but for large batches in files, which it did not have."""
    for families in disk.stores.values():
        for name, family in families.items():
            for key in list(family.keys):
                value = checksummed_rows.unsealed(name, key, family.values[key])
                family.put(key, value)  # rows of leaders and coordinators had no checksums
                if name == keys.LEADER_EPOCHS or (name == keys.POSITIONS and key.endswith(MARK)):
                    family.put(key, None)
                elif name == keys.DEAD_LETTERS:
                    family.put(key, _older_dead_letters(value))
                elif name.startswith(FAMILY_PREFIX):
                    family.put(key, _older_state(name, key, value))
    return disk


def _older_dead_letters(value: bytes) -> bytes:
    """Without the truncation, unless the row has none already."""
    if encode_row(decode_row(value)) != value:
        return value
    return value[:FIXED_BYTES_BEFORE_TRUNCATION] + value[FIXED_BYTES_BEFORE_TRUNCATION + TRUNCATION_BYTES :]


def _older_state(family: str, key: bytes, stored: bytes) -> bytes:
    """Without the history, where the row is a snapshot."""
    suffix = SHARE_SNAPSHOT.to_bytes(2, "big")
    prefix_length = 2 + int.from_bytes(key[:2], "big") + TOPIC_ID_LENGTH + 4
    if key >= END_OF_SHARE_PARTITIONS or key[prefix_length:] != suffix:
        return stored
    record_key = decode_key(suffix + key[: -len(suffix)])[1]
    snapshot = decode_snapshot(record_key, unsealed(family, key, stored))
    older = snapshot._replace(leader_epochs=b"", truncation=None)
    return sealed(key, encode_snapshot(older))
