"""Helpers of ShareFetch and ShareAcknowledge: session keys, acknowledgements, leader hints and the end of a session."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation, ResourceType
from kshare_gateway.catalog.brokers import metadata_brokers
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.access import DENIED, topic_name_of_id
from kshare_gateway.share.answers import LeaderAnswer, PartitionAnswer
from kshare_gateway.share.sessions import ShareSessionKey
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.requests import share_acknowledge, share_fetch
from kshare_wire.generated.requests.share_acknowledge import ShareAcknowledgeRequest
from kshare_wire.generated.requests.share_fetch import ShareFetchRequest
from kshare_wire.generated.responses.metadata import MetadataResponseBroker

MAXIMUM_MEMBER_ID_LENGTH = 36


class CurrentLeader(NamedTuple):
    """The leader of a partition as a response names it."""

    leader_id: int
    leader_epoch: int


_NO_LEADER = CurrentLeader(-1, -1)
_NO_LEADER_ERROR = CurrentLeader(0, 0)
"""The value in Kafka 4.3.1 if the leader was not the problem."""
_LEADER_ERRORS = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

APartition = TypeVar("APartition")
Acknowledgements = dict[TopicPartition, list[leader_pb2.AcknowledgementBatch]]


def session_key(context: RequestContext, request: ShareFetchRequest | ShareAcknowledgeRequest) -> ShareSessionKey:
    """The session's name; INVALID_REQUEST as in Kafka (a group, and a member id of 1 to 36 characters)."""
    group_id = request.group_id
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    member_id = checked_member_id(request.member_id)
    return ShareSessionKey(group_id, member_id, -1 if context.relay is None else context.relay.port_id)


def checked_member_id(member_id: str | None) -> str:
    """The member id; INVALID_REQUEST as in Kafka (KafkaApis.isMemberIdValid) unless it has 1 to 36 characters."""
    if not member_id or len(member_id) > MAXIMUM_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return member_id


def add_acknowledgements(
    found: Acknowledgements,
    key: TopicPartition,
    batches: Sequence[share_fetch.AcknowledgementBatch] | Sequence[share_acknowledge.AcknowledgementBatch],
) -> None:
    """Adds a partition's batches; the leader checks them."""
    of_partition = found.setdefault(key, [])
    for batch in batches:
        # Types are signed on the wire; one below zero becomes a number that the leader refuses.
        kinds = array("b", batch.acknowledge_types).tobytes()
        of_partition.append(
            leader_pb2.AcknowledgementBatch(
                first_offset=batch.first_offset, last_offset=batch.last_offset, acknowledge_types=kinds
            )
        )


def merged(answers: Iterable[LeaderAnswer]) -> list[PartitionAnswer]:
    """Merges the leaders' entries of each partition: acknowledgement results and records may come separately."""
    found: dict[TopicPartition, PartitionAnswer] = {}
    for answer in answers:
        for partition in answer.partitions:
            first = found.setdefault(partition.key, partition)
            if first is partition:
                continue
            if partition.acquired or partition.error_code:
                first.error_code, first.error_message = partition.error_code, partition.error_message
                first.acquired, first.records = partition.acquired, partition.records
            first.is_acquirable = first.is_acquirable or partition.is_acquirable
            if partition.is_acknowledged:
                first.is_acknowledged = True
                first.acknowledge_error_code = partition.acknowledge_error_code
                first.acknowledge_error_message = partition.acknowledge_error_message
    return list(found.values())


def take_denied_acknowledgements(context: RequestContext, acknowledgements: Acknowledgements) -> list[PartitionAnswer]:
    """Takes out the acknowledgements of topics that the client may not read, and answers them."""
    if context.gateway.authorizer is None:
        return []
    return [
        PartitionAnswer(key, is_acknowledged=True, acknowledge_error_code=code, acknowledge_error_message=text)
        for key, (code, text) in _refused(context, acknowledgements)
        if acknowledgements.pop(key) is not None
    ]


def denied_fetches(context: RequestContext, keys: Iterable[TopicPartition]) -> list[PartitionAnswer]:
    """Answers for the partitions of topics that the client may not read."""
    if context.gateway.authorizer is None:
        return []
    return [PartitionAnswer(key, error_code=code, error_message=text) for key, (code, text) in _refused(context, keys)]


def _refused(
    context: RequestContext, keys: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, tuple[ErrorCode, str | None]]]:
    """The partitions that the client may not read, with code and text."""
    found: list[tuple[TopicPartition, tuple[ErrorCode, str | None]]] = []
    refusals: dict[bytes, tuple[ErrorCode, str | None] | None] = {}
    for key in keys:
        if key.topic_id not in refusals:
            refusals[key.topic_id] = _refusal(context, key.topic_id)
        refusal = refusals[key.topic_id]
        if refusal is not None:
            found.append((key, refusal))
    return found


def _refusal(context: RequestContext, topic_id: bytes) -> tuple[ErrorCode, str | None] | None:
    """None for a topic that the client may read. One that is not known cannot be checked, so it is not used later."""
    name = topic_name_of_id(context, topic_id)
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, None
    if context.authorize(Operation.READ, ResourceType.TOPIC, name):
        return None
    permissions = context.permissions
    if permissions is not None and permissions.is_missing(Operation.READ, ResourceType.TOPIC, name):
        # It became known while the cluster was asked about the request's other topics; the client asks again.
        return ErrorCode.UNKNOWN_TOPIC_ID, "The topic became known a moment ago"
    return DENIED[ResourceType.TOPIC]


class LeaderHints:
    """`CurrentLeader` and `NodeEndpoints` of one response (KIP-951): where a partition with a leader error is led now.

    Clients are told gateways, as by Metadata; so mostly the one that they ask already.
    """

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._leader_ids: dict[int, None] = {}

    def current_leader(self, key: TopicPartition, *codes: int) -> CurrentLeader:
        if _LEADER_ERRORS.isdisjoint(codes):
            return _NO_LEADER_ERROR
        if self._context.relay is not None:
            return _NO_LEADER  # clients know the brokers of the cluster, and ask it
        view = self._context.gateway.view
        partition = view.partition(key)
        if partition is None or view.leader_address(key) is None:
            return _NO_LEADER
        brokers = self._context.gateway.client_brokers(self._context.listener)
        leader_id = brokers.broker(view.topics_by_id[key.topic_id], key.partition)
        if leader_id < 0:
            return _NO_LEADER
        self._leader_ids[leader_id] = None
        return CurrentLeader(leader_id, partition.leader_epoch)

    def node_endpoints(self) -> list[MetadataResponseBroker]:
        """Of the leaders told so far."""
        if not self._leader_ids:
            return []
        return [broker for broker in metadata_brokers(self._context) if broker.node_id in self._leader_ids]


def by_topic(partitions: Iterable[tuple[bytes, APartition]]) -> list[tuple[bytes, list[APartition]]]:
    """Partition entries under their topic ids, in the order in which topics first appear."""
    topics: dict[bytes, list[APartition]] = {}
    for topic_id, entry in partitions:
        topics.setdefault(topic_id, []).append(entry)
    return list(topics.items())


def lock_timeout_ms(context: RequestContext, group_id: str, answers: Sequence[LeaderAnswer]) -> int:
    """The acquisition lock time in ms: from the leaders, first those with records; else the group's config."""
    if len(answers) == 1 and answers[0].lock_timeout_ms:
        return answers[0].lock_timeout_ms
    said = [(not answer.has_records, answer.lock_timeout_ms) for answer in answers if answer.lock_timeout_ms]
    return min(said)[1] if said else context.gateway.record_lock_duration_ms(group_id)


async def close_session(context: RequestContext, key: ShareSessionKey) -> None:
    """Ends a session after its last acknowledgements were processed."""
    session = context.gateway.sessions.get(key)
    if session is not None and session.connection_id == context.connection_id:
        context.gateway.sessions.remove(key)
        await context.share_fetcher.release(session)
