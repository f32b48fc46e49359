"""A client's side of the existing cluster, as handlers use it: requests that are asked as this client."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from kshare_gateway.request_context import ConnectionMustClose
from kshare_gateway.upstream.front import Front
from kshare_gateway.upstream.link import LinkOwner, UpstreamLink
from kshare_gateway.upstream.permissions import ClientPermissions
from kshare_upstream.connection import BrokerAddress, ConnectionLost
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request, Response

AResponse = TypeVar("AResponse", bound=Response)


class ClientRelay:
    """One client's connection to the existing cluster; a link that was lost without harm is replaced at the next use.

    `broker_id` is the broker whose port the client came to; None: any broker, or the controller.
    """

    def __init__(self, front: Front, owner: LinkOwner, broker_id: int | None) -> None:
        self.front = front
        self._owner = owner
        self.port_id = -1 if broker_id is None else broker_id
        """The broker to whose port the client came; -1 at a port for any broker."""
        self._link: UpstreamLink | None = None
        self.broker_id = self.port_id
        """The broker that the link is to; -1 before there is a link at a port for any broker."""
        self.client_id = ""
        """The client's own id, under which the cluster is asked too: its quotas and logs are by client id."""
        self.permissions = ClientPermissions(self.ask, front.authorization_cache_ms)
        self._authenticated = asyncio.Event()
        self._authenticated.set()

    @property
    def link(self) -> UpstreamLink:
        if self._link is None or self._link.is_closed:
            self._link = UpstreamLink(
                self._owner, self._choose, self.front.connect, attempts=self.front.choices(self.port_id)
            )
        return self._link

    @property
    def open_link(self) -> UpstreamLink | None:
        """The link, if there is one."""
        return None if self._link is None or self._link.is_closed else self._link

    def link_for(self, api_key: int) -> UpstreamLink:
        """The link for a request of an API: a new one, once nothing is under way, if the controller has moved.

        ConnectionMustClose where the client authenticated on the link, so that it has to connect again.
        """
        link = self.open_link
        if link is not None and link.is_idle and self.front.must_leave(self.broker_id, api_key):
            if self.front.has_sasl:
                raise ConnectionMustClose(
                    f"broker {self.broker_id} is no longer the controller of the existing cluster"
                )
            link.close()
        return self.link

    async def ask(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        """The cluster's answer to this client, in the highest version that both have within `served`.

        KafkaError UNSUPPORTED_VERSION; ConnectionMustClose without an answer.
        """
        version = self.front.brokers.version(request.API_KEY, served)
        await self._authenticated.wait()
        try:
            link = self.link_for(request.API_KEY)
            answer = await link.ask(request, version, self.client_id, self.front.timeout_ms)
        except ConnectionLost as lost:
            raise ConnectionMustClose(str(lost)) from None
        self._owner.own_request_was_answered()
        return answer

    def authenticates(self, is_under_way: bool) -> None:
        """Whether the client is between its messages of SASL: a broker accepts no other request then."""
        if is_under_way:
            self._authenticated.clear()
            self.permissions.forget()
        else:
            self._authenticated.set()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def _choose(self) -> BrokerAddress:
        broker = self.front.broker_for(self.port_id)
        self.broker_id = broker.node_id
        return broker.address
