"""Handlers of RPCs: a method of an object says which RPC it serves, and its errors become response codes.

class OffsetHandlers:
    @serves(OFFSET_DELETE)
    async def delete(self, request: pb.OffsetDeleteRequest, payload: memoryview) -> pb.OffsetDeleteResponse: ...

Service(COORDINATOR, handlers_of(OffsetHandlers(core), …))
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.network import Handler, Method, Request, Response

Owner = TypeVar("Owner")
Serving = Callable[[Owner, Request, memoryview], Awaitable[Response]]
Refused = Callable[[Request, ErrorCode, str], Response]
"""The response to an error of the whole request: its code and text."""

_METHODS: dict[Any, Method[Any, Any]] = {}
"""The RPC of each function that `serves` decorates."""


def serves(
    method: Method[Request, Response],
    *,
    storage_failed: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
    refused: Refused[Request, Response] | None = None,
) -> Callable[[Serving[Owner, Request, Response]], Serving[Owner, Request, Response]]:
    """Registers a handler, and answers a KafkaError with its code and a StorageFailure with `storage_failed`.

    Clients take COORDINATOR_NOT_AVAILABLE as a reason to find the coordinator anew and to retry; for a storage error
    they would not. `refused` makes the response where it is more than `error_code` and `error_message`.
    """

    def plainly_refused(request: Request, code: ErrorCode, text: str) -> Response:
        return method.response_type(error_code=code, error_message=text)

    refusal = refused or plainly_refused

    def decorate(function: Serving[Owner, Request, Response]) -> Serving[Owner, Request, Response]:
        @functools.wraps(function)
        async def serve(owner: Owner, request: Request, payload: memoryview) -> Response:
            try:
                return await function(owner, request, payload)
            except KafkaError as error:
                error.__traceback__ = None  # it holds this frame, and the handler's, which may hold the error
                return refusal(request, error.code, error.message)
            except StorageFailure as failure:
                return refusal(request, storage_failed, str(failure))

        _METHODS[serve] = method
        return serve

    return decorate


Function = TypeVar("Function", bound=Callable[..., Any])


def answers(method: Method[Any, Any]) -> Callable[[Function], Function]:
    """Registers a handler that puts its errors into the response itself: it has a result for each element.

    Unlike `serves` it adds no coroutine to the call. The function is a `kshare_rpc.network.Handler` besides its owner.
    """

    def decorate(function: Function) -> Function:
        _METHODS[function] = method
        return function

    return decorate


def registered() -> frozenset[Method[Any, Any]]:
    """The RPCs that functions of all loaded modules serve."""
    return frozenset(_METHODS.values())


def handlers_of(*owners: object) -> dict[Method[Any, Any], Handler]:
    """The handlers of all RPCs that methods of these objects serve; ValueError if two serve the same."""
    handlers: dict[Method[Any, Any], Handler] = {}
    for owner in owners:
        for name, function in vars(type(owner)).items():
            method = _METHODS.get(function) if callable(function) else None
            if method is None:
                continue
            if method in handlers:
                raise ValueError(f"{method.path} has two handlers; one is {type(owner).__name__}.{name}")
            handlers[method] = getattr(owner, name)
    return handlers
