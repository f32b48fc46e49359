"""DescribeTransactions and ListTransactions: look at the state and change nothing (TransactionCoordinator of 4.3.1).

The pattern of ListTransactions is in the syntax of RE2, as in Kafka, whose matching time is linear: a pattern from
outside must not be able to hold up the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable

import re2

from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata, TransactionState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

DescribedTransaction = pb.DescribeTransactionsResponse.TransactionState
ListedTransaction = pb.ListTransactionsResponse.TransactionState

STATES_BY_NAME = {state.kafka_name: state for state in TransactionState}


def describe_transactions(
    state: CoordinatorState, request: pb.DescribeTransactionsRequest
) -> pb.DescribeTransactionsResponse:
    described = [_described(state, transactional_id) for transactional_id in request.transactional_ids]
    return pb.DescribeTransactionsResponse(transaction_states=described)


def _described(state: CoordinatorState, transactional_id: str) -> DescribedTransaction:
    if not transactional_id:
        return DescribedTransaction(error_code=ErrorCode.INVALID_REQUEST)
    metadata = state.transactions.get(transactional_id)
    if metadata is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return DescribedTransaction(transactional_id=transactional_id, error_code=code)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=metadata.state.kafka_name,
        transaction_timeout_ms=metadata.transaction_timeout_ms,
        transaction_start_time_ms=metadata.start_timestamp_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=_topics(state, metadata),
    )


def _topics(state: CoordinatorState, metadata: TransactionMetadata) -> list[pb.NamedPartitions]:
    """By name; topics that were deleted meanwhile have none."""
    found: dict[bytes, pb.NamedPartitions] = {}
    for topic_id, partition in metadata.partitions:
        topic = state.topics.get(topic_id)
        if topic is not None:
            found.setdefault(topic_id, pb.NamedPartitions(topic_name=topic.name)).partitions.append(partition)
    return list(found.values())


def list_transactions(
    state: CoordinatorState, request: pb.ListTransactionsRequest, now_ms: int
) -> pb.ListTransactionsResponse:
    """KafkaError (INVALID_REGULAR_EXPRESSION) if the pattern is invalid."""
    unknown = [name for name in request.state_filters if name not in STATES_BY_NAME]
    includes = _filter(request, now_ms)
    listed = [
        ListedTransaction(
            transactional_id=metadata.transactional_id,
            producer_id=metadata.producer_id,
            transaction_state=metadata.state.kafka_name,
        )
        for metadata in state.transactions.values()
        if includes(metadata)
    ]
    return pb.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)


def _filter(request: pb.ListTransactionsRequest, now_ms: int) -> Callable[[TransactionMetadata], bool]:
    producer_ids = frozenset(request.producer_id_filters)
    names = frozenset(request.state_filters)
    pattern = _pattern(request.transactional_id_pattern)

    def includes(metadata: TransactionMetadata) -> bool:
        if producer_ids and metadata.producer_id not in producer_ids:
            return False
        if names and metadata.state.kafka_name not in names:
            return False
        if request.duration_filter_ms >= 0 and now_ms - metadata.start_timestamp_ms <= request.duration_filter_ms:
            return False
        return pattern is None or pattern(metadata.transactional_id)

    return includes


def _pattern(text: str) -> Callable[[str], bool] | None:
    """Whether a whole transactional id matches; None where there is no pattern."""
    if not text:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        message = f"{text!r} is not a regular expression in RE2's syntax: {error}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None
