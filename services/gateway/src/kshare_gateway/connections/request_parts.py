"""Long requests split into parts: handlers, coordinators and leaders get at most SLICE_ELEMENTS elements at once.

Otherwise a request of 200,000 elements would be one loop in the gateway and one command, decided in one turn, at a
coordinator. Only APIs with independent elements are split. An error of a whole part is reported for the elements of
that part. A part has more elements only if a single element has them in its own arrays; above
kshare.request.max.elements such a part is rejected (`request_elements`).

Where Kafka rejects an element that is named twice, both are put in the same part, and the coordinator detects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from kshare_core.work_slices import SLICE_ELEMENTS, ElementCount
from kshare_gateway.connections.request_elements import element_count
from kshare_wire.api_versions import ApiKey
from kshare_wire.messages import Body, Message


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The fields of the elements in the request and of their results in the response; `inner`: in an outer element."""

    outer: tuple[str, ...]
    """The first field that has elements is used."""
    results: str
    inner: str = ""
    inner_results: str = ""


class Part(NamedTuple):
    """A part of a request; `elements` counts all its arrays, or is some number above the limit."""

    request: Message
    elements: int


_BY_PARTITION = _Arrays(("topics",), "topics", "partitions", "partitions")
_SHARE_STATE = _Arrays(("topics",), "results", "partitions", "partitions")
_ARRAYS: Mapping[int, _Arrays] = {
    ApiKey.LIST_OFFSETS: _BY_PARTITION,
    ApiKey.OFFSET_COMMIT: _BY_PARTITION,
    ApiKey.TXN_OFFSET_COMMIT: _BY_PARTITION,
    ApiKey.OFFSET_DELETE: _BY_PARTITION,
    ApiKey.DELETE_RECORDS: _BY_PARTITION,
    ApiKey.DESCRIBE_PRODUCERS: _Arrays(("topics",), "topics", "partition_indexes", "partitions"),
    ApiKey.ELECT_LEADERS: _Arrays(("topic_partitions",), "replica_election_results", "partitions", "partition_result"),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.FIND_COORDINATOR: _Arrays(("coordinator_keys",), "coordinators"),
    ApiKey.DESCRIBE_GROUPS: _Arrays(("groups",), "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _Arrays(("group_ids",), "groups"),
    ApiKey.SHARE_GROUP_DESCRIBE: _Arrays(("group_ids",), "groups"),
    ApiKey.OFFSET_FETCH: _Arrays(("groups",), "groups"),
    ApiKey.DESCRIBE_CONFIGS: _Arrays(("resources",), "results"),
    ApiKey.DESCRIBE_TRANSACTIONS: _Arrays(("transactional_ids",), "transaction_states"),
    ApiKey.CREATE_TOPICS: _Arrays(("topics",), "topics"),
    ApiKey.CREATE_PARTITIONS: _Arrays(("topics",), "results"),
    ApiKey.DELETE_TOPICS: _Arrays(("topics", "topic_names"), "responses"),
    ApiKey.DELETE_GROUPS: _Arrays(("groups_names",), "results"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _Arrays(("groups",), "groups"),
    ApiKey.STREAMS_GROUP_DESCRIBE: _Arrays(("group_ids",), "groups"),
    ApiKey.ALTER_CONFIGS: _Arrays(("resources",), "responses"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Arrays(("resources",), "responses"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Arrays(("topics",), "responses", "partitions", "partitions"),
}
_REFUSED_ARRAYS: Mapping[int, _Arrays] = {
    ApiKey.PRODUCE: _Arrays(("topic_data",), "responses", "partition_data", "partition_responses"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Arrays(
        ("v3_and_below_topics",), "results_by_topic_v3_and_below", "partitions", "results_by_partition"
    ),
}
"""APIs whose requests are answered as a whole; a rejection, which names every element, is made in parts."""

_ONCE: Mapping[int, Callable[[Any], Any]] = {
    ApiKey.CREATE_TOPICS: attrgetter("name"),
    ApiKey.CREATE_PARTITIONS: attrgetter("name"),
    ApiKey.ALTER_CONFIGS: attrgetter("resource_type", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: attrgetter("resource_type", "resource_name"),
    ApiKey.DELETE_TOPICS: lambda topic: topic if isinstance(topic, str) else (topic.name, topic.topic_id),
}
"""The identity of an outer element, for APIs where a request may name it only once."""


def is_splittable(api_key: int) -> bool:
    return api_key in _ARRAYS


def is_refused_in_parts(api_key: int) -> bool:
    return api_key in _ARRAYS or api_key in _REFUSED_ARRAYS


def _arrays_of(api_key: int) -> _Arrays:
    return _ARRAYS.get(api_key) or _REFUSED_ARRAYS[api_key]


def _outer(arrays: _Arrays, request: Message) -> str:
    return next((name for name in arrays.outer if getattr(request, name, None)), "")


async def repeated_together(api_key: int, request: Message, count: ElementCount) -> Message:
    """The request with repeated elements next to each other; the third and later repetitions are left out."""
    subject = _ONCE.get(api_key)
    outer = _outer(_arrays_of(api_key), request)
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
    return _changed(request, outer, found)


def parts_of(api_key: int, request: Message, limit: int) -> Iterator[Part]:
    """The parts of a request, in order, made lazily; the request itself if it is short.

    Elements are counted up to `limit`.
    """
    arrays, subject = _arrays_of(api_key), _ONCE.get(api_key)
    outer = _outer(arrays, request)
    gathered: list[Any] = []
    elements = 0
    for element in getattr(request, outer) if outer else ():
        for piece, size in _pieces(element, arrays.inner, limit):
            is_repeated = bool(gathered) and subject is not None and subject(gathered[-1]) == subject(element)
            if gathered and elements + size > SLICE_ELEMENTS and not is_repeated:
                yield Part(_changed(request, outer, gathered), elements)
                gathered, elements = [], 0
            gathered.append(piece)
            elements += size
    yield Part(_changed(request, outer, gathered) if outer else request, elements)


def _pieces(element: Any, inner: str, limit: int) -> Iterator[tuple[Any, int]]:
    """Splits an outer element into pieces that fit in a part, each with its element count.

    The outer element itself counts where it is an element.
    """
    if not isinstance(element, Message):
        yield element, 1
        return
    below = getattr(element, inner) if inner else ()
    if not inner or not below:
        yield element, 1 + element_count(element, limit)
        return
    if not isinstance(below[0], Message) or not element_count(below[0], 1):
        if len(below) <= SLICE_ELEMENTS:
            yield element, len(below)
            return
        for first in range(0, len(below), SLICE_ELEMENTS):
            portion = below[first : first + SLICE_ELEMENTS]
            yield _changed(element, inner, portion), len(portion)
        return
    gathered: list[Any] = []
    elements = 0
    for entry in below:
        size = 1 + element_count(entry, limit)
        if gathered and elements + size > SLICE_ELEMENTS:
            yield _changed(element, inner, gathered), elements
            gathered, elements = [], 0
        gathered.append(entry)
        elements += size
    yield _changed(element, inner, gathered), elements


def _changed(message: Message, name: str, value: Any) -> Message:
    changed: Message = object.__new__(type(message))
    changed.__dict__ = {**message.__dict__, name: value}
    return changed


class JoinedBody:
    """The response joined from the bodies of all parts."""

    def __init__(self, api_key: int) -> None:
        self._arrays = _arrays_of(api_key)
        self._body: dict[str, Any] = {}
        self._results: list[Any] = []

    def add(self, body: Body) -> None:
        arrays = self._arrays
        results = list(body.get(arrays.results) or ())
        if arrays.inner and results and self._results and _identity(self._results[-1]) == _identity(results[0]):
            self._results[-1][arrays.inner_results].extend(results.pop(0)[arrays.inner_results])
        if arrays.inner and results:
            last = results[-1]
            results[-1] = {**last, arrays.inner_results: list(last[arrays.inner_results])}
        self._results.extend(results)
        error_code = self._body.get("error_code") or body.get("error_code")
        self._body = {**body, **self._body}
        if error_code:
            self._body["error_code"] = error_code

    def body(self) -> Body:
        return {**self._body, self._arrays.results: self._results}


def _identity(result: Body) -> tuple[Any, ...]:
    """The identity of an outer element of a response."""
    return result.get("topic"), result.get("name"), result.get("topic_id")
