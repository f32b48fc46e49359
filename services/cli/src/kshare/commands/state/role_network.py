"""How commands call the roles: with the certificates of the configuration that KSHARE_CONFIG names, if it has any."""

from __future__ import annotations

from kshare.failure import BAD_USE, CommandFailed
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_servicekit.rpc_tls import exchange_tls_of_variables


def role_network() -> GrpcNetwork:
    """CommandFailed where the configuration cannot be used."""
    try:
        return GrpcNetwork(tls=exchange_tls_of_variables())
    except (OSError, ValueError) as error:
        raise CommandFailed(f"the configuration of KSHARE_CONFIG cannot be used: {error}", BAD_USE) from None
