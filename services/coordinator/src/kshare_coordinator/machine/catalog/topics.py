"""CreateTopics and DeleteTopics, with Kafka's validation (ControllerApis and ReplicationControlManager of 4.3.1).

Each topic of a request gets a result of its own; the valid topics are created in one batch, together with the
resulting changes of the share groups that subscribe to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.nodes import next_epoch, next_version
from kshare_coordinator.machine.catalog.placement import LeastLoaded, new_partition_leaders, placements
from kshare_coordinator.machine.commands import CatalogChanged, CreateTopics, DeleteTopics, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.groups.share.heartbeats import decide_topics_changed
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.offsets.commits import records_at_topic_deletion
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState, collision_key
from kshare_coordinator.machine.topic_names import check_not_internal, check_topic_name
from kshare_core.configs import Configs, InvalidConfig, check_topic_configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import ZERO_TOPIC_ID, topic_id_text
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

DEFAULT_COUNT = -1
CONFIG_VALUE_LENGTH_LIMIT = 32_767

CreatableTopic = pb.CreateTopicsRequest.CreatableTopic
CreateResult = pb.CreateTopicsResponse.CreatableTopicResult
DeleteResult = pb.DeleteTopicsResponse.Result


@dataclass(slots=True)
class _Creation:
    """The valid topics of a request so far."""

    leaders: LeastLoaded
    placement_epoch: int
    budget: CatalogBudget
    topics: list[records_pb.TopicRecord] = field(default_factory=list)
    collisions: dict[str, str] = field(default_factory=dict)
    partitions: int = 0


@decides(CreateTopics)
def decide_create_topics(
    state: CoordinatorState, command: CreateTopics, configs: Configs, groups: GroupSettings, engine: Engine, now_ms: int
) -> Decision[Record, pb.CreateTopicsResponse, Effect]:
    engine.check_has_topics("create")
    request = command.request
    names = [topic.name for topic in request.topics]
    duplicates = _duplicates(names)
    epoch = next_epoch(state)
    creation = _Creation(new_partition_leaders(state), epoch, CatalogBudget(state, configs))
    answer = pb.CreateTopicsResponse(version=state.version)
    for name in duplicates:
        answer.topics.append(_refused(name, KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name {name}")))
    for topic, topic_id in zip(request.topics, command.topic_ids, strict=True):
        if topic.name not in duplicates:
            answer.topics.append(_create(state, creation, topic, topic_id, configs, request.validate_only))
    if request.validate_only or not creation.topics:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision(*_created(state, creation, answer, groups, now_ms))


def _created(
    state: CoordinatorState,
    creation: _Creation,
    answer: pb.CreateTopicsResponse,
    groups: GroupSettings,
    now_ms: int,
) -> tuple[list[Record], pb.CreateTopicsResponse, list[Effect]]:
    found = [records.cluster_number(records.EPOCH_COUNTER, creation.placement_epoch)]
    found += [records.topic(topic) for topic in creation.topics]
    new = {topic.name: (topic.topic_id, len(topic.placements)) for topic in creation.topics}

    def lookup(name: str) -> tuple[bytes, int] | None:
        topic = state.topic_named(name)
        return new.get(name) if topic is None else (topic.topic_id, len(topic.placements))

    group_records, effects = decide_topics_changed(state, lookup, list(new), [], groups, now_ms)
    return [*found, *group_records, next_version(state)], answer, [CatalogChanged(nodes=False), *effects]


def _duplicates(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return [name for name, count in seen.items() if count > 1]


def _refused(name: str, error: KafkaError) -> CreateResult:
    return CreateResult(
        name=name, topic_id=ZERO_TOPIC_ID, error_code=error.code, error_message=error.message, num_partitions=-1
    )


def _create(
    state: CoordinatorState,
    creation: _Creation,
    topic: CreatableTopic,
    topic_id: bytes,
    configs: Configs,
    validate_only: bool,
) -> CreateResult:
    try:
        check_topic_name(topic.name, internal=topic.internal)
        _check_name_is_free(state, creation, topic.name)
        texts = _check_topic_configs(topic, configs)
        count = _partition_count(topic, configs)
        _check_limit(state, creation, count, configs)
        record = records_pb.TopicRecord(
            topic_id=topic_id,
            name=topic.name,
            placements=placements(creation.leaders, count, creation.placement_epoch),
            configs=[pb.ConfigEntry(name=name, value=value) for name, value in sorted(texts.items())],
            internal=topic.internal,
        )
        creation.budget.take(0, record.ByteSize())
    except KafkaError as error:
        return _refused(topic.name, error)
    creation.topics.append(record)
    creation.collisions[collision_key(topic.name)] = topic.name
    creation.partitions += count
    return CreateResult(
        name=topic.name,
        topic_id=ZERO_TOPIC_ID if validate_only else topic_id,
        num_partitions=count,
        configs=record.configs,
    )


def _check_name_is_free(state: CoordinatorState, creation: _Creation, name: str) -> None:
    if name in state.topic_ids:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name} already exists")
    key = collision_key(name)
    colliding = next(iter(sorted(state.names_by_collision_key.get(key, ()))), creation.collisions.get(key))
    if colliding is not None:
        text = f"Topic {name} collides with topic {colliding}: '.' and '_' are the same in metric names"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def _check_topic_configs(topic: CreatableTopic, configs: Configs) -> dict[str, str]:
    texts = {entry.name: entry.value for entry in topic.configs}
    if len(texts) != len(topic.configs):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Topic {topic.name}: a config is given more than once")
    check_config_lengths(texts)
    try:
        check_topic_configs(configs, texts)
    except InvalidConfig as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    return texts


def check_config_lengths(texts: dict[str, str]) -> None:
    for name, value in texts.items():
        if len(value) > CONFIG_VALUE_LENGTH_LIMIT:
            text = f"The value of {name} has {len(value)} characters; at most {CONFIG_VALUE_LENGTH_LIMIT} are allowed"
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)


def _partition_count(topic: CreatableTopic, configs: Configs) -> int:
    assigned = list(topic.assigned_partitions)
    if assigned:
        if topic.replication_factor != DEFAULT_COUNT or topic.num_partitions != DEFAULT_COUNT:
            text = (
                f"Topic {topic.name} has a manual assignment, so num_partitions and replication_factor must be -1; "
                f"they are {topic.num_partitions} and {topic.replication_factor}"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if sorted(assigned) != list(range(len(assigned))):
            text = f"Topic {topic.name}: the assigned partitions must be 0 to {len(assigned) - 1}, each once"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        return len(assigned)
    if topic.replication_factor not in (DEFAULT_COUNT, 1):
        text = (
            f"Topic {topic.name} has replication_factor {topic.replication_factor}; the embedded engine holds one "
            "copy, so it must be 1, or -1 for the default"
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    if topic.num_partitions == DEFAULT_COUNT:
        return configs.integer("num.partitions")
    if topic.num_partitions <= 0:
        text = (
            f"Topic {topic.name} has num_partitions {topic.num_partitions}; it must be above 0, or -1 for the default"
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
    return topic.num_partitions


def _check_limit(state: CoordinatorState, creation: _Creation, count: int, configs: Configs) -> None:
    limit = configs.integer("kshare.max.partitions")
    existing = state.partition_count + creation.partitions
    if existing + count > limit:
        text = f"{count} more partitions would be {existing + count}; kshare.max.partitions allows {limit}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


@decides(DeleteTopics)
def decide_delete_topics(
    state: CoordinatorState, command: DeleteTopics, configs: Configs, groups: GroupSettings, engine: Engine, now_ms: int
) -> Decision[Record, pb.DeleteTopicsResponse, Effect]:
    engine.check_has_topics("delete")
    references = command.request.topics
    resolved = [_resolved(state, reference) for reference in references]
    times: dict[bytes, int] = {}
    for found in resolved:
        if isinstance(found, records_pb.TopicRecord):
            times[found.topic_id] = times.get(found.topic_id, 0) + 1
    answer = pb.DeleteTopicsResponse(version=state.version)
    gone: list[records_pb.TopicRecord] = []
    answered: dict[tuple[str, bytes], None] = {}
    for reference, found in zip(references, resolved, strict=True):
        if (reference.name, reference.topic_id) in answered:  # said twice, refused once
            continue
        answered[reference.name, reference.topic_id] = None
        result = DeleteResult(name=reference.name, topic_id=reference.topic_id)
        error = found if isinstance(found, KafkaError) else _deletable(found, times, configs)
        if error is not None:
            result.error_code, result.error_message = error.code, error.message
        elif isinstance(found, records_pb.TopicRecord):
            result.name, result.topic_id = found.name, found.topic_id
            gone.append(found)
        answer.results.append(result)
    if not gone:
        return Decision((), answer)
    answer.version = state.version + 1
    topic_records = [records.topic_gone(topic.topic_id) for topic in gone]
    topic_records += records_at_topic_deletion(state, [topic.topic_id for topic in gone])
    group_records, effects = decide_topics_changed(
        state,
        _lookup_without(state, gone),
        [topic.name for topic in gone],
        [topic.topic_id for topic in gone],
        groups,
        now_ms,
    )
    changed = CatalogChanged(nodes=False)
    return Decision([*topic_records, *group_records, next_version(state)], answer, [changed, *effects])


def _lookup_without(
    state: CoordinatorState, gone: Sequence[records_pb.TopicRecord]
) -> Callable[[str], tuple[bytes, int] | None]:
    names = {topic.name for topic in gone}

    def lookup(name: str) -> tuple[bytes, int] | None:
        topic = state.topic_named(name)
        return None if topic is None or name in names else (topic.topic_id, len(topic.placements))

    return lookup


def _resolved(
    state: CoordinatorState, reference: pb.DeleteTopicsRequest.TopicReference
) -> records_pb.TopicRecord | KafkaError:
    has_id = reference.topic_id not in (b"", ZERO_TOPIC_ID)
    if has_id and reference.name:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Topic {reference.name} is given by name and by id")
    if not has_id and not reference.name:
        return KafkaError(ErrorCode.INVALID_REQUEST, "A topic is given neither by name nor by id")
    if has_id:
        topic = state.topics.get(reference.topic_id)
        if topic is None:
            text = topic_id_text(reference.topic_id)
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {text}")
        return _unless_internal(topic.name) or topic
    refusal = _unless_internal(reference.name)
    if refusal is not None:
        return refusal
    found = state.topic_named(reference.name)
    return found or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {reference.name[:300]} does not exist")


def _unless_internal(name: str) -> KafkaError | None:
    try:
        check_not_internal(name, "deleted")
    except KafkaError as error:
        return error
    return None


def _deletable(topic: records_pb.TopicRecord, times: dict[bytes, int], configs: Configs) -> KafkaError | None:
    if times[topic.topic_id] > 1:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"Topic {topic.name} is given {times[topic.topic_id]} times")
    if not configs.boolean("delete.topic.enable"):
        return KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    return None
