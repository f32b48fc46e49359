"""Sessions of the console: the broker checks the password of each sign-in, and sessions end at their limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from kshare_console.refusal import Refusal
from kshare_console.role_calls import RoleCalls
from kshare_console.viewers import FAILURES_LIMIT, FAILURES_WITHIN_S, IDLE_S, LONGEST_S, Viewers
from kshare_core.errors import ErrorCode
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_upstream.connection import BrokerAddress
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse
from kshare_wire.generated.responses.sasl_handshake import SaslHandshakeResponse
from support.upstream.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.timeout(60)

PROPERTIES = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
HOST = "10.0.0.1"


class SignedIn:
    """A console's viewers, in front of a broker that knows `passwords`; `now_s` is their clock."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.passwords = {"alice": "old"}
        self.now_s = 1_000.0
        broker.answers[ApiKey.SASL_HANDSHAKE] = lambda version, frame: SaslHandshakeResponse()
        broker.answers[ApiKey.SASL_AUTHENTICATE] = self._authenticate
        bootstrap = [BrokerAddress("127.0.0.1", broker.port)]
        roles = RoleCalls(InProcessNetwork(), ["nobody:1"])
        self.viewers = Viewers(bootstrap, PROPERTIES, None, roles, lambda: self.now_s, lambda: 0)

    @property
    def tries(self) -> int:
        """Passwords that the broker has checked."""
        return len(self.broker.received(ApiKey.SASL_AUTHENTICATE))

    def _authenticate(self, version: int, frame: bytes) -> SaslAuthenticateResponse:
        known = [f"\0{username}\0{password}\0".encode() for username, password in self.passwords.items()]
        if any(each in frame for each in known):
            return SaslAuthenticateResponse()
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED)

    async def refusal(self, username: str, password: str) -> int:
        """The status of a sign-in that is refused."""
        with pytest.raises(Refusal) as refused:
            await self.viewers.sign_in(username, password, HOST)
        return refused.value.status


def run(scenario: Callable[[SignedIn], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with ScriptedBroker() as broker:
            signed_in = SignedIn(broker)
            await scenario(signed_in)
            await signed_in.viewers.close()
            while broker.connections:
                await asyncio.sleep(0.001)

    asyncio.run(whole())


@pytest.mark.parametrize("passwords", [{"alice": "new"}, {}], ids=["changed", "deleted"])
def test_a_password_that_is_not_valid_any_more_is_refused_and_ends_the_sessions_that_began_with_it(
    passwords: dict[str, str],
) -> None:
    async def scenario(signed_in: SignedIn) -> None:
        viewers = signed_in.viewers
        signed_in.passwords["bob"] = "b0b"
        first, other = await viewers.sign_in("alice", "old", HOST), await viewers.sign_in("bob", "b0b", HOST)
        await first.viewer.client.cluster_id()  # as the page asks: on an authenticated connection to the broker
        signed_in.passwords = {**passwords, "bob": "b0b"}
        assert await viewers.find(first.token) is first
        assert await signed_in.refusal("alice", "old") == 401
        assert not viewers.is_open(first)
        with pytest.raises(Refusal, match="sign in"):
            await viewers.find(first.token)
        assert await viewers.find(other.token) is other

    run(scenario)


def test_sessions_with_the_same_credentials_share_a_viewer_and_each_has_its_password_checked() -> None:
    async def scenario(signed_in: SignedIn) -> None:
        viewers = signed_in.viewers
        sessions = [await viewers.sign_in("alice", "old", HOST) for _ in range(3)]
        assert signed_in.tries == 3
        assert len({id(session.viewer) for session in sessions}) == 1
        for session in sessions[:2]:
            await viewers.sign_out(session.token)
        assert (await viewers.find(sessions[2].token)).viewer.sessions == 1
        assert await sessions[2].viewer.client.cluster_id() == "upstream"

    run(scenario)


def test_wrong_passwords_that_are_sent_at_once_are_limited_as_those_one_after_the_other() -> None:
    async def scenario(signed_in: SignedIn) -> None:
        statuses = await asyncio.gather(*(signed_in.refusal("alice", f"guess-{number}") for number in range(50)))
        assert Counter(statuses) == {401: FAILURES_LIMIT, 429: 50 - FAILURES_LIMIT}
        assert signed_in.tries == FAILURES_LIMIT
        assert await signed_in.refusal("alice", "old") == 429
        signed_in.now_s += FAILURES_WITHIN_S
        assert (await signed_in.viewers.sign_in("alice", "old", HOST)).viewer.principal == "User:alice"

    run(scenario)


def test_sign_ins_that_succeed_or_reach_no_broker_are_not_counted_as_failed() -> None:
    async def scenario(signed_in: SignedIn) -> None:
        signed_in.broker.served.pop(ApiKey.SASL_AUTHENTICATE)
        for _ in range(FAILURES_LIMIT + 1):
            assert await signed_in.refusal("alice", "old") == 503
        signed_in.broker.served[ApiKey.SASL_AUTHENTICATE] = signed_in.broker.served[ApiKey.SASL_HANDSHAKE]._replace(
            maximum=2
        )
        for _ in range(FAILURES_LIMIT + 1):
            await signed_in.viewers.sign_in("alice", "old", HOST)

    run(scenario)


def test_a_stream_ends_with_its_session() -> None:
    """It asks `is_open` and is no use of the session; other requests are."""

    async def scenario(signed_in: SignedIn) -> None:
        viewers = signed_in.viewers
        idle, busy = await viewers.sign_in("alice", "old", HOST), await viewers.sign_in("alice", "old", HOST)
        steps = int(LONGEST_S / IDLE_S)
        for step in range(1, steps + 1):
            signed_in.now_s += IDLE_S
            assert (viewers.is_open(idle), viewers.is_open(busy)) == (step == 1, True)
            assert await viewers.find(busy.token) is busy
        signed_in.now_s += 1
        assert not viewers.is_open(busy)
        with pytest.raises(Refusal, match="sign in"):
            await viewers.find(busy.token)

    run(scenario)


def test_an_idle_stream_ends_although_no_other_request_comes() -> None:
    async def scenario(signed_in: SignedIn) -> None:
        session = await signed_in.viewers.sign_in("alice", "old", HOST)
        signed_in.now_s += IDLE_S
        assert signed_in.viewers.is_open(session)
        signed_in.now_s += 1
        assert not signed_in.viewers.is_open(session)

    run(scenario)
