"""Viewers and sessions: a principal with its connections and readings, and the browsers that are signed in as it.

With SASL a session begins with the user's Kafka credentials, which the gateway checks; they stay in memory, as new
connections need them. Without SASL there is one viewer, anonymous, and no session: its CSRF token is the process's.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kshare_console.cluster_client import ClusterClient
from kshare_console.refusal import Refusal
from kshare_console.role_calls import RoleCalls
from kshare_console.views.dead_letters import DeadLetters
from kshare_console.views.observation import Observation
from kshare_console.views.share_partitions import SharePartitions
from kshare_kafka_client.client_security import sasl_mechanism, uses_sasl
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.sasl import Credentials

SESSIONS_LIMIT = 500
IDLE_S = 30 * 60.0
"""A session ends so long after its last request; a live stream is one request, however long it runs."""
LONGEST_S = 12 * 3600.0
TOKEN_BYTES = 32
FAILURES_LIMIT, FAILURES_WITHIN_S = 10, 60.0
"""Sign-ins of one address that failed or are under way: further ones are refused, as they may try out passwords."""
FAILING_HOSTS_LIMIT = 1_000
CREDENTIAL_LIMIT = 1_000
"""Characters of a user name or password."""
CLIENT_ID = "kshare-console"
REQUEST_TIMEOUT_MS, CONNECT_TIMEOUT_MS = 10_000, 5_000
ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class Viewer:
    """A principal: its client, and what was read for it. Sessions with the same credentials share it."""

    principal: str
    client: ClusterClient
    observation: Observation
    share_partitions: SharePartitions
    dead_letters: DeadLetters
    properties: Mapping[str, str] = field(repr=False)
    """librdkafka's properties of its connections, with the password."""
    sessions: int = 0

    async def close(self) -> None:
        await self.observation.close()
        await self.client.close()


@dataclass(slots=True)
class Session:
    """A browser."""

    token: str
    csrf_token: str
    viewer: Viewer
    began_s: float
    used_s: float

    def has_csrf_token(self, given: str) -> bool:
        """`given` is a header's value, in which aiohttp decodes bytes that are not UTF-8 to surrogates."""
        return hmac.compare_digest(given.encode(errors="surrogateescape"), self.csrf_token.encode())


class SignInAttempts:
    """When sign-ins that failed or are under way began, by the address that they came from."""

    def __init__(self) -> None:
        self._began: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, host: str, now_s: float) -> bool:
        """Counts an attempt, until `take_back`; False if the address has too many."""
        began = self._began.setdefault(host, deque())
        self._began.move_to_end(host)
        while began and now_s - began[0] >= FAILURES_WITHIN_S:
            began.popleft()
        if len(began) >= FAILURES_LIMIT:
            return False
        began.append(now_s)
        if len(self._began) > FAILING_HOSTS_LIMIT:
            self._began.popitem(last=False)
        return True

    def take_back(self, host: str, began_s: float) -> None:
        """Forgets an attempt that was no wrong password."""
        began = self._began.get(host, deque())
        if began_s in began:
            began.remove(began_s)
        if not began:
            self._began.pop(host, None)


class Viewers:
    """See the module docstring. `now_s` is a steady clock, `now_ms` the wall clock."""

    def __init__(
        self,
        bootstrap: Sequence[BrokerAddress],
        properties: Mapping[str, str],
        tls: ssl.SSLContext | None,
        roles: RoleCalls,
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._properties = dict(properties)
        self._tls = tls
        self._roles = roles
        self._now_s = now_s
        self._now_ms = now_ms
        self.needs_sign_in = uses_sasl(properties)
        self._viewers: dict[tuple[str, str], Viewer] = {}
        self._sessions: dict[str, Session] = {}
        self._attempts = SignInAttempts()
        self._anonymous: Session | None = None

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        viewers = [*self._viewers.values(), *([self._anonymous.viewer] if self._anonymous else [])]
        self._viewers.clear()
        sessions.clear()
        for viewer in viewers:
            await viewer.close()

    async def find(self, token: str) -> Session:
        """The session of a cookie, or the anonymous one; Refusal 401."""
        if not self.needs_sign_in:
            return self._without_sign_in()
        await self._end_old_sessions()
        session = self._sessions.get(token)
        if session is None:
            raise Refusal(401, "NOT_SIGNED_IN", "sign in with the user name and password of your Kafka clients")
        session.used_s = self._now_s()
        return session

    async def sign_in(self, username: str, password: str, host: str = "") -> Session:
        """A new session, once the cluster accepted the credentials; Refusal."""
        if not self.needs_sign_in:
            return self._without_sign_in()
        if not username or max(len(username), len(password)) > CREDENTIAL_LIMIT:
            raise Refusal(400, "BAD_REQUEST", f"username and password must have 1 to {CREDENTIAL_LIMIT} characters")
        now_s = self._now_s()
        if not self._attempts.begin(host, now_s):
            raise Refusal(429, "TOO_MANY_FAILURES", "too many sign-ins failed; try again in a minute")
        await self._end_old_sessions()
        viewer = await self._authenticated(username, password, host, now_s)
        if len(self._sessions) >= SESSIONS_LIMIT:
            oldest = min(self._sessions.values(), key=lambda session: session.used_s)
            await self.sign_out(oldest.token)
        shared = self._viewers.setdefault((username, password), viewer)
        shared.sessions += 1
        session = Session(_token(), _token(), shared, now_s, now_s)
        self._sessions[session.token] = session
        if shared is not viewer:
            await viewer.close()
        return session

    async def _authenticated(self, username: str, password: str, host: str, began_s: float) -> Viewer:
        """A viewer whose connection the cluster accepted just now; Refusal.

        Connections of earlier sessions prove nothing: they stay open after the password was changed.
        """
        viewer = self._viewer(username, password)
        try:
            await viewer.client.sign_in()
        except BaseException as problem:
            await viewer.close()
            if isinstance(problem, Refusal):
                if problem.status == 401:
                    await self._end_sessions_of(username, password)
                else:
                    self._attempts.take_back(host, began_s)
            raise
        self._attempts.take_back(host, began_s)
        return viewer

    async def sign_out(self, token: str) -> None:
        session = self._sessions.pop(token, None)
        if session is None:
            return
        session.viewer.sessions -= 1
        if not session.viewer.sessions:
            for key in [key for key, viewer in self._viewers.items() if viewer is session.viewer]:
                del self._viewers[key]
            await session.viewer.close()

    async def _end_sessions_of(self, username: str, password: str) -> None:
        """Ends the sessions that began with credentials which the cluster does not accept any more."""
        viewer = self._viewers.get((username, password))
        for session in list(self._sessions.values()):
            if session.viewer is viewer:
                await self.sign_out(session.token)

    async def _end_old_sessions(self) -> None:
        for session in list(self._sessions.values()):
            if self._is_over(session):
                await self.sign_out(session.token)

    def _is_over(self, session: Session) -> bool:
        now_s = self._now_s()
        return now_s - session.used_s > IDLE_S or now_s - session.began_s > LONGEST_S

    def is_open(self, session: Session) -> bool:
        """Whether the session has not ended; a stream asks this while it runs, which is no use of the session."""
        if session is self._anonymous:
            return True
        return self._sessions.get(session.token) is session and not self._is_over(session)

    def _without_sign_in(self) -> Session:
        if self._anonymous is None:
            viewer = self._make(ANONYMOUS, None, self._properties)
            self._anonymous = Session("", _token(), viewer, self._now_s(), self._now_s())
        return self._anonymous

    def _viewer(self, username: str, password: str) -> Viewer:
        credentials = Credentials(sasl_mechanism(self._properties), username, password)
        properties = {**self._properties, "sasl.username": username, "sasl.password": password}
        return self._make(f"User:{username}", credentials, properties)

    def _make(self, principal: str, credentials: Credentials | None, properties: Mapping[str, str]) -> Viewer:
        settings = ClientSettings(
            client_id=CLIENT_ID,
            tls=self._tls,
            credentials=credentials,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        client = ClusterClient(Cluster(self._bootstrap, settings))
        observation = Observation(client, self._roles, self._now_ms)
        share_partitions = SharePartitions(client, self._roles, self._now_ms)
        librdkafka = {**properties, "bootstrap.servers": ",".join(map(str, self._bootstrap))}
        return Viewer(principal, client, observation, share_partitions, DeadLetters(client), librdkafka)


def _token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)
