"""AlterConfigs (key 33), versions 0 to 2: replaces all configs of a resource; a config that is not named is removed.

It is the older form of IncrementalAlterConfigs, and otherwise the same (see there).
"""

from __future__ import annotations

from operator import attrgetter

from kshare_core.errors import KafkaError
from kshare_gateway.handlers.admin.incremental_alter_configs import Resource, altered
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.alter_configs import AlterConfigsRequest, AlterConfigsResource
from kshare_wire.generated.responses.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse

SET = 0


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    results = await altered(context, request.resources, _fill, _result, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=results)


def _fill(entry: Resource, resource: AlterConfigsResource) -> None:
    entry.replaces_all = True
    for config in resource.configs:
        value = config.value
        entry.configs.add(name=config.name, config_operation=SET, value=value or "", value_is_null=value is None)


def failed(context: RequestContext, request: AlterConfigsRequest, error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            _result(error.code, error.message, resource.resource_type, resource.resource_name)
            for resource in request.resources
        ]
    )


def _result(code: int, message: str, resource_type: int, resource_name: str) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message or None, resource_type=resource_type, resource_name=resource_name
    )


serve(
    AlterConfigsRequest,
    AlterConfigsResponse,
    VersionRange(0, 2),
    access=Access(by_handler="AlterConfigs on the topic, group or cluster"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("resources",), "responses", identity=attrgetter("resource_type", "resource_name")),
)
