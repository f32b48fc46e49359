"""ListConfigResources in front of an existing cluster: its resources with configs, and the share groups with configs.

Topics and brokers come from the cluster's Metadata. Groups and client metrics are asked for where the cluster lists
them; before Kafka 4.1 it lists no groups, so only kshare's are in the answer. In mode share brokers are gateways.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.handlers.admin.list_config_resources import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    SUPPORTED_TYPES,
    TOPIC,
)
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, served_api
from kshare_gateway.upstream.handlers.topic_ids import ask_for_metadata
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_config_resources import ListConfigResourcesRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.responses.list_config_resources import ConfigResource, ListConfigResourcesResponse

CLIENT_METRICS_ALONE, ANY_TYPE = VersionRange(0, 0), VersionRange(1, 1)


async def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    supported = SUPPORTED_TYPES[context.version]
    wanted = set(request.resource_types if context.version > 0 else ()) or set(supported)
    if not wanted <= set(supported):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources: list[ConfigResource] = []
    for kind in supported:
        if kind in wanted:
            names = await _names(context, kind)
            resources += [ConfigResource(resource_name=name, resource_type=kind) for name in names]
    return ListConfigResourcesResponse(config_resources=resources)


async def _names(context: RequestContext, kind: int) -> Iterable[str]:
    view = context.gateway.view
    if kind in (BROKER, BROKER_LOGGER):
        front = context.cluster.front
        if front.ports is None:
            return [str(node.node_id) for node in view.gateways()]
        return [str(node_id) for node_id in sorted(front.brokers.view.brokers)]
    if kind == TOPIC:
        answer = await ask_for_metadata(context, MetadataRequest(topics=None))
        return [topic.name or "" for topic in answer.topics]
    theirs = await _of_cluster(context, kind, CLIENT_METRICS_ALONE if kind == CLIENT_METRICS else ANY_TYPE)
    if kind == GROUP:
        return sorted({*theirs, *(group for group, configs in view.group_configs.items() if configs)})
    return theirs


async def _of_cluster(context: RequestContext, kind: int, served: VersionRange) -> list[str]:
    """The cluster's resources of one type, none where its version of the API has not this type."""
    request = ListConfigResourcesRequest(resource_types=[kind] if served == ANY_TYPE else [])
    try:
        answer = await context.cluster.ask(request, served)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return []
        raise
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), "The cluster does not list its resources")
    return [each.resource_name for each in answer.config_resources]


LIST_CONFIG_RESOURCES = served_api(
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.DESCRIBE_CONFIGS),
    handle=handle,
    size=ResponseSize.LONG,
)
