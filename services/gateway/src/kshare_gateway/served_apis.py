"""The registration of Kafka's APIs: `serve`, one row below the handler, says all that the gateway knows of an API.

Dispatch, ApiVersions and the rules of a connection are derived from these rows (`dispatch` loads them).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from kshare_core.errors import KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import Request, Response, Struct

ARequest = TypeVar("ARequest", bound=Request[Any])
AResponse = TypeVar("AResponse", bound=Response)


class ResponseSize(IntEnum):
    """How large the response to a short request can be.

    A connection has at most one request of each of the last two in flight.
    """

    SHORT = 0
    RECORDS = 1
    """It has records."""
    LONG = 2
    """It lists topics, groups, or whatever the cluster has many of."""


@dataclass(frozen=True, slots=True)
class ElementArrays:
    """The fields of a request's elements and of their results in the response; `inner`: within an outer element.

    A long request with such independent elements is answered in parts (`kshare_gateway.connections.request_parts`).
    """

    outer: tuple[str, ...]
    """The first field that has elements is used."""
    results: str
    inner: str = ""
    inner_results: str = ""
    identity: Callable[[Any], Any] | None = None
    """The identity of an outer element, for APIs where a request may name it only once."""
    described: Callable[[Any], Any] | None = None
    """The identity of an outer element whose result may be long: a request cannot have it any number of times."""
    is_split: bool = True
    """False: the request is answered as a whole. Only a rejection, which names every element, is made in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One row: see `serve`."""

    request: type[Request[Any]]
    versions: VersionRange
    access: Access
    answer_now: Callable[[RequestContext, Any], Response] | None
    handle: Callable[[RequestContext, Any], Awaitable[Response | None]] | None
    failed: Callable[[RequestContext, Any, KafkaError], Response | None] | None
    size: ResponseSize
    elements: ElementArrays | None
    works_in_slices: bool
    api_key: ApiKey = field(init=False)
    name: str = field(init=False)
    """Kafka's name of the API, such as "ShareFetch"."""

    def __post_init__(self) -> None:
        """Every request asks for both."""
        object.__setattr__(self, "api_key", ApiKey(self.request.API_KEY))
        object.__setattr__(self, "name", self.api_key.api_name)

    @property
    def module(self) -> str:
        """The module that serves it."""
        function = self.handle or self.answer_now
        assert function is not None
        return function.__module__

    async def answer(self, context: RequestContext, request: Any) -> Response | None:
        """The response, by whichever function the API has."""
        if self.answer_now is not None:
            return self.answer_now(context, request)
        assert self.handle is not None
        return await self.handle(context, request)


REGISTERED: dict[ApiKey, ServedApi] = {}
"""What `serve` registered so far; `kshare_gateway.dispatch.SERVED_APIS` is complete."""


def served_api(
    request: type[ARequest],
    response: type[AResponse],
    versions: VersionRange,
    *,
    access: Access,
    answer_now: Callable[[RequestContext, ARequest], AResponse] | None = None,
    handle: Callable[[RequestContext, ARequest], Awaitable[AResponse | None]] | None = None,
    failed: Callable[[RequestContext, ARequest, KafkaError], AResponse | None] | None = None,
    size: ResponseSize = ResponseSize.SHORT,
    elements: ElementArrays | None = None,
    works_in_slices: bool = False,
) -> ServedApi:
    """The row of an API, given by its classes, with either `answer_now`, which cannot wait or fail, or `handle`.

    ValueError for a mistake.

    - `versions` are those that clients may use, at most those of the generated messages. They should include the
      versions that confluent-kafka and kafka-clients choose.
    - `access` says what a client needs, or why it needs nothing.
    - `handle` returns None if the request gets no response (Produce with acks = 0).
    - `failed` makes the response to an error of the whole request. A response that has a field for such an error needs
      none with `handle`: see `error_response`. With `answer_now` it is missing where a request of any number of
      elements is answered at once.
    - `elements` are independent, so a long request is answered in parts.
    - `works_in_slices`: the handler divides any number of elements into slices, and into calls of at most
      SLICE_ELEMENTS. Other requests, or their parts, have a limit of elements (kshare.request.max.elements).
    """
    api_key = ApiKey(request.API_KEY)
    if response is not request.RESPONSE:
        raise ValueError(f"{response.__name__} is not the response to {request.__name__}")
    if (answer_now is None) == (handle is None):
        raise ValueError(f"{api_key.api_name} needs either answer_now or handle")
    if failed is None and (handle is not None or access.whole):
        failed = error_response(response)
    if elements is not None:
        _check_fields(elements, request, response)
    if access.each is not None and (elements is None or failed is None):
        raise ValueError(f"{api_key.api_name} has needs of each element, but no elements or no `failed`")
    return ServedApi(
        request=request,
        versions=versions,
        access=access,
        answer_now=answer_now,
        handle=handle,
        failed=failed,
        size=size,
        elements=elements,
        works_in_slices=works_in_slices,
    )


def serve(
    request: type[ARequest],
    response: type[AResponse],
    versions: VersionRange,
    *,
    access: Access,
    answer_now: Callable[[RequestContext, ARequest], AResponse] | None = None,
    handle: Callable[[RequestContext, ARequest], Awaitable[AResponse | None]] | None = None,
    failed: Callable[[RequestContext, ARequest, KafkaError], AResponse | None] | None = None,
    size: ResponseSize = ResponseSize.SHORT,
    elements: ElementArrays | None = None,
    works_in_slices: bool = False,
) -> None:
    """Registers an API; the arguments are those of `served_api`. ValueError for a mistake."""
    row = served_api(
        request,
        response,
        versions,
        access=access,
        answer_now=answer_now,
        handle=handle,
        failed=failed,
        size=size,
        elements=elements,
        works_in_slices=works_in_slices,
    )
    if row.api_key in REGISTERED:
        raise ValueError(f"{row.name} is registered twice")
    REGISTERED[row.api_key] = row


def error_response(
    response: type[AResponse],
) -> Callable[[RequestContext, Request[Any], KafkaError], AResponse]:
    """Makes responses whose only fields are the code of an error and, where the API has it, its text.

    ValueError for an API that tells errors by element: which elements a response names is the handler's `failed`.
    """
    if "error_code" not in response.__slots__:
        raise ValueError(f"{response.__name__} has no error_code, so the handler needs failed")
    has_text = "error_message" in response.__slots__

    def failed(context: RequestContext, request: Request[Any], error: KafkaError) -> AResponse:
        fields: dict[str, Any] = {"error_code": error.code}
        if has_text:
            fields["error_message"] = error.message
        return response(**fields)

    return failed


def _check_fields(elements: ElementArrays, request: type[Request[Any]], response: type[Response]) -> None:
    """ValueError for a name of an array that no version of the API has."""
    for kind, names, inner in (
        (request, elements.outer, elements.inner),
        (response, (elements.results,), elements.inner_results),
    ):
        structs = [each for each in vars(sys.modules[kind.__module__]).values() if isinstance(each, type)]
        missing = [name for name in names if name not in kind.__slots__]
        if inner and not any(issubclass(each, Struct) and inner in each.__slots__ for each in structs):
            missing.append(inner)
        if missing:
            raise ValueError(f"{kind.__name__} has no field {', '.join(missing)}")
