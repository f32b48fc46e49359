"""Access rules: what a request needs, one rule for each API, stated in its row (`serve(…, access=…)`).

A rule has needs of the whole request, and needs of each element. Without one of the first, the request fails with the
error code of the resource's type. Elements without theirs are answered with that code, and the handler gets the others.
APIs whose answers leave out what a client may not see check in their handler (`ByHandler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.catalog.internal_topics import topic_with_id

if TYPE_CHECKING:
    from kshare_gateway.request_context import RequestContext

DENIED = {
    ResourceType.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        "Transactional Id authorization failed.",
    ),
}
TOPIC_CONFIGS, GROUP_CONFIGS = 2, 32
"""ConfigResource.Type."""
Names = Callable[[Any], str | None]
"""Gets a resource's name from a request; None if the request names none, so nothing is needed."""
ElementNames = Callable[["RequestContext", Any], str | None]
"""Gets the name of an element's resource; None if it has none that exists, which the handler will tell."""


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on the resource that the whole request names."""

    operation: Operation
    resource_type: ResourceType
    name: Names = lambda request: CLUSTER_NAME


@dataclass(frozen=True, slots=True)
class ElementNeed:
    """An operation on the resource that an element of the request names."""

    operation: Operation
    resource_type: ResourceType
    name: ElementNames


@dataclass(frozen=True, slots=True)
class Access:
    """The rule of an API."""

    whole: Sequence[Need] = ()
    each: ElementNeed | None = None
    by_handler: str = ""
    """What the handler checks beyond that, in words."""
    open_to_all: str = ""
    """Why the API needs nothing."""

    def __post_init__(self) -> None:
        if not (self.whole or self.each or self.by_handler or self.open_to_all):
            raise ValueError("an access rule needs something, or says why it does not")


def denied(resource_type: ResourceType) -> KafkaError:
    """The error of a request or element without authorization for a resource of this type."""
    code, text = DENIED[resource_type]
    return KafkaError(code, text)


def check_whole(context: RequestContext, request: Any, access: Access) -> None:
    """KafkaError if the client lacks what the whole request needs."""
    for need in access.whole:
        name = need.name(request)
        if name is not None and not context.authorize(need.operation, need.resource_type, name):
            raise denied(need.resource_type)


def check_topics(context: RequestContext, operation: Operation, names: Iterable[str]) -> None:
    """KafkaError if the client may not do that with all of the topics."""
    for name in names:
        if not context.authorize(operation, ResourceType.TOPIC, name):
            raise denied(ResourceType.TOPIC)


def check_cluster(context: RequestContext, operation: Operation) -> None:
    """KafkaError if the client may not do that with the cluster."""
    if not context.authorize(operation, ResourceType.CLUSTER, CLUSTER_NAME):
        raise denied(ResourceType.CLUSTER)


def config_denial(context: RequestContext, operation: Operation, config_type: int, name: str) -> KafkaError | None:
    """The error for a resource with configs (ConfigResource.Type); configs of brokers and others are the cluster's."""
    kinds = {TOPIC_CONFIGS: ResourceType.TOPIC, GROUP_CONFIGS: ResourceType.GROUP}
    kind = kinds.get(config_type, ResourceType.CLUSTER)
    resource = CLUSTER_NAME if kind is ResourceType.CLUSTER else name
    return None if context.authorize(operation, kind, resource) else denied(kind)


def on_cluster(operation: Operation) -> Access:
    """The operation on the cluster."""
    return Access((Need(operation, ResourceType.CLUSTER),))


def on_group(operation: Operation, *, each: ElementNeed | None = None, by_handler: str = "") -> Access:
    """The operation on the group `group_id`."""
    return Access((group(operation),), each, by_handler)


def group(operation: Operation) -> Need:
    return Need(operation, ResourceType.GROUP, attrgetter("group_id"))


def transactional_id(operation: Operation) -> Need:
    """The operation on `transactional_id`; nothing without one."""
    return Need(operation, ResourceType.TRANSACTIONAL_ID, lambda request: request.transactional_id or None)


def each_topic(operation: Operation) -> ElementNeed:
    """The operation on the topic of each element, which names it or has its id."""
    return ElementNeed(operation, ResourceType.TOPIC, topic_name)


def each_group(operation: Operation) -> ElementNeed:
    """The operation on the group of each element, which is its id."""
    return ElementNeed(operation, ResourceType.GROUP, lambda context, group_id: group_id)


def each_transactional_id(operation: Operation) -> ElementNeed:
    """The operation on each element, which is a transactional id."""
    return ElementNeed(operation, ResourceType.TRANSACTIONAL_ID, lambda context, element: element)


def topic_name(context: RequestContext, topic: Any) -> str | None:
    """The name of a request's topic: the topic itself, its name or topic field, or that of the topic with its id."""
    if isinstance(topic, str):
        return topic
    for field in ("name", "topic", "topic_name"):
        name = getattr(topic, field, None)
        if name:
            return str(name)
    return topic_name_of_id(context, getattr(topic, "topic_id", b""))


def topic_name_of_id(context: RequestContext, topic_id: bytes) -> str | None:
    """The name of a topic that exists; None otherwise."""
    known = topic_with_id(context.gateway, topic_id)
    return known.name if known is not None else None
