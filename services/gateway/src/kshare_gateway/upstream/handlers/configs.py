"""DescribeConfigs and IncrementalAlterConfigs in front of an existing cluster: its configs, and those of share groups.

Configs of groups whose names begin with `share.` or `errors.deadletterqueue.` are kshare's, all others are the
cluster's. A topic's `errors.deadletterqueue.group.enable` is kshare's too, and true unless it was set. A resource
of a request with both kinds is divided; its result has the first error. Configs of consumer groups are shown where the
cluster has configs of groups at all (Kafka 3.8). In mode share brokers are gateways, so their configs are kshare's. In
mode proxy they are the cluster's, and `kshare.coordinator.address` is added where a request names it, for kshare's
commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from kshare_gateway.handlers.admin import describe_configs as local_description
from kshare_gateway.handlers.admin import incremental_alter_configs as local_alteration
from kshare_gateway.handlers.admin.describe_configs import (
    COORDINATOR_ADDRESS,
    DEAD_LETTERS_ENABLE,
    dead_letters_entry,
)
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access
from kshare_gateway.served_apis import ElementArrays, ResponseSize, served_api
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.responses.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from kshare_wire.generated.responses.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER, GROUP = 2, 4, 32
OF_SHARE_GROUPS = ("share.", "errors.deadletterqueue.")
"""Beginnings of the names of group configs that are kshare's."""


async def describe_configs(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    own_types = _own_types(context)
    asked_here = [resource for resource in request.resources if resource.resource_type in own_types]
    answer = DescribeConfigsResponse()
    theirs = [resource for resource in request.resources if _asks_cluster(resource, own_types)]
    if theirs:
        part: DescribeConfigsRequest = request.replaced(resources=theirs)
        answer = await context.cluster.ask(part, VersionRange(1, context.version))
        _add_coordinators(context, theirs, answer)
        _add_configs_of_topics(context, request, answer)
    if not asked_here:
        return answer
    part = request.replaced(resources=asked_here)
    own = (await local_description.handle(context, part)).results
    of_cluster = {result.resource_name: result for result in answer.results if result.resource_type == GROUP}
    others = [result for result in answer.results if result.resource_type != GROUP]
    merged = [_merged(result, of_cluster.get(result.resource_name)) for result in own]
    return DescribeConfigsResponse(results=[*others, *merged], throttle_time_ms=answer.throttle_time_ms)


def _add_coordinators(
    context: RequestContext, asked: Sequence[DescribeConfigsResource], answer: DescribeConfigsResponse
) -> None:
    """Adds COORDINATOR_ADDRESS to brokers of which it was asked, where the cluster allowed to read their configs."""
    named = {
        resource.resource_name
        for resource in asked
        if resource.resource_type == BROKER and COORDINATOR_ADDRESS in (resource.configuration_keys or ())
    }
    for result in answer.results:
        if result.resource_type == BROKER and result.resource_name in named and not result.error_code:
            result.configs = [*result.configs, local_description.coordinator_entry(context.gateway)]


def _add_configs_of_topics(
    context: RequestContext, request: DescribeConfigsRequest, answer: DescribeConfigsResponse
) -> None:
    """Adds DEAD_LETTERS_ENABLE to the topics whose configs the cluster shows, where the request asks for it."""
    asked = {
        resource.resource_name
        for resource in request.resources
        if resource.resource_type == TOPIC
        and (not resource.configuration_keys or DEAD_LETTERS_ENABLE in resource.configuration_keys)
    }
    for result in answer.results:
        if result.resource_type == TOPIC and result.resource_name in asked and not result.error_code:
            own = dead_letters_entry(context.gateway, result.resource_name, request)
            result.configs = [*(each for each in result.configs if each.name != DEAD_LETTERS_ENABLE), own]


def _own_types(context: RequestContext) -> frozenset[int]:
    """The types of resources that kshare has configs of."""
    return frozenset({GROUP}) if context.cluster.front.ports is not None else frozenset({GROUP, BROKER})


def _asks_cluster(resource: DescribeConfigsResource, own_types: frozenset[int]) -> bool:
    """Not where only configs of share groups are asked for by name."""
    names = resource.configuration_keys
    if resource.resource_type in own_types - {GROUP}:
        return False
    return resource.resource_type != GROUP or not names or not all(name.startswith(OF_SHARE_GROUPS) for name in names)


def _merged(own: DescribeConfigsResult, theirs: DescribeConfigsResult | None) -> DescribeConfigsResult:
    if own.error_code or own.resource_type != GROUP:
        return own
    configs = [config for config in own.configs if config.name.startswith(OF_SHARE_GROUPS)]
    if theirs is not None and not theirs.error_code:
        configs += [config for config in theirs.configs if not config.name.startswith(OF_SHARE_GROUPS)]
    return DescribeConfigsResult(resource_type=GROUP, resource_name=own.resource_name, configs=configs)


async def incremental_alter_configs(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    own: list[AlterConfigsResource] = []
    theirs: list[AlterConfigsResource] = []
    own_types = _own_types(context)
    for resource in request.resources:
        if resource.resource_type in own_types - {GROUP}:
            own.append(resource)
            continue
        shares = [config for config in resource.configs if _is_own(resource, config.name)]
        others = [config for config in resource.configs if not _is_own(resource, config.name)]
        if shares or (resource.resource_type == GROUP and not others):
            own.append(resource.replaced(configs=shares) if others else resource)
        if others or resource.resource_type != GROUP:
            theirs.append(resource.replaced(configs=others) if shares else resource)
    results: list[AlterConfigsResourceResponse] = []
    throttle_ms = 0
    if theirs:
        answer = await context.cluster.ask(request.replaced(resources=theirs), VersionRange(0, context.version))
        results += answer.responses
        throttle_ms = answer.throttle_time_ms
    if own:
        results += (await local_alteration.handle(context, request.replaced(resources=own))).responses
    return IncrementalAlterConfigsResponse(responses=_one_each(results), throttle_time_ms=throttle_ms)


def _is_own(resource: AlterConfigsResource, name: str) -> bool:
    if resource.resource_type == TOPIC:
        return name == DEAD_LETTERS_ENABLE
    return resource.resource_type == GROUP and name.startswith(OF_SHARE_GROUPS)


def _one_each(results: Sequence[AlterConfigsResourceResponse]) -> list[AlterConfigsResourceResponse]:
    found: dict[tuple[int, str], AlterConfigsResourceResponse] = {}
    for result in results:
        key = (result.resource_type, result.resource_name)
        if key not in found or (result.error_code and not found[key].error_code):
            found[key] = result
    return list(found.values())


DESCRIBE_CONFIGS = served_api(
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    VersionRange(1, 4),
    access=Access(by_handler="as the cluster and kshare's own DescribeConfigs"),
    handle=describe_configs,
    failed=local_description.failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("resources",), "results", described=local_description.identity_of),
)
INCREMENTAL_ALTER_CONFIGS = served_api(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    VersionRange(0, 1),
    access=Access(by_handler="as the cluster and kshare's own IncrementalAlterConfigs"),
    handle=incremental_alter_configs,
    failed=local_alteration.failed,
    elements=ElementArrays(("resources",), "responses", identity=attrgetter("resource_type", "resource_name")),
)
