"""A connection to a broker: responses in pieces and of any length, many requests at once, and what ends it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from kshare_upstream.cluster import common_versions
from kshare_upstream.connection import (
    RECEIVE_AT_ONCE_BYTES,
    RECEIVE_BYTES,
    BrokerAddress,
    ClientSettings,
    Connection,
    ConnectionLost,
    NotServed,
    open_connection,
)
from kshare_upstream.sasl import AuthenticationFailed, Credentials
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.api_versions import ApiVersionsRequest
from kshare_wire.generated.requests.metadata import MetadataRequest
from kshare_wire.generated.requests.sasl_authenticate import SaslAuthenticateRequest
from kshare_wire.generated.requests.sasl_handshake import SaslHandshakeRequest
from kshare_wire.generated.responses.api_versions import ApiVersion, ApiVersionsResponse
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseBroker
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse
from kshare_wire.generated.responses.sasl_handshake import SaslHandshakeResponse
from kshare_wire.messages import Request, Response, decode_request, encode_response

METADATA = VersionRange(7, 12)
SERVED = {ApiKey.METADATA: VersionRange(0, 12), ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2)}
KINDS: dict[int, type[Request[Response]]] = {
    kind.API_KEY: kind for kind in (ApiVersionsRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest)
}
VERSIONS = ApiVersionsResponse(
    api_keys=[ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in SERVED.items()]
)

Respond = Callable[[Request[Response]], Response | bytes | None]
"""A broker's response to a request, the bytes that it sends instead, or nothing."""


class ScriptedBroker:
    """Answers ApiVersions by itself and everything else as its test says, in pieces of `piece_bytes`.

    With `is_read_in_pieces` the client can read each piece before the next one is sent.
    """

    def __init__(self, respond: Respond, piece_bytes: int, *, is_read_in_pieces: bool = False) -> None:
        self._respond = respond
        self._is_read_in_pieces = is_read_in_pieces
        self._piece_bytes = piece_bytes
        self.client_ids: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(length))
                key, version, correlation_id, id_length = struct.unpack_from(">hhih", frame)
                self.client_ids.append(bytes(frame[10 : 10 + id_length]))
                flexible = 1 if version >= {ApiKey.SASL_HANDSHAKE: 99, ApiKey.METADATA: 9}.get(ApiKey(key), 2) else 0
                request = decode_request(KINDS[key], version, frame, 10 + id_length + flexible)
                answer = VERSIONS if key == ApiKey.API_VERSIONS else self._respond(request)
                if answer is None:
                    continue
                data = (
                    answer if isinstance(answer, bytes) else b"".join(encode_response(answer, version, correlation_id))
                )
                for start in range(0, len(data), self._piece_bytes):
                    writer.write(data[start : start + self._piece_bytes])
                    await writer.drain()
                    if self._is_read_in_pieces:
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def connected(
    respond: Respond, *, piece_bytes: int = 1 << 20, settings: ClientSettings | None = None
) -> AsyncIterator[Connection]:
    broker = ScriptedBroker(respond, piece_bytes)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    async with server:
        port: int = server.sockets[0].getsockname()[1]
        connection = await open_connection(BrokerAddress("127.0.0.1", port), settings or ClientSettings())
        try:
            yield connection
        finally:
            connection.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


HOST_LENGTH = 30_000


def of_length(length: int) -> MetadataResponse:
    """A response with this many letters, in the hosts of brokers."""
    hosts = ["x" * min(HOST_LENGTH, length - start) for start in range(0, length, HOST_LENGTH)]
    return MetadataResponse(brokers=[MetadataResponseBroker(host=host) for host in hosts])


def length_of(response: MetadataResponse) -> int:
    return sum(len(broker.host) for broker in response.brokers)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, RECEIVE_BYTES - 1, RECEIVE_BYTES, 1 << 20])
def test_responses_of_any_length_arrive_in_any_pieces(piece_bytes: int) -> None:
    """Lengths around that of the buffer are where a response gets a buffer of its own."""
    around = [RECEIVE_BYTES + each for each in range(-100, 3)] if piece_bytes >= 1000 else [RECEIVE_BYTES]
    lengths = [1, 2000, *around, 1, 150_000, 1]

    async def body() -> None:
        left = list(lengths)
        async with connected(lambda _: of_length(left.pop(0)), piece_bytes=piece_bytes) as connection:
            for length in lengths:
                answer = await connection.ask(MetadataRequest(topics=[]), METADATA)
                assert length_of(answer) == length

    run(body)


class CountingConnection(Connection):
    """Counts how often it is woken for bytes of the broker."""

    woken = 0

    def heard(self) -> None:
        self.woken += 1
        super().heard()


def test_a_long_response_in_small_pieces_wakes_the_client_once_for_each_megabyte() -> None:
    """And what comes after it wakes the client with its first byte."""
    left = [3 * RECEIVE_AT_ONCE_BYTES, 1, 10, RECEIVE_BYTES * 2, 1]

    async def body() -> None:
        lengths = list(left)
        broker = ScriptedBroker(lambda _: of_length(left.pop(0)), 50_000, is_read_in_pieces=True)
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        async with server:
            port: int = server.sockets[0].getsockname()[1]
            connection = CountingConnection(BrokerAddress("127.0.0.1", port), ClientSettings())
            await connection.start()
            before = connection.woken
            assert length_of(await connection.ask(MetadataRequest(topics=[]), METADATA)) == lengths.pop(0)
            assert connection.woken - before <= 8, "once for each of 60 pieces without it"
            for length in lengths:
                assert length_of(await connection.ask(MetadataRequest(topics=[]), METADATA)) == length
            connection.close()

    run(body)


def test_requests_under_way_at_once_are_answered_in_order() -> None:
    async def body() -> None:
        lengths = list(range(1, 200))
        left = list(lengths)
        async with connected(lambda _: of_length(left.pop(0)), piece_bytes=100) as connection:
            answers = await asyncio.gather(*(connection.ask(MetadataRequest(topics=[]), METADATA) for _ in lengths))
            assert [length_of(answer) for answer in answers] == lengths
            assert connection.is_idle

    run(body)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (struct.pack(">i", 1 << 30) + b"HTTP", "sent correlation id|lost|in time"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak the Kafka protocol"),
        (struct.pack(">i", -5), "does not speak the Kafka protocol"),
        (struct.pack(">ii", 4, 999_999), "sent correlation id 999999, not the expected one"),
        (struct.pack(">iib", 5, 2, 0), "cannot decode MetadataResponse"),
    ],
    ids=["too long", "HTTP", "negative", "another correlation id", "malformed"],
)
def test_bytes_that_are_no_response_end_the_connection(sent: bytes, told: str) -> None:
    async def body() -> None:
        settings = ClientSettings(request_timeout_ms=500)
        async with connected(lambda _: sent, settings=settings) as connection:
            with pytest.raises(ConnectionLost, match=told):
                await connection.ask(MetadataRequest(topics=[]), METADATA)
            assert not connection.is_open
            with pytest.raises(ConnectionLost):
                await connection.ask(MetadataRequest(topics=[]), METADATA)

    run(body)


def test_a_late_response_ends_the_connection_and_all_that_waits() -> None:
    async def body() -> None:
        async with connected(lambda _: None, settings=ClientSettings(request_timeout_ms=200)) as connection:
            asked = [connection.ask(MetadataRequest(topics=[]), METADATA) for _ in range(3)]
            results = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(result, ConnectionLost) for result in results)
            assert not connection.is_open and connection.is_idle

    run(body)


def test_a_caller_that_gives_up_disturbs_nobody() -> None:
    async def body() -> None:
        left = [5, 6]
        async with connected(lambda _: of_length(left.pop(0))) as connection:
            first = asyncio.ensure_future(connection.ask(MetadataRequest(topics=[]), METADATA))
            await asyncio.sleep(0)
            first.cancel()
            answer = await connection.ask(MetadataRequest(topics=[]), METADATA)
            assert length_of(answer) == 6 and connection.is_open

    run(body)


def test_a_version_that_both_sides_have_is_chosen() -> None:
    async def body() -> None:
        async with connected(lambda _: None) as connection:
            assert connection.version(ApiKey.METADATA, VersionRange(7, 13)) == 12
            assert connection.version(ApiKey.METADATA, VersionRange(1, 9)) == 9
            for api, served, told in (
                (ApiKey.METADATA, VersionRange(13, 13), "serves versions 0 to 12"),
                (ApiKey.FETCH, VersionRange(4, 12), "serves none"),
            ):
                with pytest.raises(NotServed, match=told):
                    connection.version(api, served)

    run(body)


def test_a_refused_password_is_told_without_it() -> None:
    def respond(request: Request[Response]) -> Response:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed")

    async def body() -> None:
        with pytest.raises(AuthenticationFailed, match="user bob: Authentication failed") as failed:
            async with connected(respond, settings=ClientSettings(credentials=Credentials("PLAIN", "bob", "s3cret"))):
                pass
        assert "s3cret" not in str(failed.value)

    run(body)


def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are() -> None:
    settings = ClientSettings(credentials=Credentials("SCRAM-SHA-256", "bob", "s3cret"))

    async def body() -> None:
        with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256; it supports PLAIN, GSSAPI"):
            async with connected(
                lambda _: SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN", "GSSAPI"]), settings=settings
            ):
                pass

    run(body)


def test_a_session_with_an_end_is_left_before_it() -> None:
    def respond(request: Request[Response]) -> Response:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse()
        return SaslAuthenticateResponse(session_lifetime_ms=10_000)

    async def body() -> None:
        settings = ClientSettings(credentials=Credentials("PLAIN", "bob", "s3cret"))
        before_s = asyncio.get_running_loop().time()
        async with connected(respond, settings=settings) as connection:
            assert connection.usable_until_s is not None
            assert before_s + 8 < connection.usable_until_s < before_s + 9.5

    run(body)


def test_versions_that_all_brokers_serve() -> None:
    old, new = {0: VersionRange(0, 9), 1: VersionRange(0, 11)}, {0: VersionRange(3, 12), 76: VersionRange(1, 1)}
    assert common_versions([old, new]) == {0: VersionRange(3, 9)}
    assert common_versions([{0: VersionRange(0, 2)}, {0: VersionRange(3, 12)}]) == {}
    assert common_versions([]) == {}


def test_a_connection_works_on_the_event_loop_of_role_processes() -> None:
    async def body() -> None:
        async with connected(lambda _: of_length(10)) as connection:
            answer = await connection.ask(MetadataRequest(topics=[]), METADATA)
            assert answer.brokers == of_length(10).brokers

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body())
