"""IncrementalAlterConfigs (key 44), versions 0 and 1: topics, groups and brokers, checked and done by the coordinator.

A broker is named by its id, which must be this one's (the error tells the client to ask the right one), or by an empty
name for all brokers. Answered when this gateway has the new values. If the coordinator does not answer, the resources
get REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_gateway.catalog.changes import change_catalog
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway
from kshare_gateway.groups.id_limit import group_id_problem
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import Access, config_denial
from kshare_gateway.security.altered_configs import problem_of_listeners
from kshare_gateway.served_apis import ElementArrays, serve
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import INCREMENTAL_ALTER_CONFIGS
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.responses.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

BROKER, GROUP = 4, 32
RESOURCES_PER_TURN = 250
"""Of one request, in one turn of the event loop: a millisecond, or 5 ms where names have 32 KB."""

Resource = coordinator_pb2.IncrementalAlterConfigsRequest.Resource
Wanted = coordinator_pb2.IncrementalAlterConfigsRequest


class NamedResource(Protocol):
    """A resource in a request of either API."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


AResource = TypeVar("AResource", bound=NamedResource)
AResult = TypeVar("AResult")


async def handle(context: RequestContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    results = await altered(context, request.resources, _fill, _result, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=results)


def _fill(entry: Resource, resource: AlterConfigsResource) -> None:
    for config in resource.configs:
        entry.configs.add(
            name=config.name,
            config_operation=config.config_operation,
            value=config.value or "",
            value_is_null=config.value is None,
        )


def failed(
    context: RequestContext, request: IncrementalAlterConfigsRequest, error: KafkaError
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            _result(error.code, error.message, resource.resource_type, resource.resource_name)
            for resource in request.resources
        ]
    )


def _result(code: int, message: str, resource_type: int, resource_name: str) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code, error_message=message or None, resource_type=resource_type, resource_name=resource_name
    )


async def altered(
    context: RequestContext,
    resources: Sequence[AResource],
    fill: Callable[[Resource, AResource], None],
    result_of: Callable[[int, str, int, str], AResult],
    *,
    validate_only: bool,
) -> list[AResult]:
    """The results of a request, which may be AlterConfigs, too; KafkaError where the coordinator gives none.

    `fill` gives the coordinator's message the changes of one resource; `result_of` makes a result from code, message,
    resource type and name. Other requests are served between two stretches of resources, for a request may have 48 MB
    of names.
    """
    gateway = context.gateway
    wanted = Wanted(validate_only=validate_only)
    refused: list[AResult] = []
    brokers = Counter(resource.resource_name for resource in resources if resource.resource_type == BROKER)
    for number, resource in enumerate(resources, 1):
        kind, name = resource.resource_type, resource.resource_name
        problem = config_denial(context, Operation.ALTER_CONFIGS, kind, name) or _problem(gateway, kind, name)
        if problem is None:
            entry = wanted.resources.add(resource_type=kind, resource_name=name)
            fill(entry, resource)
            if kind == BROKER and brokers[name] == 1:  # the coordinator refuses what is given twice
                problem = problem_of_listeners(gateway, entry)
            if problem is not None:
                del wanted.resources[-1]
        if problem is not None:
            refused.append(result_of(problem.code, problem.message, kind, name))
        if number % RESOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
    results: list[AResult] = []
    for number, found in enumerate(await alter_catalog(gateway, wanted) if wanted.resources else (), 1):
        results.append(result_of(found.error_code, found.error_message, found.resource_type, found.resource_name))
        if number % RESOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
    return results + refused


async def alter_catalog(
    gateway: Gateway, wanted: Wanted
) -> Sequence[coordinator_pb2.IncrementalAlterConfigsResponse.Result]:
    """The coordinator's results, once this gateway has the new values."""
    answer = await change_catalog(gateway, INCREMENTAL_ALTER_CONFIGS, wanted)
    if not wanted.validate_only:
        await gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
    return answer.results


def _problem(gateway: Gateway, resource_type: int, name: str) -> KafkaError | None:
    """The problem with the name of a broker (ConfigAdminManager), or with the length of a group's name.

    The coordinator checks all else. It would refuse the group, too, but 48 MB of group ids need not be sent to it.
    """
    if resource_type == GROUP:
        return _group_id_problem(gateway, name)
    if resource_type != BROKER or not name:
        return None
    try:
        broker_id = int(name)
    except ValueError:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"A broker is named by its id, an integer; {name[:300]!r} is none")
    if broker_id != gateway.node_id:
        text = f"This is broker {gateway.node_id}; configs of broker {name} are altered by a request to that one"
        return KafkaError(ErrorCode.INVALID_REQUEST, text)
    return None


def _group_id_problem(gateway: Gateway, group_id: str) -> KafkaError | None:
    """A longer id that is in the catalog already stays usable."""
    problem = group_id_problem(gateway.configs, group_id)
    if problem is None or group_id in gateway.view.group_configs:
        return None
    return KafkaError(ErrorCode.INVALID_GROUP_ID, problem)


serve(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    VersionRange(0, 1),
    access=Access(by_handler="AlterConfigs on the topic, group or cluster"),
    handle=handle,
    failed=failed,
    elements=ElementArrays(("resources",), "responses", identity=attrgetter("resource_type", "resource_name")),
)
