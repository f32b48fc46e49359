"""Where the senders connect: a plain listener, and one with SASL as each kind of client that it has.

The authorizer is on where there is a SASL listener. Clients of the plain listener and ADMINISTRATOR are super users;
STRANGER has no ACL, so each of its requests is denied; a sender without a login sends before it is authenticated.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from kshare_wire.generated.api_keys import ApiKey
from support.clients.raw_kafka import framed, header
from support.environment.free_ports import free_port

ADMINISTRATOR, STRANGER, PASSWORD = "alice", "bob", "secret"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN_BOUND_S = 30.0


class NotLoggedIn(Exception):
    """A listener refused a valid login; the text says which."""


class Entrance(NamedTuple):
    """A listener, and who connects there; without a `user` it sends its requests at once."""

    port: int
    user: str | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that is logged in; OSError, NotLoggedIn."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        if self.user is None:
            return reader, writer
        try:
            async with asyncio.timeout(LOGIN_BOUND_S):
                await self._log_in(self.user, reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, NotLoggedIn) as error:
            writer.transport.abort()
            raise NotLoggedIn(f"the login of {self.user}: {error!r}") from error
        return reader, writer

    async def _log_in(self, user: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mechanism, token = b"PLAIN", b"\0".join((b"", user.encode(), PASSWORD.encode()))
        handshake = header(int(ApiKey.SASL_HANDSHAKE), 1) + struct.pack(">h", len(mechanism)) + mechanism
        authenticate = header(int(ApiKey.SASL_AUTHENTICATE), 1) + struct.pack(">i", len(token)) + token
        for request in (handshake, authenticate):
            writer.write(framed(request))
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            answer = await reader.readexactly(length)
            (code,) = struct.unpack_from(">h", answer, 4)
            if code:
                raise NotLoggedIn(f"error {code}")


def entrances(port: int, settings: dict[str, str], *, has_sasl: bool) -> tuple[list[Entrance], dict[str, str]]:
    """Those that the senders take in turn, and the settings of the cluster whose plain listener is at `port`.

    With SASL half of them are at the plain listener, so that what the others are denied is done, too.
    """
    plain = Entrance(port)
    if not has_sasl:
        return [plain], settings
    sasl = free_port()
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in (ADMINISTRATOR, STRANGER))
    added = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ADMINISTRATOR}",
    }
    guests = [Entrance(sasl, ADMINISTRATOR), Entrance(sasl, STRANGER), Entrance(sasl)]
    return [each for guest in guests for each in (plain, guest)], {**settings, **added}
