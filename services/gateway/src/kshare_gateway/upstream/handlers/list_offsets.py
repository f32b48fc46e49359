"""ListOffsets in mode share: kshare's leaders find the offsets, of any topic of the cluster that the request names.

The catalog has only topics that share groups use. Others are looked up first: the tools ask for offsets of a topic
before its first group exists, such as `kafka-share-groups --reset-offsets`.
"""

from __future__ import annotations

from kshare_core.security.acls import Operation
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.handlers.records import list_offsets as local_offsets
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, each_topic
from kshare_gateway.served_apis import ElementArrays, served_api
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import LOOK_UP_TOPICS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.responses.list_offsets import ListOffsetsResponse


async def handle(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """KafkaError REQUEST_TIMED_OUT if the coordinator does not answer; topics that do not exist are unknown."""
    gateway = context.gateway
    known = gateway.view.topics_by_name
    unknown = dict.fromkeys(topic.name for topic in request.topics if topic.name not in known)
    if unknown:
        answer = await change_catalog(
            gateway, LOOK_UP_TOPICS, coordinator_pb2.LookUpTopicsRequest(topic_names=list(unknown))
        )
        if not answer.error_code:
            await gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
    return await local_offsets.handle(context, request)


LIST_OFFSETS = served_api(
    ListOffsetsRequest,
    ListOffsetsResponse,
    VersionRange(1, 11),
    access=Access(each=each_topic(Operation.DESCRIBE)),
    handle=handle,
    failed=local_offsets.failed,
    elements=ElementArrays(("topics",), "topics", "partitions", "partitions"),
)
