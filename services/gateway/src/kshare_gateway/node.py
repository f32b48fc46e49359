"""The gateway node: its listening sockets, client connections, and the objects that they share.

Start order: the sockets are bound (so that the advertised ports are known), the node registers, the first view of the
catalog arrives, and only then are clients accepted. `new_connection` makes the protocol of one client; sockets use it,
and so does a simulation with its own transports.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kshare_core.configs import DynamicConfigs, listener_config_name
from kshare_core.security.principals import ANONYMOUS
from kshare_gateway.connections.connection import ClientConnection
from kshare_gateway.connections.connections_per_ip import ConnectionsPerIp
from kshare_gateway.connections.environment import ConnectionEnvironment
from kshare_gateway.connections.listeners import GatewayListener, joined
from kshare_gateway.connections.listening_sockets import bound_sockets
from kshare_gateway.connections.request_traces import RequestTraces
from kshare_gateway.gateway import Gateway, log
from kshare_gateway.metrics import GatewayNow, GatewaySource
from kshare_gateway.request_context import RequestContext
from kshare_gateway.security.configuration import certificate_principals, sasl_listeners
from kshare_gateway.security.ignored_settings import check_none_is_ignored
from kshare_gateway.security.sasl.scram import ScramUsers
from kshare_gateway.security.sasl.session import SaslSession
from kshare_gateway.settings import GatewaySettings
from kshare_gateway.share.fetching import ShareFetcher
from kshare_gateway.upstream.engine import configured_front, handlers_of, new_relaying_connection
from kshare_gateway.upstream.ports import ClosePort
from kshare_rpc.authorizer import authorizer_without_acls
from kshare_rpc.catalog import PLAINTEXT_LISTENER, CatalogView, alter_configs, logs_begun_anew
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_rpc.cluster_health import problems_of_view
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.names import look_up
from kshare_rpc.network import Network
from kshare_runtime.held_memory import HeldCache
from kshare_runtime.ports import Environment
from kshare_servicekit.metrics_server import Metrics
from kshare_upstream.port import OpenUpstream
from kshare_wire.framing import RequestHeader

if TYPE_CHECKING:
    from kshare_gateway.connections.tls_listener import TlsListener

SHORT_REQUESTS_MS = 300
"""How long a stopping process lets requests run before it ends those that wait for records or for members."""
RELEASE_GRACE_MS = 2_000
"""How long a stopping process waits for leaders to release the records that its clients held."""


class GatewayNode:
    """A gateway node; docs/architecture.md says what every node has. InvalidConfig if its certificates are unusable."""

    def __init__(
        self,
        *,
        environment: Environment,
        network: Network,
        settings: GatewaySettings,
        open_upstream: OpenUpstream | None = None,
    ) -> None:
        """`open_upstream` makes the client of the existing cluster; needed with kshare.engine=kafka."""
        self._configs = DynamicConfigs(settings.configs)
        settings = self._settings = replace(settings, configs=self._configs)
        self._incarnation = f"{environment.random.getrandbits(128):032x}"
        self._catalog_problem: str | None = None
        self._without_effect: list[str] = []
        """Names of altered broker configs that a log line has told to be without effect."""
        self._catalog = CatalogFollower(
            network=network,
            coordinator_address=settings.coordinator_address,
            on_view=self._new_view,
            on_problem=self._note_catalog_problem,
        )
        self._gateway = Gateway(
            settings=settings, incarnation=self._incarnation, catalog=self._catalog, clock=environment.clock
        )
        self._end_holding = environment.held_memory.add(_held_cache(self._gateway))
        self._share_fetcher = ShareFetcher(self._gateway)
        self._connections: dict[int, ClientConnection] = {}
        self._connections_of_listeners: Counter[str] = Counter()
        self._connections_per_ip = ConnectionsPerIp(
            self._configs,
            look_up=look_up,
            spawn=self._spawn,
            call_later=lambda delay_s, again: asyncio.get_running_loop().call_later(delay_s, again),
        )
        self._last_connection_id = 0
        self._servers: list[asyncio.Server] = []
        self._address = ""
        self._is_started = False
        self._is_stopping = False
        configs = settings.configs
        self._listeners = settings.all_listeners()
        check_none_is_ignored(configs, self._listeners)
        self._front = configured_front(configs, open_upstream, self._listeners, self._open_port)
        if self._front is not None:
            self._gateway.authorizer = authorizer_without_acls(configs)
        self._environment = ConnectionEnvironment(
            maximum_frame_length=configs.integer("socket.request.max.bytes"),
            maximum_idle_ms=configs.integer("connections.max.idle.ms"),
            maximum_elements=configs.integer("kshare.request.max.elements"),
            admit=self._admit,
            lost=self._connection_lost,
            context=self._context,
            spawn=self._spawn,
            metrics=self._gateway.metrics,
            lines=self._gateway.lines,
            memory=self._gateway.memory,
            slices=self._gateway.slices,
            traces=None if environment.tracer is None else RequestTraces(environment.tracer),
            certificate_principal=self._certificate_principal,
            authentication_delay_ms=lambda: configs.integer("connection.failed.authentication.delay.ms"),
            request_id_prefix=f"g{settings.node_id}-{self._incarnation[:6]}",
            handlers=handlers_of(self._front),
        )
        self._certificate_principals = certificate_principals(configs, self._listeners)
        scram_users = ScramUsers(lambda: self._gateway.view.security)
        with_users = self._listeners if self._front is None else ()
        self._sasl_listeners = sasl_listeners(configs, with_users, scram_users)
        self._tls_listeners = {each.name: self._tls_listener(each) for each in self._listeners if each.is_tls}

    @property
    def address(self) -> str:
        """The address ("host:port") of the first listener, with the port that was actually bound."""
        assert self._address, "the gateway is not started, or has no client_listen"
        return self._address

    def new_connection(self, listener: str = PLAINTEXT_LISTENER, broker_id: int | None = None) -> ClientConnection:
        """The protocol of a new client connection on the listener of this name.

        `broker_id` is the broker of an existing cluster to whose port the client came.
        """
        self._last_connection_id += 1
        if self._front is not None:
            return new_relaying_connection(
                self._last_connection_id, self._environment, listener, self._front, broker_id
            )
        sasl = self._sasl_listeners.get(listener)
        session = None if sasl is None else SaslSession(sasl, time.time, self._gateway.lines)
        return ClientConnection(self._last_connection_id, self._environment, listener, session)

    async def start(self) -> None:
        """Binds, registers, and returns once clients are accepted."""
        settings = self._settings
        endpoints = [await self._bind(listener) for listener in self._listeners]
        if self._front is not None:
            await self._front.start()
        await self._catalog.start(
            coordinator_pb2.Node(
                role=coordinator_pb2.ROLE_GATEWAY,
                node_id=settings.node_id,
                incarnation=self._incarnation,
                advertised_host=endpoints[0].host if endpoints else settings.advertised_host,
                advertised_port=endpoints[0].port if endpoints else settings.advertised_port,
                rack=self._rack(),
                listeners=endpoints if settings.listeners else (),
            )
        )
        for sasl in self._sasl_listeners.values():
            for keys in sasl.key_sets:
                await keys.fetch()
        for server in self._servers:
            await server.start_serving()
        for listener in self._tls_listeners.values():
            listener.start()
        self._is_started = True

    def _tls_listener(self, listener: GatewayListener) -> TlsListener:
        from kshare_gateway.connections.tls_listener import (
            TlsListener,
            TlsListenerEnvironment,
        )  # loads a library that few gateways need

        environment = TlsListenerEnvironment(
            lines=self._gateway.lines,
            refusal=partial(self._refusal, listener.name),
            new_connection=partial(self.new_connection, listener.name),
            metrics=self._gateway.metrics,
        )
        return TlsListener(listener, self._configs, environment)

    async def _bind(self, listener: GatewayListener) -> coordinator_pb2.Node.Listener:
        """Binds a listener's socket, which accepts no connections yet; returns the address that clients are told."""
        sockets = self._settings.sockets.get(listener.name) or await bound_sockets(listener.host, listener.port)
        port = int(sockets[0].getsockname()[1])
        tls = self._tls_listeners.get(listener.name)
        if tls is not None:
            tls.use(sockets)
        else:
            loop = asyncio.get_running_loop()
            new_connection = partial(self.new_connection, listener.name)
            for each in sockets:
                self._servers.append(await loop.create_server(new_connection, sock=each, start_serving=False))
        self._address = self._address or joined(listener.host, port)
        return coordinator_pb2.Node.Listener(
            name=listener.name,
            security_protocol=listener.security_protocol,
            host=listener.advertised_host,
            port=listener.advertised_port or port,
        )

    async def _open_port(self, listener: GatewayListener, port: int, broker_id: int) -> tuple[int, ClosePort]:
        """Opens a further port of a listener, for a broker of an existing cluster; OSError."""
        new_connection = partial(self.new_connection, listener.name, broker_id)
        tls = self._tls_listeners.get(listener.name)
        if tls is not None:
            return await tls.open_port(listener.host, port, new_connection)
        server = await asyncio.get_running_loop().create_server(new_connection, listener.host or None, port)

        async def close() -> None:
            server.close()

        return server.sockets[0].getsockname()[1], close

    async def stop(self, grace_ms: int) -> None:
        """Answers requests in flight for `grace_ms`, closes all connections, and releases their members' records.

        The gateway leaves the catalog first, so that other gateways stop sending clients here. Each connection is
        closed once its requests are answered. Requests that wait for records are ended after SHORT_REQUESTS_MS, when
        acknowledgements that came with or before them have reached their leaders.
        """
        self._is_stopping = True
        for server in self._servers:
            server.close()
        for listener in self._tls_listeners.values():
            await listener.close()
        if self._front is not None:
            await self._front.stop()
        self._connections_per_ip.close()
        await self._catalog.deregister()
        self._catalog.coordinators.stop_waiting()
        for connection in list(self._connections.values()):
            connection.close_when_answered()
        short_ms = min(grace_ms, SHORT_REQUESTS_MS)
        await self._gateway.wait_for_background(short_ms)
        self._end_waits()
        await self._gateway.finish_background(grace_ms - short_ms)
        for connection in list(self._connections.values()):
            connection.close()
        for connection_id in list(self._connections):
            self._release_sessions(connection_id)
        await self._gateway.finish_background(RELEASE_GRACE_MS)
        self._gateway.memory.stop()
        self._end_holding()
        await self._catalog.stop()

    def problems(self) -> list[str]:
        """Why the node is not healthy; empty when it is."""
        if self._is_stopping:
            return ["the gateway is stopping"]
        if not self._is_started:
            waiting_for = f": {self._catalog_problem}" if self._catalog_problem else ""
            return [f"the gateway is not started{waiting_for}", *self._front_problems()]
        catalog = self._catalog
        now = asyncio.get_running_loop().time()
        if catalog.lease_renewed_at is None or now - catalog.lease_renewed_at > catalog.lease_ms / 1000:
            return [f"no response from the coordinator for {catalog.lease_ms} ms: {self._catalog_problem}"]
        return self._front_problems()

    def _front_problems(self) -> list[str]:
        return [] if self._front is None else self._front.problems()

    def cluster_problems(self) -> list[str]:
        """Problems that keep the cluster from serving, by this gateway's view of the catalog and its ports."""
        of_front = [] if self._front is None else self._front.cluster_problems()
        return [*problems_of_view(self._gateway.view), *of_front]

    def register_metrics(self, metrics: Metrics) -> None:
        """Adds this node's metrics to those of its process."""
        self._gateway.metrics.now = metrics.now
        source = GatewaySource(self._gateway.metrics, self._at_the_moment)
        metrics.add_node("gateway", self._settings.node_id, source, self.problems)

    def _at_the_moment(self) -> GatewayNow:
        return GatewayNow(
            connections=len(self._connections),
            requests_under_way=sum([connection.requests_under_way for connection in self._connections.values()]),
            share_sessions=len(self._gateway.sessions),
            cache_bytes=self._gateway.cache.size_bytes + self._gateway.cache.retired_bytes,
            queued_bytes=self._gateway.memory.used_bytes,
            queued_limit_bytes=self._gateway.memory.limit_bytes,
            muted_connections=self._gateway.memory.muted,
            fetches_without_room=self._gateway.memory.waiting,
            slow_connections_closed=self._gateway.memory.closed_total,
            throttled_ms=self._gateway.throttling.throttled_ms,
            certificate_expiry_s={name: each.expires_at_s for name, each in self._tls_listeners.items()},
        )

    def _rack(self) -> str:
        rack = self._settings.configs["broker.rack"]
        return rack if isinstance(rack, str) else ""

    def _context(self, connection: ClientConnection, header: RequestHeader) -> RequestContext:
        return RequestContext(
            self._gateway,
            self._share_fetcher,
            connection.connection_id,
            connection.client_host,
            header.client_id,
            header.version,
            connection.listener,
            connection.is_wanted,
            connection.principal,
            connection.sasl,
            connection.account,
            connection.relay,
            connection.software,
        )

    def _certificate_principal(self, listener: str, certificate: bytes | None) -> str | None:
        principals = self._certificate_principals.get(listener)
        return ANONYMOUS if principals is None else principals.principal(certificate)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._gateway.spawn(work, name)

    def _admit(self, connection: ClientConnection) -> str | None:
        metrics = self._gateway.metrics
        if connection.listener in self._tls_listeners:
            self._tls_listeners[connection.listener].became_client(connection.connection_id)
        refusal = self._refusal(connection.listener, connection.client_host)
        if refusal is None:
            throttle_ms = self._gateway.throttling.connection_created(connection.client_host[1:])
            if throttle_ms:
                connection.close_later(throttle_ms)
                refusal = f"its address waits {throttle_ms} ms for further connections (connection_creation_rate)"
        if refusal is not None:
            metrics.connections_refused += 1
            return refusal
        metrics.connections_accepted += 1
        self._connections[connection.connection_id] = connection
        self._connections_of_listeners[connection.listener] += 1
        self._connections_per_ip.opened(connection.client_host[1:])
        return None

    def _refusal(self, listener_name: str, client_host: str) -> str | None:
        """Why a further connection of "/ip" is refused now, or None; connections in their handshake count."""
        if self._is_stopping:
            return "the gateway is stopping"
        under_way = {name: listener.handshakes for name, listener in self._tls_listeners.items()}
        limit = self._configs.integer("max.connections")
        if len(self._connections) + sum(under_way.values()) >= limit:
            return f"the limit of {limit} connections is reached (max.connections)"
        own_name = listener_config_name(listener_name, "max.connections")
        if own_name in self._configs.table and self._configs.is_set(own_name):
            limit = self._configs.integer(own_name)
            if self._connections_of_listeners[listener_name] + under_way.get(listener_name, 0) >= limit:
                return f"the limit of {limit} connections to its listener is reached ({own_name})"
        in_handshake = sum([listener.handshakes_of(client_host) for listener in self._tls_listeners.values()])
        return self._connections_per_ip.refusal(client_host[1:], in_handshake)

    def _connection_lost(self, connection: ClientConnection) -> None:
        del self._connections[connection.connection_id]
        self._connections_of_listeners[connection.listener] -= 1
        self._connections_per_ip.closed(connection.client_host[1:])
        self._end_waits_of(connection.connection_id)

    def _end_waits(self) -> None:
        """Ends the requests that wait for records, and closes connections whose members wait for others."""
        for connection in list(self._connections.values()):
            self._end_waits_of(connection.connection_id)
            if connection.waits_for_members:
                connection.close()

    def _end_waits_of(self, connection_id: int) -> None:
        self._release_sessions(connection_id)
        if self._gateway.waiting_fetches.places(connection_id):
            self._gateway.spawn(self._gateway.end_waiting_fetches(connection_id), "end of waiting fetches")

    def _release_sessions(self, connection_id: int) -> None:
        for session in self._gateway.sessions.connection_lost(connection_id):
            text = "releasing share session %s, its connection %d is closed"
            self._gateway.lines.info("session", text, session.key, connection_id)
            self._gateway.spawn(self._share_fetcher.release(session), "release of a share session")

    def _new_view(self, old: CatalogView, new: CatalogView) -> None:
        self._catalog_problem = None
        if alter_configs(self._configs, new, self._settings.node_id):
            self._warn_of_configs_without_effect()
        self._connections_per_ip.configs_changed()
        self._gateway.reassignments.on_view(old, new)
        for topic_id in old.topics_by_id:
            if topic_id not in new.topics_by_id:
                self._gateway.cache.drop_topic(topic_id)
        for key in logs_begun_anew(old, new):
            self._gateway.cache.drop_partition(key)

    def _warn_of_configs_without_effect(self) -> None:
        names = self._configs.without_effect()
        if names and names != self._without_effect:
            text = "altered broker configs have no effect at this gateway: %s; set them in its file, and remove these"
            log.warning(text, ", ".join(names))
        self._without_effect = names

    def _note_catalog_problem(self, text: str) -> None:
        if text != self._catalog_problem:
            log.warning("catalog updates from the coordinator fail, retrying: %s", text)
        self._catalog_problem = text


def _held_cache(gateway: Gateway) -> HeldCache:
    cache = gateway.cache
    return HeldCache(
        name="gateway_batches",
        limit_bytes=cache.limit_bytes,
        used_bytes=lambda: cache.size_bytes + cache.retired_bytes,
        shrink=cache.shrink,
    )
