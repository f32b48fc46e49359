"""Creation of topics by a leader: dead-letter topics, and the topic of the delivery history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kshare_core.errors import ErrorCode
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.methods import CREATE_TOPICS, LOOK_UP_TOPICS
from kshare_rpc.network import CallFailed, Channel

CREATE_TIMEOUT_MS = 10_000
LOOK_UP_TIMEOUT_MS = 5_000
CREATED_WAIT_MS = 5_000
"""How long to wait for a created topic to appear in the catalog; then the next attempt checks again."""

CreatableTopic = coordinator_pb2.CreateTopicsRequest.CreatableTopic


class TopicNotCreated(Exception):
    """The topic was not created, or is not in this leader's catalog yet; the text says why."""


async def create_topic(
    topic: CreatableTopic,
    what: str,
    coordinator: Channel,
    wait_for_version: Callable[[int, int], Awaitable[bool]],
) -> None:
    """Creates a topic through the coordinator; returns when it is in this leader's catalog. Keeps an existing topic.

    `what` names the kind of topic in the text of TopicNotCreated.
    """
    request = coordinator_pb2.CreateTopicsRequest(topics=[topic])
    try:
        answer, _ = await coordinator.call(CREATE_TOPICS, request, timeout_ms=CREATE_TIMEOUT_MS)
    except CallFailed as failure:
        raise TopicNotCreated(f"{what} {topic.name} cannot be created: {failure}") from failure
    for result in answer.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise TopicNotCreated(f"{what} {topic.name} cannot be created: {result.error_message}")
    if not await wait_for_version(answer.version, CREATED_WAIT_MS):
        raise TopicNotCreated(f"{what} {topic.name} was created, but is not in this leader's catalog yet")


async def look_up_created_topic(
    name: str,
    what: str,
    coordinator: Channel,
    wait_for_version: Callable[[int, int], Awaitable[bool]],
    view: Callable[[], CatalogView],
) -> None:
    """Has the coordinator take a topic that was created in the existing cluster into the catalog.

    Returns when it is in this leader's catalog; TopicNotCreated.
    """
    request = coordinator_pb2.LookUpTopicsRequest(topic_names=[name])
    try:
        answer, _ = await coordinator.call(LOOK_UP_TOPICS, request, timeout_ms=LOOK_UP_TIMEOUT_MS)
    except CallFailed as failure:
        raise TopicNotCreated(f"{what} {name} was created; looking it up: {failure}") from failure
    if not await wait_for_version(answer.version, CREATED_WAIT_MS) or name not in view().topics_by_name:
        raise TopicNotCreated(f"{what} {name} was created, but is not in this leader's catalog yet")
