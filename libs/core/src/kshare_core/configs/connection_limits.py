"""The value of max.connections.per.ip.overrides: limits of client connections by address or host name."""

from __future__ import annotations

import re

from kshare_core.configs.definition import ConfigValue

_HOST = re.compile(r"[0-9A-Za-z.:%_-]+")
"""As Kafka's Utils.validHostPattern."""


def connection_overrides(text: str) -> dict[str, int]:
    """Limits by host, of "host:count,host:count"; ValueError says what is wrong."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, has_count, count = part.rpartition(":")
        host = host.strip().removeprefix("[").removesuffix("]")
        if not has_count or not _HOST.fullmatch(host) or not count.strip().isdecimal():
            raise ValueError(f"{part!r} must be host:count, with an address or host name and a count of 0 or more")
        found[host] = int(count)
    return found


def overrides_problem(value: ConfigValue) -> str | None:
    """The problem with a text of overrides; None if it is valid."""
    try:
        connection_overrides(str(value))
    except ValueError as problem:
        return str(problem)
    return None
