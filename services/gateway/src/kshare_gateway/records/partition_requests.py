"""Helpers of DeleteRecords and ListOffsets: topics by name, with partitions whose leaders are asked.

Requests wait for partitions in a reassignment (`kshare_gateway.records.reassignment`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from kshare_core.identifiers import TopicPartition
from kshare_gateway.request_context import RequestContext

AResult = TypeVar("AResult")
APartition = TypeVar("APartition", bound="PartitionEntry")
APartition_co = TypeVar("APartition_co", bound="PartitionEntry", covariant=True)
ARequest = TypeVar("ARequest", bound="PartitionsRequest[PartitionEntry]")

Results = dict[tuple[str, int], AResult]
"""Each partition's response, by topic name and partition index."""


class PartitionEntry(Protocol):
    """A partition in a request."""

    @property
    def partition_index(self) -> int: ...


class TopicEntry(Protocol[APartition_co]):
    """A topic in a request."""

    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[APartition_co]: ...


class PartitionsRequest(Protocol[APartition_co]):
    """A request for partitions of topics by name."""

    @property
    def topics(self) -> Sequence[TopicEntry[APartition_co]]: ...


Ask = Callable[[RequestContext, ARequest], Awaitable[tuple[Results[AResult], Mapping[TopicPartition, int]]]]
"""Asks the leaders once; returns the responses, and the error codes of the partitions that leaders were asked for."""


async def ask_until_served(context: RequestContext, request: ARequest, ask: Ask[ARequest, AResult]) -> Results[AResult]:
    """Each partition's response; leaders are asked again for partitions that were in a reassignment."""
    patience = context.gateway.reassignments.begin()
    known = context.gateway.view.topics_by_name
    keys = [
        TopicPartition(known[name].topic_id, entry.partition_index)
        for name, entry in partitions_of(request)
        if name in known
    ]
    while True:
        await patience.until_served(keys)
        results, codes = await ask(context, request)
        if not await patience.should_ask_again(codes):
            return results


def partitions_of(request: PartitionsRequest[APartition]) -> Iterator[tuple[str, APartition]]:
    """Each partition's entry with its topic's name, in the request's order."""
    for topic in request.topics:
        for entry in topic.partitions:
            yield topic.name, entry
