"""The quotas of clients, found by user and client id in Kafka's order (DefaultQuotaCallback of 4.3.1).

The most specific entity that has the quota counts: user and client id, user and any client, user, any user and client
id, any user and any client, any user, client id, any client. Clients share a rate as far as their entity does not tell
them apart: a quota of a user is for all clients of that user together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kshare_core.security.addresses import address_text
from kshare_core.security.client_quotas import CONNECTION_CREATION_RATE
from kshare_rpc.generated.kshare.v1.security_pb2 import QuotaEntity, SecurityEntry

DEFAULT = ""
"""The name of an entity's default."""


class Entity(NamedTuple):
    """A part that is None does not belong to the entity; DEFAULT is any."""

    user: str | None
    client_id: str | None


class Quota(NamedTuple):
    """A quota in force, and the clients that share it."""

    bound: float
    shared_by: Entity


class QuotaTable:
    """All quotas of one catalog view."""

    def __init__(self, rows: Mapping[bytes, SecurityEntry]) -> None:
        self._of_clients: dict[Entity, Mapping[str, float]] = {}
        self._of_addresses: dict[str, float] = {}
        self.names: set[str] = set()
        """The quotas that any entity has."""
        for entry in rows.values():
            if entry.key.HasField("quota_entity"):
                self._add(entry.key.quota_entity, entry.value.client_quotas.values)

    def of_client(self, name: str, user: str, client_id: str) -> Quota | None:
        """The quota of this name that a client has; None without one."""
        if name not in self.names:
            return None
        for entity in (
            Entity(user, client_id),
            Entity(user, DEFAULT),
            Entity(user, None),
            Entity(DEFAULT, client_id),
            Entity(DEFAULT, DEFAULT),
            Entity(DEFAULT, None),
            Entity(None, client_id),
            Entity(None, DEFAULT),
        ):
            bound = self._of_clients.get(entity, {}).get(name)
            if bound is not None:
                shared_by = Entity(
                    None if entity.user is None else user, None if entity.client_id is None else client_id
                )
                return Quota(bound, shared_by)
        return None

    def of_address(self, address: str) -> float | None:
        """connection_creation_rate of an `address_text`; the lowest, if several texts of the address have one."""
        return self._of_addresses.get(address, self._of_addresses.get(DEFAULT))

    def _add(self, entity: QuotaEntity, values: Mapping[str, float]) -> None:
        self.names.update(values)
        if entity.HasField("ip"):
            if CONNECTION_CREATION_RATE in values:
                address, rate = address_text(entity.ip), values[CONNECTION_CREATION_RATE]
                self._of_addresses[address] = min(rate, self._of_addresses.get(address, rate))
            return
        user = entity.user if entity.HasField("user") else None
        client_id = entity.client_id if entity.HasField("client_id") else None
        self._of_clients[Entity(user, client_id)] = dict(values)
