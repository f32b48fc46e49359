"""PLAIN (RFC 4616): a user name and a password, compared with those of the listener's JAAS value (PlainSaslServer)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex

from kshare_core.configs import InvalidConfig
from kshare_core.configs.jaas import LoginModule
from kshare_gateway.security.sasl.mechanism import Authenticated, SaslFailure

PLAIN = "PLAIN"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USER_OPTION = "user_"
REFUSED = "Authentication failed: Invalid username or password"


class PlainUsers:
    """The users of a listener, by their names; InvalidConfig if the login module is not that of PLAIN."""

    def __init__(self, config_name: str, module: LoginModule) -> None:
        if module.class_name != LOGIN_MODULE:
            raise InvalidConfig(f"{config_name} names {module.class_name}; PLAIN needs {LOGIN_MODULE}")
        options: Mapping[str, str] = module.options
        self._passwords = {
            name.removeprefix(USER_OPTION): _digest(password)
            for name, password in options.items()
            if name.startswith(USER_OPTION)
        }
        self._of_nobody = _digest(token_hex())

    def exchange(self) -> PlainExchange:
        return PlainExchange(self)

    def is_password(self, user_name: str, password: str) -> bool:
        """Takes as long for a user who does not exist as for a wrong password."""
        is_equal = compare_digest(self._passwords.get(user_name, self._of_nobody), _digest(password))
        return is_equal and user_name in self._passwords


class PlainExchange:
    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self.result: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        """The client's only message is [authorization id] NUL user name NUL password."""
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslFailure("Invalid SASL/PLAIN response: it is not UTF-8") from None
        if len(parts) != 3:
            raise SaslFailure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user_name, password = parts
        if not user_name:
            raise SaslFailure("Authentication failed: username not specified")
        if not password:
            raise SaslFailure("Authentication failed: password not specified")
        if not self._users.is_password(user_name, password):
            raise SaslFailure(REFUSED)
        if authorization_id and authorization_id != user_name:
            text = "Client requested an authorization id that is different from username"
            raise SaslFailure(f"Authentication failed: {text}")
        self.result = Authenticated(user_name)
        return b""


def _digest(password: str) -> bytes:
    return sha256(password.encode()).digest()
