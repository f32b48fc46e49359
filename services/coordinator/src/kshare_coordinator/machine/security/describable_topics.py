"""Which topics a client may describe, for the regular expressions that the coordinator resolves.

Gateways check all other rights, before a request comes here. They say which client it is; the ACLs are the catalog's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.security.acls import Operation, ResourceType
from kshare_rpc.authorizer import Authorizer, SecurityRows


class Client(NamedTuple):
    """A client of a gateway with an authorizer, and no super user."""

    principal: str
    """ "User:name"."""
    host: str
    """Its address."""
    is_open_without_acls: bool
    """Whether the client may describe topics that no ACL is about (allow.everyone.if.no.acl.found)."""


class DescribableTopics:
    """See the module docstring. It has no state of its own: forgetting it changes no answer."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._generation = -1
        self._acls: SecurityRows = {}
        self._authorizers = {
            is_open: Authorizer(lambda: self._acls, is_open_without_acls=is_open) for is_open in (False, True)
        }

    def of(self, client: Client, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that the client may describe."""
        if self._generation != self._state.acls_generation:
            self._generation = self._state.acls_generation
            self._acls = dict(self._state.security)
        authorizer = self._authorizers[client.is_open_without_acls]
        return tuple(
            name
            for name in names
            if authorizer.allows(client.principal, client.host, Operation.DESCRIBE, ResourceType.TOPIC, name)
        )
