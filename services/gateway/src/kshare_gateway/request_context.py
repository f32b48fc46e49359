"""The context that a handler gets beside the request, and the exception that closes the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kshare_core.security.acls import Operation, ResourceType
from kshare_core.security.principals import ANONYMOUS
from kshare_core.work_slices import ElementCount, WorkAbandoned
from kshare_gateway.connections.request_memory import LEAST_ANSWER_BYTES, MemoryAccount
from kshare_gateway.gateway import Gateway
from kshare_gateway.security.sasl.session import SaslSession
from kshare_gateway.share.fetching import ShareFetcher
from kshare_rpc.catalog import PLAINTEXT_LISTENER

if TYPE_CHECKING:
    from kshare_gateway.upstream.client_relay import ClientRelay
    from kshare_gateway.upstream.permissions import RequestPermissions


@dataclass(slots=True)
class Described:
    """What the parts of a long request were answered with until now."""

    configs: int = 0


@dataclass(slots=True)
class ClientSoftware:
    """The name that a connection's client gives itself in ApiVersions (KIP-511), such as "apache-kafka-java"."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client, connection and version of a request. `client_host` is "/ip", as Kafka shows it."""

    gateway: Gateway
    share_fetcher: ShareFetcher
    connection_id: int
    client_host: str
    client_id: str
    version: int
    listener: str = PLAINTEXT_LISTENER
    """The client's listener: the client is told the addresses that gateways have for this listener."""
    is_wanted: Callable[[], bool] = lambda: True
    """False once the connection is closed, so that the response is of no use."""
    principal: str = ANONYMOUS
    """Who the client is: "User:name", from SASL or its certificate."""
    sasl: SaslSession | None = None
    """The connection's authentication; None on listeners without SASL."""
    account: MemoryAccount | None = None
    """The connection's part of the gateway's memory; None: no limit."""
    relay: ClientRelay | None = None
    """The client's side of an existing cluster; None with the embedded engine."""
    software: ClientSoftware = field(default_factory=ClientSoftware)
    described: Described = field(default_factory=Described)
    permissions: RequestPermissions | None = None
    """What the client may do by the existing cluster; None with the embedded engine."""

    @property
    def cluster(self) -> ClientRelay:
        """`relay`, for handlers that are served in front of an existing cluster only."""
        assert self.relay is not None, "the embedded engine has no existing cluster"
        return self.relay

    @property
    def cluster_permissions(self) -> RequestPermissions:
        """`permissions`, for handlers that are served in front of an existing cluster only."""
        assert self.permissions is not None, "the embedded engine has no existing cluster"
        return self.permissions

    def authorize(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """As `may`, for what the client asked for: a denial has a line in the audit log (Kafka's logIfDenied)."""
        if self.may(operation, resource_type, name):
            return True
        if self.permissions is None or not self.permissions.is_missing(operation, resource_type, name):
            self.gateway.audit.denial(self, operation, resource_type, name)
        return False

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client is authorized; always true without an authorizer."""
        if self.permissions is not None:
            return self.permissions.allows(operation, resource_type, name)
        authorizer = self.gateway.authorizer
        return authorizer is None or authorizer.allows(
            self.principal, self.client_host[1:], operation, resource_type, name
        )

    async def wait_after_failed_authentication(self) -> None:
        """Waits before the client learns of the failure, so that trying passwords takes time."""
        delay_ms = self.gateway.configs.integer("connection.failed.authentication.delay.ms")
        await asyncio.sleep(delay_ms / 1000)

    def take_mutations(self, partitions: int, *, is_strict: bool) -> int:
        """Charges the client with changed partitions (controller_mutation_rate); returns its throttle time in ms.

        Strict: it is not charged when throttled, so the change must be refused with THROTTLING_QUOTA_EXCEEDED.
        """
        user_name = self.principal.partition(":")[2]
        return self.gateway.throttling.take_mutations(user_name, self.client_id, partitions, is_strict=is_strict)

    def count_elements(self) -> ElementCount:
        """Counts the elements in a loop over the request or the catalog; see `kshare_core.work_slices`."""
        return ElementCount(self.gateway.slices, self.is_wanted)

    def reserve_at_once(self, asked_bytes: int, *, expected_bytes: int = 0) -> int:
        """As `reserve_answer`, without a wait; 0: there is no room now."""
        if self.account is None or asked_bytes <= 0:
            return asked_bytes
        return self.account.reserve_at_once(asked_bytes, least_bytes=LEAST_ANSWER_BYTES, expected_bytes=expected_bytes)

    async def reserve_answer(
        self, asked_bytes: int, *, least_bytes: int = LEAST_ANSWER_BYTES, expected_bytes: int = 0
    ) -> int:
        """See `MemoryAccount.reserve_answer`; WorkAbandoned if the connection was closed meanwhile."""
        if self.account is None or asked_bytes <= 0:
            return asked_bytes
        granted = await self.account.reserve_answer(asked_bytes, least_bytes=least_bytes, expected_bytes=expected_bytes)
        if not granted:
            raise WorkAbandoned("the connection was closed before memory for its response was available")
        return granted


class ConnectionMustClose(Exception):
    """Closes the connection, because no response could tell the client what went wrong; the text says why."""
