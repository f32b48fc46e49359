"""Long requests as several short ones: handlers, coordinators and leaders get at most SLICE_ELEMENTS elements at once.

A request of 200,000 elements would otherwise be one loop in the gateway and one command, decided in one turn, at a
coordinator. Only APIs are split whose elements do not depend on each other. Where Kafka refuses an element that is
named twice, it is noticed within a part only. An error of a whole part is told for the elements of that part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_wire.api_versions import ApiKey
from kshare_wire.messages import Body, Message


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Where the elements are in the request, and their results in the response; `inner`: within each outer element."""

    outer: tuple[str, ...]
    """Of the first that has elements."""
    results: str
    inner: str = ""
    inner_results: str = ""


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
}


def is_splittable(api_key: int) -> bool:
    return api_key in _ARRAYS


def parts_of(api_key: int, request: Message) -> Iterator[Message]:
    """The parts of a request, in order; the request itself where it is short. Each is made when it is asked for."""
    arrays = _ARRAYS[api_key]
    outer = next((name for name in arrays.outer if getattr(request, name, None)), "")
    elements: Any = getattr(request, outer) if outer else ()
    gathered: list[Any] = []
    room = SLICE_ELEMENTS
    for element in elements:
        for piece, size in _pieces(element, arrays.inner):
            if gathered and size > room:
                yield _changed(request, outer, gathered)
                gathered, room = [], SLICE_ELEMENTS
            gathered.append(piece)
            room -= size
    yield _changed(request, outer, gathered) if outer else request


def _pieces(element: Any, inner: str) -> Iterator[tuple[Any, int]]:
    """An outer element in pieces that fit in a part, and how many elements each has."""
    below = getattr(element, inner) if inner else ()
    if len(below) <= SLICE_ELEMENTS:
        yield element, max(1, len(below))
        return
    for first in range(0, len(below), SLICE_ELEMENTS):
        portion = below[first : first + SLICE_ELEMENTS]
        yield _changed(element, inner, portion), len(portion)


def _changed(message: Message, name: str, value: Any) -> Message:
    changed: Message = object.__new__(type(message))
    changed.__dict__ = {**message.__dict__, name: value}
    return changed


class JoinedBody:
    """The response that the bodies of all parts make together."""

    def __init__(self, api_key: int) -> None:
        self._arrays = _ARRAYS[api_key]
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
    """What an outer element of a response is about."""
    return result.get("topic"), result.get("name"), result.get("topic_id")
