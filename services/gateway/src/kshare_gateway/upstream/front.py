"""What all connections of a gateway in front of an existing cluster share: its routes, brokers and ports."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from kshare_core.configs import Configs
from kshare_gateway.gateway import loop_ms
from kshare_gateway.upstream.brokers import REFRESH_MS, UpstreamBrokers
from kshare_gateway.upstream.link import Connect
from kshare_gateway.upstream.ports import BrokerPorts
from kshare_gateway.upstream.routes import Routes
from kshare_rpc.catalog import ClientEndpoint
from kshare_servicekit.existing_cluster import TOPIC_PREFIX
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_upstream.own_topics import own_topic_names
from kshare_upstream.port import Broker, ClusterView, OpenedUpstream
from kshare_wire.api_versions import VersionRange

AUTHORIZATION_CACHE = "kshare.upstream.authorization.cache.ms"
MODE = "kshare.upstream.mode"
PROXY, SHARE = "proxy", "share"
CONNECT_TIMEOUT_MS = 10_000


class Front:
    """See the module docstring. `ports` is None in mode share, where brokers of the cluster are not told to clients."""

    def __init__(
        self,
        *,
        configs: Configs,
        routes: Routes,
        upstream: OpenedUpstream,
        settings: ClientSettings,
        ports: BrokerPorts | None,
    ) -> None:
        self.authorization_cache_ms = configs.integer(AUTHORIZATION_CACHE)
        self.maximum_message_bytes = configs.integer("sasl.server.max.receive.size")
        """The limit of frames before a client has authenticated, where it has to."""
        self.routes = routes
        self.ports = ports
        self.brokers = UpstreamBrokers(upstream, self._on_view)
        self.own_topics = own_topic_names(configs.text(TOPIC_PREFIX))
        """Topics of kshare's in the cluster, which are internal to clients."""
        self.timeout_ms = settings.request_timeout_ms
        self.has_sasl = settings.credentials is not None
        """Whether clients authenticate at the cluster, on the connection that is theirs."""
        self.connect = connector(settings.tls)
        self._looking = asyncio.Lock()
        self._looked_for_ms: dict[int, int] = {}
        """The brokers without a port for which the cluster was asked again lately, and when."""
        self._announced: tuple[Mapping[int, VersionRange], dict[int, VersionRange]] = ({}, {})

    async def start(self) -> None:
        """Returns once a broker of the cluster answered, and brokers have their ports."""
        await self.brokers.start()

    async def stop(self) -> None:
        await self.brokers.stop()
        if self.ports is not None:
            await self.ports.close()

    def problems(self) -> list[str]:
        return [] if self.brokers.problem is None else [f"the existing cluster: {self.brokers.problem}"]

    def cluster_problems(self) -> list[str]:
        """Problems that do not keep the gateway from its work: without traffic it would serve no broker at all."""
        return [] if self.ports is None else self.ports.problems()

    @property
    def announced(self) -> dict[int, VersionRange]:
        """The versions that clients are told, by API key."""
        versions = self.brokers.versions
        if self._announced[0] is not versions:
            self._announced = (versions, self.routes.announced(versions))
        return self._announced[1]

    def is_announced(self, api_key: int, version: int) -> bool:
        told = self.announced.get(api_key)
        return told is not None and told.minimum <= version <= told.maximum

    def broker_for(self, wanted_id: int) -> Broker:
        """The broker that a client's requests go to, -1 for any; ConnectionLost.

        In mode share it is the controller, since what is relayed there is administration.
        """
        if wanted_id >= 0:
            return self.brokers.broker(wanted_id)
        return self.brokers.controller() if self.ports is None else self.brokers.any_broker()

    def choices(self, wanted_id: int) -> int:
        """How many brokers `broker_for` names in turn: one that stops is known as a broker for REFRESH_MS more."""
        return max(1, len(self.brokers.view.brokers)) if wanted_id < 0 and self.ports is not None else 1

    def must_leave(self, broker_id: int, api_key: int) -> bool:
        """Whether a broker does not carry out requests of an API any more, because the controller is another now."""
        return api_key in self.routes.for_controller and self.brokers.is_former_controller(broker_id)

    async def endpoints(self, listener: str, broker_ids: list[int]) -> dict[int, ClientEndpoint]:
        """The addresses here of the cluster's brokers, by their ids; those that appeared just now get theirs first."""
        if self._unknown(listener, broker_ids):
            async with self._looking:  # requests that miss the same brokers share an answer
                if unknown := self._unknown(listener, broker_ids):
                    await self.brokers.look_again()
                    self._looked_for_ms.update(dict.fromkeys(unknown, loop_ms()))
        found = {broker_id: self.endpoint(listener, broker_id) for broker_id in broker_ids}
        return {broker_id: endpoint for broker_id, endpoint in found.items() if endpoint is not None}

    def endpoint(self, listener: str, broker_id: int) -> ClientEndpoint | None:
        """The address here of a broker of the cluster; None if it has no port."""
        assert self.ports is not None, "brokers of the cluster have ports in mode proxy only"
        return self.ports.endpoint(listener, broker_id)

    def _unknown(self, listener: str, broker_ids: list[int]) -> list[int]:
        """The brokers that have no port and may have appeared since the cluster was asked."""
        now_ms = loop_ms()
        self._looked_for_ms = {
            broker_id: at_ms for broker_id, at_ms in self._looked_for_ms.items() if now_ms - at_ms < REFRESH_MS
        }
        return [
            broker_id
            for broker_id in broker_ids
            if broker_id not in self._looked_for_ms and self.endpoint(listener, broker_id) is None
        ]

    async def _on_view(self, view: ClusterView) -> None:
        if self.ports is not None:
            await self.ports.cover(view.brokers)


def connector(tls: ssl.SSLContext | None) -> Connect:
    """Connects to brokers over sockets, with TLS if given."""

    async def connect(protocol: Callable[[], asyncio.Protocol], address: BrokerAddress) -> Any:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                return await asyncio.get_running_loop().create_connection(
                    protocol, address.host, address.port, ssl=tls, server_hostname=address.host if tls else None
                )
        except UnicodeError as error:
            raise OSError(f"{address} is no address: {error}") from None

    return connect


def is_proxy(configs: Configs) -> bool:
    return configs.text(MODE) == PROXY
