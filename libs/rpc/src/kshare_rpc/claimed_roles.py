"""The role that a request names as its caller's own, which the caller's certificate has to be for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from kshare_rpc.exchange.tls import Caller
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

_CLAIMED: Mapping[type[Message], Callable[[Any], int]] = {
    pb.RegisterNodeRequest: lambda request: request.node.role,
    pb.DeregisterNodeRequest: lambda request: request.role,
    pb.WatchCatalogRequest: lambda request: request.role,
}
_NAMES: Mapping[int, str] = {number: name.removeprefix("ROLE_").lower() for name, number in pb.Role.items()}


class RoleNotHeld(Exception):
    """A node calls itself something that its certificate is not for."""


def check_claimed_role(request: Message, caller: Caller) -> None:
    """RoleNotHeld: such a leader could register as a gateway, to which the catalog shows the SCRAM credentials."""
    claimed = _CLAIMED.get(type(request))
    if claimed is None:
        return
    name = _NAMES.get(claimed(request), "unknown")
    if name not in caller.roles:
        held = ", ".join(sorted(caller.roles)) or "no role"
        raise RoleNotHeld(f"{type(request).__name__} names role {name}; the caller's certificate is for {held}")
