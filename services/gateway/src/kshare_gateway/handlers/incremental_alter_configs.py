"""IncrementalAlterConfigs (key 44), versions 0 and 1: topics and groups, checked and done by the coordinator.

Broker configs cannot be altered while a broker runs; the coordinator says so. Answered when this gateway has the new
values. Where the coordinator gives no answer the resources get REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import CALL_TIMEOUT_MS
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import INCREMENTAL_ALTER_CONFIGS
from kshare_rpc.network import CallFailed
from kshare_wire.messages import Body, Message


async def handle(context: RequestContext, request: Message) -> Body:
    gateway = context.gateway
    wanted = coordinator_pb2.IncrementalAlterConfigsRequest(validate_only=request.validate_only)
    for resource in request.resources:
        entry = wanted.resources.add(resource_type=resource.resource_type, resource_name=resource.resource_name)
        for config in resource.configs:
            entry.configs.add(
                name=config.name,
                config_operation=config.config_operation,
                value=config.value or "",
                value_is_null=config.value is None,
            )
    try:
        answer = await gateway.call_coordinator(INCREMENTAL_ALTER_CONFIGS, wanted)
    except CallFailed as failure:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The coordinator gave no answer: {failure}") from failure
    if not request.validate_only:
        await gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
    results = [
        {
            "error_code": result.error_code,
            "error_message": result.error_message or None,
            "resource_type": result.resource_type,
            "resource_name": result.resource_name,
        }
        for result in answer.results
    ]
    return {"responses": results}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    results = [
        {
            "error_code": error.code,
            "error_message": error.message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        for resource in request.resources
    ]
    return {"responses": results}
