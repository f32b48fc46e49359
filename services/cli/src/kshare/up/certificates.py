"""The certificates with which the roles of a `kshare up` know each other, if clients authenticate or need permissions.

Their ports are on the loopback interface, where every local user can reach them, and take calls that no ACL is asked
about. So without `kshare.rpc.ssl.*` in the configuration, each start makes a private authority and a certificate for
each role in `certificates/`, readable by this user only. The authority's key is not stored.

certificates/authority.pem         the authority's certificate
certificates/<role>.pem            a role's certificate and key; `administrator` is for kshare's commands
certificates/<role>.properties     the configs that name them
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import CERTIFICATES, DataDirectory
from kshare.up.plan import COORDINATOR, GATEWAY, INTERNAL_HOST, LEADER, SHARE_COORDINATOR
from kshare_core.configs import Configs
from kshare_gateway.connections.listeners import GatewayListener
from kshare_servicekit.properties import parse_properties
from kshare_servicekit.tls.between_roles import needs_known_roles

ADMINISTRATOR = "administrator"
BACKSLASH = "\\"


def own_certificates(
    directory: DataDirectory, configs: Configs, listeners: Sequence[GatewayListener]
) -> dict[str, Path]:
    """A property file for each role; empty if the roles need no certificates or have them. CommandFailed."""
    folder = directory.path / CERTIFICATES
    if not needs_known_roles(configs, has_users=any(listener.is_sasl for listener in listeners)):
        for former in folder.glob("*.properties"):  # commands would speak TLS to ports without it
            former.unlink(missing_ok=True)
        return {}
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return _write(folder)
    except OSError as error:
        raise CommandFailed(f"cannot write the roles' certificates to {folder}: {error}", BAD_USE) from None


def certificate_properties(certificates: Mapping[str, Path], role: str) -> dict[str, str]:
    """What the property file of `role` says; empty without one."""
    return parse_properties(certificates[role].read_text(encoding="utf-8")) if certificates else {}


def _write(folder: Path) -> dict[str, Path]:
    from kshare_servicekit.tls.role_authority import RoleAuthority  # loads a library that is rarely needed

    authority = RoleAuthority.create()
    truststore = folder / "authority.pem"
    _replace(truststore, authority.pair.certificate_pem)
    files = {}
    for role in (COORDINATOR, SHARE_COORDINATOR, LEADER, GATEWAY, ADMINISTRATOR):
        issued = authority.issue([role.replace("-", "_")], names=["localhost"], addresses=[INTERNAL_HOST])
        keystore = folder / f"{role}.pem"
        _replace(keystore, issued.certificate_pem + issued.key_pem)
        texts = {
            "kshare.rpc.ssl.keystore.location": keystore,
            "kshare.rpc.ssl.truststore.location": truststore,
            "kshare.rpc.ssl.roles.required": "true",
        }
        files[role] = folder / f"{role}.properties"
        _replace(
            files[role],
            "".join(f"{name}={str(text).replace(BACKSLASH, 2 * BACKSLASH)}\n" for name, text in texts.items()),
        )
    return files


def _replace(path: Path, text: str) -> None:
    """Writes a file that only this user may read."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
