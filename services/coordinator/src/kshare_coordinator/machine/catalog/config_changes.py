"""IncrementalAlterConfigs and AlterConfigs, validated as in ConfigurationControlManager of Kafka 4.3.1.

Each resource is changed as a whole or not at all. What a topic or group shall have in the end is checked before it is
looked up: INVALID_CONFIG comes before UNKNOWN_TOPIC_OR_PARTITION. What is wrong with a broker's configs is
INVALID_REQUEST, and names that Kafka does not know are accepted there (see `kshare_core.configs.dynamic`). What only
the gateway of a broker can tell, such as whether its keystore can be read, that gateway has checked before.

Group configs may be set before the group exists; a group's values must lie within the bounds of the broker configs
(group.share.min.… and group.share.max.…). A group is refused a dead-letter topic that could not receive a dead letter
as things are now: rejected records would be archived without one, and the only sign would be a line in a leader's log.
Apache Kafka 4.4 looks at this only when a dead letter is due (KIP-1191); the leader looks again then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget, check_changed_configs
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.name_limits import check_group_id
from kshare_coordinator.machine.catalog.nodes import next_version
from kshare_coordinator.machine.catalog.topics import check_config_lengths
from kshare_coordinator.machine.commands import CatalogChanged, Effect, IncrementalAlterConfigs
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState, configs_bytes
from kshare_coordinator.machine.topic_names import OF_ROLES, check_not_internal, check_topic_name
from kshare_core.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    Configs,
    ConfigTable,
    ConfigType,
    InvalidConfig,
    check_dynamic_configs,
    check_group_configs,
    check_own_configs_are_not_altered,
    check_topic_configs,
    config_text,
    effective_topic_config,
)
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

SET, DELETE, APPEND, SUBTRACT = range(4)

BROKER_LIMIT = 1_000
"""Brokers with configs of their own."""
BROKER_CONFIG_LIMIT = 1_000
"""Altered configs of one broker, or of all together."""

BROKER_ID_DIGITS_LIMIT = 10
"""Of a number below 2^31."""

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
GROUP_ENABLE = "errors.deadletterqueue.group.enable"
KEPT_HERE = (GROUP_ENABLE,)
"""Configs of topics that the catalog keeps for topics of an existing cluster, too: no Kafka before 4.4 knows them."""


class ResourceType(IntEnum):
    """ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


Check = Callable[[Configs, Mapping[str, str]], Configs]
Resource = pb.IncrementalAlterConfigsRequest.Resource
AlterableConfig = pb.IncrementalAlterConfigsRequest.AlterableConfig
Result = pb.IncrementalAlterConfigsResponse.Result


@dataclass(slots=True)
class _Changes:
    """Remaining budget and counts of changes for the resources of one request."""

    budget: CatalogBudget
    engine: Engine
    new_groups: int = 0
    """Groups with configs that had none before, less those that have none any more."""
    new_brokers: int = 0
    _group_defaults: Configs | None = None

    def group_defaults(self, configs: Configs) -> Configs:
        """The values of a group without configs of its own; made once, for a request may have thousands of groups."""
        if self._group_defaults is None:
            self._group_defaults = _values(check_group_configs, configs, {})
        return self._group_defaults


@decides(IncrementalAlterConfigs)
def decide_alter_configs(
    state: CoordinatorState, command: IncrementalAlterConfigs, configs: Configs, engine: Engine
) -> Decision[Record, pb.IncrementalAlterConfigsResponse, Effect]:
    request = command.request
    answer = pb.IncrementalAlterConfigsResponse(version=state.version)
    found: list[Record] = []
    times: dict[tuple[int, str], int] = {}
    for resource in request.resources:
        key = (resource.resource_type, resource.resource_name)
        times[key] = times.get(key, 0) + 1
    changes = _Changes(CatalogBudget(state, configs), engine)
    count = sum(len(resource.configs) for resource in request.resources)
    for resource in request.resources:
        result = Result(resource_type=resource.resource_type, resource_name=resource.resource_name)
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource may be given only once")
            check_changed_configs(count)
            found.append(_alter(state, resource, configs, changes))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        answer.results.append(result)
    if request.validate_only or not found:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision([*found, next_version(state)], answer, (CatalogChanged(nodes=False),))


def _alter(state: CoordinatorState, resource: Resource, configs: Configs, changes: _Changes) -> Record:
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _alter_topic(state, resource, configs, changes)
        case ResourceType.GROUP:
            return _alter_group(state, resource, configs, changes)
        case ResourceType.BROKER:
            return _alter_broker(state, resource, configs, changes)
        case _:
            text = f"Resource type {resource.resource_type} is not supported; 2 is TOPIC, 4 is BROKER, 32 is GROUP"
    raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _alter_topic(state: CoordinatorState, resource: Resource, configs: Configs, changes: _Changes) -> Record:
    name = resource.resource_name
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic name is empty; configs of all topics are broker configs")
    if name not in OF_ROLES:
        check_not_internal(name, "altered")
    if any(change.name not in KEPT_HERE for change in resource.configs):
        changes.engine.check_has_topics("alter")
    topic = state.topic_named(name)
    before = {entry.name: entry.value for entry in topic.configs} if topic else {}
    after = _changed(before, Configs(TOPIC_CONFIGS), resource, TOPIC_CONFIGS)
    if topic is None:
        check_topic_name(name)
    _values(check_topic_configs, configs, after)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name[:300]} does not exist")
    changed = records_pb.TopicRecord()
    changed.CopyFrom(topic)
    del changed.configs[:]
    changed.configs.extend(_entries(after))
    changes.budget.take(topic.ByteSize(), changed.ByteSize())
    return records.topic(changed)


def _alter_group(state: CoordinatorState, resource: Resource, configs: Configs, changes: _Changes) -> Record:
    group_id = resource.resource_name
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The group id is empty; configs of all groups are broker configs")
    before = state.group_configs.get(group_id, {})
    after = _changed(before, changes.group_defaults(configs), resource, GROUP_CONFIGS)
    _values(check_group_configs, configs, after)
    dead_letter_topic = after.get(DEAD_LETTER_TOPIC, "").strip()
    if dead_letter_topic and dead_letter_topic != before.get(DEAD_LETTER_TOPIC, "").strip():
        _check_dead_letter_topic(state, configs, dead_letter_topic, changes.engine)
    if after and not before:
        check_group_id(group_id, configs)
        _check_group_count(len(state.group_configs) + changes.new_groups, configs)
    changes.budget.take(configs_bytes(group_id, before), configs_bytes(group_id, after))
    changes.new_groups += bool(after) - bool(before)
    return records.group_config(pb.GroupConfig(group_id=group_id, configs=_entries(after)))


def _check_group_count(count: int, configs: Configs) -> None:
    """`count`: groups with configs, those that the request named before included."""
    if count >= configs.integer("kshare.max.groups"):
        text = f"{count} groups have configs; kshare.max.groups allows no more"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


def _alter_broker(state: CoordinatorState, resource: Resource, configs: Configs, changes: _Changes) -> Record:
    broker_id = resource.resource_name
    if broker_id and not (broker_id.isascii() and broker_id.isdigit() and len(broker_id) <= BROKER_ID_DIGITS_LIMIT):
        text = f"A broker's name must be its id, a number of at least 0; found {broker_id[:300]!r}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if broker_id not in state.broker_configs and len(state.broker_configs) + changes.new_brokers >= BROKER_LIMIT:
        text = f"{BROKER_LIMIT} brokers have configs of their own, which is the limit"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    before = state.broker_configs.get(broker_id, {})
    after = _changed(before, Configs(BROKER_CONFIGS), resource, BROKER_CONFIGS)
    if len(after) > BROKER_CONFIG_LIMIT:
        text = f"A broker may have {BROKER_CONFIG_LIMIT} altered configs; these would be {len(after)}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
    of_all = after if not broker_id else state.broker_configs.get("", {})
    try:
        check_own_configs_are_not_altered(before, after)
        of_one = after if broker_id else {}
        check_dynamic_configs(configs, of_all, of_one, per_broker=bool(broker_id), before=before)
    except InvalidConfig as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    changes.budget.take(configs_bytes(broker_id, before), configs_bytes(broker_id, after))
    changes.new_brokers += bool(after) - bool(before)
    return records.broker_config(pb.BrokerConfig(broker_id=broker_id, configs=_entries(after)))


def _check_dead_letter_topic(state: CoordinatorState, configs: Configs, name: str, engine: Engine) -> None:
    """KafkaError INVALID_CONFIG where the topic could not receive a dead letter now, with what would change that."""
    problem = _dead_letter_topic_problem(state, configs, name, engine)
    if problem:
        text = f"Invalid value {name[:300]} for configuration {DEAD_LETTER_TOPIC}: {problem}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)


def _dead_letter_topic_problem(state: CoordinatorState, configs: Configs, name: str, engine: Engine) -> str | None:
    if name.startswith("__"):
        return "it must not start with __, as internal topics do"
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.message
    prefix = configs.text("errors.deadletterqueue.topic.name.prefix")
    if not name.startswith(prefix):
        return f"it must start with {prefix!r} (errors.deadletterqueue.topic.name.prefix of the brokers)"
    topic = state.topic_named(name)
    if topic is None:
        if configs.boolean("errors.deadletterqueue.auto.create.topics.enable"):
            return None
        what = f"with {GROUP_ENABLE}=true" if engine.data_is_local else f"in the Kafka cluster at {engine.cluster}"
        return f"the topic does not exist; create it {what} first"
    texts = {entry.name: entry.value for entry in topic.configs}
    if not engine.data_is_local:
        texts = {GROUP_ENABLE: "true"} | texts  # the cluster does not know the config; its ACLs and the prefix decide
    if not effective_topic_config(configs, texts).boolean(GROUP_ENABLE):
        return f"the topic does not allow dead letters; set its {GROUP_ENABLE}=true first"
    return None


def _values(check: Check, configs: Configs, texts: Mapping[str, str]) -> Configs:
    try:
        return check(configs, texts)
    except InvalidConfig as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _entries(texts: Mapping[str, str]) -> list[pb.ConfigEntry]:
    return [pb.ConfigEntry(name=name, value=value) for name, value in sorted(texts.items())]


def _changed(before: Mapping[str, str], defaults: Configs, resource: Resource, table: ConfigTable) -> dict[str, str]:
    """The texts after all operations on one resource."""
    names = [change.name for change in resource.configs]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{resource.resource_name}: a config is given more than once")
    nulls = [change.name for change in resource.configs if change.value_is_null and change.config_operation != DELETE]
    if nulls:
        text = f"The values of {', '.join(nulls)} are null; only DELETE has no value"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    after = {} if resource.replaces_all else dict(before)
    for change in resource.configs:
        if change.config_operation == DELETE:
            after.pop(change.name, None)
        elif change.config_operation == SET:
            after[change.name] = change.value
        elif change.config_operation in (APPEND, SUBTRACT):
            definition = table.get(change.name)
            is_list = definition is not None and definition.type is ConfigType.LIST
            default = config_text(defaults[change.name]) if is_list else ""
            after[change.name] = _list_change(after.get(change.name, default or ""), change, is_list)
        else:
            known = "0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT"
            text = f"Operation {change.config_operation} on {change.name} is not known; {known}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    check_config_lengths(after)
    return after


def _list_change(current: str, change: AlterableConfig, is_list: bool) -> str:
    if not is_list:
        text = f"{change.name} is not a list, so APPEND and SUBTRACT do not apply"
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)
    parts = [part.strip() for part in current.split(",") if part.strip()]
    given = [part.strip() for part in change.value.split(",") if part.strip()]
    if change.config_operation == APPEND:
        return ",".join([*parts, *(part for part in given if part not in parts)])
    return ",".join(part for part in parts if part not in given)
