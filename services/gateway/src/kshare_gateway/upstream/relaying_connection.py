"""A client's connection to a gateway in front of an existing cluster: some requests are answered here, others relayed.

Both kinds share the places in the order of responses, the limits of requests under way and the client's part of the
memory budget. A relayed frame is not decoded, save the header's first fields. Its response is passed on verbatim.

A relayed request whose response has records begins only when no request is under way that this gateway answers. So
when its response arrives, it is the client's next one, and it is passed on as it comes: a gateway never holds it.
"""

from __future__ import annotations

from typing import cast

from kshare_gateway.connections.connection import ClientConnection, ConnectionEnvironment, Slot
from kshare_gateway.gateway import log
from kshare_gateway.upstream.client_relay import ClientRelay
from kshare_gateway.upstream.front import Front
from kshare_wire.framing import LENGTH_SIZE, peek_request, produce_acks
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.messages import Buffer, MalformedRequest


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
        self.relay = self._relay = ClientRelay(front, self, broker_id)

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
        if not self._front.routes.is_relayed(api_key):
            super()._start(frame)
            return
        if not self._front.is_announced(api_key, version):
            raise MalformedRequest(f"API {api_key} version {version} is not announced to clients of the cluster")
        slot = self._new_slot(api_key, version, LENGTH_SIZE + len(frame))
        if api_key == ApiKey.PRODUCE and produce_acks(frame, version) == 0:
            self._relay.link.relay(frame, correlation_id, None)
            self._finish(slot, [], None)
            return
        self._relay.link.relay(frame, correlation_id, slot)

    # LinkOwner

    def is_next(self, place: object) -> bool:
        return bool(self._slots) and self._slots[0] is place

    def pass_on(self, part: Buffer) -> None:
        if not self._is_closed:
            self._send([part])

    def was_passed_on(self, place: object) -> None:
        if self._is_closed:
            return
        self._finish(cast(Slot, place), [], None)
        self._serve_waiting()

    def was_gathered(self, place: object, response: Buffer) -> None:
        if self._is_closed:
            return
        self._finish(cast(Slot, place), [response], None)
        self._serve_waiting()

    def link_is_lost(self, reason: str, *, had_requests: bool) -> None:
        """The client connects again, and so learns where the cluster's brokers are now."""
        if self._is_closed or not (had_requests or self._front.has_sasl):
            return
        log.info("closing connection %d of %s: %s", self.connection_id, self.client_host, reason)
        self._end()

    def link_has_room(self) -> None:
        self._serve()

    def _serve_waiting(self) -> None:
        if self._held_frame is not None or self._reading_is_paused or self._frames.is_ready:
            self._serve()
