"""The registration of Kafka's APIs: `serve`, one row below the handler, says all that the gateway knows of an API.

Dispatch, ApiVersions and the rules of a connection are derived from these rows (`dispatch` loads them).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kshare_core.errors import KafkaError
from kshare_gateway.request_context import RequestContext
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


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
    is_split: bool = True
    """False: the request is answered as a whole. Only a rejection, which names every element, is made in parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One row: see `serve`."""

    api_key: ApiKey
    versions: VersionRange
    answer_now: Callable[[RequestContext, Message], Body] | None
    handle: Callable[[RequestContext, Message], Awaitable[Body | None]] | None
    failed: Callable[[RequestContext, Message, KafkaError], Body | None] | None
    response: ResponseSize
    elements: ElementArrays | None
    works_in_slices: bool

    @property
    def module(self) -> str:
        """The module that serves it."""
        function = self.handle or self.answer_now
        assert function is not None
        return function.__module__

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as "ShareFetch"."""
        return self.api_key.api_name


REGISTERED: dict[ApiKey, ServedApi] = {}
"""What `serve` registered so far; `kshare_gateway.dispatch.SERVED_APIS` is complete."""


def serve(
    api_key: ApiKey,
    versions: VersionRange,
    *,
    answer_now: Callable[[RequestContext, Message], Body] | None = None,
    handle: Callable[[RequestContext, Message], Awaitable[Body | None]] | None = None,
    failed: Callable[[RequestContext, Message, KafkaError], Body | None] | None = None,
    response: ResponseSize = ResponseSize.SHORT,
    elements: ElementArrays | None = None,
    works_in_slices: bool = False,
) -> None:
    """Registers an API with either `answer_now`, which cannot wait or fail, or `handle`; ValueError for a mistake.

    - `versions` are those that clients may use, at most those of kio. They should include the versions that
      confluent-kafka and kafka-clients choose.
    - `handle` returns None if the request gets no response (Produce with acks = 0).
    - `failed` makes the response to an error of the whole request. It is missing only where a request of any number of
      elements is answered at once.
    - `elements` are independent, so a long request is answered in parts.
    - `works_in_slices`: the handler divides any number of elements into slices, and into calls of at most
      SLICE_ELEMENTS. Other requests, or their parts, have a limit of elements (kshare.request.max.elements).
    """
    if api_key in REGISTERED:
        raise ValueError(f"{api_key.api_name} is registered twice")
    if (answer_now is None) == (handle is None):
        raise ValueError(f"{api_key.api_name} needs either answer_now or handle")
    if handle is not None and failed is None:
        raise ValueError(f"{api_key.api_name} has handle, so it needs failed")
    REGISTERED[api_key] = ServedApi(
        api_key=api_key,
        versions=versions,
        answer_now=answer_now,
        handle=handle,
        failed=failed,
        response=response,
        elements=elements,
        works_in_slices=works_in_slices,
    )
