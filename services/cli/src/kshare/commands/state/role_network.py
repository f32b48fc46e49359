"""The network by which commands call roles, with the certificates of the configuration file in KSHARE_CONFIG."""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_servicekit.rpc_tls import exchange_tls_of_variables


def role_network() -> GrpcNetwork:
    """A network with the configured TLS; CommandFailed if the configuration is invalid."""
    try:
        return GrpcNetwork(tls=exchange_tls_of_variables())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"the configuration in KSHARE_CONFIG is invalid: {error}", BAD_USE) from None
