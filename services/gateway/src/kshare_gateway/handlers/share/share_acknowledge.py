"""ShareAcknowledge (key 79), versions 1 and 2: answered when the leaders' states are durable.

Version 2 has IsRenewAck, and the lock timeout in its response. It never opens a session; the final epoch (-1) processes
the acknowledgements, then releases the member's remaining records. The response has every acknowledged partition.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import serve
from kshare_gateway.share.requests import (
    Acknowledgements,
    LeaderHints,
    add_acknowledgements,
    by_topic,
    close_session,
    lock_timeout_ms,
    merged,
    session_key,
)
from kshare_gateway.share.sessions import FINAL_EPOCH
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    key = session_key(request)
    epoch = request.share_session_epoch
    acknowledgements: Acknowledgements = {}
    for topic in request.topics:
        for entry in topic.partitions:
            if not entry.acknowledgement_batches:  # left out of the answer, as by Kafka
                continue
            partition = TopicPartition(topic.topic_id, entry.partition_index)
            add_acknowledgements(acknowledgements, partition, entry.acknowledgement_batches)
    sessions = context.gateway.sessions
    if epoch == FINAL_EPOCH:
        session = sessions.expect(key, context.connection_id)
    else:
        session = sessions.acknowledge(key, epoch, context.connection_id)
    answers = await context.share_fetcher.acknowledge(session, acknowledgements, is_renew_ack=request.is_renew_ack)
    if epoch == FINAL_EPOCH:
        await close_session(context, key)
    hints = LeaderHints(context)
    return {
        "acquisition_lock_timeout_ms": lock_timeout_ms(context, key.group_id, answers),
        "responses": by_topic(
            (
                answer.key.topic_id,
                {
                    "partition_index": answer.key.partition,
                    "error_code": answer.acknowledge_error_code,
                    "error_message": answer.acknowledge_error_message,
                    "current_leader": hints.current_leader(answer.key, answer.acknowledge_error_code),
                },
            )
            for answer in merged(answers)
        ),
        "node_endpoints": hints.node_endpoints(),
    }


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"error_code": error.code, "error_message": error.message}


serve(ApiKey.SHARE_ACKNOWLEDGE, VersionRange(1, 2), handle=handle, failed=failed)
