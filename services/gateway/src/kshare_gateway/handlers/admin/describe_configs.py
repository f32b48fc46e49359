"""DescribeConfigs (key 32), versions 1 to 4: topics, groups and this broker (gateway), from tables and the catalog.

Where a value comes from (ConfigHelper of Kafka 4.3.1): its own resource (1 topic, 8 group), what an administrator gave
to this broker (2) or to all brokers (3), the process's properties (4), or the default (5). Synonyms give the whole
chain, nearest first, beginning with the first one that has the config's own name; the source is that of the first one.

A broker is named by its id, which must be this one's (clients ask each broker for itself), or by an empty name: that
has only what was given to all brokers. Broker loggers and client metrics are INVALID_REQUEST.

One config of a broker is no config of Kafka's and is shown only where it is asked for by name: the address of the
coordinator, from which administrators' commands go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kshare_core.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDefinition,
    Configs,
    ConfigTable,
    ConfigType,
    DynamicConfigs,
    InvalidConfig,
    config_text,
    effective_group_config,
    effective_topic_config,
    known_group_texts,
)
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation
from kshare_core.work_slices import ElementCount, WorkAbandoned
from kshare_gateway.catalog.internal_topics import topic_named
from kshare_gateway.gateway import Gateway, log
from kshare_gateway.handlers.admin.metadata import is_valid_topic_name
from kshare_gateway.request_context import ConnectionMustClose, RequestContext
from kshare_gateway.security.access import Access, config_denial
from kshare_gateway.served_apis import ElementArrays, ResponseSize, serve
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.responses.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC, BROKER, GROUP = 2, 4, 32
TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG = range(1, 6)
GROUP_CONFIG = 8
LARGER_UNITS = {
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
    "log.retention.hours": ("log.retention.ms", "log.retention.minutes"),
    "log.retention.minutes": ("log.retention.ms", "log.retention.hours"),
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.hours": ("log.roll.ms",),
    "log.roll.jitter.hours": ("log.roll.jitter.ms",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.roll.ms": ("log.roll.hours",),
}
"""Broker configs with the same meaning in another unit (DynamicBrokerConfig.brokerConfigSynonyms)."""
COORDINATOR_ADDRESS = "kshare.coordinator.address"
DEAD_LETTERS_ENABLE = "errors.deadletterqueue.group.enable"
"""The only config of topics that kshare keeps in front of an existing cluster, which does not know it."""
RESOURCES_OF_MANY = 16
"""Descriptions of more resources take turns, so that few of their results, which are large, are in memory at once."""
CONFIGS_LIMIT = 1_000_000
"""Configs of a response, also of one in parts; a topic has 34 of them, so this is enough for 29,000 topics."""
ELEMENTS_OF_A_CONFIG = 5
"""Elements of a slice that one config counts for, with its synonyms and documentation. A broker has 342 of them."""
NO_EFFECT = "Accepted for compatibility with Kafka, without effect."


class Synonym(NamedTuple):
    """A place that a config's value may come from."""

    name: str
    value: str | None
    source: int


async def handle(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """A resource that fails unexpectedly has an error of its own, and the others are described."""
    if len(request.resources) <= RESOURCES_OF_MANY:
        return await _described(context, request)
    async with context.gateway.long_descriptions:
        return await _described(context, request)


async def _described(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    count = context.count_elements()
    results: list[DescribeConfigsResult] = []
    has_failed = False
    described = context.described
    for resource in request.resources:
        try:
            if described.configs >= CONFIGS_LIMIT:
                text = (
                    f"A response has at most {CONFIGS_LIMIT} configs; ask for fewer resources, or for configs by name"
                )
                results.append(_refusal(resource, KafkaError(ErrorCode.INVALID_REQUEST, text)))
                continue
            results.append(await _result(context, resource, request, count))
            described.configs += len(results[-1].configs)
        except (ConnectionMustClose, WorkAbandoned):
            raise
        except Exception as error:
            kind, name = resource.resource_type, resource.resource_name[:300]
            text = "DescribeConfigs failed with an unexpected error for resource %r of type %d"
            if has_failed:  # a request may name a resource thousands of times: only the first one has a traceback
                context.gateway.lines.warning("DescribeConfigs failed", f"{text}: %r", name, kind, error)
            else:
                log.exception(text, name, kind)
            has_failed = True
            problem = "The gateway could not describe the resource; see its log"
            results.append(_refusal(resource, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, problem)))
    return DescribeConfigsResponse(results=results)


def failed(context: RequestContext, request: DescribeConfigsRequest, error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_refusal(resource, error) for resource in request.resources])


def identity_of(resource: DescribeConfigsResource) -> tuple[int, str, tuple[str, ...] | None]:
    """What a request asks for with a resource."""
    names = resource.configuration_keys
    return resource.resource_type, resource.resource_name, None if names is None else tuple(names)


async def _result(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, count: ElementCount
) -> DescribeConfigsResult:
    gateway = context.gateway
    describe = _DESCRIBERS.get(resource.resource_type)
    try:
        problem = config_denial(context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        if problem is not None:
            raise problem
        if describe is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Resource type {resource.resource_type} is not supported; "
                "allowed are 2 (topic), 4 (broker) and 32 (group)",
            )
        entries = []
        for entry in describe(gateway, resource.resource_name):
            entries.append(entry)
            if count.add(ELEMENTS_OF_A_CONFIG):
                await count.next_slice()
        if resource.resource_type == BROKER and COORDINATOR_ADDRESS in (resource.configuration_keys or ()):
            entries.append(coordinator_entry(gateway))
    except KafkaError as error:
        return _refusal(resource, error)
    names = resource.configuration_keys
    if names:  # no names at all are all, as in Kafka
        wanted = set(names)
        entries = [entry for entry in entries if entry.name in wanted]
    _leave_out(request, entries)
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=entries,
    )


def _leave_out(request: DescribeConfigsRequest, entries: Sequence[DescribeConfigsResourceResult]) -> None:
    """Empties what the request does not ask for."""
    for entry in entries:
        if not request.include_synonyms:
            entry.synonyms = ()
        if not request.include_documentation:
            entry.documentation = None


def _refusal(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _visible(table: ConfigTable) -> list[ConfigDefinition]:
    """All configs except those that Kafka defines as internal and never shows."""
    return [definition for definition in table.values() if not definition.is_internal]


def _describe_topic(gateway: Gateway, name: str) -> Iterator[DescribeConfigsResourceResult]:
    topic = topic_named(gateway, name)
    if not is_valid_topic_name(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"No topic can have the name {name[:300]!r}")
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No topic has the name {name}")
    texts = {entry.name: entry.value for entry in topic.configs}
    configs = effective_topic_config(gateway.configs, texts)
    for definition in _visible(TOPIC_CONFIGS):
        yield _entry(gateway, definition, configs, texts, TOPIC_CONFIG)


def dead_letters_entry(
    gateway: Gateway, topic_name: str, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """DEAD_LETTERS_ENABLE of an existing cluster's topic, which may receive dead letters unless it was set to false."""
    topic = gateway.view.topics_by_name.get(topic_name)
    texts = {entry.name: entry.value for entry in topic.configs} if topic else {}
    is_set = DEAD_LETTERS_ENABLE in texts
    enabled = not is_set or effective_topic_config(gateway.configs, texts).boolean(DEAD_LETTERS_ENABLE)
    value = config_text(enabled)
    synonyms = [Synonym(DEAD_LETTERS_ENABLE, value, TOPIC_CONFIG)] if is_set else []
    entry = _body(TOPIC_CONFIGS[DEAD_LETTERS_ENABLE], value, synonyms, read_only=False)
    _leave_out(request, [entry])
    return entry


def _describe_group(gateway: Gateway, group_id: str) -> Iterator[DescribeConfigsResourceResult]:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A group needs a name")
    texts, _ = known_group_texts(gateway.configs, gateway.view.group_configs.get(group_id, {}))
    configs = effective_group_config(gateway.configs, texts)
    for definition in _visible(GROUP_CONFIGS):
        yield _entry(gateway, definition, configs, texts, GROUP_CONFIG)


def _describe_broker(gateway: Gateway, name: str) -> Iterator[DescribeConfigsResourceResult]:
    if not name:
        of_all, _ = _altered(gateway.configs)
        for name, text in sorted(of_all.items()):
            yield _altered_entry(name, text, [Synonym(name, text, DYNAMIC_DEFAULT_BROKER_CONFIG)])
        return
    if name != str(gateway.node_id):
        text = f"This is broker {gateway.node_id}; configs of broker {name[:300]!r} are described by that one"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    for definition in _visible(BROKER_CONFIGS):
        yield _broker_entry(gateway.configs, definition)
    of_all, of_one = _altered(gateway.configs)
    for name in sorted({*of_all, *of_one} - BROKER_CONFIGS.keys()):
        synonyms = _broker_synonyms(gateway.configs, name)
        if synonyms:  # an administrator may remove one between two slices
            yield _altered_entry(name, synonyms[0].value, synonyms)


_DESCRIBERS: Mapping[int, Callable[[Gateway, str], Iterator[DescribeConfigsResourceResult]]] = {
    TOPIC: _describe_topic,
    BROKER: _describe_broker,
    GROUP: _describe_group,
}


def coordinator_entry(gateway: Gateway) -> DescribeConfigsResourceResult:
    """The config COORDINATOR_ADDRESS of a broker, which is in a response only if the request names it."""
    address = gateway.settings.coordinator_address
    return DescribeConfigsResourceResult(
        name=COORDINATOR_ADDRESS,
        value=address,
        read_only=True,
        config_source=STATIC_BROKER_CONFIG,
        is_sensitive=False,
        synonyms=[DescribeConfigsSynonym(name=COORDINATOR_ADDRESS, value=address, source=STATIC_BROKER_CONFIG)],
        config_type=ConfigType.STRING,
        documentation="Addresses of all coordinators for roles and commands, separated by commas.",
    )


def _altered(configs: Configs) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The configs that administrators set for all brokers, and for this one."""
    if not isinstance(configs, DynamicConfigs):
        return {}, {}
    return configs.of_all_brokers, configs.of_this_broker


def _broker_synonyms(configs: Configs, name: str) -> list[Synonym]:
    """The places that a broker config's value comes from, nearest first; see the module docstring."""
    of_all, of_one = _altered(configs)
    static = configs.static if isinstance(configs, DynamicConfigs) else configs
    names = _in_kafkas_order(name)
    found = [
        *(Synonym(each, of_one[each], DYNAMIC_BROKER_CONFIG) for each in names if each in of_one),
        *(Synonym(each, of_all[each], DYNAMIC_DEFAULT_BROKER_CONFIG) for each in names if each in of_all),
        *(Synonym(each, config_text(static[each]), STATIC_BROKER_CONFIG) for each in names if static.is_set(each)),
    ]
    for each in names:
        default = static.table[each].default if each in static.table else None
        if default is not None:
            found.append(Synonym(each, config_text(default), DEFAULT_CONFIG))
    while found and found[0].name != name:
        del found[0]
    return found


def _in_kafkas_order(name: str) -> Sequence[str]:
    """The config and its synonyms in other units; the smallest unit first."""
    others = LARGER_UNITS.get(name)
    if others is None:
        return (name,)
    return sorted((name, *others), key=lambda each: (not each.endswith(".ms"), each.endswith(".hours"), each))


def _entry(
    gateway: Gateway, definition: ConfigDefinition, configs: Configs, texts: Mapping[str, str], own_source: int
) -> DescribeConfigsResourceResult:
    """One config of a topic or group."""
    name = definition.name
    value = config_text(configs[name])
    synonyms = [Synonym(name, value, own_source)] if name in texts else []
    if definition.broker_synonym is not None:
        synonyms += _broker_synonyms(gateway.configs, definition.broker_synonym)
    elif own_source == GROUP_CONFIG:  # a topic's config has the broker's synonyms only
        synonyms.append(Synonym(name, config_text(definition.default), DEFAULT_CONFIG))
    return _body(definition, value, synonyms, read_only=False)


def _broker_entry(configs: Configs, definition: ConfigDefinition) -> DescribeConfigsResourceResult:
    synonyms = _broker_synonyms(configs, definition.name)
    return _body(definition, config_text(configs[definition.name]), synonyms, read_only=definition.read_only)


def _altered_entry(name: str, value: str | None, synonyms: Sequence[Synonym]) -> DescribeConfigsResourceResult:
    """A config that an administrator gave to brokers, as it was given; Kafka may not know it."""
    definition = BROKER_CONFIGS.get(name)
    if definition is not None:
        with contextlib.suppress(InvalidConfig):
            value = config_text(definition.parse_stored(value or ""))
        return _body(definition, value, synonyms, read_only=definition.read_only)
    return DescribeConfigsResourceResult(
        name=name,
        value=None,
        read_only=True,
        config_source=synonyms[0].source,
        is_sensitive=True,
        synonyms=[DescribeConfigsSynonym(name=each.name, value=None, source=each.source) for each in synonyms],
        config_type=ConfigType.UNKNOWN,
        documentation=None,
    )


def _body(
    definition: ConfigDefinition, value: str | None, synonyms: Sequence[Synonym], *, read_only: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=_shown(definition, value),
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else DEFAULT_CONFIG,
        is_sensitive=definition.type == ConfigType.PASSWORD,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=_shown(definition, each.value), source=each.source)
            for each in synonyms
        ],
        config_type=definition.type,
        documentation=definition.documentation or NO_EFFECT,
    )


def _shown(definition: ConfigDefinition, value: str | None) -> str | None:
    """The value to show; passwords are never shown."""
    return None if definition.type == ConfigType.PASSWORD else value


serve(
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    VersionRange(1, 4),
    access=Access(by_handler="DescribeConfigs on the topic, group or cluster"),
    handle=handle,
    failed=failed,
    size=ResponseSize.LONG,
    elements=ElementArrays(("resources",), "results", described=identity_of),
)
