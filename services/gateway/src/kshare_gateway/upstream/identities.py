"""Who clients are at the cluster: what they authenticate as there, on connections that are theirs.

SASL passes through the gateway. TLS ends at it, so a client's certificate does not. Configurations in which clients
would be another principal at the cluster than they are here are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from kshare_core.configs import Configs, InvalidConfig
from kshare_gateway.connections.listeners import SSL, GatewayListener
from kshare_servicekit.existing_cluster import ENGINE, KAFKA
from kshare_servicekit.tls.to_upstream import PROTOCOL

CLIENT_AUTHENTICATION = "ssl.client.auth"
AUTHORIZER = "authorizer.class.name"
OWN_CERTIFICATE = "kshare.upstream.ssl.keystore.location"


def check_identities(configs: Configs, listeners: Sequence[GatewayListener]) -> None:
    """InvalidConfig where clients would not be at the cluster who they are here, with kshare.engine=kafka."""
    has_sasl = configs.text(PROTOCOL).startswith("SASL")
    if configs.text(AUTHORIZER):
        raise InvalidConfig(f"{AUTHORIZER} is set, and with {ENGINE}={KAFKA} the cluster's own authorizer decides")
    if not has_sasl and configs.is_set(OWN_CERTIFICATE):
        text = f"{OWN_CERTIFICATE} is set without SASL: every client would be at the cluster what kshare is"
        raise InvalidConfig(f"{text}; use a listener of the cluster with SASL ({PROTOCOL})")
    for listener in listeners:
        if listener.is_sasl and not has_sasl:
            text = f"listener {listener.name} has SASL, and the cluster's listener ({PROTOCOL}) has none"
            raise InvalidConfig(f"{text}; the cluster is what authenticates clients")
        client_auth = f"{listener.config_prefix}{CLIENT_AUTHENTICATION}"
        wanted = next((configs.text(each) for each in (client_auth, CLIENT_AUTHENTICATION) if configs.is_set(each)), "")
        if listener.security_protocol == SSL and wanted in ("required", "requested") and not has_sasl:
            text = f"{CLIENT_AUTHENTICATION}={wanted} at listener {listener.name}: TLS ends at the gateway"
            raise InvalidConfig(f"{text}, so a client's certificate cannot be its identity at the cluster; use SASL")
