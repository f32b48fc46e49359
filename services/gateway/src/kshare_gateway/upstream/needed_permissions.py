"""The permissions that a request needs, so that the cluster is asked for them before the handler runs.

Rows of APIs name most of them. What only the handler finds out is asked for when it has run, and it runs again: such
handlers read, or repeat what they did without harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.connections.request_parts import outer_field
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import GROUP_CONFIGS, topic_name_of_id
from kshare_gateway.served_apis import ServedApi
from kshare_gateway.share.sessions import ShareSessionKey
from kshare_gateway.upstream.permissions import CLUSTER_KNOWN, Permission
from kshare_wire.generated.api_keys import ApiKey

RUN_ONCE = frozenset({ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE})
"""APIs whose needs are all known before, and whose handlers must not run twice."""
CONFIGS_OF_GROUPS = {
    ApiKey.DESCRIBE_CONFIGS: Operation.DESCRIBE_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Operation.ALTER_CONFIGS,
}


def needed_permissions(context: RequestContext, served: ServedApi, request: Any) -> Iterator[Permission]:
    """The permissions that are known to be needed.

    It includes whether the client may describe the cluster: the answer shows that the client is authenticated.
    """
    yield CLUSTER_KNOWN
    for need in served.access.whole:
        name = need.name(request)
        if name is not None:
            yield Permission(need.operation, need.resource_type, name)
    yield from _of_elements(context, served, request)
    if served.api_key in RUN_ONCE:
        yield from _topics_of_session(context, request)
    if served.api_key == ApiKey.SHARE_GROUP_HEARTBEAT:
        for name in request.subscribed_topic_names or ():
            yield Permission(Operation.DESCRIBE, ResourceType.TOPIC, name)
    if served.api_key in CONFIGS_OF_GROUPS:
        groups = [each.resource_name for each in request.resources if each.resource_type == GROUP_CONFIGS]
        operation = CONFIGS_OF_GROUPS[served.api_key]
        yield from (Permission(operation, ResourceType.GROUP, name) for name in groups)


def _of_elements(context: RequestContext, served: ServedApi, request: Any) -> Iterator[Permission]:
    each = served.access.each
    if each is not None and served.elements is not None:
        field = outer_field(served.elements, request)
        for element in getattr(request, field) if field else ():
            name = each.name(context, element)
            if name is not None:
                yield Permission(each.operation, each.resource_type, name)


def _topics_of_session(context: RequestContext, request: Any) -> Iterator[Permission]:
    """Read on the topics of the request, and on those that its session has already."""
    ids = {topic.topic_id: None for topic in request.topics}
    session = context.gateway.sessions.get(
        ShareSessionKey(request.group_id or "", request.member_id or "", context.cluster.port_id)
    )
    if session is not None:
        ids.update(session.topic_ids)
    for topic_id in ids:
        name = topic_name_of_id(context, topic_id)
        if name is not None:
            yield Permission(Operation.READ, ResourceType.TOPIC, name)
