"""Long requests split into parts: handlers, coordinators and leaders get at most SLICE_ELEMENTS elements at once.

Otherwise a request of 200,000 elements would be one loop in the gateway and one command, decided in one turn, at a
coordinator. Only APIs with independent elements are split (`ElementArrays` of `kshare_gateway.served_apis`). An error
of a whole part is reported for the elements of that part. A part has more elements only if a single element has them in
its own arrays; above kshare.request.max.elements such a part is rejected (`request_elements`).

Where Kafka rejects an element that is named twice, both are put in the same part, and the coordinator detects them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from kshare_core.work_slices import SLICE_ELEMENTS, ElementCount
from kshare_gateway.connections.request_elements import element_count
from kshare_gateway.dispatch import SERVED_APIS
from kshare_gateway.served_apis import ElementArrays
from kshare_wire.messages import Request, Response, Struct

_ELEMENTS: dict[int, ElementArrays] = {
    int(api_key): served.elements for api_key, served in SERVED_APIS.items() if served.elements is not None
}


DESCRIBING = frozenset(api_key for api_key, arrays in _ELEMENTS.items() if arrays.described is not None)
"""APIs whose requests `with_few_repetitions` shortens."""
REPETITIONS = 10
"""Kafka answers each repetition. An answer may be thousands of times as long as the name, so there are only so many."""


class Part(NamedTuple):
    """A part of a request; `elements` counts all its arrays, or is some number above the limit."""

    request: Request[Any]
    elements: int


def is_splittable(api_key: int) -> bool:
    """Whether a long request is answered in parts."""
    arrays = _ELEMENTS.get(api_key)
    return arrays is not None and arrays.is_split


def is_refused_in_parts(api_key: int) -> bool:
    return api_key in _ELEMENTS


def outer_field(arrays: ElementArrays, request: Request[Any]) -> str:
    """The field that has the request's elements; empty if none has."""
    return next((name for name in arrays.outer if getattr(request, name, None)), "")


async def with_few_repetitions(api_key: int, request: Request[Any], count: ElementCount) -> Request[Any]:
    """The request without the repetitions above REPETITIONS of elements with long results (`ElementArrays.described`).

    Where elements have an array of their own, its entries count, and an element that has none left is left out.
    """
    arrays = _ELEMENTS[api_key]
    identity = arrays.described
    outer = outer_field(arrays, request)
    if identity is None or not outer:
        return request
    times: Counter[Any] = Counter()
    found: list[Any] = []
    for element in getattr(request, outer):
        subject = identity(element)
        entries = getattr(element, arrays.inner) if arrays.inner else ()
        kept = []
        for entry in entries or (None,):
            times[subject, entry] += 1
            if times[subject, entry] <= REPETITIONS:
                kept.append(entry)
            if count.add():
                await count.next_slice()
        if kept:
            found.append(element.replaced(**{arrays.inner: kept}) if entries else element)
    return request.replaced(**{outer: found})


async def repeated_together(api_key: int, request: Request[Any], count: ElementCount) -> Request[Any]:
    """The request with repeated elements next to each other; the third and later repetitions are left out."""
    subject = _ELEMENTS[api_key].identity
    outer = outer_field(_ELEMENTS[api_key], request)
    if subject is None or not outer:
        return request
    times: dict[Any, int] = {}
    for element in getattr(request, outer):
        times[subject(element)] = times.get(subject(element), 0) + 1
        if count.add():
            await count.next_slice()
    if len(times) == len(getattr(request, outer)):
        return request
    found: list[Any] = []
    for element in getattr(request, outer):
        found += [element] * min(2, times.pop(subject(element), 0))
        if count.add():
            await count.next_slice()
    return request.replaced(**{outer: found})


def parts_of(api_key: int, request: Request[Any], limit: int) -> Iterator[Part]:
    """The parts of a request, in order, made lazily; the request itself if it is short.

    Elements are counted up to `limit`.
    """
    arrays = _ELEMENTS[api_key]
    subject = arrays.identity
    outer = outer_field(arrays, request)
    gathered: list[Any] = []
    elements = 0
    for element in getattr(request, outer) if outer else ():
        for piece, size in _pieces(element, arrays.inner, limit):
            is_repeated = bool(gathered) and subject is not None and subject(gathered[-1]) == subject(element)
            if gathered and elements + size > SLICE_ELEMENTS and not is_repeated:
                yield Part(request.replaced(**{outer: gathered}), elements)
                gathered, elements = [], 0
            gathered.append(piece)
            elements += size
    yield Part(request.replaced(**{outer: gathered}) if outer else request, elements)


def _pieces(element: Any, inner: str, limit: int) -> Iterator[tuple[Any, int]]:
    """Splits an outer element into pieces that fit in a part, each with its element count.

    The outer element itself counts where it is an element.
    """
    if not isinstance(element, Struct):
        yield element, 1
        return
    below = getattr(element, inner) if inner else ()
    if not inner or not below:
        yield element, 1 + element_count(element, limit)
        return
    if not isinstance(below[0], Struct) or not element_count(below[0], 1):
        if len(below) <= SLICE_ELEMENTS:
            yield element, len(below)
            return
        for first in range(0, len(below), SLICE_ELEMENTS):
            portion = below[first : first + SLICE_ELEMENTS]
            yield element.replaced(**{inner: portion}), len(portion)
        return
    gathered: list[Any] = []
    elements = 0
    for entry in below:
        size = 1 + element_count(entry, limit)
        if gathered and elements + size > SLICE_ELEMENTS:
            yield element.replaced(**{inner: gathered}), elements
            gathered, elements = [], 0
        gathered.append(entry)
        elements += size
    yield element.replaced(**{inner: gathered}), elements


class JoinedResponse:
    """The response joined from the responses to all parts."""

    def __init__(self, api_key: int) -> None:
        self._arrays = _ELEMENTS[api_key]
        self._response: Response | None = None
        self._results: list[Any] = []

    def add(self, response: Response) -> None:
        arrays = self._arrays
        results = list(getattr(response, arrays.results) or ())
        if arrays.inner and results and self._results and _identity(self._results[-1]) == _identity(results[0]):
            getattr(self._results[-1], arrays.inner_results).extend(getattr(results.pop(0), arrays.inner_results))
        if arrays.inner and results:
            last = results[-1]
            results[-1] = last.replaced(**{arrays.inner_results: list(getattr(last, arrays.inner_results))})
        self._results.extend(results)
        if self._response is None:
            self._response = response
            return
        error_code = getattr(response, "error_code", 0)
        if error_code and not getattr(self._response, "error_code", 0):
            self._response = self._response.replaced(error_code=error_code)
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > getattr(self._response, "throttle_time_ms", 0):
            self._response = self._response.replaced(throttle_time_ms=throttle_ms)

    def response(self) -> Response:
        assert self._response is not None, "a request has at least one part"
        return self._response.replaced(**{self._arrays.results: self._results})


def _identity(result: Struct) -> tuple[Any, ...]:
    """The identity of an outer element of a response."""
    return tuple(getattr(result, name, None) for name in ("topic", "name", "topic_id"))
