"""Metadata (key 3), versions 0 to 13: gateways as brokers, topics and their partitions from the catalog.

All topics (null; in version 0 an empty list), by name, or by id (from version 10 on). An unknown name is created where
the request (version 4 on; before, always) and auto.create.topics.enable allow it, and answered when this gateway knows
it. A partition without a live leader has LEADER_NOT_AVAILABLE. The leader that clients are told is a gateway
(`client_broker`); replicas and in-sync replicas are that one gateway. Authorized operations are not given. For
internal topics see `internal_topics`.
"""

from __future__ import annotations

import re

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_gateway.gateway import CALL_TIMEOUT_MS, Gateway, client_broker, log
from kshare_gateway.handlers.brokers import AUTHORIZED_OPERATIONS_UNKNOWN, controller_id, metadata_brokers
from kshare_gateway.handlers.catalog_changes import change_catalog
from kshare_gateway.handlers.internal_topics import (
    all_topics,
    internal_topic_broker,
    topic_named,
    topic_with_id,
)
from kshare_gateway.request_context import RequestContext
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.methods import CREATE_TOPICS
from kshare_wire.messages import ZERO_ID, Body, Message

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_valid_topic_name(name: str) -> bool:
    """org.apache.kafka.common.internals.Topic.validate."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


async def handle(context: RequestContext, request: Message) -> Body:
    gateway = context.gateway
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        topics = [_describe(context, topic) for topic in all_topics(gateway)]
    else:
        may_create = context.version < 4 or request.allow_auto_topic_creation
        if may_create and gateway.configs.boolean("auto.create.topics.enable"):
            await _create_missing(gateway, asked)
        topics = [_asked_topic(context, entry) for entry in _each_once(asked)]
    return _body(context, topics)


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    topics: list[Body] = [
        {"error_code": error.code, "name": entry.name, "topic_id": entry.topic_id} for entry in request.topics or ()
    ]
    return {**_body(context, topics), "error_code": error.code}


def _body(context: RequestContext, topics: list[Body]) -> Body:
    return {
        "brokers": metadata_brokers(context),
        "cluster_id": context.gateway.view.cluster_id,
        "controller_id": controller_id(context),
        "topics": topics,
        "cluster_authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
    }


def _each_once(asked: list[Message]) -> list[Message]:
    """A topic that is asked for twice is described once."""
    return list({(entry.name, entry.topic_id): entry for entry in reversed(asked)}.values())[::-1]


def _asked_topic(context: RequestContext, entry: Message) -> Body:
    gateway = context.gateway
    if entry.name is None or entry.topic_id != ZERO_ID:
        topic = topic_with_id(gateway, entry.topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    else:
        topic = topic_named(gateway, entry.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if topic is None and not is_valid_topic_name(entry.name):
            missing = ErrorCode.INVALID_TOPIC_EXCEPTION
    if topic is None:
        return {"error_code": missing, "name": entry.name, "topic_id": entry.topic_id}
    return _describe(context, topic)


def _describe(context: RequestContext, topic: coordinator_pb2.Topic) -> Body:
    partitions = []
    for index, partition in enumerate(topic.partitions):
        broker, reachable = partition_broker(context, topic, index)
        partitions.append(
            {
                "error_code": ErrorCode.NONE if reachable else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": index,
                "leader_id": broker if reachable else -1,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": [broker],
                "isr_nodes": [broker],
            }
        )
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": partitions,
        "topic_authorized_operations": AUTHORIZED_OPERATIONS_UNKNOWN,
    }


def partition_broker(context: RequestContext, topic: coordinator_pb2.Topic, index: int) -> tuple[int, bool]:
    """The gateway that is told for a partition, -1 for none, and whether the partition can be reached there."""
    view = context.gateway.view
    if topic.topic_id not in view.topics_by_id:
        broker = internal_topic_broker(view, topic, index, context.listener)
        return broker, broker >= 0
    broker = client_broker(view, topic, index, context.listener)
    return broker, broker >= 0 and view.leader_address(TopicPartition(topic.topic_id, index)) is not None


async def _create_missing(gateway: Gateway, asked: list[Message]) -> None:
    """Asks the coordinator for topics that are not known; what it refuses is then answered as unknown."""
    names = dict.fromkeys(entry.name for entry in asked if entry.name is not None and entry.topic_id == ZERO_ID)
    missing = [name for name in names if topic_named(gateway, name) is None and is_valid_topic_name(name)]
    if not missing:
        return
    request = coordinator_pb2.CreateTopicsRequest(
        topics=[
            coordinator_pb2.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in missing
        ]
    )
    try:
        answer = await change_catalog(gateway, CREATE_TOPICS, request)
    except KafkaError as failure:
        log.warning("topics %s could not be created: %s", missing, failure)
        return
    for result in answer.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            log.warning("topic %s could not be created: %s", result.name, result.error_message)
    await gateway.catalog.wait_for_version(answer.version, timeout_ms=CALL_TIMEOUT_MS)
