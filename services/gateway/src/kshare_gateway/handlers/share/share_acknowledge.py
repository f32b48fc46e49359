"""ShareAcknowledge (key 79), versions 1 and 2: answered when the leaders' states are durable.

Version 2 has IsRenewAck, and the lock timeout in its response. It never opens a session; the final epoch (-1) processes
the acknowledgements, then releases the member's remaining records. The response has every acknowledged partition, and
beside one also those that are named without acknowledgements, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_group
from kshare_gateway.served_apis import serve
from kshare_gateway.share.answers import LeaderAnswer, PartitionAnswer
from kshare_gateway.share.requests import (
    Acknowledgements,
    LeaderHints,
    add_acknowledgements,
    by_topic,
    close_session,
    lock_timeout_ms,
    merged,
    session_key,
    take_denied_acknowledgements,
)
from kshare_gateway.share.sessions import FINAL_EPOCH
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.share_acknowledge import ShareAcknowledgeRequest
from kshare_wire.generated.responses.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


async def handle(context: RequestContext, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    key = session_key(context, request)
    epoch = request.share_session_epoch
    acknowledgements: Acknowledgements = {}
    without_batches: Acknowledgements = {}
    for topic in request.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.topic_id, entry.partition_index)
            kind = acknowledgements if entry.acknowledgement_batches else without_batches
            add_acknowledgements(kind, partition, entry.acknowledgement_batches)
    for partition in acknowledgements:  # listed twice
        without_batches.pop(partition, None)
    sessions = context.gateway.sessions
    if epoch == FINAL_EPOCH:
        session = sessions.expect(key, context.connection_id)
    else:
        session = sessions.acknowledge(key, epoch, context.connection_id)
    denied = take_denied_acknowledgements(context, acknowledgements)
    denied += take_denied_acknowledgements(context, without_batches)
    answers = await context.share_fetcher.acknowledge(session, acknowledgements, is_renew_ack=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        await close_session(context, key)
    if without_batches:
        answers.append(LeaderAnswer("", _without_batches(context, without_batches, acknowledgements)))
    hints = LeaderHints(context)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_timeout_ms(context, key.group_id, answers),
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(
                (answer.key.topic_id, _partition(answer, hints)) for answer in [*merged(answers), *denied]
            )
        ],
        node_endpoints=[
            NodeEndpoint(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in hints.node_endpoints()
        ],
    )


def _without_batches(
    context: RequestContext, keys: Iterable[TopicPartition], acknowledged: Iterable[TopicPartition]
) -> list[PartitionAnswer]:
    """Answers for the partitions `keys`; Kafka leaves those without errors out unless another is acknowledged."""
    is_beside_others = not all(_unknown(context, key) for key in acknowledged)
    answers = []
    for key in keys:
        code = _unknown(context, key)
        if code or is_beside_others:
            answers.append(PartitionAnswer(key, is_acknowledged=True, acknowledge_error_code=code))
    return answers


def _unknown(context: RequestContext, key: TopicPartition) -> ErrorCode:
    """The error of a topic or partition that does not exist, or NONE."""
    _, code = context.gateway.leader_of(key)
    return code if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) else ErrorCode.NONE


def _partition(answer: PartitionAnswer, hints: LeaderHints) -> PartitionData:
    leader = hints.current_leader(answer.key, answer.acknowledge_error_code)
    return PartitionData(
        partition_index=answer.key.partition,
        error_code=answer.acknowledge_error_code,
        error_message=answer.acknowledge_error_message,
        current_leader=LeaderIdAndEpoch(leader_id=leader.leader_id, leader_epoch=leader.leader_epoch),
    )


serve(
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    VersionRange(1, 2),
    access=on_group(Operation.READ, by_handler="Read on the topics"),
    handle=handle,
)
