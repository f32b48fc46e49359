"""What the security configs of a gateway say of its listeners. `kshare up` checks them before it starts a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kshare_core.configs import Configs
from kshare_gateway.connections.listeners import GatewayListener
from kshare_gateway.security.ignored_settings import check_none_is_ignored
from kshare_gateway.security.sasl.configuration import SaslListener
from kshare_gateway.security.sasl.scram import ScramUsers
from kshare_gateway.upstream.identities import CLIENT_AUTHENTICATION, check_identities
from kshare_rpc.authorizer import configured_authorizer
from kshare_servicekit.existing_cluster import ENGINE, KAFKA

if TYPE_CHECKING:
    from kshare_gateway.security.certificate_principals import CertificatePrincipals
    from kshare_servicekit.tls.material import TlsConfigs


def sasl_listeners(
    configs: Configs, listeners: Sequence[GatewayListener], scram_users: ScramUsers
) -> dict[str, SaslListener]:
    """The mechanisms of each SASL listener, by its name; InvalidConfig."""
    return {each.name: SaslListener(configs, each.config_prefix, scram_users) for each in listeners if each.is_sasl}


def certificate_principals(configs: Configs, listeners: Sequence[GatewayListener]) -> dict[str, CertificatePrincipals]:
    """The principals of clients with certificates at each listener with TLS, by its name; InvalidConfig.

    None where SASL says who a client is: at SASL_SSL, and in front of an existing cluster.
    """
    with_tls = [each for each in listeners if each.is_tls and not each.is_sasl]
    if not with_tls or configs.text(ENGINE) == KAFKA:
        return {}
    from kshare_gateway.security.certificate_principals import CertificatePrincipals  # loads cryptography

    name = "ssl.principal.mapping.rules"
    return {each.name: CertificatePrincipals(tls_configs(configs, each).text(name)) for each in with_tls}


def tls_configs(configs: Configs, listener: GatewayListener) -> TlsConfigs:
    """The `ssl.*` configs of a listener. At SASL_SSL, `ssl.client.auth` without a prefix does not count (KIP-684)."""
    from kshare_servicekit.tls.material import TlsConfigs  # loads cryptography

    with_prefix_only = (CLIENT_AUTHENTICATION,) if listener.is_sasl else ()
    return TlsConfigs(configs, listener.config_prefix, with_prefix_only=with_prefix_only)


def tls_warnings(configs: Configs, listener: GatewayListener) -> list[str]:
    """A warning if the file seems to ask clients of a SASL listener for certificates, and does not."""
    own_name = f"{listener.config_prefix}{CLIENT_AUTHENTICATION}"
    wanted = configs.text(CLIENT_AUTHENTICATION)
    if not (listener.is_tls and listener.is_sasl) or wanted == "none" or configs.is_set(own_name):
        return []
    text = f"{CLIENT_AUTHENTICATION}={wanted} has no effect at listener {listener.name}, which has SASL"
    return [f"{text}: set {own_name}={wanted} to ask its clients for certificates, too"]


def check_security(configs: Configs, listeners: Sequence[GatewayListener]) -> None:
    """InvalidConfig if a gateway with these listeners would not start."""
    check_none_is_ignored(configs, listeners)
    if configs.text(ENGINE) == KAFKA:
        check_identities(configs, listeners)
        return
    sasl_listeners(configs, listeners, ScramUsers(dict))
    certificate_principals(configs, listeners)
    configured_authorizer(configs, dict)
