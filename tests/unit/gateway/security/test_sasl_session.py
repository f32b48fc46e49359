"""The state of a connection's authentication, its mechanisms one message at a time, and their configs."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from scramp import ScramClient, ScramMechanism

from kshare_core.configs import Configs, InvalidConfig
from kshare_core.configs.jaas import parse_jaas
from kshare_core.configs.process import process_configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.bounded_lines import BoundedLog
from kshare_gateway.connections.listeners import configured_listeners
from kshare_gateway.security.configuration import sasl_listeners
from kshare_gateway.security.sasl.configuration import SIGNED_HANDLERS, SaslListener, SaslMechanism
from kshare_gateway.security.sasl.mechanism import SaslFailure
from kshare_gateway.security.sasl.oauth_bearer import TokenRefused
from kshare_gateway.security.sasl.scram import ScramType, ScramUsers, check_user_name, credential_of_salted_password
from kshare_gateway.security.sasl.session import SaslSession
from kshare_gateway.security.sasl.tokens import KeySet, SignedTokens, UnsecuredTokens
from kshare_rpc.generated.kshare.v1.security_pb2 import (
    ScramCredential,
    ScramUser,
    SecurityEntry,
    SecurityKey,
    SecurityValue,
)
from kshare_wire.generated.api_keys import ApiKey

KEY = rsa.generate_private_key(65537, 2048)
MODULES = "org.apache.kafka.common.security"
PLAIN = f'{MODULES}.plain.PlainLoginModule required user_alice="secret" user_bob="other";'
BEARER = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;"
PREFIX = "listener.name.sasl."
LINES = BoundedLog(logging.getLogger("kshare_gateway"))
Settings = dict[str, str]


def configs_of(**settings: str) -> Configs:
    texts = {"listeners": "SASL://:9092", "listener.security.protocol.map": "SASL:SASL_PLAINTEXT"}
    found, _ = process_configs(texts | {f"{PREFIX}{name.replace('_', '.')}": text for name, text in settings.items()})
    return found


def listener_of(mechanisms: str, settings: Settings, rows: Callable[[], Any] = dict) -> SaslListener:
    configs = configs_of(sasl_enabled_mechanisms=mechanisms, **settings)
    return SaslListener(configs, PREFIX, ScramUsers(rows))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def plain_session(clock: Clock | None = None, **settings: str) -> SaslSession:
    return SaslSession(listener_of("PLAIN", {"plain_sasl_jaas_config": PLAIN, **settings}), clock or Clock(), LINES)


def log_in(session: SaslSession, user: str = "alice", password: str = "secret") -> None:
    session.choose("PLAIN", raw=False)
    session.answer(f"\0{user}\0{password}".encode())


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a.B required;", {}),
        ('a.B required username="alice" password=\'it "is"\';', {"username": "alice", "password": 'it "is"'}),
        (' a.B  required\n x = "a\\"b\\\\c;=d" y=bare ; ', {"x": 'a"b\\c;=d', "y": "bare"}),
        ('a.B sufficient empty="";', {"empty": ""}),
    ],
)
def test_a_jaas_value(text: str, options: Settings) -> None:
    module = parse_jaas("name", text)
    assert (module.class_name, module.options) == ("a.B", options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.B",
        "a.B required",
        "a.B maybe;",
        'a.B required x="planted;',
        "a.B required x=;",
        "a.B required planted;",
        "a.B required x=planted; c.D required;",
        "a.B required = planted y;",
    ],
)
def test_a_jaas_value_that_cannot_be_read_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidConfig, match="the-name cannot be read") as refused:
        parse_jaas("the-name", text)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("mechanisms", "settings", "named"),
    [
        ("GSSAPI", {}, "sasl.enabled.mechanisms is GSSAPI; allowed are PLAIN"),
        ("", {}, "sasl.enabled.mechanisms is empty"),
        ("PLAIN", {}, "plain.sasl.jaas.config is missing"),
        ("PLAIN", {"plain_sasl_jaas_config": BEARER}, "PLAIN needs org.apache.kafka.common.security.plain"),
        ("SCRAM-SHA-256", {"scram-sha-256_sasl_jaas_config": PLAIN}, "needs org.apache.kafka.common.security.scram"),
        (
            "PLAIN",
            {"plain_sasl_jaas_config": PLAIN, "plain_sasl_server_callback_handler_class": "example.Own"},
            "callback.handler.class is example.Own; allowed is none",
        ),
        (
            "OAUTHBEARER",
            {"oauthbearer_sasl_jaas_config": BEARER, "oauthbearer_sasl_server_callback_handler_class": "example.Own"},
            "allowed is org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        ),
        (
            "OAUTHBEARER",
            {
                "oauthbearer_sasl_jaas_config": BEARER,
                "oauthbearer_sasl_server_callback_handler_class": f"{MODULES}.oauthbearer."
                "OAuthBearerValidatorCallbackHandler",
            },
            "jwks.endpoint.url is missing",
        ),
        (
            "OAUTHBEARER",
            {
                "oauthbearer_sasl_jaas_config": BEARER,
                "oauthbearer_sasl_oauthbearer_jwks_endpoint_url": "https://keys.example",
            },
            "jwks.endpoint.url has no effect, so anybody could make a token: set",
        ),
        (
            "OAUTHBEARER",
            {"oauthbearer_sasl_jaas_config": BEARER, "sasl_oauthbearer_expected_issuer": "https://issuer.example"},
            "expected.issuer has no effect",
        ),
    ],
)
def test_a_listener_that_could_not_authenticate_is_refused(mechanisms: str, settings: Settings, named: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        listener_of(mechanisms, settings)
    assert named in str(refused.value) and "secret" not in str(refused.value)


@pytest.mark.parametrize("checking", [(), ("signed",), ("sasl",), ("sasl", "signed")])
def test_configs_of_signed_tokens_for_all_listeners_need_every_one_to_check_them(checking: tuple[str, ...]) -> None:
    texts = {
        "listeners": "SASL://127.0.0.1:9092,SIGNED://127.0.0.1:9093",
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,SIGNED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys.json",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": BEARER,
        "listener.name.signed.oauthbearer.sasl.jaas.config": BEARER,
    }
    handler = "listener.name.{}.oauthbearer.sasl.server.callback.handler.class"
    configs, _ = process_configs({**texts, **{handler.format(name): SIGNED_HANDLERS[0] for name in checking}})
    listeners = configured_listeners(configs, lambda: "localhost")
    open_to_all = next((name for name in ("sasl", "signed") if name not in checking), "")
    named = rf"^sasl\.oauthbearer\.jwks\.endpoint\.url has no effect at listener {open_to_all.upper()}, .* set listener"
    with pytest.raises(InvalidConfig, match=named) if open_to_all else nullcontext():
        sasl_listeners(configs, listeners, ScramUsers(dict))


def test_the_jaas_config_without_a_listener_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="needs the names of a listener and a mechanism") as refused:
        process_configs({"sasl.jaas.config": PLAIN})
    assert "secret" not in str(refused.value)


def test_before_authentication_only_three_apis_are_allowed() -> None:
    session = plain_session()
    allowed = {key for key in ApiKey if session.problem_with(key) is None}
    assert allowed == {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    log_in(session)
    assert session.user_name == "alice" and all(session.problem_with(key) is None for key in ApiKey)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0secret", "Invalid username or password"),
        (b"\0alice\0other", "Invalid username or password"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"alice\0secret", "expected 3 tokens"),
        (b"bob\0alice\0secret", "authorization id that is different"),
        (b"\xff\0alice\0secret", "not UTF-8"),
    ],
)
def test_plain_refuses(message: bytes, text: str) -> None:
    session = plain_session()
    session.choose("PLAIN", raw=False)
    with pytest.raises(KafkaError, match=text) as refused:
        session.answer(message)
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert session.has_failed and session.user_name == "" and session.problem_with(ApiKey.API_VERSIONS)


def test_steps_out_of_order_fail() -> None:
    session = plain_session()
    with pytest.raises(KafkaError) as refused:
        session.answer(b"\0alice\0secret")
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE and session.has_failed
    session = plain_session()
    with pytest.raises(KafkaError) as refused:
        session.choose("SCRAM-SHA-256", raw=False)
    assert refused.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM and "PLAIN" in refused.value.message
    session = plain_session()
    session.choose("PLAIN", raw=False)
    with pytest.raises(KafkaError) as refused:
        session.choose("PLAIN", raw=False)
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE


def test_a_session_ends_and_is_renewed_by_the_same_principal() -> None:
    clock = Clock()
    session = plain_session(clock, plain_connections_max_reauth_ms="60000")
    log_in(session)
    assert session.lifetime_ms() == 60_000
    clock.now_s += 59
    assert session.problem_with(ApiKey.PRODUCE) is None
    session.choose("PLAIN", raw=False)
    assert session.problem_with(ApiKey.PRODUCE), "nothing else during a re-authentication"
    session.answer(b"\0alice\0secret")
    clock.now_s += 59
    assert session.problem_with(ApiKey.PRODUCE) is None
    clock.now_s += 2
    assert "ended" in (session.problem_with(ApiKey.PRODUCE) or "")
    session.choose("PLAIN", raw=False)
    with pytest.raises(KafkaError, match="Cannot change principals"):
        session.answer(b"\0bob\0other")
    assert session.has_failed


def rows_of(user: str, password: str) -> dict[bytes, SecurityEntry]:
    found = {}
    for kind in (ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512):
        mechanism = ScramMechanism(kind.mechanism)
        salt, stored_key, server_key, iterations = mechanism.make_auth_info(password, 4096)
        credential = SecurityValue()
        credential.scram_credential.salt = salt
        credential.scram_credential.stored_key = stored_key
        credential.scram_credential.server_key = server_key
        credential.scram_credential.iterations = iterations
        key = SecurityKey(scram_user=ScramUser(name=user, mechanism=kind))
        found[key.SerializeToString(deterministic=True)] = SecurityEntry(key=key, value=credential)
    return found


def scram(mechanism: str, user: str, password: str) -> tuple[SaslSession, list[str]]:
    rows = rows_of("alice", "secret")
    settings = {f"{mechanism.lower()}_sasl_jaas_config": f"{MODULES}.scram.ScramLoginModule required;"}
    session = SaslSession(listener_of(mechanism, settings, lambda: rows), Clock(), LINES)
    session.choose(mechanism, raw=False)
    client = ScramClient([mechanism], user, password)
    first = session.answer(client.get_client_first().encode()).decode()
    client.set_server_first(first)
    final = session.answer(client.get_client_final().encode()).decode()
    client.set_server_final(final)
    return session, [first, final]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_proves_both_sides(mechanism: str) -> None:
    session, _ = scram(mechanism, "alice", "secret")
    assert session.user_name == "alice"
    for user, password in (("alice", "wrong"), ("nobody", "secret")):
        with pytest.raises(KafkaError, match=f"invalid credentials with SASL mechanism {mechanism}"):
            scram(mechanism, user, password)


@pytest.mark.parametrize("length", [4000, 5000])
def test_a_long_name_is_refused_before_it_is_prepared(length: int) -> None:
    """It would be prepared letter by letter on the event loop: 500,000 letters take a second."""
    asked: list[str] = []

    class Users(ScramUsers):
        def credential(self, kind: ScramType, user_name: str) -> tuple[ScramCredential, bool]:
            asked.append(user_name)
            return super().credential(kind, user_name)

    exchange = Users(dict).exchange("SCRAM-SHA-256")
    message = b"n,,n=" + b"a" * length + b",r=nonce"
    if length < 4096:
        exchange.answer(message)
        assert asked == ["a" * length]
    else:
        with pytest.raises(SaslFailure, match="invalid credentials"):
            exchange.answer(message)
        assert not asked


def test_an_unknown_user_of_scram_has_the_same_salt_every_time() -> None:
    users = ScramUsers(dict)
    first, again = (users.credential(ScramType.SCRAM_SHA_256, "nobody") for _ in range(2))
    other, _ = users.credential(ScramType.SCRAM_SHA_256, "somebody")
    assert first == again and not first[1] and first[0].salt != other.salt


def test_credentials_are_those_of_the_library() -> None:
    from hashlib import pbkdf2_hmac

    salted = pbkdf2_hmac("sha256", b"secret", b"a salt of 20 bytes..", 4096)
    found = credential_of_salted_password(ScramType.SCRAM_SHA_256, b"a salt of 20 bytes..", salted, 4096)
    expected = ScramMechanism("SCRAM-SHA-256").make_auth_info("secret", 4096, b"a salt of 20 bytes..")
    assert (found.salt, found.stored_key, found.server_key, found.iterations) == expected


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def unsecured(**claims: Any) -> str:
    return jwt.encode({"sub": "alice", "iat": 900, "exp": 2000, **claims}, "", algorithm="none")


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({}, None),
        ({"exp": 1000}, "invalid_token"),
        ({"exp": "soon"}, "invalid_token"),
        ({"exp": True}, "invalid_token"),
        ({"exp": int("9" * 400)}, "invalid_token"),
        ({"exp": math.nan}, "invalid_token"),
        ({"exp": math.inf}, "invalid_token"),
        ({"iat": math.nan}, "invalid_token"),
        ({"iat": "soon"}, "invalid_token"),
        ({"iat": None}, None),
        ({"iat": 1500}, "invalid_token"),
        ({"sub": ""}, "invalid_token"),
        ({"sub": "\ud800"}, "invalid_token"),
        ({"scope": "play"}, "insufficient_scope"),
        ({"scope": 7}, "invalid_token"),
        ({"scope": ["work", "play"]}, None),
    ],
)
def test_unsecured_tokens(claims: dict[str, Any], status: str | None) -> None:
    validator = UnsecuredTokens(
        principal_claim="sub", scope_claim="scope", required_scopes=("work",), clock_skew_ms=0, now_s=lambda: 1000.0
    )
    from kshare_gateway.security.sasl.oauth_bearer import OAuthBearerExchange

    exchange = OAuthBearerExchange(validator)
    answer = exchange.answer(bearer(unsecured(**{"scope": "work", **claims})))
    if status is None:
        assert answer == b"" and exchange.result is not None and exchange.result.expires_at_s == 2000.0
        return
    assert exchange.result is None and json.loads(answer)["status"] == status
    with pytest.raises(SaslFailure, match=status):
        exchange.answer(b"\x01")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic eA==\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"\xff" * 10,
        b"n,," + 128 * b"\x01a=" + b"\x01auth=Bearer " + b"eyJhbGciOiJub25lIn0.e30." + b"\x01\x01",
    ],
)
def test_a_first_message_without_a_token_fails(message: bytes) -> None:
    from kshare_gateway.security.sasl.oauth_bearer import OAuthBearerExchange

    validator = UnsecuredTokens(principal_claim="sub", scope_claim="scope", required_scopes=(), clock_skew_ms=0)
    with pytest.raises(SaslFailure):
        OAuthBearerExchange(validator).answer(message)


def test_a_session_ends_with_its_token() -> None:
    clock = Clock()
    settings = {"oauthbearer_sasl_jaas_config": BEARER}
    session = SaslSession(listener_of("OAUTHBEARER", settings), clock, LINES)
    session.choose("OAUTHBEARER", raw=False)
    clock.now_s = 4_000_000_000.0
    assert session.answer(bearer(unsecured(exp=4_000_000_010))) == b""
    assert session.lifetime_ms() == 10_000
    clock.now_s += 11
    assert session.problem_with(ApiKey.FETCH)


def test_an_unexpected_error_is_a_failed_authentication(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty:
        """A mechanism with an error that it does not expect."""

        result = None

        def answer(self, message: bytes) -> bytes:
            raise RuntimeError(f"in {message!r}")

    listener = listener_of("PLAIN", {"plain_sasl_jaas_config": PLAIN})
    listener.mechanisms = {"PLAIN": SaslMechanism(begin=Faulty, maximum_session_ms=0)}
    session = SaslSession(listener, Clock(), LINES)
    session.choose("PLAIN", raw=True)
    with caplog.at_level(logging.WARNING), pytest.raises(KafkaError) as refused:
        session.answer(b"\0alice\0planted")
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED and session.has_failed
    assert "with PLAIN failed with an unexpected error: RuntimeError at " in caplog.text
    assert "planted" not in caplog.text + refused.value.message


def test_the_url_of_keys_is_checked() -> None:
    with pytest.raises(InvalidConfig, match="must begin with one of file, http, https"):
        KeySet("ftp://example.org/keys")


def test_a_session_without_an_end_is_not_renewed() -> None:
    session = plain_session()
    log_in(session)
    with pytest.raises(KafkaError) as refused:
        session.choose("PLAIN", raw=False)
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE
    with pytest.raises(KafkaError) as refused:
        session.answer(b"x")
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE
    assert not session.has_failed and session.problem_with(ApiKey.PRODUCE) is None


@pytest.mark.parametrize(
    ("audiences", "claims", "is_taken"),
    [
        ((), {}, True),
        ((), {"aud": "other"}, False),
        (("kshare",), {"aud": "kshare"}, True),
        (("kshare",), {"aud": ["x", "kshare"]}, True),
        (("kshare",), {}, False),
        ((), {"exp": math.inf}, False),
        ((), {"exp": math.nan}, False),
        ((), {"exp": int("9" * 400)}, False),
    ],
)
@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_signed_tokens(audiences: tuple[str, ...], claims: dict[str, Any], is_taken: bool, algorithm: str) -> None:
    """The key set does not say which algorithm of RSA its key is for."""
    keys = KeySet("file:///nowhere")
    public = jwt.PyJWK({**json.loads(RSAAlgorithm.to_jwk(KEY.public_key())), "kid": "one"})
    keys._keys = {"one": public}
    validator = SignedTokens(
        keys=keys,
        refresh_ms=10**9,
        clock_skew_s=30,
        audiences=audiences,
        issuer=None,
        subject_claim="sub",
        scope_claim="scope",
    )
    keys._fetched_at = time.monotonic()
    found = {"sub": "alice", "iat": int(time.time()), "exp": int(time.time()) + 60, **claims}
    token = jwt.encode(found, KEY, algorithm=algorithm, headers={"kid": "one"})
    if is_taken:
        assert validator.validate(token).user_name == "alice"
    else:
        with pytest.raises(TokenRefused):
            validator.validate(token)
    forged = jwt.encode(found, "x" * 64, algorithm="HS256", headers={"kid": "one"})
    with pytest.raises(TokenRefused):
        validator.validate(forged)


@pytest.mark.parametrize("name", ["ops\u2122", "x\u00b2", "jose\u0301", "bot\U0001f916", "a\u00adb", "n" * 1025])
def test_a_scram_user_has_a_name_with_which_it_can_log_in(name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_user_name(name)
    assert refused.value.code == ErrorCode.UNACCEPTABLE_CREDENTIAL
    for usable in ("alice", "jos\u00e9", "a,b=c", "CN=kafka client", "\u4f60\u597d"):
        check_user_name(usable)
