"""Validators of JSON Web Tokens: signed ones against a JSON Web Key Set, and unsecured ones, for tests.

Signatures and claims are checked by the library PyJWT. The key set is a file, or comes from `sasl.oauthbearer.jwks.
endpoint.url`; a token with an unknown key makes it be fetched again, at most every REFETCH_MS.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import jwt

from kshare_core.configs import InvalidConfig
from kshare_gateway.security.sasl.mechanism import Authenticated
from kshare_gateway.security.sasl.oauth_bearer import TokenRefused

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Public keys only: with a shared secret, a verifier could also make tokens."""
REFETCH_MS = 60_000
FETCH_TIMEOUT_S = 10.0
KEY_SET_LIMIT_BYTES = 1 << 20
SCHEMES = ("file", "http", "https")

log = logging.getLogger("kshare_gateway")


@dataclass(slots=True)
class KeySet:
    """The public keys at a URL, by their ids."""

    url: str
    _keys: Mapping[str | None, jwt.PyJWK] = field(default_factory=dict)
    _fetched_at: float = -math.inf
    _fetching: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in SCHEMES:
            text = "sasl.oauthbearer.jwks.endpoint.url"
            raise InvalidConfig(f"{text} is {self.url!r}; it must begin with one of {', '.join(SCHEMES)}")

    def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key with this id, or the only one for a token that names none."""
        found = self._keys.get(key_id)
        if found is None and key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return found

    def age_ms(self) -> float:
        return (time.monotonic() - self._fetched_at) * 1000

    def fetch_soon(self) -> None:
        """Fetches the keys in the background, unless that is under way."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self.fetch(), name="fetch of a JSON Web Key Set")

    async def fetch(self) -> None:
        """Replaces the keys; after a failure the former ones stay, with a log line."""
        self._fetched_at = time.monotonic()
        try:
            text = await asyncio.to_thread(self._read)
            keys = jwt.PyJWKSet.from_json(text).keys
        except Exception as error:  # of many libraries: the network, JSON, keys
            log.error("the JSON Web Key Set at %s could not be read, the former keys stay: %s", self.url, error)
            return
        self._keys = {key.key_id: key for key in keys}

    def _read(self) -> str:
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return Path(unquote(parts.path)).read_text(encoding="utf-8")
        with urlopen(self.url, timeout=FETCH_TIMEOUT_S) as answer:
            return str(answer.read(KEY_SET_LIMIT_BYTES).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTokens:
    """Kafka's OAuthBearerValidatorCallbackHandler: `sasl.oauthbearer.*` as its configs say.

    A token that names an audience is refused if none is expected: it was made for another service.
    """

    keys: KeySet
    refresh_ms: int
    clock_skew_s: int
    audiences: tuple[str, ...]
    issuer: str | None
    subject_claim: str
    scope_claim: str

    def validate(self, token: str) -> Authenticated:
        if self.keys.age_ms() > self.refresh_ms:
            self.keys.fetch_soon()
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self.keys.key(key_id)
            if key is None:
                if self.keys.age_ms() > REFETCH_MS:
                    self.keys.fetch_soon()
                raise TokenRefused("its key is not known")
            claims = jwt.decode(
                token,
                key.key,  # of the key set's own algorithm: RS256 stands for every one of RSA
                algorithms=ALGORITHMS,
                audience=self.audiences or None,
                issuer=self.issuer,
                leeway=self.clock_skew_s,
                options={"require": ["exp", "iat"]},
            )
            expires_at_s = float(claims["exp"])
        # Not only PyJWT's errors: for a key of another algorithm, and times that are no finite number, Python's pass.
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise TokenRefused(str(error)) from error
        _scopes(claims.get(self.scope_claim))
        return Authenticated(_principal(claims, self.subject_claim), expires_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredTokens:
    """Kafka's OAuthBearerUnsecuredValidatorCallbackHandler, which believes what a token says: for tests only."""

    principal_claim: str
    scope_claim: str
    required_scopes: tuple[str, ...]
    clock_skew_ms: int
    now_s: Callable[[], float] = time.time

    def validate(self, token: str) -> Authenticated:
        try:
            unsigned = token.endswith(".") and jwt.get_unverified_header(token).get("alg") == "none"
            if not unsigned:
                raise TokenRefused("it is signed")
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError as error:
            raise TokenRefused(str(error)) from error
        expires_at_s, issued_at_s = _time_s(claims, "exp"), _time_s(claims, "iat")
        skew_s = self.clock_skew_ms / 1000
        if expires_at_s is None:
            raise TokenRefused("it does not say when it expires")
        if self.now_s() - skew_s >= expires_at_s:
            raise TokenRefused("it is expired")
        if issued_at_s is not None and (issued_at_s > self.now_s() + skew_s or issued_at_s >= expires_at_s):
            raise TokenRefused("it was issued in the future, or after its end")
        scopes = _scopes(claims.get(self.scope_claim))
        missing = [scope for scope in self.required_scopes if scope not in scopes]
        if missing:
            raise TokenRefused("it lacks a scope", " ".join(self.required_scopes))
        return Authenticated(_principal(claims, self.principal_claim), expires_at_s)


def _time_s(claims: Mapping[str, Any], name: str) -> float | None:
    """The time that a claim says, in seconds since 1970; None without the claim. TokenRefused.

    Python reads NaN and Infinity as JSON, and integers that are too long for a float.
    """
    value = claims.get(name)
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise TokenRefused(f"its claim {name} is not a time")


def _principal(claims: Mapping[str, Any], name: str) -> str:
    found = claims.get(name)
    if not isinstance(found, str) or not found.strip():
        raise TokenRefused(f"its claim {name} is not the name of a principal")
    if any("\ud800" <= letter <= "\udfff" for letter in found):  # half of a pair, which cannot be written in UTF-8
        raise TokenRefused(f"its claim {name} is no Unicode text")
    return found.strip()


def _scopes(claim: object) -> tuple[str, ...]:
    """A text of scopes with blanks between them, or a list."""
    if isinstance(claim, str):
        return tuple(claim.split())
    if isinstance(claim, list) and all(isinstance(each, str) for each in claim):
        return tuple(claim)
    if claim is not None:
        raise TokenRefused("its scopes are neither a text nor a list of texts")
    return ()
