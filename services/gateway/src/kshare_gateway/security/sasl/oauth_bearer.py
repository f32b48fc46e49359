"""OAUTHBEARER (RFC 7628): the client presents a JSON Web Token, which a validator checks.

A token that is refused is answered with the JSON text of the RFC; the client confirms it, and then the authentication
fails, as in OAuthBearerSaslServer of Kafka 4.3.1. The connection has to authenticate again before the token expires.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

from kshare_gateway.security.sasl.mechanism import Authenticated, SaslFailure

OAUTHBEARER = "OAUTHBEARER"
MOST_PAIRS = 128
"""The token and its SASL extensions (KIP-342). Of pairs as short as can be a message would hold 170,000."""
CONFIRMATION = b"\x01"
_FIRST = re.compile(r"n,(?:a=([^,]*))?,\x01(.*)\x01\x01", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]*)")
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([-_~+/.=A-Za-z0-9]+)")


class TokenRefused(Exception):
    """A token that is not valid; `scope`: one that it lacks."""

    def __init__(self, problem: str, scope: str | None = None) -> None:
        super().__init__(problem)
        self.scope = scope


class TokenValidator(Protocol):
    def validate(self, token: str) -> Authenticated:
        """Who the token is for, and until when; TokenRefused."""
        ...


class OAuthBearerExchange:
    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._error = ""
        self.result: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        if self._error:
            raise SaslFailure(self._error if message == CONFIRMATION else "Invalid OAUTHBEARER client message")
        match = _FIRST.fullmatch(message.decode("latin-1"))
        if match is None:
            raise SaslFailure("Invalid OAUTHBEARER client first message")
        parts = match[2].split("\x01", MOST_PAIRS)
        if len(parts) > MOST_PAIRS:
            raise SaslFailure(f"Invalid OAUTHBEARER client first message: more than {MOST_PAIRS} pairs")
        pairs = [_PAIR.fullmatch(part) for part in parts]
        authorization = [pair[2] for pair in pairs if pair is not None and pair[1] == "auth"]
        bearer = _BEARER.fullmatch(authorization[0].strip()) if len(authorization) == 1 and all(pairs) else None
        if bearer is None:
            raise SaslFailure("Invalid OAUTHBEARER client first message: 'auth' must be a bearer token")
        try:
            found = self._validator.validate(bearer[1])
        except TokenRefused as refused:
            status = "invalid_token" if refused.scope is None else "insufficient_scope"
            scope = {} if refused.scope is None else {"scope": refused.scope}
            self._error = json.dumps({"status": status, **scope}, separators=(",", ":"))
            return self._error.encode()
        if match[1] and match[1] != found.user_name:
            raise SaslFailure("Authentication failed: the authorization id is not the principal of the token")
        self.result = found
        return b""
