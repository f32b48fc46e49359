"""Metadata by topic ids in front of clusters that know none (before Kafka 2.8), or take no request by id (before 3.0).

Share consumers ask by the ids that heartbeats give them. The catalog has the id of every topic that share groups use,
so the cluster is asked by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from kshare_core.errors import ErrorCode
from kshare_gateway.request_context import RequestContext
from kshare_gateway.upstream.handlers.internal_topics import mark_own_topics
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic

FIRST_WITH_IDS_IN_RESPONSES, FIRST_BY_ID = 10, 12


async def ask_for_metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The cluster's answer to this client, with an id for each topic that the cluster or the catalog knows one of."""
    answer = await _ask(context, request)
    mark_own_topics(context, answer.topics)
    return answer


async def _ask(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    cluster, view = context.cluster, context.gateway.view
    served = VersionRange(0, context.version)
    version = cluster.front.brokers.version(request.API_KEY, served)
    if version >= min(FIRST_BY_ID, context.version):
        return await cluster.ask(request, served)
    wanted: dict[str, bytes] = {}
    unknown: list[bytes] = []
    for topic in request.topics or ():
        if topic.name is None:
            known = view.topics_by_id.get(topic.topic_id)
            if known is None:
                unknown.append(topic.topic_id)
            else:
                wanted[known.name] = topic.topic_id
    if wanted or unknown:
        named = [topic for topic in request.topics or () if topic.name is not None]
        request = request.replaced(topics=[*named, *(MetadataRequestTopic(name=name) for name in wanted)])
    answer = await cluster.ask(request, served)
    if version < FIRST_WITH_IDS_IN_RESPONSES:
        _give_ids(answer, view.topics_by_name)
    answer.topics = [
        *(_checked(topic, wanted.get(topic.name or "", topic.topic_id)) for topic in answer.topics),
        *(_unknown(topic_id) for topic_id in unknown),
    ]
    return answer


def _give_ids(answer: MetadataResponse, known: Mapping[str, coordinator_pb2.Topic]) -> None:
    for topic in answer.topics:
        found = known.get(topic.name or "")
        if found is not None and not topic.error_code:
            topic.topic_id = found.topic_id


def _checked(topic: MetadataResponseTopic, wanted: bytes) -> MetadataResponseTopic:
    """The topic as asked for by an id; another topic may have the name by now."""
    if topic.topic_id == wanted:
        return topic
    if topic.error_code and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        topic.name, topic.topic_id = None, wanted  # as Kafka, which does not tell a name to who may not see it
        return topic
    return _unknown(wanted)


def _unknown(topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[])
