"""Rules broken on purpose, to see that the simulation notices. Production code is not touched: a mutation lies
between a node and its network or its disk.

`MutatedNetwork` hands a node's calls and handlers to a mutation, which may change what they do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from google.protobuf.message import Message

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2, share_coordinator_pb2
from kshare_rpc.generated.methods import (
    APPEND_DEAD_LETTERS,
    DELETE_RECORDS,
    DROP_SHARE_PARTITIONS,
    READ_SHARE_GROUP_STATE,
    RELEASE_SHARE_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    WATCH_CATALOG,
    WRITE_SHARE_GROUP_STATE,
    WRITE_TXN_MARKERS,
)
from kshare_rpc.network import CallFailed, Channel, Handler, Method, Network, Payload, Server, Service
from kshare_upstream.fenced_log.owner import FencedLog

WrapHandler = Callable[[Handler], Handler]
OLD_WRITES_KEPT = 20

Call = Callable[..., Awaitable[tuple[Any, memoryview]]]
WrapCall = Callable[[Call], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What is broken. The factories make a new wrapper for each life of a node."""

    unsynced_roles: tuple[str, ...] = ()
    """Roles whose disks say that a write is durable before it is."""
    handlers: Mapping[str, Callable[[], Mapping[Method[Any, Any], WrapHandler]]] = field(default_factory=dict)
    """By role."""
    calls: Mapping[str, Mapping[Method[Any, Any], WrapCall]] = field(default_factory=dict)
    """By role."""
    fenced_log: Mapping[str, Any] = field(default_factory=dict)
    """Functions of `FencedLog` that are others, by name. Owners have it in their process, with no network between."""

    def patched(self) -> AbstractContextManager[object]:
        """While it is entered, fenced logs are broken."""
        return patch.multiple(FencedLog, **self.fenced_log) if self.fenced_log else nullcontext()

    def network(self, role: str, network: Network) -> Network:
        """The network that a node of this role gets."""
        if role not in self.handlers and role not in self.calls:
            return network
        return MutatedNetwork(network, self.handlers.get(role, dict)(), self.calls.get(role, {}))


class MutatedNetwork:
    """See the module's text."""

    def __init__(
        self,
        network: Network,
        handlers: Mapping[Method[Any, Any], WrapHandler],
        calls: Mapping[Method[Any, Any], WrapCall],
    ) -> None:
        self._network = network
        self._handlers = handlers
        self._calls = calls

    def connect(self, address: str) -> Channel:
        return MutatedChannel(self._network.connect(address), self._calls)

    async def serve(self, address: str, services: Sequence[Service]) -> Server:
        changed = [dataclasses.replace(service, handlers=self._changed(service.handlers)) for service in services]
        return await self._network.serve(address, changed)

    def _changed(self, handlers: Mapping[Method[Any, Any], Handler]) -> dict[Method[Any, Any], Handler]:
        return {
            method: self._handlers[method](handler) if method in self._handlers else handler
            for method, handler in handlers.items()
        }


class MutatedChannel:
    """A channel whose calls of some methods are changed."""

    def __init__(self, channel: Channel, calls: Mapping[Method[Any, Any], WrapCall]) -> None:
        self._channel = channel
        self._calls = calls

    async def call(
        self, method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        call: Call = self._channel.call
        if method in self._calls:
            call = self._calls[method](call)
        return await call(method, request, payload, timeout_ms=timeout_ms)

    async def close(self) -> None:
        await self._channel.close()


def _believe_writes_at_once(call: Call) -> Call:
    """The leader goes on as if its write were durable, while it is under way."""

    async def changed(
        method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        copy = share_coordinator_pb2.WriteShareGroupStateRequest.FromString(request.SerializeToString())

        async def write_later() -> None:
            await asyncio.sleep(0.2)
            try:
                await call(method, copy, payload, timeout_ms=timeout_ms)
            except CallFailed:
                return

        asyncio.get_running_loop().create_task(write_later())
        answer = share_coordinator_pb2.WriteShareGroupStateResponse()
        for partition in request.partitions:
            answer.results.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer, memoryview(b"")

    return changed


def _drop_acknowledgements(handler: Handler) -> Handler:
    """The leader says that acknowledgements were taken, and forgets some of them."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 5:
            return await handler(request, payload)
        answer = leader_pb2.ShareAcknowledgeResponse()
        for partition in request.partitions:
            answer.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer

    return changed


def _give_to_two(handler: Handler) -> Handler:
    """Every few fetches a member gets what another member has just got: locks mean nothing."""
    last: list[tuple[str, Any]] = []
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        others = [answer for member, answer in last if member != request.owner.member_id]
        if others and seen % 7 == 0:
            last.clear()
            return others[-1]  # type: ignore[no-any-return]
        for partition in request.partitions:
            del partition.cached[:]
        answer = await handler(request, payload)
        message = answer[0] if isinstance(answer, tuple) else answer
        if any(partition.acquired_records for partition in message.partitions):  # type: ignore[attr-defined]
            last.append((request.owner.member_id, answer))
        return answer

    return changed


class _OldWrites:
    """Writes of share-partition state that come again when a newer leader writes, as from a stream cut long ago.

    One memory for all lives of the share coordinator: what is under way on a network outlives it.
    """

    def __init__(self) -> None:
        self._old: dict[tuple[str, bytes, int], list[Any]] = {}

    def __call__(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            answer = await handler(request, payload)
            for partition in request.partitions:
                key = (request.group_id, partition.topic_id, partition.partition)
                old = self._old.setdefault(key, [])
                for found in reversed(old[-OLD_WRITES_KEPT:]):  # the oldest comes last
                    if found.leader_epoch < partition.leader_epoch:
                        again = share_coordinator_pb2.WriteShareGroupStateRequest(group_id=request.group_id)
                        again.partitions.add().CopyFrom(found)
                        await handler(again, memoryview(b""))
                old.append(partition)
            return answer

        return changed


class _NoFencing:
    """Every write of share-partition state passes for one of the newest leader that wrote or read the state.

    Its leader epoch and its leader epoch history are replaced: the share coordinator refuses a history that does not
    end with the write's leader epoch as malformed, whether or not it compares leader epochs.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes, int], tuple[int, bytes]] = {}
        """Leader epoch, and the history that came with it; empty while its leader has only read."""

    def handlers(self) -> Mapping[Method[Any, Any], WrapHandler]:
        return {READ_SHARE_GROUP_STATE: self._keep_reads, WRITE_SHARE_GROUP_STATE: self._pass_writes}

    def _keep_reads(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            answer = await handler(request, payload)
            message: Any = answer[0] if isinstance(answer, tuple) else answer
            for partition, result in zip(request.partitions, message.results, strict=True):
                key = (request.group_id, partition.topic_id, partition.partition)
                if result.error_code == 0 and partition.leader_epoch > self._newest.get(key, (-1, b""))[0]:
                    self._newest[key] = (partition.leader_epoch, b"")
            return answer

        return changed

    def _pass_writes(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            copy = share_coordinator_pb2.WriteShareGroupStateRequest.FromString(request.SerializeToString())
            for partition in copy.partitions:
                key = (copy.group_id, partition.topic_id, partition.partition)
                newest_epoch, newest_history = self._newest.get(key, (-1, b""))
                if partition.leader_epoch < newest_epoch:
                    partition.leader_epoch, partition.leader_epochs = newest_epoch, newest_history
                else:
                    self._newest[key] = (partition.leader_epoch, partition.leader_epochs)
            return await handler(copy, payload)

        return changed


def _hide_isolation_levels(call: Call) -> Call:
    """The catalog that leaders see has no share.isolation.level."""

    async def changed(
        method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        answer, further = await call(method, request, payload, timeout_ms=timeout_ms)
        copy = coordinator_pb2.WatchCatalogResponse.FromString(answer.SerializeToString())
        for group in copy.group_configs:
            kept = [entry for entry in group.configs if entry.name != "share.isolation.level"]
            del group.configs[:]
            group.configs.extend(kept)
        return copy, further

    return changed


class _TurnMarkersRound:
    """Some transactions, or some partitions of one, end the other way than was asked."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, call: Call) -> Call:
        async def changed(
            method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
        ) -> tuple[Any, memoryview]:
            self._seen += 1
            copy = leader_pb2.WriteTxnMarkersRequest.FromString(request.SerializeToString())
            for marker in copy.markers:
                marker.committed ^= self._seen % 3 == 0
            return await call(method, copy, payload, timeout_ms=timeout_ms)

        return changed


def _keep_deleted_records(handler: Handler) -> Handler:
    """The leader says that it deleted records, and does nothing."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer = leader_pb2.DeleteRecordsResponse()
        for partition in request.partitions:
            answer.results.add(
                topic_id=partition.topic_id, partition=partition.partition, low_watermark=partition.offset
            )
        return answer

    return changed


def _lose_dead_letters(handler: Handler) -> Handler:
    """The receiver says that it appended dead letters, and forgets some of them."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 3:
            return await handler(request, payload)
        return leader_pb2.AppendDeadLettersResponse(appended=request.offsets)

    return changed


def _repeat_dead_letters(handler: Handler) -> Handler:
    """The receiver does not know its sources, so that a repeated request is appended again."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        other = leader_pb2.AppendDeadLettersRequest.FromString(request.SerializeToString())
        other.group_id += " again"
        await handler(other, payload)
        return await handler(request, payload)

    return changed


class _SecretCalls:
    """Every few fetches the leader does what nobody asked it to: `method`, with a request that `make` gives.

    The call does not travel on the network, so that no party knows of it.
    """

    def __init__(self, method: Method[Any, Any], make: Callable[[Any, Any], Any], every: int) -> None:
        self._method = method
        self._make = make
        self._every = every
        self._seen = 0
        self._last: Any = None
        self._handler: Handler | None = None

    def handlers(self) -> Mapping[Method[Any, Any], WrapHandler]:
        return {self._method: self._keep, SHARE_FETCH: self._changed}

    def _keep(self, handler: Handler) -> Handler:
        self._handler = handler
        return handler

    def _changed(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            self._seen += 1
            last = self._last
            if self._seen % self._every == 0 and last is not None and self._handler is not None:
                await self._handler(self._make(request, last), memoryview(b""))
            answer = await handler(request, payload)
            message: Any = answer[0] if isinstance(answer, tuple) else answer
            if any(partition.acquired_records for partition in message.partitions):
                self._last = request
            return answer

        return changed


def _release_of(request: Any, last: Any) -> Any:
    return leader_pb2.ReleaseShareSessionRequest(owner=last.owner)


def _drop_of(request: Any, last: Any) -> Any:
    drop = leader_pb2.DropSharePartitionsRequest(group_id=last.owner.group_id)
    for partition in last.partitions:
        drop.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
    return drop


def _count_from_one(handler: Handler) -> Handler:
    """Every delivery is said to be the first."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        answer = await handler(request, payload)
        message: Any = answer[0] if isinstance(answer, tuple) else answer
        for partition in message.partitions:
            for acquired in partition.acquired_records:
                acquired.delivery_count = 1
        return answer

    return changed


def _refuse_acknowledgements(handler: Handler) -> Handler:
    """The leader refuses some acknowledgements of what is held."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 10:
            return await handler(request, payload)
        answer = leader_pb2.ShareAcknowledgeResponse()
        for partition in request.partitions:
            answer.partitions.add(
                topic_id=partition.topic_id,
                partition=partition.partition,
                error_code=ErrorCode.INVALID_RECORD_STATE,
            )
        return answer

    return changed


def _forget_writes(handler: Handler) -> Handler:
    """The share coordinator says that it stored a write, and does not."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 4:
            return await handler(request, payload)
        answer = share_coordinator_pb2.WriteShareGroupStateResponse()
        for partition in request.partitions:
            answer.results.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer

    return changed


def _fail_without_a_reason(handler: Handler) -> Handler:
    """A bug that looks like a failing disk."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen == 20:
            raise StorageFailure("ValueError: a record cannot be replayed")
        return await handler(request, payload)

    return changed


def _log_an_error(handler: Handler) -> Handler:
    """A bug that is caught, and only logged."""

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        logging.getLogger("kshare_leader.planted").error("a fetch failed unexpectedly: %r", ValueError("planted"))
        return await handler(request, payload)

    return changed


def _at_leader(method: Method[Any, Any], wrap: WrapHandler) -> Mutation:
    return Mutation(handlers={"leader": lambda: {method: wrap}})


def _at_share_coordinator(wrap: WrapHandler) -> Mutation:
    return Mutation(handlers={"share-coordinator": lambda: {WRITE_SHARE_GROUP_STATE: wrap}})


BROKEN_RULES: Mapping[str, Callable[[], Mutation]] = {
    "the share coordinator answers before its write is durable": lambda: Mutation(
        unsynced_roles=("share-coordinator",)
    ),
    "the leader answers a produce before it is durable": lambda: Mutation(unsynced_roles=("leader",)),
    "the leader answers acknowledgements before their state is durable": lambda: Mutation(
        calls={"leader": {WRITE_SHARE_GROUP_STATE: _believe_writes_at_once}}
    ),
    "the leader forgets acknowledgements": lambda: Mutation(
        handlers={"leader": lambda: {SHARE_ACKNOWLEDGE: _drop_acknowledgements}}
    ),
    "a record is given to two members": lambda: Mutation(handlers={"leader": lambda: {SHARE_FETCH: _give_to_two}}),
    "a member's records are released although its session goes on": lambda: Mutation(
        handlers={"leader": _SecretCalls(RELEASE_SHARE_SESSION, _release_of, 5).handlers}
    ),
    "a leader forgets who holds what": lambda: Mutation(
        handlers={"leader": _SecretCalls(DROP_SHARE_PARTITIONS, _drop_of, 9).handlers}
    ),
    "every delivery counts as the first": lambda: _at_leader(SHARE_FETCH, _count_from_one),
    "acknowledgements of what is held are refused": lambda: _at_leader(SHARE_ACKNOWLEDGE, _refuse_acknowledgements),
    "the share coordinator forgets writes": lambda: _at_share_coordinator(_forget_writes),
    "an exception is taken for a failing disk": lambda: _at_leader(SHARE_ACKNOWLEDGE, _fail_without_a_reason),
    "an unexpected error is only logged": lambda: _at_leader(SHARE_FETCH, _log_an_error),
    "the leader epoch of a write is not compared": lambda: Mutation(
        handlers={"share-coordinator": _NoFencing().handlers}
    ),
    "read_committed groups get all records": lambda: Mutation(
        calls={"leader": {WATCH_CATALOG: _hide_isolation_levels}}
    ),
    "some transactions end the other way": lambda: Mutation(
        calls={"coordinator": {WRITE_TXN_MARKERS: _TurnMarkersRound()}}
    ),
    "deleted records are kept": lambda: _at_leader(DELETE_RECORDS, _keep_deleted_records),
    "dead letters are lost": lambda: _at_leader(APPEND_DEAD_LETTERS, _lose_dead_letters),
    "dead letters are appended again": lambda: _at_leader(APPEND_DEAD_LETTERS, _repeat_dead_letters),
}
"""What is broken; each makes a new mutation for one run."""


async def _believe_position(log: FencedLog, base_offset: int) -> None:
    """What the cluster appended is confirmed, wherever it is."""


BROKEN_RULES_OF_KAFKA: Mapping[str, Callable[[], Mutation]] = {
    "the owner of a fenced log confirms without the position check": lambda: Mutation(
        fenced_log={"_check_position": _believe_position}
    ),
}
"""The same for the kafka engine."""

HARMLESS: Mapping[str, Callable[[], Mutation]] = {
    "old writes come again": lambda: _at_share_coordinator(_OldWrites()),
}
"""Faults that the rules have to stand."""
