"""The network by which commands call roles, with certificates from the environment or from a local `kshare up`."""

from __future__ import annotations

from pathlib import Path

from kshare.addresses import Address
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import ADMINISTRATOR_PROPERTIES
from kshare_rpc.exchange.tls import ExchangeTls
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.network import CallFailed, CallNotStarted, CallTimeout, ChannelUnavailable
from kshare_servicekit.tls.between_roles import exchange_tls_of_variables

CERTIFICATE_HINT = (
    "; if roles ask for certificates, give the --data-dir of kshare up, or set KSHARE_CONFIG to a property "
    "file with kshare.rpc.ssl.keystore.location and kshare.rpc.ssl.truststore.location"
)


class RoleAddress(Address):
    """The address of a role, and a property file with a certificate that it accepts."""

    config_file: Path | None = None
    """Used unless KSHARE_CONFIG is set."""


def local_role_address(address: Address, data_dir: Path) -> RoleAddress:
    """`address`, with the administrator's certificate of the `kshare up` on `data_dir`, if it has one."""
    found = RoleAddress(*address)
    config_file = data_dir / ADMINISTRATOR_PROPERTIES
    found.config_file = config_file if config_file.exists() else None
    return found


def role_network(address: Address) -> GrpcNetwork:
    """A network for calls to `address` with the configured TLS; CommandFailed if the configuration is invalid."""
    return GrpcNetwork(tls=_configured_tls(address))


def why_no_response(address: Address, failure: CallFailed) -> str:
    """The failure's text; if a connection without a certificate was lost, it says how to give a certificate."""
    was_lost = isinstance(failure, ChannelUnavailable) and not isinstance(failure, CallNotStarted | CallTimeout)
    return f"{failure}{CERTIFICATE_HINT}" if was_lost and _configured_tls(address) is None else str(failure)


def _configured_tls(address: Address) -> ExchangeTls | None:
    config_file = address.config_file if isinstance(address, RoleAddress) else None
    try:
        return exchange_tls_of_variables(without_variables=config_file)
    except (OSError, ValueError) as error:
        source = "in KSHARE_CONFIG" if config_file is None else f"{config_file}"
        raise CommandFailed(f"the configuration {source} is invalid: {error}", BAD_USE) from None
