"""WriteShareGroupState (key 85), versions 0 and 1 (DeliveryCompleteCount); see `state.requests`.

Version 0 does not know how many records are done, so its writes say -1: not known.
"""

from __future__ import annotations

from kshare_core.errors import KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_gateway.state.requests import StateRequest, ask_share_coordinators, no_fields, refuse_all
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import WRITE_SHARE_GROUP_STATE
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    return await ask_share_coordinators(context, request, _REQUEST)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refuse_all(request, error)


def _partition(key: SharePartitionKey, entry: Message) -> messages.WriteShareGroupStateRequest.SharePartition:
    return messages.WriteShareGroupStateRequest.SharePartition(
        topic_id=key.topic_id,
        partition=key.partition,
        state_epoch=entry.state_epoch,
        leader_epoch=entry.leader_epoch,
        start_offset=entry.start_offset,
        delivery_complete_count=entry.delivery_complete_count,
        state_batches=[
            messages.StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in entry.state_batches
        ],
    )


_REQUEST = StateRequest(WRITE_SHARE_GROUP_STATE, _partition, no_fields)


serve(
    ApiKey.WRITE_SHARE_GROUP_STATE,
    VersionRange(0, 1),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("topics",), "results", "partitions", "partitions"),
)
