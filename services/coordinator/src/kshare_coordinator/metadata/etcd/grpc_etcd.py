"""A client of etcd's v3 gRPC API, for etcd 3.4 or later.

One endpoint is used at a time; after a call that fails or times out, the next call goes to the next endpoint. A watch
is a stream of its own. While it is silent it sends progress requests, and is given up when none is answered, since a
connection to a machine that is gone stays open for minutes. A watch also ends when its etcd member has lost the leader,
because it would receive no further events.

With a username, a token is fetched before the first call, and again when etcd no longer accepts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from kshare_coordinator.metadata.etcd.port import (
    Changes,
    Compare,
    Delete,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    EtcdUnavailable,
    KeyValue,
    Lease,
    Put,
    RangeAnswer,
    Removal,
    Target,
    TransactionAnswer,
)
from kshare_coordinator.metadata.etcd.settings import EtcdSettings
from kshare_rpc.generated.etcd import rpc_pb2 as pb

Answer = TypeVar("Answer")

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses clients that ask more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # clients in one process do not share connections
)
_REFUSED = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses that mean that a call had no effect; any other one leaves that open."""
_ENDED = (asyncio.InvalidStateError, grpc.aio.UsageError)
"""Errors that grpc.aio raises if a call or its channel has already ended."""
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")
_NO_ID = -1
"""The watch id in answers to progress requests; they do not say how far the watch is."""


def error_of(error: grpc.aio.AioRpcError, endpoint: str) -> EtcdError:
    """The port's error for a failed call."""
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text:
        return EtcdCompacted(text)
    kind = EtcdRefused if code in _REFUSED else EtcdUnavailable
    return kind(f"etcd at {endpoint}: {code.name}: {text}")


def _compare(compare: Compare) -> pb.Compare:
    if compare.target is Target.CREATE_REVISION:
        return pb.Compare(key=compare.key, target=pb.Compare.CREATE, create_revision=compare.number)
    if compare.target is Target.MOD_REVISION:
        return pb.Compare(key=compare.key, target=pb.Compare.MOD, mod_revision=compare.number)
    return pb.Compare(key=compare.key, target=pb.Compare.VERSION, version=compare.number)


def _operation(operation: Put | Delete) -> pb.RequestOp:
    if isinstance(operation, Put):
        put = pb.PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
        return pb.RequestOp(request_put=put)
    delete = pb.DeleteRangeRequest(key=operation.start, range_end=operation.end or b"")
    return pb.RequestOp(request_delete_range=delete)


def _pair(pair: pb.KeyValue) -> KeyValue:
    return KeyValue(
        key=pair.key,
        value=pair.value,
        create_revision=pair.create_revision,
        mod_revision=pair.mod_revision,
        version=pair.version,
        lease=pair.lease,
    )


def _event(event: pb.Event) -> KeyValue | Removal:
    if event.type == pb.Event.DELETE:
        return Removal(event.kv.key, event.kv.mod_revision)
    return _pair(event.kv)


class _Endpoint:
    """A channel to one member of etcd, opened when it is first needed."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        call, stream = channel.unary_unary, channel.stream_stream
        serialize: Callable[[Any], bytes] = lambda message: message.SerializeToString()  # noqa: E731
        self.range = call("/etcdserverpb.KV/Range", serialize, pb.RangeResponse.FromString)
        self.transact = call("/etcdserverpb.KV/Txn", serialize, pb.TxnResponse.FromString)
        self.compact = call("/etcdserverpb.KV/Compact", serialize, pb.CompactionResponse.FromString)
        self.grant = call("/etcdserverpb.Lease/LeaseGrant", serialize, pb.LeaseGrantResponse.FromString)
        self.revoke = call("/etcdserverpb.Lease/LeaseRevoke", serialize, pb.LeaseRevokeResponse.FromString)
        self.authenticate = call("/etcdserverpb.Auth/Authenticate", serialize, pb.AuthenticateResponse.FromString)
        self.keep_alive = stream("/etcdserverpb.Lease/LeaseKeepAlive", serialize, pb.LeaseKeepAliveResponse.FromString)
        self.watch = stream("/etcdserverpb.Watch/Watch", serialize, pb.WatchResponse.FromString)


class GrpcEtcd:
    """An `Etcd` client; see the module's text. `time_limit_ms` is that of one call."""

    def __init__(self, settings: EtcdSettings, *, time_limit_ms: int) -> None:
        self._settings = settings
        self._time_limit_s = time_limit_ms / 1000
        self._endpoints: list[_Endpoint] = []
        self._current = 0
        self._token: str | None = None
        self._is_closed = False

    async def range(self, start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0) -> RangeAnswer:
        request = pb.RangeRequest(key=start, range_end=end or b"", revision=revision, limit=limit)
        answer: pb.RangeResponse = await self._call(lambda endpoint: endpoint.range, request)
        return RangeAnswer([_pair(pair) for pair in answer.kvs], answer.header.revision, answer.more)

    async def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes] = ()
    ) -> TransactionAnswer:
        request = pb.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_operation(operation) for operation in then],
            failure=[pb.RequestOp(request_range=pb.RangeRequest(key=key)) for key in otherwise],
        )
        answer: pb.TxnResponse = await self._call(lambda endpoint: endpoint.transact, request)
        found = [_pair(pair) for response in answer.responses for pair in response.response_range.kvs]
        return TransactionAnswer(answer.succeeded, answer.header.revision, found)

    async def grant(self, ttl_ms: int) -> Lease:
        request = pb.LeaseGrantRequest(TTL=-(-ttl_ms // 1000))
        answer: pb.LeaseGrantResponse = await self._call(lambda endpoint: endpoint.grant, request)
        return Lease(answer.ID, answer.TTL * 1000)

    async def keep_alive(self, lease: int) -> bool:
        is_alive: bool = await self._authenticated(lambda endpoint: self._keep_alive(endpoint, lease))
        return is_alive

    async def revoke(self, lease: int) -> None:
        try:
            await self._call(lambda endpoint: endpoint.revoke, pb.LeaseRevokeRequest(ID=lease))
        except EtcdRefused as error:
            cause = error.__cause__
            if not isinstance(cause, grpc.aio.AioRpcError) or cause.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    async def compact(self, revision: int) -> None:
        await self._call(lambda endpoint: endpoint.compact, pb.CompactionRequest(revision=revision))

    async def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncGenerator[Changes, None]:
        endpoint = self._endpoint()
        create = pb.WatchCreateRequest(key=start, range_end=end, start_revision=from_revision, progress_notify=True)
        reader: _WatchReader | None = None
        try:
            metadata = (*await self._metadata(endpoint), ("hasleader", "true"))
            reader = _WatchReader(endpoint.watch(metadata=metadata), endpoint.address, self._time_limit_s)
            await reader.send(pb.WatchRequest(create_request=create))
            while True:
                changes = changes_of(await reader.next(), endpoint.address)
                if changes is not None:
                    yield changes
        except grpc.aio.AioRpcError as error:
            self._failed(endpoint)
            raise error_of(error, endpoint.address) from error
        except EtcdUnavailable:
            self._failed(endpoint)
            raise
        finally:
            if reader is not None:
                await reader.close()

    async def close(self) -> None:
        self._is_closed = True
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.channel.close(None)

    async def _keep_alive(self, endpoint: _Endpoint, lease: int) -> bool:
        metadata = await self._metadata(endpoint)
        call = endpoint.keep_alive(timeout=self._time_limit_s, metadata=metadata)
        try:
            await call.write(pb.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
            if not isinstance(answer, pb.LeaseKeepAliveResponse):
                raise EtcdUnavailable(f"etcd at {endpoint.address} ended the call without a response")
            return answer.TTL > 0
        finally:
            call.cancel()

    async def _call(self, method: Callable[[_Endpoint], Any], request: Any) -> Any:
        async def attempt(endpoint: _Endpoint) -> Any:
            metadata = await self._metadata(endpoint)
            return await method(endpoint)(request, timeout=self._time_limit_s, metadata=metadata)

        return await self._authenticated(attempt)

    async def _authenticated(self, attempt: Callable[[_Endpoint], Any]) -> Any:
        """The result of an attempt, which is repeated once if the token was too old."""
        endpoint = self._endpoint()
        for is_last in (False, True):
            try:
                return await attempt(endpoint)
            except _ENDED as error:
                self._failed(endpoint)
                raise EtcdUnavailable(f"the call to etcd at {endpoint.address} was ended: {error}") from error
            except grpc.aio.AioRpcError as error:
                if self._token is not None and not is_last and any(text in str(error) for text in _OLD_TOKEN):
                    self._token = None
                    continue
                meaning = error_of(error, endpoint.address)
                if isinstance(meaning, EtcdUnavailable):
                    self._failed(endpoint)
                raise meaning from error
            except EtcdUnavailable:
                self._failed(endpoint)
                raise
        raise AssertionError("the second attempt returns or raises")

    async def _metadata(self, endpoint: _Endpoint) -> tuple[tuple[str, str], ...]:
        settings = self._settings
        if not settings.username:
            return ()
        if self._token is None:
            request = pb.AuthenticateRequest(name=settings.username, password=settings.password)
            answer: pb.AuthenticateResponse = await endpoint.authenticate(request, timeout=self._time_limit_s)
            self._token = answer.token
        return (("token", self._token),)

    def _endpoint(self) -> _Endpoint:
        if self._is_closed:
            raise EtcdUnavailable("the client is closed")
        if not self._endpoints:
            self._endpoints = [_Endpoint(address, self._channel(address)) for address in self._settings.endpoints]
        return self._endpoints[self._current]

    def _channel(self, address: str) -> grpc.aio.Channel:
        settings = self._settings
        if settings.ca is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(settings.ca, settings.key, settings.certificate)
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def _failed(self, endpoint: _Endpoint) -> None:
        """Directs the next call to the next endpoint."""
        if self._endpoints and self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)


def changes_of(answer: pb.WatchResponse, endpoint: str) -> Changes | None:
    """The changes in an answer, None if it only shows that etcd is alive; raises if the watch ended."""
    if answer.compact_revision:
        raise EtcdCompacted(f"etcd has compacted all revisions before {answer.compact_revision}")
    if answer.canceled:
        raise EtcdUnavailable(f"etcd at {endpoint} ended the watch: {answer.cancel_reason}")
    if answer.events:
        return Changes(answer.events[-1].kv.mod_revision, [_event(event) for event in answer.events])
    if answer.created or answer.watch_id == _NO_ID:
        return None
    return Changes(answer.header.revision, [])


class _WatchReader:
    """Reader of a watch's stream; it sends progress requests when the stream is silent for `patience_s`."""

    def __init__(self, call: Any, endpoint: str, patience_s: float) -> None:
        self._call = call
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._reading: asyncio.Future[Any] | None = None

    async def send(self, request: pb.WatchRequest) -> None:
        """Sends a request; EtcdUnavailable if that times out."""
        writing = asyncio.ensure_future(self._call.write(request))
        done, _ = await asyncio.wait([writing], timeout=self._patience_s)
        if not done:
            writing.cancel()
            raise EtcdUnavailable(f"etcd at {self._endpoint} accepts no request")
        try:
            writing.result()
        except _ENDED as error:
            raise EtcdUnavailable(f"etcd at {self._endpoint} ended the watch: {error}") from error

    async def next(self) -> pb.WatchResponse:
        """The next answer; EtcdUnavailable if none arrives in time, not even to a progress request."""
        self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait([self._reading], timeout=self._patience_s)
        if not done:
            await self.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            done, _ = await asyncio.wait([self._reading], timeout=self._patience_s)
        if not done:
            raise EtcdUnavailable(f"etcd at {self._endpoint} does not respond")
        if self._reading.cancelled():
            raise EtcdUnavailable("the client is closed")
        answer = self._reading.result()
        if not isinstance(answer, pb.WatchResponse):
            raise EtcdUnavailable(f"etcd at {self._endpoint} ended the watch")
        return answer

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()
