"""Produce (key 0), versions 3 to 13: record bytes go to the partitions' leaders uncopied, to several at once.

Topics are given by name up to version 12, by id from 13 on. acks 1 and -1 are answered when the batch is durable. acks
0 has no response; on an error the connection is closed, as in Kafka, so that the producer notices. A partition without
records is INVALID_RECORD. A leader that does not answer is NOT_LEADER_OR_FOLLOWER, which producers retry; until then
their later batches are rejected, too (`awaited_batches`). Requests wait for partitions in a reassignment
(`records.reassignment`).

A transactional producer's request passes the transactional id to the leader, which from version 12 on adds partitions
to the transaction itself (KIP-890). Clients know TRANSACTION_ABORTABLE since version 11; older ones get
INVALID_TXN_STATE (AddPartitionsToTxnManager of Kafka 4.3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.catalog.internal_topics import internal_name
from kshare_gateway.connections.produce_order import ProduceTurn
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.records.awaited_batches import SENT_AGAIN, refusal
from kshare_gateway.request_context import ConnectionMustClose, RequestContext
from kshare_gateway.security.access import Access, Need, each_topic
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import PRODUCE
from kshare_rpc.network import CallFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.decompression import ZSTD
from kshare_wire.generated.requests.produce import PartitionProduceData, ProduceRequest
from kshare_wire.generated.responses.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kshare_wire.messages import ZERO_ID, Buffer
from kshare_wire.record_batches import COMPRESSION_MASK, HEADER_LENGTH, MAGIC, TRANSACTIONAL_MASK

_ACKS = (-1, 0, 1)
FIRST_VERSION_WITH_IDS = 13
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_THAT_ADDS_PARTITIONS = 12
FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 11

_OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

_Records = dict[TopicPartition, memoryview]
_Results = dict[tuple[bytes | str, int], PartitionProduceResponse]
"""Each partition's response, by topic id or name as requested, and partition index."""


class _Answers(NamedTuple):
    """The results of one leader's partitions.

    Without `is_from_leader` the leader did not answer, and the outcome is unknown.
    """

    bodies: dict[TopicPartition, PartitionProduceResponse]
    is_from_leader: bool


async def handle(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    results: _Results = {}
    asked_for: dict[TopicPartition, bytes | str] = {}
    records: _Records = {}
    refused = _transaction_problem(request)
    if refused is not None:
        return failed(context, request, refused)
    for asked, partition in _partitions(context, request):
        key, problem = _place(context, request, asked, partition)
        if problem is not None:
            results[(asked, partition.index)] = _refusal(partition.index, problem)
            if problem.code in SENT_AGAIN and partition.records:  # before any wait, in which a later batch may come
                context.gateway.awaited_batches.refused(
                    context.connection_id, asked, partition.index, partition.records
                )
            continue
        assert partition.records is not None  # _place refuses a partition without records
        records[key] = partition.records
        asked_for[key] = asked
    gateway = context.gateway
    turn = gateway.produce_order.begin(context.connection_id, records)

    def must_wait(key: TopicPartition) -> bool:
        place = (context.connection_id, asked_for[key], key.partition)
        return gateway.awaited_batches.must_wait(*place, records[key])

    try:
        for key, body in (await _produce_in_turn(context, request, records, turn, must_wait)).items():
            results[(asked_for[key], key.partition)] = body
        _note_what_is_sent_again(context, request, results)
    finally:
        turn.end()
    return _finished(context, request, results)


async def _produce_in_turn(
    context: RequestContext,
    request: ProduceRequest,
    records: _Records,
    turn: ProduceTurn,
    must_wait: Callable[[TopicPartition], bool],
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The partitions' responses; batches for partitions in a reassignment are retried for a short time."""
    found: dict[TopicPartition, PartitionProduceResponse] = {}
    patience = context.gateway.reassignments.begin()
    left = records
    while left:
        if patience.must_wait(left):
            turn.hold()
            await patience.until_served(left)
        await turn.wait(lambda key: context.gateway.leader_place(key)[0])
        too_early = {key: _refusal(key.partition, refusal()) for key in left if must_wait(key)}
        if too_early:
            found.update(too_early)
            left = {key: data for key, data in left.items() if key not in too_early}
        answers, refused = await _produce_at_leaders(context, left, request, turn)
        found.update(answers)
        overtaken = [key for key, code in refused.items() if code == _OUT_OF_ORDER and turn.is_overtaken]
        again = [*patience.refused(refused), *overtaken]
        if again:
            turn.hold()
        if not overtaken and not await patience.should_ask_again(refused):
            break
        left = {key: records[key] for key in again}
    out_of_order = [key for key, body in found.items() if body.error_code == _OUT_OF_ORDER]
    if out_of_order:
        await turn.is_first()
        found.update({key: _refusal(key.partition, refusal()) for key in out_of_order if must_wait(key)})
    return found


def _note_what_is_sent_again(context: RequestContext, request: ProduceRequest, results: _Results) -> None:
    if not any(body.error_code for body in results.values()):
        return
    for asked, partition in _partitions(context, request):
        body = results.get((asked, partition.index))
        if body is not None and body.error_code in SENT_AGAIN and partition.records:
            context.gateway.awaited_batches.refused(context.connection_id, asked, partition.index, partition.records)


def failed(context: RequestContext, request: ProduceRequest, error: KafkaError) -> ProduceResponse | None:
    results = {
        (asked, partition.index): _refusal(partition.index, error) for asked, partition in _partitions(context, request)
    }
    return _finished(context, request, results)


def _partitions(context: RequestContext, request: ProduceRequest) -> Iterator[tuple[bytes | str, PartitionProduceData]]:
    for topic in request.topic_data:
        asked = topic.topic_id if context.version >= FIRST_VERSION_WITH_IDS else topic.name
        for partition in topic.partition_data:
            yield asked, partition


def _place(
    context: RequestContext, request: ProduceRequest, asked: bytes | str, partition: PartitionProduceData
) -> tuple[TopicPartition, KafkaError | None]:
    """The partition's key at leaders, and the problem with it, if any."""
    nowhere = TopicPartition(ZERO_ID, -1)
    if request.acks not in _ACKS:
        return nowhere, KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; allowed are -1, 0 and 1")
    if not partition.records:
        return nowhere, KafkaError(ErrorCode.INVALID_RECORD, "A partition needs at least one record batch")
    if context.version < FIRST_VERSION_WITH_ZSTD and _attributes(partition.records) & COMPRESSION_MASK == ZSTD:
        text = f"zstd is allowed from version {FIRST_VERSION_WITH_ZSTD} of Produce on"
        return nowhere, KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, text)
    if (internal := internal_name(context.gateway.view, asked)) is not None:
        return nowhere, KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic {internal} is internal and read-only")
    if isinstance(asked, bytes):
        if context.gateway.authorizer is not None and asked not in context.gateway.view.topics_by_id:
            # It could not be checked, so it is not used after a wait.
            return nowhere, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this id")
        return TopicPartition(asked, partition.index), None
    known = context.gateway.view.topics_by_name.get(asked)
    if known is None:
        return nowhere, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No topic has the name {asked}")
    return TopicPartition(known.topic_id, partition.index), None


def _transaction_problem(request: ProduceRequest) -> KafkaError | None:
    """Transactional batches without a transactional id fail the whole request (KafkaApis.handleProduceRequest)."""
    if request.transactional_id is None:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                if partition.records and _attributes(partition.records) & TRANSACTIONAL_MASK:
                    text = "A request with transactional batches must name its transactional id"
                    return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
    return None


def _attributes(records: Buffer) -> int:
    """The lower byte of the first batch's attributes; 0 where there is no batch that could have any."""
    return records[22] if len(records) >= HEADER_LENGTH and records[16] == MAGIC else 0


async def _produce_at_leaders(
    context: RequestContext, left: _Records, request: ProduceRequest, turn: ProduceTurn
) -> tuple[dict[TopicPartition, PartitionProduceResponse], dict[TopicPartition, int]]:
    """The partitions' responses, and the error codes of those where certainly nothing was stored."""
    found: dict[TopicPartition, PartitionProduceResponse] = {}
    codes: dict[TopicPartition, int] = {}
    by_leader: dict[str, _Records] = {}
    for key, data in left.items():
        place, code = context.gateway.leader_place(key)
        if code:
            error = KafkaError(code, f"Partition {key.partition} has no known leader")
            found[key] = _refusal(key.partition, error)
            codes[key] = code
            turn.hold()  # its client or this gateway sends it again
        else:
            by_leader.setdefault(place.address, {})[key] = data
            turn.sent_to[key] = place
    calls = [_produce(context, address, records, request, turn) for address, records in by_leader.items()]
    for answers in [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls):
        found.update(answers.bodies)
        if answers.is_from_leader:
            codes.update({key: body.error_code for key, body in answers.bodies.items() if body.error_code})
    return found, codes


async def _produce(
    context: RequestContext,
    address: str,
    records: _Records,
    request: ProduceRequest,
    turn: ProduceTurn,
) -> _Answers:
    wanted = leader_pb2.ProduceRequest(acks=request.acks, timeout_ms=request.timeout_ms)
    if request.transactional_id is not None:
        wanted.transactional_id = request.transactional_id
        wanted.add_to_transaction = context.version >= FIRST_VERSION_THAT_ADDS_PARTITIONS
    for key, data in records.items():
        wanted.partitions.add(
            topic_id=key.topic_id,
            partition=key.partition,
            records_length=len(data),
            leader_epoch=turn.sent_to[key].leader_epoch,
        )
    wait_ms = min(max(0, request.timeout_ms), 2 * CALL_TIMEOUT_MS)
    try:
        answer, _ = await context.gateway.call_leader(address, PRODUCE, wanted, list(records.values()), wait_ms=wait_ms)
    except CallFailed as failure:
        context.gateway.call_failed("Produce", f"leader {address}", failure)
        turn.hold()  # until the other leaders have answered: only then is it noted what is sent again
        error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader did not respond: {failure}")
        return _Answers({key: _refusal(key.partition, error) for key in records}, is_from_leader=False)
    bodies = {TopicPartition(entry.topic_id, entry.partition): _accepted(context, entry) for entry in answer.partitions}
    if any(body.error_code in SENT_AGAIN for body in bodies.values()):
        turn.hold()  # likewise
    return _Answers(bodies, is_from_leader=True)


def _accepted(context: RequestContext, entry: leader_pb2.ProduceResponse.Partition) -> PartitionProduceResponse:
    code = entry.error_code
    if code == ErrorCode.TRANSACTION_ABORTABLE and context.version < FIRST_VERSION_WITH_TRANSACTION_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    if context.version < FIRST_VERSION_WITH_IDS:
        code = context.gateway.code_for_names(code)
    return PartitionProduceResponse(
        index=entry.partition,
        error_code=code,
        error_message=entry.error_message or None,
        base_offset=-1 if entry.error_code else entry.base_offset,
        log_append_time_ms=-1 if entry.error_code else entry.log_append_time_ms,
        log_start_offset=-1 if entry.error_code else entry.log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
            for error in entry.record_errors
        ],
    )


def _refusal(index: int, error: KafkaError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        error_message=error.message,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
    )


def _left_out(index: int) -> PartitionProduceResponse:
    error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The leader's response left this partition out")
    return _refusal(index, error)


def _finished(context: RequestContext, request: ProduceRequest, results: _Results) -> ProduceResponse | None:
    """The response in the order of the request; a partition that the leader left out gets an error."""
    topics: list[TopicProduceResponse] = []
    for topic in request.topic_data:
        asked = topic.topic_id if context.version >= FIRST_VERSION_WITH_IDS else topic.name
        bodies = [
            results.get((asked, partition.index)) or _left_out(partition.index) for partition in topic.partition_data
        ]
        topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=bodies))
    if request.acks != 0:
        return ProduceResponse(responses=topics)
    for topic_body in topics:
        for body in topic_body.partition_responses:
            if body.error_code:
                raise ConnectionMustClose(f"Produce with acks 0 failed: {body.error_message}")
    return None


def _transaction_of_records(request: ProduceRequest) -> str | None:
    """The transactional id, if there are transactional records, which alone need it."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if partition.records and _attributes(partition.records) & TRANSACTIONAL_MASK:
                return request.transactional_id or ""
    return None


WRITE_IN_TRANSACTION = Need(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, _transaction_of_records)

serve(
    ProduceRequest,
    ProduceResponse,
    VersionRange(3, 13),
    access=Access((WRITE_IN_TRANSACTION,), each_topic(Operation.WRITE)),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topic_data",), "responses", "partition_data", "partition_responses", is_split=False),
)
