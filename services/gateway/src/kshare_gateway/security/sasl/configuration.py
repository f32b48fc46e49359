"""The mechanisms of a SASL listener, from Kafka's configs; a listener that could not authenticate does not start.

As in Kafka, a config is looked up with the prefix of listener and mechanism (listener.name.sasl_ssl.plain.), then of
the listener, then without one; the JAAS value needs both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kshare_core.configs import Configs, ConfigValue, InvalidConfig
from kshare_core.configs.jaas import LoginModule, parse_jaas
from kshare_core.configs.listener_names import LISTENER_PREFIX, SASL_MECHANISMS
from kshare_gateway.security.sasl.mechanism import SaslExchange
from kshare_gateway.security.sasl.oauth_bearer import OAUTHBEARER, OAuthBearerExchange, TokenValidator
from kshare_gateway.security.sasl.plain import PLAIN, PlainUsers
from kshare_gateway.security.sasl.scram import SCRAM_MECHANISMS, ScramUsers

if TYPE_CHECKING:
    from kshare_gateway.security.sasl.tokens import KeySet

SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
BEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SIGNED_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
OF_SIGNED_TOKENS = (
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.expected.audience",
)
"""Configs that only the handlers above read; each is empty by default."""
HANDLER = "sasl.server.callback.handler.class"
JAAS = "sasl.jaas.config"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslMechanism:
    """One enabled mechanism of a listener."""

    begin: Callable[[], SaslExchange]
    maximum_session_ms: int
    """connections.max.reauth.ms; 0: sessions have no end of their own."""


def without_effect(name: str, prefix: str) -> str:
    """What is wrong with a config of signed tokens that the listener with this prefix ignores."""
    handler = f"{prefix}{OAUTHBEARER.lower()}.{HANDLER}"
    where = "" if name.startswith(prefix) else f" at listener {prefix.removeprefix(LISTENER_PREFIX)[:-1].upper()}"
    return f"{name} has no effect{where}, so anybody could make a token: set {handler}={SIGNED_HANDLERS[0]}"


class SaslListener:
    """The enabled mechanisms of one listener by their names; InvalidConfig."""

    def __init__(self, configs: Configs, prefix: str, scram_users: ScramUsers) -> None:
        self._configs = configs
        self._prefix = prefix
        self.key_sets: list[KeySet] = []
        self.maximum_message_bytes = int(str(self._value("", "sasl.server.max.receive.size")))
        names = self._value("", "sasl.enabled.mechanisms")
        enabled = [name.strip() for name in names if name.strip()] if isinstance(names, tuple) else []
        unknown = [name for name in enabled if name not in SASL_MECHANISMS]
        if unknown or not enabled:
            text = f"{prefix}sasl.enabled.mechanisms is {','.join(enabled) or 'empty'}"
            raise InvalidConfig(f"{text}; allowed are {', '.join(SASL_MECHANISMS)}, one of them at least")
        self.mechanisms: Mapping[str, SaslMechanism] = {
            name: SaslMechanism(
                begin=self._begin(name, scram_users),
                maximum_session_ms=int(str(self._value(name, "connections.max.reauth.ms"))),
            )
            for name in enabled
        }

    def _begin(self, mechanism: str, scram_users: ScramUsers) -> Callable[[], SaslExchange]:
        """Makes an exchange of the mechanism."""
        handler = str(self._value(mechanism, HANDLER) or "")
        if handler and (mechanism != OAUTHBEARER or handler not in SIGNED_HANDLERS):
            allowed = SIGNED_HANDLERS[0] if mechanism == OAUTHBEARER else "none"
            raise InvalidConfig(f"{self._prefix}{mechanism.lower()}.{HANDLER} is {handler}; allowed is {allowed}")
        module = self._login_module(mechanism)
        if mechanism == PLAIN:
            return PlainUsers(self._jaas_name(PLAIN), module).exchange
        if mechanism in SCRAM_MECHANISMS:
            self._expect(mechanism, module, SCRAM_MODULE)
            return lambda: scram_users.exchange(mechanism)
        self._expect(mechanism, module, BEARER_MODULE)
        if not handler:
            self._check_nothing_is_for_signed_tokens()
        validator = self._signed_tokens() if handler else self._unsecured_tokens(module)
        return lambda: OAuthBearerExchange(validator)

    def _login_module(self, mechanism: str) -> LoginModule:
        name = self._jaas_name(mechanism)
        value = self._configs[name] if name in self._configs.table else None
        if not value:
            raise InvalidConfig(f"{name} is missing: {mechanism} is enabled and needs a login module")
        return parse_jaas(name, str(value))

    def _expect(self, mechanism: str, module: LoginModule, class_name: str) -> None:
        if module.class_name != class_name:
            name = self._jaas_name(mechanism)
            raise InvalidConfig(f"{name} names {module.class_name}; {mechanism} needs {class_name}")

    def _jaas_name(self, mechanism: str) -> str:
        return f"{self._prefix}{mechanism.lower()}.{JAAS}"

    def _check_nothing_is_for_signed_tokens(self) -> None:
        """InvalidConfig where Kafka ignores these configs: its default handler checks no signature.

        A config without a prefix is for every listener: it has to have its effect at this one, too.
        """
        for prefix in (f"{self._prefix}{OAUTHBEARER.lower()}.", self._prefix, ""):
            for name in OF_SIGNED_TOKENS:
                if f"{prefix}{name}" in self._configs.table and self._configs.is_set(f"{prefix}{name}"):
                    raise InvalidConfig(without_effect(f"{prefix}{name}", self._prefix))

    def _signed_tokens(self) -> TokenValidator:
        url = self._text("sasl.oauthbearer.jwks.endpoint.url")
        if not url:
            name = f"{self._prefix}oauthbearer.sasl.oauthbearer.jwks.endpoint.url"
            raise InvalidConfig(f"{name} is missing: signed tokens are checked against its keys")
        from kshare_gateway.security.sasl.tokens import KeySet, SignedTokens  # loads PyJWT and cryptography

        keys = KeySet(url)
        self.key_sets.append(keys)
        audiences = self._value(OAUTHBEARER, "sasl.oauthbearer.expected.audience")
        return SignedTokens(
            keys=keys,
            refresh_ms=int(str(self._value(OAUTHBEARER, "sasl.oauthbearer.jwks.endpoint.refresh.ms"))),
            clock_skew_s=int(str(self._value(OAUTHBEARER, "sasl.oauthbearer.clock.skew.seconds"))),
            audiences=tuple(each for each in audiences if each) if isinstance(audiences, tuple) else (),
            issuer=self._text("sasl.oauthbearer.expected.issuer") or None,
            subject_claim=self._text("sasl.oauthbearer.sub.claim.name"),
            scope_claim=self._text("sasl.oauthbearer.scope.claim.name"),
        )

    def _unsecured_tokens(self, module: LoginModule) -> TokenValidator:
        from kshare_gateway.security.sasl.tokens import UnsecuredTokens  # loads PyJWT and cryptography

        options = module.options
        skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
        if not skew.isdecimal():
            name = self._jaas_name(OAUTHBEARER)
            raise InvalidConfig(f"{name}: unsecuredValidatorAllowableClockSkewMs is {skew!r}; it must be 0 or more")
        return UnsecuredTokens(
            principal_claim=options.get("unsecuredValidatorPrincipalClaimName", "sub"),
            scope_claim=options.get("unsecuredValidatorScopeClaimName", "scope"),
            required_scopes=tuple(options.get("unsecuredValidatorRequiredScope", "").split()),
            clock_skew_ms=int(skew),
        )

    def _text(self, name: str) -> str:
        value = self._value(OAUTHBEARER, name)
        return value if isinstance(value, str) else ""

    def _value(self, mechanism: str, name: str) -> ConfigValue:
        """The value with the longest prefix that is set, else the one without a prefix."""
        for prefix in (f"{self._prefix}{mechanism.lower()}.", self._prefix):
            if f"{prefix}{name}" in self._configs.table and self._configs.is_set(f"{prefix}{name}"):
                return self._configs[f"{prefix}{name}"]
        return self._configs[name]
