"""A client's connection to a gateway in front of an existing cluster: some requests are answered here, others relayed.

Both kinds share the places in the order of responses, the limits of requests under way and the client's part of the
memory budget. A relayed frame is not decoded, save the header's first fields. Its response is passed on verbatim.

A relayed request whose response has records begins only when no request is under way that this gateway answers. So
when its response arrives, it is the client's next one, and it is passed on as it comes: a gateway never holds it.
What a client does not read is held by the kernel, at most SEND_BUFFER_BYTES and as much again.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from typing import Any, cast

from kshare_core.errors import ErrorCode, KafkaError
from kshare_gateway.connections.connection import ClientConnection
from kshare_gateway.connections.environment import ConnectionEnvironment
from kshare_gateway.connections.slot import Slot
from kshare_gateway.request_context import ConnectionMustClose, RequestContext
from kshare_gateway.upstream.client_relay import ClientRelay
from kshare_gateway.upstream.front import Front
from kshare_gateway.upstream.needed_permissions import RUN_ONCE, needed_permissions
from kshare_gateway.upstream.permissions import RequestPermissions
from kshare_wire.framing import LENGTH_SIZE, RequestHeader, peek_request, produce_acks
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.sasl_authenticate import SaslAuthenticateResponse
from kshare_wire.messages import Buffer, MalformedRequest, Request, Response, decode_response

AUTHENTICATION = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
SEND_BUFFER_BYTES = 102_400
"""Of a client's socket, as socket.send.buffer.bytes of Kafka's brokers; Linux would let it grow to 4 MiB."""
SCRAM_LAST = b"v="
"""How the server's last message begins (RFC 5802)."""
REPETITIONS = 3
"""Limit of the runs of a handler that needs permissions which its request does not name."""


class RelayingConnection(ClientConnection):
    """See the module docstring; it is the owner of its relay's links. `broker_id`: see `ClientRelay`."""

    def __init__(
        self,
        connection_id: int,
        environment: ConnectionEnvironment,
        listener: str,
        front: Front,
        broker_id: int | None,
    ) -> None:
        super().__init__(connection_id, environment, listener)
        self._front = front
        self._has_authenticated = False
        """Whether the cluster has accepted the client's first authentication, or answered another request of it."""
        if front.has_sasl:
            limit = min(front.maximum_message_bytes, environment.maximum_frame_length)
            self._frames.set_limits(limit, "sasl.server.max.receive.size")
        self.relay = self._relay = ClientRelay(front, self, broker_id)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if (client := transport.get_extra_info("socket")) is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        if (link := self._relay.open_link) is not None:
            link.pause_reading()

    def resume_writing(self) -> None:
        if (link := self._relay.open_link) is not None:
            link.resume_reading()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._relay.close()

    def _may_start(self) -> bool:
        link = self._relay.open_link
        return (link is None or not link.is_full) and super()._may_start()

    def _must_wait(self, frame: memoryview) -> bool:
        if super()._must_wait(frame):
            return True
        api_key = peek_request(frame)[0]
        if api_key != ApiKey.FETCH or not self._front.routes.is_relayed(api_key):
            return False
        link = self._relay.open_link
        return len(self._slots) > (0 if link is None else link.relayed_count)

    def _start(self, frame: memoryview) -> None:
        api_key, version, correlation_id = peek_request(frame)
        if self._front.has_sasl:
            self._follow_authentication(api_key)
        if not self._front.routes.is_relayed(api_key):
            super()._start(frame)
            return
        if not self._front.is_announced(api_key, version):
            raise MalformedRequest(f"API {api_key} version {version} is not announced to clients of the cluster")
        try:
            link = self._relay.link_for(api_key)
        except ConnectionMustClose as reason:
            self.link_is_lost(str(reason), had_requests=True)
            return
        slot = self._new_slot(api_key, version, LENGTH_SIZE + len(frame))
        if api_key == ApiKey.PRODUCE and produce_acks(frame, version) == 0:
            link.relay(frame, correlation_id, None)
            self._finish(slot, [], None)
            return
        is_first_authentication = api_key == ApiKey.SASL_AUTHENTICATE and not self._has_authenticated
        link.relay(frame, correlation_id, slot, is_gathered=is_first_authentication)

    def _follow_authentication(self, api_key: int) -> None:
        """Notes where the client is between its messages of SASL, which the cluster answers."""
        if api_key in AUTHENTICATION:
            self._relay.authenticates(True)
        elif api_key != ApiKey.API_VERSIONS:
            self._relay.authenticates(False)

    def _has_finished_authentication(self) -> None:
        """Allows requests of any size, of which the next may be one.

        The cluster has said so: that a client asks for something does not show who it is.
        """
        if self._front.has_sasl and not self._has_authenticated:
            self._has_authenticated = True
            self._frames.set_limits(self._environment.maximum_frame_length, "socket.request.max.bytes")

    async def _answer_or_fail(
        self, header: RequestHeader, context: RequestContext, request: Request[Any]
    ) -> tuple[Response | None, KafkaError | None]:
        """As for every client, after the cluster told what this one may do."""
        self._relay.client_id = header.client_id
        served = self._handlers[header.api_key]
        permissions = RequestPermissions(self._relay.permissions)
        context = replace(context, permissions=permissions)
        if served.access.open_to_all:
            return await super()._answer_or_fail(header, context, request)
        try:
            await permissions.learn(needed_permissions(context, served, request))
            answer = await super()._answer_or_fail(header, context, request)
            for _ in range(REPETITIONS if served.api_key not in RUN_ONCE else 0):
                missing = permissions.take_missing()
                if not missing:
                    break
                await permissions.learn(missing)
                answer = await super()._answer_or_fail(header, context, request)
        except KafkaError as error:  # the cluster is too old to be asked
            return self._failed(header, context, request, error), error
        return answer

    # LinkOwner

    def is_next(self, place: object) -> bool:
        return bool(self._slots) and self._slots[0] is place

    def pass_on(self, part: Buffer) -> None:
        if not self._is_closed:
            self._send([part])

    def was_passed_on(self, place: object) -> None:
        if self._is_closed:
            return
        slot = cast(Slot, place)
        self._was_answered(slot.api_key)
        self._finish(slot, [], None)
        self._serve_waiting()

    def was_gathered(self, place: object, response: Buffer) -> None:
        if self._is_closed:
            return
        slot = cast(Slot, place)
        if slot.api_key == ApiKey.SASL_AUTHENTICATE and _accepts(slot.version, response):
            self._has_finished_authentication()
        self._was_answered(slot.api_key)
        self._finish(slot, [response], None)
        self._serve_waiting()

    def own_request_was_answered(self) -> None:
        self._has_finished_authentication()

    def _was_answered(self, api_key: int) -> None:
        """The cluster has answered a relayed request; it closes the connections of strangers that send any."""
        if api_key not in AUTHENTICATION:
            self._has_finished_authentication()

    def link_is_lost(self, reason: str, *, had_requests: bool) -> None:
        """The client connects again, and so learns where the cluster's brokers are now."""
        if self._is_closed or not (had_requests or self._front.has_sasl):
            return
        text = "closing connection %d of %s: %s"
        self._environment.lines.info("link is lost", text, self.connection_id, self.client_host, reason)
        self._end()

    def link_has_room(self) -> None:
        self._serve()

    def _serve_waiting(self) -> None:
        if self._reading_is_paused or self._has_frame:
            self._serve()


def _accepts(version: int, frame: Buffer) -> bool:
    """Whether a response to SaslAuthenticate ends the authentication as Kafka's mechanisms do.

    Their other messages without an error are challenges. OAUTHBEARER tells what is wrong with a token in one.
    """
    try:
        response = decode_response(SaslAuthenticateResponse, version, memoryview(frame)[LENGTH_SIZE:])
    except MalformedRequest:
        return False
    message = bytes(response.auth_bytes)
    return response.error_code == ErrorCode.NONE and (not message or message.startswith(SCRAM_LAST))
