"""Metadata by topic ids in front of clusters that know none (before Kafka 2.8), or take no request by id (before 3.0).

Share consumers ask by the ids that heartbeats give them. The catalog has the id of every topic that share groups use,
so the cluster is asked by name.

A topic keeps the id that the catalog invented when the cluster gets ids. In mode share clients see it instead of the
cluster's. In mode proxy they see the cluster's, because their other requests, such as Fetch, reach its brokers with it.
"""

from __future__ import annotations

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID
from kshare_gateway.request_context import RequestContext
from kshare_gateway.upstream.handlers.internal_topics import mark_own_topics
from kshare_rpc.catalog import CatalogView, expected_topic_id, is_cluster_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic

FIRST_BY_ID = 12


async def ask_for_metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """The cluster's answer to this client, with an id for each topic that the cluster or the catalog knows one of."""
    answer = await _ask(context, request)
    mark_own_topics(context, answer.topics)
    return answer


async def _ask(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    cluster, view = context.cluster, context.gateway.view
    served = VersionRange(0, context.version)
    version = cluster.front.brokers.version(request.API_KEY, served)
    asked = [topic.topic_id for topic in request.topics or () if topic.name is None]
    if version >= min(FIRST_BY_ID, context.version) and not any(_is_invented(view, topic_id) for topic_id in asked):
        answer = await cluster.ask(request, served)
        _give_ids(context, answer, version)
        return answer
    wanted: dict[str, bytes] = {}
    unknown: list[bytes] = []
    for topic_id in asked:
        known = view.topics_by_id.get(topic_id)
        if known is None:
            unknown.append(topic_id)
        else:
            wanted[known.name] = topic_id
    if asked:
        passed_on = [topic for topic in request.topics or () if topic.name is not None]
        if version >= FIRST_BY_ID:  # the cluster may know these
            passed_on += [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in unknown]
            unknown = []
        request = request.replaced(topics=[*passed_on, *(MetadataRequestTopic(name=name) for name in wanted)])
    answer = await cluster.ask(request, served)
    _give_ids(context, answer, version)
    answer.topics = [
        *(_checked(topic, wanted.get(topic.name or "", topic.topic_id)) for topic in answer.topics),
        *(_unknown(topic_id) for topic_id in unknown),
    ]
    return answer


def _is_invented(view: CatalogView, topic_id: bytes) -> bool:
    """Whether the cluster does not know the id of a topic of the catalog."""
    topic = view.topics_by_id.get(topic_id)
    return topic is not None and expected_topic_id(topic) != topic_id


def _give_ids(context: RequestContext, answer: MetadataResponse, version: int) -> None:
    """Gives topics the ids of the catalog. `version` is that in which the cluster answered."""
    is_proxy = context.cluster.front.ports is not None
    if is_proxy and version >= FIRST_BY_ID:
        return
    for topic in answer.topics:
        known = context.gateway.view.topics_by_name.get(topic.name or "")
        if known is None or topic.error_code or (is_proxy and topic.topic_id != ZERO_TOPIC_ID):
            continue
        if is_cluster_topic(known, topic.topic_id):
            topic.topic_id = known.topic_id


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
