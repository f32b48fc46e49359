"""Principals: who a client is, as Kafka writes it in ACLs, "User:alice"."""

from __future__ import annotations

USER_TYPE = "User"
ANONYMOUS = "User:ANONYMOUS"
"""A client of a listener without authentication, or that presented no certificate."""


def user(name: str) -> str:
    """The principal of a user."""
    return f"{USER_TYPE}:{name}"
