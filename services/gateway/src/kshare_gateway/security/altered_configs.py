"""What a gateway tells of altered broker configs before the coordinator checks them: they are about its own listeners.

A config of a listener that the gateway does not have would have no effect. TLS is tried with the new values, as Kafka
does: a keystore that cannot be read is refused, and not found when the certificates are renewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kshare_core.configs import DynamicConfigs, InvalidConfig
from kshare_core.configs.listener_names import LISTENER_PREFIX, TLS_CONFIGS, protecting_name
from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.gateway import Gateway
from kshare_gateway.security.configuration import tls_configs
from kshare_rpc.generated.kshare.v1 import coordinator_pb2

DELETE = 1
ALL_BROKERS = ""

Resource = coordinator_pb2.IncrementalAlterConfigsRequest.Resource


def problem_of_listeners(gateway: Gateway, resource: Resource) -> KafkaError | None:
    """Why the configs of this broker, or of all brokers, cannot be altered so; None if the gateway knows no reason."""
    listeners = gateway.settings.all_listeners()
    names = [change.name for change in resource.configs if change.config_operation != DELETE]
    found = {name: protecting_name(name) for name in names if name.startswith(LISTENER_PREFIX)}
    tried: dict[str, GatewayListener] = {}
    for name, base_name in found.items():
        if base_name is None:
            continue
        listener = next((each for each in listeners if name.startswith(each.config_prefix)), None)
        is_of_tls = base_name in TLS_CONFIGS
        if name not in gateway.configs.table or listener is None or (is_of_tls and not listener.is_tls):
            kind = "listener with TLS" if is_of_tls else "listener"
            text = f"{name} would have no effect: `listeners` of this gateway has no {kind} of this name"
            return KafkaError(ErrorCode.INVALID_REQUEST, text)
        if is_of_tls:
            tried[listener.name] = listener
    return _tls_problem(gateway, resource, list(tried.values()))


def _tls_problem(gateway: Gateway, resource: Resource, listeners: Sequence[GatewayListener]) -> KafkaError | None:
    current = gateway.configs
    if not listeners or not resource.resource_name or not isinstance(current, DynamicConfigs):
        return None  # the coordinator refuses TLS configs of all brokers
    from kshare_servicekit.tls.contexts import server_context  # loads cryptography

    after = DynamicConfigs(current.static)
    after.alter(gateway.view.broker_configs.get(ALL_BROKERS, {}), _texts_after(gateway, resource))
    try:
        for listener in listeners:
            server_context(tls_configs(after, listener))
    except InvalidConfig as error:
        return KafkaError(ErrorCode.INVALID_REQUEST, str(error))
    return None


def _texts_after(gateway: Gateway, resource: Resource) -> Mapping[str, str]:
    """The altered values of the broker; configs of listeners are never lists to append to."""
    before = {} if resource.replaces_all else gateway.view.broker_configs.get(resource.resource_name, {})
    after = dict(before)
    for change in resource.configs:
        if change.config_operation == DELETE:
            after.pop(change.name, None)
        else:
            after[change.name] = change.value
    return after
