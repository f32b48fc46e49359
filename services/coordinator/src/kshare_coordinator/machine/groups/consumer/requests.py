"""Contents of a ConsumerGroupHeartbeat, and its validation without the group's state.

The order of checks is Kafka's (GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid).
"""

from __future__ import annotations

from dataclasses import replace

from kshare_coordinator.machine.groups.classic.consumer_protocol import SUBSCRIPTION_LIMIT
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.values import LEFT_FOR_A_WHILE_EPOCH, Member
from kshare_coordinator.machine.security.describable_topics import Client
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
UNCHANGED_TIMEOUT = -1
MEMBER_CHOOSES_ID_SINCE_VERSION = 1
TEXT_LENGTH_LIMIT = 1_000
"""Characters of a member id, an instance id and a rack."""
SUBSCRIPTION_LENGTH_LIMIT = 1_000_000
"""Characters of all names in one member's subscription."""
EXPRESSIONS_LIMIT = 100
"""Different ones of a group."""
EXPRESSION_LENGTH_LIMIT = 10_000

Request = pb.ConsumerGroupHeartbeatRequest


def check_request(request: Request, settings: ConsumerGroupSettings) -> None:
    """KafkaError INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, UNSUPPORTED_VERSION."""
    if not settings.is_enabled:
        text = "group.coordinator.rebalance.protocols does not name consumer, so the consumer protocol is not served"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
    problem = _empty_field(request) or _epoch_problem(request) or _size_problem(request)
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    if request.has_server_assignor and request.server_assignor not in settings.assignors:
        known = ", ".join(settings.assignors)
        text = f"ServerAssignor {request.server_assignor} is not supported; group.consumer.assignors has {known}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, text)


def _empty_field(request: Request) -> str | None:
    needs_id = (
        request.api_version >= MEMBER_CHOOSES_ID_SINCE_VERSION
        or request.member_epoch > JOIN_EPOCH
        or request.member_epoch == LEAVE_EPOCH
    )
    if needs_id and not request.member_id.strip():
        return "MemberId must not be empty: a member of a consumer group generates its own id, a uuid"
    if not request.group_id.strip():
        return "GroupId must not be empty"
    if request.has_instance_id and not request.instance_id.strip():
        return "InstanceId must not be empty; null is for no instance id"
    if request.has_rack_id and not request.rack_id.strip():
        return "RackId must not be empty; null is for no rack"
    return None


def _epoch_problem(request: Request) -> str | None:
    if request.member_epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == UNCHANGED_TIMEOUT:
            return "RebalanceTimeoutMs must be set by a member that joins"
        if not request.has_owned_partitions or request.owned_partitions:
            return "TopicPartitions must be empty, and not null, for a member that joins: it owns nothing"
        if not (request.has_subscribed_topic_names or request.has_subscribed_topic_regex):
            return "SubscribedTopicNames or SubscribedTopicRegex must be set by a member that joins"
    elif request.member_epoch == LEFT_FOR_A_WHILE_EPOCH and not request.has_instance_id:
        return "InstanceId must be set by a member that leaves temporarily (epoch -2)"
    elif request.member_epoch < LEFT_FOR_A_WHILE_EPOCH:
        text = "0 joins, -1 leaves, -2 leaves temporarily, otherwise it must be above 0"
        return f"MemberEpoch {request.member_epoch} is invalid: {text}"
    return None


def _size_problem(request: Request) -> str | None:
    texts = {"MemberId": request.member_id, "InstanceId": request.instance_id, "RackId": request.rack_id}
    for name, text in texts.items():
        if len(text) > TEXT_LENGTH_LIMIT:
            return f"{name} has {len(text)} characters; at most {TEXT_LENGTH_LIMIT} are allowed"
    names = request.subscribed_topic_names
    if len(names) > SUBSCRIPTION_LIMIT:
        return f"SubscribedTopicNames has {len(names)} names; at most {SUBSCRIPTION_LIMIT} are allowed"
    length = sum(map(len, names))
    if length > SUBSCRIPTION_LENGTH_LIMIT:
        text = f"at most {SUBSCRIPTION_LENGTH_LIMIT} are allowed"
        return f"SubscribedTopicNames has names of {length} characters together; {text}"
    regex_length = len(request.subscribed_topic_regex)
    if regex_length > EXPRESSION_LENGTH_LIMIT:
        return f"SubscribedTopicRegex has {regex_length} characters; at most {EXPRESSION_LENGTH_LIMIT} are allowed"
    return None


def updated_member(member: Member, request: Request) -> Member:
    """The member with the fields of the request; a null field keeps its value.

    The sender uses the consumer protocol from now on.
    """
    names, timeout_ms = member.subscribed_topic_names, member.rebalance_timeout_ms
    if request.has_subscribed_topic_names:
        names = tuple(sorted(set(request.subscribed_topic_names)))
    if request.rebalance_timeout_ms != UNCHANGED_TIMEOUT:
        timeout_ms = request.rebalance_timeout_ms
    has_regex = request.has_subscribed_topic_regex
    return replace(
        member,
        instance_id=request.instance_id if request.has_instance_id else member.instance_id,
        rack_id=request.rack_id if request.has_rack_id else member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=request.subscribed_topic_regex if has_regex else member.subscribed_topic_regex,
        rebalance_timeout_ms=timeout_ms,
        server_assignor=request.server_assignor if request.has_server_assignor else member.server_assignor,
        classic=None,
    )


def client_of(request: Request) -> Client | None:
    """The sender, if ACLs say which topics it may describe."""
    if not request.principal:
        return None
    return Client(request.principal, request.client_host.removeprefix("/"), request.is_open_without_acls)


def is_full(request: Request) -> bool:
    """Whether the member sends all of its fields, and so expects the whole answer."""
    has_subscription = request.has_subscribed_topic_names or request.has_subscribed_topic_regex
    return request.rebalance_timeout_ms != UNCHANGED_TIMEOUT and has_subscription and request.has_owned_partitions


def owned_partitions(request: Request) -> frozenset[TopicPartition] | None:
    """The partitions that the member reports as owned; None without a report."""
    if not request.has_owned_partitions:
        return None
    topics = request.owned_partitions
    return frozenset(TopicPartition(topic.topic_id, partition) for topic in topics for partition in topic.partitions)
