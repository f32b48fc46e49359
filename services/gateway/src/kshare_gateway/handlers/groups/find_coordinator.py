"""FindCoordinator (key 10), versions 0 to 6: the response is always the gateway that was asked.

Every gateway serves every group and transactional id. Key types: 0 group, 1 transaction, 2 share (KIP-932; the key must
be "group:topicId:partition", else INVALID_REQUEST). The gateway forwards ReadShareGroupState and its like to the share
coordinator of each share-partition.
"""

from __future__ import annotations

import re

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import parse_topic_id
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, denied
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.catalog import client_endpoint
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
FIRST_VERSION_WITH_SHARE = 6
MAXIMUM_PARTITION = (1 << 31) - 1
_PARTITION = re.compile(r"[0-9]{1,10}")


async def handle(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[_find(context, request.key_type, key) for key in request.coordinator_keys]
        )
    return _sole(_find(context, request.key_type, request.key))


def failed(context: RequestContext, request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    if context.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[_refused(key, error.code, error.message) for key in request.coordinator_keys]
        )
    return _sole(_refused(request.key, error.code, error.message))


def _sole(found: Coordinator) -> FindCoordinatorResponse:
    """The response of a version whose requests have one key."""
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(context: RequestContext, key_type: int, key: str) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION, SHARE) or (
        key_type == SHARE and context.version < FIRST_VERSION_WITH_SHARE
    ):
        return _refused(
            key, ErrorCode.INVALID_REQUEST, f"Key type {key_type} is not allowed in version {context.version}"
        )
    if key_type == SHARE and not _is_share_key(key):
        return _refused(key, ErrorCode.INVALID_REQUEST, f"Key {key!r} is not of the form group:topicId:partition")
    if (problem := _denial(context, key_type, key)) is not None:
        return _refused(key, problem.code, problem.message)
    node = context.gateway.view.node(coordinator_pb2.ROLE_GATEWAY, context.gateway.node_id)
    endpoint = None if node is None else client_endpoint(node, context.listener)
    if node is None or endpoint is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "This gateway is not in the catalog yet")
    return Coordinator(key=key, node_id=node.node_id, host=endpoint.host, port=endpoint.port)


def _denial(context: RequestContext, key_type: int, key: str) -> KafkaError | None:
    needs = {
        GROUP: (Operation.DESCRIBE, ResourceType.GROUP, key),
        TRANSACTION: (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key),
        SHARE: (Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME),
    }
    operation, kind, name = needs[key_type]
    return None if context.authorize(operation, kind, name) else denied(kind)


def _refused(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, error_code=code, error_message=message, node_id=-1, host="", port=-1)


def _is_share_key(key: str) -> bool:
    """Kafka's SharePartitionKey.validate; the group may hold colons itself."""
    parts = key.rsplit(":", 2)
    if len(parts) != 3 or not parts[0].strip() or _PARTITION.fullmatch(parts[2]) is None:
        return False
    try:
        parse_topic_id(parts[1])
    except ValueError:
        return False
    return int(parts[2]) <= MAXIMUM_PARTITION


serve(
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    VersionRange(0, 6),
    access=Access(by_handler="Describe on the group or transactional id; ClusterAction for share-partitions"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("coordinator_keys",), "coordinators"),
)
