"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), by the library scramp; the credentials are rows of the catalog.

A user who does not exist gets a salt that stays the same, and fails with the last message like a wrong password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from hashlib import sha256, sha512
from hmac import digest as hmac_digest
from secrets import token_bytes

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.security.sasl.mechanism import Authenticated, SaslFailure
from kshare_rpc.generated.kshare.v1.security_pb2 import ScramCredential, ScramUser, SecurityEntry, SecurityKey

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
LEAST_SALT_BYTES = 12
"""Of scramp; RFC 5802 asks for no length, and Kafka's clients make salts of 20 bytes and more."""
LENGTH_OF_FAKE_SALT = 24
LONGEST_MESSAGE = 4096
"""Limit in bytes of a client's message: scramp prepares a user's name (RFC 4013) letter by letter, in Python."""


LONGEST_USER_NAME = 1024
"""In bytes: with as many, each as `=2C` where it is a comma, the first message is within its limit."""


class ScramType(IntEnum):
    """ScramMechanism.type of Kafka."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism(self) -> str:
        """The mechanism's name, such as "SCRAM-SHA-256"."""
        return self.name.replace("_", "-")


SCRAM_MECHANISMS = {kind.mechanism: kind for kind in (ScramType.SCRAM_SHA_256, ScramType.SCRAM_SHA_512)}
_HASHES = {ScramType.SCRAM_SHA_256: sha256, ScramType.SCRAM_SHA_512: sha512}


def check_user_name(name: str) -> None:
    """Raises UNACCEPTABLE_CREDENTIAL for a name that SASLprep changes: scramp would look up the changed name."""
    from scramp import ScramException
    from scramp.utils import saslprep

    try:
        prepared = saslprep(name) if len(name.encode()) <= LONGEST_USER_NAME else ""
    except ScramException:
        prepared = ""
    if prepared != name:
        limit = f"of at most {LONGEST_USER_NAME} bytes"
        text = f"The user name {name[:300]!r} must be one that SASLprep (RFC 4013) leaves as it is, {limit}"
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)


def credential_of_salted_password(
    kind: ScramType, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """What a server stores (RFC 5802, section 3); the password cannot be computed from it."""
    hash_name = _HASHES[kind]().name
    client_key = hmac_digest(salted_password, b"Client Key", hash_name)
    return ScramCredential(
        salt=salt,
        stored_key=_HASHES[kind](client_key).digest(),
        server_key=hmac_digest(salted_password, b"Server Key", hash_name),
        iterations=iterations,
    )


class ScramUsers:
    """The users of all listeners; `rows` returns the security rows of the newest catalog view."""

    def __init__(self, rows: Callable[[], Mapping[bytes, SecurityEntry]]) -> None:
        self._rows = rows
        self._secret = token_bytes(32)

    def credential(self, kind: ScramType, user_name: str) -> tuple[ScramCredential, bool]:
        """The credential, and whether the user has it; another one that no password fits if not."""
        key = SecurityKey(scram_user=ScramUser(name=user_name, mechanism=kind))
        entry = self._rows().get(key.SerializeToString(deterministic=True))
        if entry is not None:
            return entry.value.scram_credential, True
        fake = hmac_digest(self._secret, f"{int(kind)}:{user_name}".encode(), "sha512")
        credential = ScramCredential(
            salt=fake[:LENGTH_OF_FAKE_SALT],
            stored_key=_HASHES[kind](fake).digest(),
            server_key=_HASHES[kind](fake[1:]).digest(),
            iterations=LEAST_ITERATIONS,
        )
        return credential, False

    def exchange(self, mechanism: str) -> ScramExchange:
        return ScramExchange(self, SCRAM_MECHANISMS[mechanism])


class ScramExchange:
    def __init__(self, users: ScramUsers, kind: ScramType) -> None:
        self._users = users
        self._kind = kind
        self._user_name = ""
        self._exists = False
        self._has_begun = False
        from scramp import ScramException, ScramMechanism  # slow to import, and only needed with SCRAM

        self._errors = (ScramException, ValueError)
        self._server = ScramMechanism(kind.mechanism).make_server(self._credential)
        self.result: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        if len(message) > LONGEST_MESSAGE:
            raise self._failure()
        try:
            text = message.decode()
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                return bytes(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            final = bytes(self._server.get_server_final().encode())
        except self._errors as error:
            raise self._failure() from error
        if not self._exists:
            raise self._failure()
        self.result = Authenticated(self._user_name)
        return final

    def _credential(self, user_name: str) -> tuple[bytes, bytes, bytes, int]:
        self._user_name = user_name
        found, self._exists = self._users.credential(self._kind, user_name)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _failure(self) -> SaslFailure:
        mechanism = self._kind.mechanism
        return SaslFailure(
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
