"""CreatePartitions, with Kafka's validation (ReplicationControlManager.createPartitions of 4.3.1).

A topic only grows. What share groups make of it: partitions of a topic that a group knows start at offset 0, so that
nothing is lost that was produced before the group heard of them (KAFKA-20742); `groups.share.draft` sees to that.
"""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.nodes import next_epoch, next_version
from kshare_coordinator.machine.catalog.placement import LeastLoaded, new_partition_leaders, placements
from kshare_coordinator.machine.commands import CatalogChanged, CreatePartitions, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.draft import TopicLookup
from kshare_coordinator.machine.groups.share.heartbeats import decide_topics_changed
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.topic_names import check_not_internal
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

NO_ASSIGNMENT = -1

Result = pb.CreatePartitionsResponse.Result


@decides(CreatePartitions)
def decide_create_partitions(
    state: CoordinatorState,
    command: CreatePartitions,
    configs: Configs,
    groups: GroupSettings,
    engine: Engine,
    now_ms: int,
) -> Decision[Record, pb.CreatePartitionsResponse, Effect]:
    """Each topic of the request gets a result of its own; the valid ones grow in one batch."""
    engine.check_has_topics("add partitions to")
    request = command.request
    names = [topic.name for topic in request.topics]
    answer = pb.CreatePartitionsResponse(version=state.version)
    grown: dict[str, records_pb.TopicRecord] = {}
    leaders = new_partition_leaders(state)
    room = configs.integer("kshare.max.partitions") - state.partition_count
    budget = CatalogBudget(state, configs)
    for topic in request.topics:
        try:
            if names.count(topic.name) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic {topic.name} is in the request more than once")
            known = _growing_topic(state, topic, room)
            record = _grown(known, topic.count, leaders, next_epoch(state))
            budget.take(known.ByteSize(), record.ByteSize())
        except KafkaError as error:
            if not any(result.name == topic.name for result in answer.results):
                answer.results.append(Result(name=topic.name, error_code=error.code, error_message=error.message))
            continue
        grown[topic.name] = record
        room -= topic.count - len(known.placements)
        answer.results.append(Result(name=topic.name))
    if request.validate_only or not grown:
        return Decision((), answer)
    answer.version = state.version + 1
    found = [records.cluster_number(records.EPOCH_COUNTER, next_epoch(state))]
    found += [records.topic(record) for record in grown.values()]
    lookup = _lookup_with(state, grown)
    group_records, effects = decide_topics_changed(state, lookup, list(grown), [], groups, now_ms)
    found += [*group_records, next_version(state)]
    return Decision(found, answer, [CatalogChanged(nodes=False), *effects])


def _growing_topic(
    state: CoordinatorState, topic: pb.CreatePartitionsRequest.Topic, room: int
) -> records_pb.TopicRecord:
    check_not_internal(topic.name, "grown")
    known = state.topic_named(topic.name)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic.name[:300]} does not exist")
    current = len(known.placements)
    if topic.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic {topic.name} has {current} partitions already")
    if topic.count < current:
        text = f"Topic {topic.name} has {current} partitions; {topic.count} is not an increase"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
    added = topic.count - current
    if topic.assigned_count not in (NO_ASSIGNMENT, added):
        text = f"The assignment names {topic.assigned_count} partitions, but topic {topic.name} would get {added} more"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if added > room:
        text = f"Topic {topic.name} would get {added} more partitions; kshare.max.partitions leaves room for {room}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    return known


def _grown(
    known: records_pb.TopicRecord, count: int, leaders: LeastLoaded, placement_epoch: int
) -> records_pb.TopicRecord:
    grown = records_pb.TopicRecord()
    grown.CopyFrom(known)
    current = len(known.placements)
    for placement in placements(leaders, count - current, placement_epoch):
        placement.partition += current
        grown.placements.append(placement)
    return grown


def _lookup_with(state: CoordinatorState, grown: dict[str, records_pb.TopicRecord]) -> TopicLookup:
    def lookup(name: str) -> tuple[bytes, int] | None:
        topic = grown.get(name) or state.topic_named(name)
        return None if topic is None else (topic.topic_id, len(topic.placements))

    return lookup
