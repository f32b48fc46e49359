"""IP addresses of clients as texts: each address has one, the text of Java's InetAddress.getHostAddress.

ACLs, quotas and limits that come from a Kafka cluster are written in this way: 0:0:0:0:0:0:0:1, not ::1. Addresses are
the same if their texts here are.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_address(text: str) -> bool:
    """Whether a text is an IP address, and not a host name."""
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def address_text(text: str) -> str:
    """The one text of an address, however it is written; any other text is returned as it is.

    An IPv4 address in an IPv6 one is written as IPv4, which is how a dual-stack listener sees IPv4 clients. An
    interface (fe80::1%eth0) is left out, because uvloop does not tell it.
    """
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))
