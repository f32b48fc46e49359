"""DescribeTransactions and ListTransactions: look at the state and change nothing (TransactionCoordinator of 4.3.1).

The pattern of ListTransactions is in the syntax of RE2, as in Kafka. A pattern from outside must not hold up the
coordinator: its size is limited (`regular_expressions`), and ids are compared with it in slices.
"""

from __future__ import annotations

from collections.abc import Generator

from kshare_coordinator.machine.regular_expressions import STEPS_OF_CALL, InvalidExpression, RegularExpression
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata, TransactionState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

DescribedTransaction = pb.DescribeTransactionsResponse.TransactionState
ListedTransaction = pb.ListTransactionsResponse.TransactionState

STEPS_OF_SLICE = 4_000_000
"""About 5 ms."""
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
) -> Generator[None, None, pb.ListTransactionsResponse]:
    """The transactions as they are at the first step; yields after each slice of STEPS_OF_SLICE.

    KafkaError (INVALID_REGULAR_EXPRESSION) if the pattern is invalid.
    """
    unknown = [name for name in request.state_filters if name not in STATES_BY_NAME]
    found = _Filter(request, now_ms)
    listed = []
    steps = 0
    for metadata in list(state.transactions.values()):
        steps += found.cost(metadata)
        if found.includes(metadata):
            listed.append(
                ListedTransaction(
                    transactional_id=metadata.transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.kafka_name,
                )
            )
        if steps >= STEPS_OF_SLICE:
            steps = 0
            yield
    return pb.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)


class _Filter:
    def __init__(self, request: pb.ListTransactionsRequest, now_ms: int) -> None:
        self._producer_ids = frozenset(request.producer_id_filters)
        self._states = frozenset(request.state_filters)
        self._duration_ms = request.duration_filter_ms
        self._now_ms = now_ms
        self._pattern = _pattern(request.transactional_id_pattern)

    def cost(self, metadata: TransactionMetadata) -> int:
        """In steps of regular expressions."""
        return STEPS_OF_CALL if self._pattern is None else self._pattern.cost(metadata.transactional_id)

    def includes(self, metadata: TransactionMetadata) -> bool:
        if self._producer_ids and metadata.producer_id not in self._producer_ids:
            return False
        if self._states and metadata.state.kafka_name not in self._states:
            return False
        if self._duration_ms >= 0 and self._now_ms - metadata.start_timestamp_ms <= self._duration_ms:
            return False
        return self._pattern is None or self._pattern.matches(metadata.transactional_id)


def _pattern(text: str) -> RegularExpression | None:
    if not text:
        return None
    try:
        return RegularExpression(text)
    except InvalidExpression as invalid:
        message = f"The pattern of transactional ids is not a valid regular expression of RE2: {invalid}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from invalid
