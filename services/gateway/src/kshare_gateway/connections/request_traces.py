"""Spans of requests (OpenTelemetry's conventions for messaging), for a gateway with a tracer.

Every request asks the tracer for a span, and gets one if it is sampled. Its calls to leaders and coordinators become
parts of its trace. Records carry their producers' traces in the header `traceparent`. Only responses of a sampled
ShareFetch or Fetch are searched for them, because that opens the records: at most RECORDS_OPENED_LIMIT of them. The
span is linked to these traces. For a while the gateway remembers the trace of each acquired record. The request that
acknowledges the record becomes part of the producer's own trace (of one record, or of several with the same trace), or
is linked to all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.tracing import Attributes, Span, Tracer, is_sampled
from kshare_gateway.request_context import RequestContext
from kshare_wire.framing import RequestHeader
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.requests.offset_commit import OffsetCommitRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.generated.requests.share_acknowledge import ShareAcknowledgeRequest
from kshare_wire.generated.requests.share_fetch import ShareFetchRequest
from kshare_wire.generated.responses.fetch import FetchResponse
from kshare_wire.generated.responses.share_fetch import AcquiredRecords, ShareFetchResponse
from kshare_wire.messages import Buffer, Request, Response
from kshare_wire.record_batches import read_headers
from kshare_wire.record_reading import open_window

RECORDS_OPENED_LIMIT = 100
OPENED_BYTES_LIMIT = 1024 * 1024
"""Larger batches are not opened."""
OPENED_HEADERS_LIMIT = 1_000
"""Of one batch: the records after them have no link in the trace."""
REMEMBERED_RECORDS_LIMIT = 10_000
TRACEPARENT_HEADER = "traceparent"

_OPERATIONS: dict[ApiKey, tuple[str, str]] = {
    ApiKey.PRODUCE: ("send", "send"),
    ApiKey.FETCH: ("poll", "receive"),
    ApiKey.SHARE_FETCH: ("poll", "receive"),
    ApiKey.SHARE_ACKNOWLEDGE: ("ack", "settle"),
    ApiKey.OFFSET_COMMIT: ("commit", "settle"),
}
"""messaging.operation.name and .type."""

_Acquired = tuple[str, str, TopicPartition, int]
"""Group, member, partition, offset."""


class RequestTraces:
    """The spans of one gateway."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._remembered: OrderedDict[_Acquired, str] = OrderedDict()

    def begin(self, header: RequestHeader, context: RequestContext, request: Request[Any]) -> Span | None:
        """The span of a request; None if it is not sampled."""
        api = ApiKey(header.api_key)
        found: list[str] = []
        if isinstance(request, ShareFetchRequest | ShareAcknowledgeRequest) and self._remembered:
            found = list(dict.fromkeys(self._acknowledged(request)))
        parent, links = (found[0], []) if len({text.split("-")[1] for text in found}) == 1 else ("", found)
        return self._tracer.begin(
            _name(api, context, request), _attributes(api, header, context, request), parent=parent, links=links
        )

    def answered(
        self, span: Span, header: RequestHeader, context: RequestContext, request: Request[Any], response: Response
    ) -> None:
        """Links the span, before it ends, to the traces of the records in the response."""
        if not isinstance(response, FetchResponse | ShareFetchResponse):
            return
        found: dict[str, None] = {}
        opened = 0
        for partition, records, acquired in _given(context, response):
            for offset, traceparent in _traced_records(records, RECORDS_OPENED_LIMIT - opened):
                opened += 1
                if not traceparent or not _contains(acquired, offset):
                    continue
                found[traceparent] = None
                if isinstance(request, ShareFetchRequest):
                    self._remember((request.group_id or "", request.member_id or "", partition, offset), traceparent)
        if found:
            span.link(list(found))

    def _remember(self, acquired: _Acquired, traceparent: str) -> None:
        self._remembered[acquired] = traceparent
        self._remembered.move_to_end(acquired)
        if len(self._remembered) > REMEMBERED_RECORDS_LIMIT:
            self._remembered.popitem(last=False)

    def _acknowledged(self, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Iterator[str]:
        """Removes and yields the traces of records that the request acknowledges."""
        runs = [
            (TopicPartition(topic.topic_id, entry.partition_index), batch.first_offset, batch.last_offset)
            for topic in request.topics
            for entry in topic.partitions
            for batch in entry.acknowledgement_batches
        ]
        if not runs:
            return
        owner = (request.group_id or "", request.member_id or "")
        for acquired in list(self._remembered):
            if acquired[:2] == owner and any(
                acquired[2] == partition and first <= acquired[3] <= last for partition, first, last in runs
            ):
                yield self._remembered.pop(acquired)


def _topics(request: Request[Any]) -> Iterator[tuple[bytes, str]]:
    """Ids and names of a request's topics, as it gives them."""
    match request:
        case ProduceRequest():
            yield from ((topic.topic_id, topic.name) for topic in request.topic_data)
        case FetchRequest():
            yield from ((topic.topic_id, topic.topic) for topic in request.topics)
        case ShareFetchRequest() | ShareAcknowledgeRequest():
            yield from ((topic.topic_id, "") for topic in request.topics)
        case OffsetCommitRequest():
            yield from ((topic.topic_id, topic.name) for topic in request.topics)


def _topic_names(context: RequestContext, request: Request[Any]) -> list[str]:
    names: list[str] = []
    for topic_id, given in _topics(request):
        known = context.gateway.view.topics_by_id.get(topic_id)
        name = known.name if known else given
        if name and name not in names:
            names.append(name)
    return names


def _name(api: ApiKey, context: RequestContext, request: Request[Any]) -> str:
    operation = _OPERATIONS.get(api)
    names = _topic_names(context, request)
    if operation is None:
        return api.name
    return f"{operation[0]} {names[0]}" if len(names) == 1 else operation[0]


def _attributes(api: ApiKey, header: RequestHeader, context: RequestContext, request: Request[Any]) -> Attributes:
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.client.id": header.client_id or "",
        "network.peer.address": context.client_host.lstrip("/"),
        "kshare.api": api.name,
        "kshare.api_version": header.version,
        "kshare.correlation_id": header.correlation_id,
    }
    if api in _OPERATIONS:
        attributes["messaging.operation.name"], attributes["messaging.operation.type"] = _OPERATIONS[api]
    names = _topic_names(context, request)
    if len(names) == 1:
        attributes["messaging.destination.name"] = names[0]
    group_id = getattr(request, "group_id", "")
    if group_id:
        attributes["messaging.consumer.group.name"] = group_id
    return attributes


def _given(
    context: RequestContext, response: Response
) -> Iterator[tuple[TopicPartition, Sequence[Buffer], Sequence[AcquiredRecords] | None]]:
    """Partitions with their records, and the runs that the member acquired; None: all records."""
    if isinstance(response, ShareFetchResponse):
        for topic in response.responses:
            for entry in topic.partitions:
                yield TopicPartition(topic.topic_id, entry.partition_index), entry.records or (), entry.acquired_records
    elif isinstance(response, FetchResponse):
        for found in response.responses:
            known = context.gateway.view.topics_by_name.get(found.topic)
            topic_id = known.topic_id if known else found.topic_id
            for data in found.partitions:
                yield TopicPartition(topic_id, data.partition_index), data.records or (), None


def _contains(acquired: Sequence[AcquiredRecords] | None, offset: int) -> bool:
    return acquired is None or any(run.first_offset <= offset <= run.last_offset for run in acquired)


def _traced_records(records: Sequence[Buffer], limit: int) -> Iterator[tuple[int, str]]:
    """Offsets and traceparents ("" without) of the first records; records that cannot be opened are left out."""
    count = 0
    for data in records:
        view = memoryview(data)
        position = 0
        try:
            headers = read_headers(view)
        except KafkaError:
            return
        for header in headers:
            batch = view[position : position + header.size]
            position += header.size
            if header.size > OPENED_BYTES_LIMIT:
                continue
            try:
                opened = open_window(
                    batch,
                    header.base_offset,
                    limit - count,
                    limit_bytes=OPENED_BYTES_LIMIT,
                    headers_limit=OPENED_HEADERS_LIMIT,
                )
            except KafkaError:
                opened = []
                count += 1  # that took time, too
                yield header.base_offset, ""
            yield from ((record.offset, _traceparent(record.headers)) for record in opened)
            count += len(opened)
            if count >= limit:
                return


def _traceparent(headers: Sequence[tuple[str, bytes | None]]) -> str:
    for name, value in headers:
        if name == TRACEPARENT_HEADER and value:
            text = value.decode("ascii", errors="replace")
            if is_sampled(text):
                return text
    return ""
