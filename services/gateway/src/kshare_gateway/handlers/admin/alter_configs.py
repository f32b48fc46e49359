"""AlterConfigs (key 33), versions 0 to 2: replaces all configs of a resource; a config that is not named is removed.

It is the older form of IncrementalAlterConfigs, and otherwise the same (see there).
"""

from __future__ import annotations

from operator import attrgetter

from kshare_core.errors import KafkaError
from kshare_gateway.handlers.admin.incremental_alter_configs import Resource, alter, refused
from kshare_gateway.request_context import RequestContext
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_wire.api_versions import ApiKey, VersionRange
from kshare_wire.messages import Body, Message

SET = 0


async def handle(context: RequestContext, request: Message) -> Body:
    return await alter(context, request, _fill)


def _fill(entry: Resource, resource: Message) -> None:
    entry.replaces_all = True
    for config in resource.configs:
        value = config.value
        entry.configs.add(name=config.name, config_operation=SET, value=value or "", value_is_null=value is None)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return refused(request, error)


serve(
    ApiKey.ALTER_CONFIGS,
    VersionRange(0, 2),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("resources",), "responses", identity=attrgetter("resource_type", "resource_name")),
)
