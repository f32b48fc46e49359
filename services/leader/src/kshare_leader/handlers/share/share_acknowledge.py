"""ShareAcknowledge (key 79, versions 1-2): acknowledgements of records that a member has acquired.

All share-partitions of the request are changed first, then all their writes are awaited, so that the writes travel
together. An answer without error means that the state is durable. A share-partition that is not in memory has no
acquired records, so its acknowledgements are INVALID_RECORD_STATE, unless they are malformed: those are INVALID_REQUEST
whatever the state is. The answer has every partition of the request.

The gateway checks session epochs. ShareFetch uses the same code for the acknowledgements that it carries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_core.tracing import current_traceparent
from kshare_fastpath.prompt_future import PromptFuture, when_all_ended
from kshare_leader.machine.acknowledgement import AcknowledgementBatch, check_batches
from kshare_leader.machine.interval_map import Owner
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.pending_writes import Stored
from kshare_rpc.generated.kshare.v1 import leader_pb2

Acknowledged = Stored | KafkaError | None
"""The write to wait for, or the error, or None where there is nothing to wait for."""


def owner_of(owner: leader_pb2.ShareSessionOwner) -> Owner:
    return Owner(owner.member_id, owner.gateway_id, owner.gateway_incarnation, owner.broker_number)


def begin_acknowledgement(
    directory: SharePartitionDirectory,
    key: SharePartitionKey,
    owner: Owner,
    batches: Iterable[leader_pb2.AcknowledgementBatch],
    *,
    is_renew_ack: bool,
    delivered_fetch_number: int,
) -> Acknowledged:
    """Applies the acknowledgements of one share-partition, without waiting."""
    translated = [
        AcknowledgementBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types) for batch in batches
    ]
    try:
        directory.check_leadership(key.topic_partition)
        served = directory.find(key)
        if served is None:
            text = f"nothing of share-partition {key} is acquired"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
        return served.acknowledge(
            owner, translated, is_renew_ack=is_renew_ack, delivered_fetch_number=delivered_fetch_number
        )
    except KafkaError as error:
        return _refusal(error, translated, is_renew_ack=is_renew_ack)


def _refusal(error: KafkaError, batches: Sequence[AcknowledgementBatch], *, is_renew_ack: bool) -> KafkaError:
    """`error`, or INVALID_REQUEST where a batch is malformed: Kafka validates batches before it looks for records."""
    try:
        check_batches(batches, renew_allowed=is_renew_ack)
    except KafkaError as malformed:
        return malformed
    return error


async def end_of(acknowledged: Acknowledged) -> KafkaError | None:
    """Waits for the result: None when all is durable. The write continues if the waiting task is cancelled."""
    if isinstance(acknowledged, asyncio.Future):
        return await acknowledged
    return acknowledged


class AcknowledgeCall:
    """One ShareAcknowledge; `answer` is set when all its writes have ended."""

    def __init__(
        self, directory: SharePartitionDirectory, request: leader_pb2.ShareAcknowledgeRequest, metrics: LeaderMetrics
    ) -> None:
        self._metrics = metrics
        self._started_at = metrics.now()
        self._traceparent = current_traceparent.get()
        self._directory = directory
        self._request = request
        self.answer: PromptFuture[leader_pb2.ShareAcknowledgeResponse] = PromptFuture(loop=asyncio.get_running_loop())

    def begin(self) -> None:
        """Applies all acknowledgements and starts to wait for their writes."""
        request, directory = self._request, self._directory
        group_id = request.owner.group_id
        owner = owner_of(request.owner)
        self._acknowledged = [
            begin_acknowledgement(
                directory,
                SharePartitionKey(group_id, partition.topic_id, partition.partition),
                owner,
                partition.acknowledgement_batches,
                is_renew_ack=request.is_renew_ack,
                delivered_fetch_number=request.delivered_fetch_number,
            )
            for partition in request.partitions
        ]
        writes = [each for each in self._acknowledged if isinstance(each, PromptFuture)]
        when_all_ended(writes, lambda: self.answer.complete(self._response))

    def _response(self) -> leader_pb2.ShareAcknowledgeResponse:
        request, directory = self._request, self._directory
        lock_duration_ms = directory.settings(request.owner.group_id).limits.lock_duration_ms
        response = leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_duration_ms)
        for partition, acknowledged in zip(request.partitions, self._acknowledged, strict=True):
            error = acknowledged.result() if isinstance(acknowledged, PromptFuture) else acknowledged
            answer = response.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
            if error is not None:
                answer.error_code = error.code
                answer.error_message = error.message
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    leader = directory.current_leader(TopicPartition(partition.topic_id, partition.partition))
                    if leader is not None:
                        answer.current_leader.CopyFrom(leader)
        duration_s = self._metrics.now() - self._started_at
        durations = self._metrics.of_group(request.owner.group_id).acknowledge_s
        durations.observe(duration_s)
        if self._traceparent:
            durations.exemplify(duration_s, self._traceparent)
        return response
