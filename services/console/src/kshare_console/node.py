"""The console as one object, in the shape of the other roles' nodes. It stores nothing and is called by no role."""

from __future__ import annotations

import asyncio
import logging
import time

from kshare_console.actions import Actions
from kshare_console.http.application import Application
from kshare_console.http.certificate import Certificate
from kshare_console.http.listener import Listener
from kshare_console.http.page_files import page_files
from kshare_console.http.view_routes import ViewRoutes
from kshare_console.live import LiveViews
from kshare_console.metrics import ConsoleMetrics
from kshare_console.refusal import Refusal
from kshare_console.role_calls import RoleCalls
from kshare_console.settings import ConsoleProcessSettings
from kshare_console.viewers import Viewers
from kshare_kafka_client.client_security import tls_context
from kshare_rpc.network import Network
from kshare_runtime.ports import Environment
from kshare_servicekit.flags import SettingsError
from kshare_servicekit.metrics_server import Metrics
from kshare_upstream.connection import BrokerAddress

CHECK_INTERVAL_S = 5.0
log = logging.getLogger("kshare_console")


class ConsoleNode:
    """The node of the service. `problems` says that no coordinator answers, until one does."""

    def __init__(self, *, environment: Environment, network: Network, settings: ConsoleProcessSettings) -> None:
        assert settings.coordinator_address is not None
        properties = settings.client_properties()
        self._settings = settings
        self._address = settings.console_listen
        self._problem: str | None = None
        self._check: asyncio.Task[None] | None = None
        path = settings.console_certificate
        self._certificate = None if path is None else Certificate(path)
        self._roles = RoleCalls(network, settings.coordinator_address.split(","))
        self._viewers = Viewers(
            [_broker_address(text) for text in settings.bootstrap_servers.split(",")],
            properties,
            tls_context(properties),
            self._roles,
            time.monotonic,
            environment.clock.now_ms,
        )
        self._live = LiveViews(settings.streams_limit)
        self._application = Application(
            viewers=self._viewers,
            views=ViewRoutes(self._roles),
            live=self._live,
            actions=Actions(self._roles, settings.node_id, is_allowed=settings.console_admin),
            files=page_files(),
            names=settings.allowed_hosts,
            is_https=self._certificate is not None,
        )
        self._listener = Listener(self._application.web, connections_limit=settings.connections_limit)
        if not settings.is_on_loopback():
            self._check_reachable_from_elsewhere()

    @property
    def address(self) -> str:
        """The address that was bound."""
        return self._address

    def _check_reachable_from_elsewhere(self) -> None:
        """SettingsError, or warnings, for a console that other machines reach."""
        settings = self._settings
        if self._viewers.needs_sign_in:
            if self._certificate is None:
                log.warning(
                    "users sign in at http://%s: passwords and session cookies cross the network unencrypted. "
                    "Give --console-certificate, or listen on 127.0.0.1 behind a proxy that serves HTTPS",
                    settings.console_listen,
                )
            return
        if settings.console_admin:
            raise SettingsError(
                "--console-admin without sign-in is for 127.0.0.1: everybody who reaches "
                f"{settings.console_listen} could change groups. Give --client-config with a SASL listener"
            )
        log.warning("users do not sign in: anyone who can reach %s can read records", settings.console_listen)

    def problems(self) -> list[str]:
        return [] if self._problem is None else [self._problem]

    def register_metrics(self, metrics: Metrics) -> None:
        def numbers() -> tuple[float, float, float, float]:
            listener = self._listener
            return listener.connections, listener.refused, self._live.viewers, self._viewers.session_count

        source = ConsoleMetrics(self._application.requests, numbers)
        metrics.add_node("console", self._settings.node_id, source, self.problems)

    async def start(self) -> None:
        host, _, port = self._settings.console_listen.rpartition(":")
        tls = None if self._certificate is None else self._certificate.context
        bound = await self._listener.start(host, int(port), tls)
        self._address = f"{host}:{bound}"
        self._check = asyncio.get_running_loop().create_task(self._check_regularly(), name="regular-check")
        log.info("the console is at %s://%s", "http" if tls is None else "https", self._address)

    async def _check_regularly(self) -> None:
        """Whether a coordinator answers, and whether there is a new certificate."""
        while True:
            if self._certificate is not None:
                self._certificate.renew()
            try:
                await self._roles.nodes()
                self._problem = None
            except Refusal as problem:
                self._problem = problem.words
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def stop(self, grace_ms: int) -> None:
        """Ends streams and connections."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)
        await self._live.close()
        await self._listener.stop(min(grace_ms, 1_000))
        await self._viewers.close()
        await self._roles.close()


def _broker_address(text: str) -> BrokerAddress:
    host, _, port = text.strip().rpartition(":")
    return BrokerAddress(host.strip("[]"), int(port))
