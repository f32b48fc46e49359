"""What the mechanisms of SASL have in common: exchanges, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SaslFailure(Exception):
    """A failed authentication. The text is told to the client, so it says nothing about users or secrets."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The end of an exchange: who the client is, and until when (seconds since 1970; None: no end)."""

    user_name: str
    expires_at_s: float | None = None


class SaslExchange(Protocol):
    """One authentication by one mechanism."""

    @property
    def result(self) -> Authenticated | None:
        """Set after the last message of the client."""
        ...

    def answer(self, message: bytes) -> bytes:
        """The server's answer to a message of the client; SaslFailure."""
        ...
