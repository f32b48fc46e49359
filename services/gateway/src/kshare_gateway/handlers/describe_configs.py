"""DescribeConfigs (key 32), versions 1 to 4: topics, groups and brokers (gateways), from tables and the catalog.

Sources: a value set for the topic (1) or group (8), set in a broker's properties (4), or a default (5); synonyms give
the whole chain. Brokers are those of the catalog, or "" for all of them, whose configs are never set; every gateway
answers with its own properties. Broker loggers and client metrics are INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kshare_core.configs import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    ConfigDefinition,
    Configs,
    ConfigTable,
    ConfigType,
    config_text,
    effective_group_config,
    effective_topic_config,
)
from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.gateway import Gateway
from kshare_gateway.handlers.internal_topics import topic_named
from kshare_gateway.request_context import RequestContext
from kshare_wire.messages import Body, Message

TOPIC, BROKER, GROUP = 2, 4, 32
TOPIC_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG, GROUP_CONFIG = 1, 4, 5, 8


async def handle(context: RequestContext, request: Message) -> Body:
    return {"results": [_result(context.gateway, resource, request) for resource in request.resources]}


def failed(context: RequestContext, request: Message, error: KafkaError) -> Body:
    return {"results": [_refusal(resource, error) for resource in request.resources]}


def _result(gateway: Gateway, resource: Message, request: Message) -> Body:
    describe = _DESCRIBERS.get(resource.resource_type)
    try:
        if describe is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Resource type {resource.resource_type} is not supported; "
                "allowed are 2 (topic), 4 (broker) and 32 (group)",
            )
        entries = describe(gateway, resource.resource_name)
    except KafkaError as error:
        return _refusal(resource, error)
    names = resource.configuration_keys
    if names is not None:
        wanted = set(names)
        entries = [entry for entry in entries if entry["name"] in wanted]
    if not request.include_synonyms:
        entries = [{**entry, "synonyms": []} for entry in entries]
    if not request.include_documentation:
        entries = [{**entry, "documentation": None} for entry in entries]
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": entries,
    }


def _refusal(resource: Message, error: KafkaError) -> Body:
    return {
        "error_code": error.code,
        "error_message": error.message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _visible(table: ConfigTable) -> list[ConfigDefinition]:
    """All but those that Kafka defines as internal and shows to nobody."""
    return [definition for definition in table.values() if not definition.is_internal]


def _describe_topic(gateway: Gateway, name: str) -> list[Body]:
    topic = topic_named(gateway, name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No topic has the name {name}")
    texts = {entry.name: entry.value for entry in topic.configs}
    configs = effective_topic_config(gateway.configs, texts)
    return [_entry(gateway, definition, configs, texts, TOPIC_CONFIG) for definition in _visible(TOPIC_CONFIGS)]


def _describe_group(gateway: Gateway, group_id: str) -> list[Body]:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A group needs a name")
    texts = dict(gateway.view.group_configs.get(group_id, {}))
    configs = effective_group_config(gateway.configs, texts)
    return [_entry(gateway, definition, configs, texts, GROUP_CONFIG) for definition in _visible(GROUP_CONFIGS)]


def _describe_broker(gateway: Gateway, name: str) -> list[Body]:
    if not name:
        return []
    if name not in {str(node.node_id) for node in gateway.view.gateways()}:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"No broker has the id {name!r}")
    return [_broker_entry(gateway.configs, definition) for definition in _visible(BROKER_CONFIGS)]


_DESCRIBERS: Mapping[int, Callable[[Gateway, str], list[Body]]] = {
    TOPIC: _describe_topic,
    BROKER: _describe_broker,
    GROUP: _describe_group,
}


def _entry(
    gateway: Gateway, definition: ConfigDefinition, configs: Configs, texts: Mapping[str, str], own_source: int
) -> Body:
    name = definition.name
    if name in texts:
        source = own_source
    else:
        source = STATIC_BROKER_CONFIG if configs.is_inherited(name) else DEFAULT_CONFIG
    synonyms: list[Body] = []
    if name in texts:
        synonyms.append({"name": name, "value": _shown(definition, texts[name]), "source": own_source})
    synonym = definition.broker_synonym
    if synonym is not None:
        if gateway.configs.is_set(synonym):
            value = config_text(gateway.configs[synonym])
            synonyms.append({"name": synonym, "value": value, "source": STATIC_BROKER_CONFIG})
        default = gateway.configs.table[synonym].default
        if default is not None:
            synonyms.append({"name": synonym, "value": config_text(default), "source": DEFAULT_CONFIG})
    elif own_source == GROUP_CONFIG:  # as in Kafka, where a topic's config has the broker's synonyms only
        synonyms.append({"name": name, "value": config_text(definition.default), "source": DEFAULT_CONFIG})
    return _body(definition, config_text(configs[name]), source, synonyms, read_only=False)


def _broker_entry(configs: Configs, definition: ConfigDefinition) -> Body:
    name = definition.name
    default = {"name": name, "value": _shown(definition, config_text(definition.default)), "source": DEFAULT_CONFIG}
    if not configs.is_set(name):
        return _body(definition, config_text(configs[name]), DEFAULT_CONFIG, [default], read_only=True)
    value = config_text(configs[name])
    own = {"name": name, "value": _shown(definition, value), "source": STATIC_BROKER_CONFIG}
    return _body(definition, value, STATIC_BROKER_CONFIG, [own, default], read_only=True)


def _body(
    definition: ConfigDefinition, value: str | None, source: int, synonyms: list[Body], *, read_only: bool
) -> Body:
    return {
        "name": definition.name,
        "value": _shown(definition, value),
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": definition.type == ConfigType.PASSWORD,
        "synonyms": synonyms,
        "config_type": definition.type,
        "documentation": definition.documentation,
    }


def _shown(definition: ConfigDefinition, value: str | None) -> str | None:
    """Passwords are never told."""
    return None if definition.type == ConfigType.PASSWORD else value
