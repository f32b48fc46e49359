"""ListConfigResources (key 74), versions 0 and 1: the resources that have configs, by name and type.

Version 0 asks for client metrics only, of which there are none here. A version 1 request names types, no types meaning
all: topics, brokers, broker loggers, client metrics and the groups that have configs of their own. Another type makes
the whole response UNSUPPORTED_VERSION, as in Kafka 4.3.1.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.internal_topics import all_topics
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import on_cluster
from kshare_gateway.served_apis import ResponseSize, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.list_config_resources import ListConfigResourcesRequest
from kshare_wire.generated.responses.list_config_resources import ConfigResource, ListConfigResourcesResponse

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SUPPORTED_TYPES = ((CLIENT_METRICS,), (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC))
"""By version, in the order of the answer."""


async def handle(context: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    supported = SUPPORTED_TYPES[context.version]
    wanted = set(request.resource_types if context.version > 0 else ()) or set(supported)
    if not wanted <= set(supported):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    brokers = [str(node.node_id) for node in context.gateway.view.gateways()]
    names = {
        GROUP: sorted(group for group, configs in context.gateway.view.group_configs.items() if configs),
        CLIENT_METRICS: [],
        BROKER_LOGGER: brokers,
        BROKER: brokers,
        TOPIC: [topic.name for topic in all_topics(context.gateway)],
    }
    resources = [
        ConfigResource(resource_name=name, resource_type=kind)
        for kind in supported
        if kind in wanted
        for name in names[kind]
    ]
    return ListConfigResourcesResponse(config_resources=resources)


serve(
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    VersionRange(0, 1),
    access=on_cluster(Operation.DESCRIBE_CONFIGS),
    handle=handle,
    size=ResponseSize.LONG,
)
