"""Fetch (key 1), versions 4 to 18: records of ordinary consumers, from all partitions' leaders at once.

Records of `__share_group_state` come from the share coordinators in the same way.

Topics are given by name up to version 12, by id from 13 on. Responses never have a fetch session (session id 0), so
every request names its partitions in full; a request of a session is FETCH_SESSION_ID_NOT_FOUND. With one leader the
request waits there. With several, all are first asked without waiting; if they return too little, all are asked to
wait, until the first one has records. The waits of the others end with the connection's next Fetch, or with the
connection (`records.waiting_fetches`). Fetching has no effect, so what they answer is dropped.

As in Kafka, an error of a leader ends the wait, and so does a partition that has no leader. A partition that is unknown
or that the client may not read does not. Replicas cannot fetch. A leader that does not answer is
NOT_LEADER_OR_FOLLOWER. Requests wait for partitions in a reassignment (`records.reassignment`). A request may name many
thousands of partitions, so all loops over them work in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import chain

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.catalog.internal_topics import RecordSource, record_source, topic_named
from kshare_gateway.connections.request_memory import LEAST_ANSWER_BYTES, LeftOut
from kshare_gateway.gateway import bounded_wait_ms
from kshare_gateway.records.reassignment import ReassignmentWait
from kshare_gateway.records.waiting_fetches import FetchPlace
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, check_cluster, topic_name_of_id
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.fetch import FetchPartition, FetchRequest, FetchTopic
from kshare_wire.generated.responses.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from kshare_wire.messages import Buffer

FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_REPLICA_STATE = 15
FULL_SESSION_EPOCHS = (-1, 0)

_Key = tuple[bytes | str, int]
_Wanted = leader_pb2.FetchRequest.Partition
_Bodies = dict[TopicPartition, PartitionData]


async def handle(context: RequestContext, request: FetchRequest) -> FetchResponse:
    if context.version >= 7 and request.session_epoch not in FULL_SESSION_EPOCHS:
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"There is no fetch session {request.session_id}")
    if _replica_id(context, request) >= 0:
        check_cluster(context, Operation.CLUSTER_ACTION)
    patience = context.gateway.reassignments.begin()
    while True:
        results, codes = await _ask(context, request, patience)
        if not await patience.should_ask_again(codes):
            return await _body_in_slices(context, request, results)


async def _ask(
    context: RequestContext, request: FetchRequest, patience: ReassignmentWait
) -> tuple[dict[_Key, PartitionData], dict[TopicPartition, int]]:
    """The responses, and the error codes of the partitions that leaders were asked for."""
    results: dict[_Key, PartitionData] = {}
    wanted: dict[TopicPartition, _Wanted] = {}
    by_source: dict[RecordSource, list[_Wanted]] = {}
    asked_for: dict[TopicPartition, bytes | str] = {}
    checked = cache(partial(_topic_id, context, request))  # a denial has one line, however many partitions are named
    count = context.count_elements()
    for asked, partition in _partitions(context, request):
        if count.add():
            await count.next_slice()
        topic_id, code = checked(asked)
        key = TopicPartition(topic_id, partition.partition)
        if code:
            results[(asked, partition.partition)] = _refusal(partition.partition, code)
            continue
        asked_for[key] = asked
        wanted[key] = _wanted(key, partition)
    await patience.until_served(wanted)
    may_wait = True
    for key, entry in wanted.items():
        if count.add():
            await count.next_slice()
        source, code = record_source(context.gateway, key)
        if source is None:
            results[(asked_for[key], key.partition)] = _refusal(key.partition, code)
            may_wait = may_wait and code != ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            by_source.setdefault(source, []).append(entry)
    found = await _fetch(context, by_source, request, may_wait=may_wait)
    for key, body in found.items():
        if count.add():
            await count.next_slice()
        if isinstance(asked_for[key], str):
            body.error_code = context.gateway.code_for_names(body.error_code)
        results[(asked_for[key], key.partition)] = body
    return results, {key: body.error_code for key, body in found.items()}


def _replica_id(context: RequestContext, request: FetchRequest) -> int:
    """-1 for a consumer."""
    state = request.replica_state
    return state.replica_id if context.version >= FIRST_VERSION_WITH_REPLICA_STATE and state else request.replica_id


def _problem(context: RequestContext, request: FetchRequest, asked: bytes | str) -> ErrorCode:
    """Why the client may not read a topic; an unknown one cannot be checked, so it is not used after a wait."""
    if context.gateway.authorizer is None or _replica_id(context, request) >= 0:
        return ErrorCode.NONE
    name = topic_name_of_id(context, asked) if isinstance(asked, bytes) else asked
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    may_read = context.authorize(Operation.READ, ResourceType.TOPIC, name)
    return ErrorCode.NONE if may_read else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def failed(context: RequestContext, request: FetchRequest, error: KafkaError) -> FetchResponse:
    if context.version >= 7:
        return FetchResponse(error_code=error.code)
    topics = [
        _topic_body(topic, [_refusal(partition.partition, error.code) for partition in topic.partitions])
        for topic in request.topics
    ]
    return FetchResponse(responses=topics)


def _asked(context: RequestContext, topic: FetchTopic) -> bytes | str:
    asked: bytes | str = topic.topic_id if context.version >= FIRST_VERSION_WITH_IDS else topic.topic
    return asked


def _partitions(context: RequestContext, request: FetchRequest) -> Iterator[tuple[bytes | str, FetchPartition]]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield _asked(context, topic), partition


def _topic_id(context: RequestContext, request: FetchRequest, asked: bytes | str) -> tuple[bytes, ErrorCode]:
    """The id of a topic, or why it cannot be read; a name is looked up only for a client that may read it."""
    if problem := _problem(context, request, asked):
        return b"", problem
    if isinstance(asked, bytes):
        return asked, ErrorCode.NONE
    topic = topic_named(context.gateway, asked)
    return (b"", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else (topic.topic_id, ErrorCode.NONE)


def _wanted(key: TopicPartition, partition: FetchPartition) -> _Wanted:
    return _Wanted(
        topic_id=key.topic_id,
        partition=key.partition,
        current_leader_epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        partition_max_bytes=partition.partition_max_bytes,
    )


class _Room:
    """The size limit of each leader's response, by the room in `request_memory`."""

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self._context = context
        self._asked_bytes = min(request.max_bytes, context.gateway.configs.integer("fetch.max.bytes"))
        self._expected_bytes = request.min_bytes
        self.max_bytes = self.longest_batch_bytes = 0
        self.least_bytes = 0
        """The longest batch that was left out for lack of room."""
        self.left_out: set[TopicPartition] = set()
        """The partitions of such batches."""
        self.carried_bytes = 0
        """What the response needs for batches that an earlier Fetch left out, and this one again."""

    async def reserve(self, leaders: int, least_bytes: int = LEAST_ANSWER_BYTES) -> None:
        """Reserves room; several leaders get equal parts."""
        leaders = max(1, leaders)
        size = await self._context.reserve_answer(
            self._asked_bytes, least_bytes=least_bytes, expected_bytes=self._expected_bytes
        )
        self.max_bytes = max(1, min(self._asked_bytes, size) // leaders)
        self.longest_batch_bytes = size // leaders
        self.least_bytes = 0
        self.left_out.clear()
        self.carried_bytes = 0


async def _fetch(
    context: RequestContext,
    by_source: Mapping[RecordSource, Sequence[_Wanted]],
    request: FetchRequest,
    *,
    may_wait: bool,
) -> _Bodies:
    wait_ms = bounded_wait_ms(request.max_wait_ms) if may_wait else 0
    room = _Room(context, request)
    found = await _fetch_left_out(context, by_source, request, room)
    if not _is_enough(found, 1):
        await room.reserve(len(by_source))
        found = await _fetch_once(context, by_source, request, room, wait_ms)
    while room.least_bytes and not _is_enough(found, 1):
        await room.reserve(len(by_source), room.least_bytes * len(by_source))
        found = await _fetch_once(context, by_source, request, room, 0)
    if context.account is not None:
        least_bytes = max(room.least_bytes * len(by_source), room.carried_bytes)
        context.account.left_out = LeftOut(frozenset(room.left_out), least_bytes) if room.left_out else None
    return found


async def _fetch_left_out(
    context: RequestContext, by_source: Mapping[RecordSource, Sequence[_Wanted]], request: FetchRequest, room: _Room
) -> _Bodies:
    """Fetches with room for the batches that the connection's last Fetch left out, if this one asks for them.

    Their partitions come first: a client may name another one first each time, and each of those may have records. What
    has no room even so is carried on to the next Fetch.
    """
    before = context.account.left_out if context.account is not None else None
    if before is None:
        return {}
    count = context.count_elements()
    first: dict[RecordSource, list[_Wanted]] = {source: [] for source in by_source}
    others: dict[RecordSource, list[_Wanted]] = {source: [] for source in by_source}
    for source, wanted in by_source.items():
        for entry in wanted:
            is_first = TopicPartition(entry.topic_id, entry.partition) in before.partitions
            (first if is_first else others)[source].append(entry)
            if count.add():
                await count.next_slice()
    if not any(first.values()):
        return {}
    await room.reserve(len(by_source), before.least_bytes)
    in_order = {source: [*first[source], *others[source]] for source in by_source}
    found = await _fetch_once(context, in_order, request, room, 0)
    for entry in chain(*first.values()):
        key = TopicPartition(entry.topic_id, entry.partition)
        if (body := found.get(key)) is not None and not body.error_code and not any(body.records or ()):
            end_offset = body.last_stable_offset if request.isolation_level else body.high_watermark
            if entry.fetch_offset < end_offset:
                room.left_out.add(key)
                room.carried_bytes = before.least_bytes
    return found


async def _fetch_once(
    context: RequestContext,
    by_source: Mapping[RecordSource, Sequence[_Wanted]],
    request: FetchRequest,
    room: _Room,
    wait_ms: int,
) -> _Bodies:
    if len(by_source) == 1:
        ((source, wanted),) = by_source.items()
        return await _fetch_at(context, source, wanted, request, room, wait_ms)
    calls = [_fetch_at(context, source, wanted, request, room, 0) for source, wanted in by_source.items()]
    found: _Bodies = {}
    for bodies in await asyncio.gather(*calls):
        found.update(bodies)
    if not by_source or wait_ms == 0 or room.least_bytes or _is_enough(found, request.min_bytes):
        return found
    waiting = [
        context.gateway.spawn(_fetch_at(context, source, wanted, request, room, wait_ms), "fetch")
        for source, wanted in by_source.items()
    ]
    for finished in asyncio.as_completed(waiting):
        bodies = await finished
        found.update(bodies)
        if room.least_bytes or _is_enough(bodies, 1):
            break
    return found


def _is_enough(bodies: _Bodies, minimum_bytes: int) -> bool:
    size = 0
    for body in bodies.values():
        if body.error_code:
            return True
        size += sum(map(len, body.records or ()))
    return size >= minimum_bytes


async def _fetch_at(
    context: RequestContext,
    source: RecordSource,
    wanted: Sequence[_Wanted],
    request: FetchRequest,
    room: _Room,
    wait_ms: int,
) -> _Bodies:
    gateway, connection_id = context.gateway, context.connection_id
    if not context.is_wanted():
        wait_ms = 0
    asked = leader_pb2.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min(request.min_bytes, room.max_bytes),
        max_bytes=room.max_bytes,
        isolation_level=request.isolation_level,
        partitions=wanted,
        longest_batch_bytes=room.longest_batch_bytes,
        waiter=gateway.waiting_fetches.waiter(connection_id),
    )
    place = FetchPlace(source.address, source.fetch)
    try:
        with gateway.waiting_fetches.waiting(connection_id, place) if wait_ms else nullcontext():
            answer, payload = await gateway.call_leader(source.address, source.fetch, asked, wait_ms=wait_ms)
    except CallFailed as failure:
        gateway.call_failed(source.fetch.name, source.address, failure)
        return {
            TopicPartition(entry.topic_id, entry.partition): _refusal(entry.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            for entry in wanted
        }
    room.least_bytes = max(room.least_bytes, answer.least_bytes)
    bodies: _Bodies = {}
    position = 0
    count = context.count_elements()
    for entry in answer.partitions:
        if count.add():
            await count.next_slice()
        stop = position + entry.records_length
        records: list[Buffer] = [payload[position:stop]] if entry.records_length else []
        position = stop
        if entry.is_left_out:
            room.left_out.add(TopicPartition(entry.topic_id, entry.partition))
        bodies[TopicPartition(entry.topic_id, entry.partition)] = PartitionData(
            partition_index=entry.partition,
            error_code=entry.error_code,
            high_watermark=entry.high_watermark,
            last_stable_offset=entry.last_stable_offset,
            log_start_offset=entry.log_start_offset,
            aborted_transactions=[
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in entry.aborted_transactions
            ]
            if request.isolation_level
            else None,
            preferred_read_replica=-1,
            records=records,
        )
    if not bodies:  # the wait was ended (`records.waiting_fetches`): nothing was read, and no error
        for asked_partition in wanted:
            key = TopicPartition(asked_partition.topic_id, asked_partition.partition)
            bodies[key] = _refusal(key.partition, ErrorCode.NONE)
    return bodies


def _refusal(index: int, code: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=[],
    )


async def _body_in_slices(
    context: RequestContext, request: FetchRequest, results: Mapping[_Key, PartitionData]
) -> FetchResponse:
    topics: list[FetchableTopicResponse] = []
    count = context.count_elements()
    answered: set[_Key] = set()
    for topic in request.topics:
        asked = _asked(context, topic)
        partitions: list[PartitionData] = []
        for entry in topic.partitions:
            if count.add():
                await count.next_slice()
            key = (asked, entry.partition)
            if key in answered:  # a partition that is named again has its records once, as in Kafka
                continue
            answered.add(key)
            partitions.append(results.get(key) or _refusal(entry.partition, ErrorCode.UNKNOWN_SERVER_ERROR))
        topics.append(_topic_body(topic, partitions))
    return FetchResponse(responses=topics)


def _topic_body(topic: FetchTopic, partitions: list[PartitionData]) -> FetchableTopicResponse:
    return FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)


serve(
    FetchRequest,
    FetchResponse,
    VersionRange(4, 18),
    access=Access(by_handler="Read on the topics; ClusterAction for a replica"),
    handle=handle,
    failed=failed,
    size=ResponseSize.RECORDS,
    works_in_slices=True,
)
