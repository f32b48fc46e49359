"""Connection settings of etcd, from the coordinator's configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kshare_core.configs import Configs, InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSettings:
    """Connection settings of etcd. Certificates and the key are PEM; None: not given."""

    endpoints: tuple[str, ...]
    """host:port each, at least one."""
    ca: bytes | None = field(default=None, repr=False)
    """If given, the connection uses TLS."""
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    username: str = ""
    password: str = field(default="", repr=False)


def etcd_settings(configs: Configs) -> EtcdSettings:
    """The settings in the configs; InvalidConfig names one that is missing or unreadable."""
    endpoints = configs["kshare.metadata.etcd.endpoints"]
    assert isinstance(endpoints, tuple)
    if not endpoints:
        raise InvalidConfig("kshare.metadata.store=etcd needs kshare.metadata.etcd.endpoints, such as 10.0.0.1:2379")
    for endpoint in endpoints:
        host, colon, port = endpoint.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65_536) or "/" in endpoint:
            raise InvalidConfig(f"kshare.metadata.etcd.endpoints: {endpoint!r} is not host:port")
    ca = _content(configs, "kshare.metadata.etcd.ca.location")
    certificate = _content(configs, "kshare.metadata.etcd.certificate.location")
    key = _content(configs, "kshare.metadata.etcd.key.location")
    if (certificate is None) != (key is None):
        raise InvalidConfig(
            "kshare.metadata.etcd.certificate.location and kshare.metadata.etcd.key.location need each other"
        )
    if certificate is not None and ca is None:
        raise InvalidConfig("kshare.metadata.etcd.certificate.location needs kshare.metadata.etcd.ca.location")
    username = configs.text("kshare.metadata.etcd.username")
    password = configs.text("kshare.metadata.etcd.password")
    if password and not username:
        raise InvalidConfig("kshare.metadata.etcd.password needs kshare.metadata.etcd.username")
    return EtcdSettings(
        endpoints=endpoints, ca=ca, certificate=certificate, key=key, username=username, password=password
    )


def _content(configs: Configs, name: str) -> bytes | None:
    location = configs.text(name)
    if not location:
        return None
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise InvalidConfig(f"{name}: {location} cannot be read: {error.strerror}") from error
