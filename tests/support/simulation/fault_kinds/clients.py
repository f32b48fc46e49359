"""Kinds of fault of clients' connections: `connections` says which of them TCP allows."""

from __future__ import annotations

from collections.abc import Callable

from support.simulation.connections import ClientConnection
from support.simulation.fault_kinds.acting import delayed, hit_connections, on_network
from support.simulation.fault_kinds.drawing import at_once, between, no_host
from support.simulation.faults import Action, Fault, FaultInjector, FaultKind
from support.simulation.network import Conditions

MANY_PIECES = (1.0, 6)
SHARES = (0.2, 0.5, 1.0)
"""Of all clients."""


def _some_connections(act: Callable[[ClientConnection, Fault], object]) -> Action:
    """Does it to connections that nodes have not opened, to each with the fault's strength as probability."""

    async def action(injector: FaultInjector, fault: Fault) -> None:
        listeners, hit = injector.cluster.listeners, injector.clients_hit.setdefault(fault, [])
        for connection in [connection for connection in listeners.all_open if connection.source is None]:
            if injector.random.random() < fault.strength:
                listeners.effects[fault.name] += 1
                hit.append(connection.client_host)
                act(connection, fault)

    return action


async def _read_again(injector: FaultInjector, fault: Fault) -> None:
    injector.cluster.listeners.heal()


@on_network
def _break_up(conditions: Conditions, fault: Fault) -> None:
    conditions.pieces = MANY_PIECES


@on_network
def _leave_whole(conditions: Conditions, fault: Fault) -> None:
    conditions.pieces = Conditions().pieces


cut = _some_connections(lambda connection, fault: connection.cut())
vanish = _some_connections(lambda connection, fault: connection.vanish(fault.duration))
close_half = _some_connections(lambda connection, fault: connection.close_half())
stop_reading = _some_connections(lambda connection, fault: connection.stop_reading())

CLIENT_KINDS: tuple[FaultKind, ...] = (
    FaultKind("cut-clients", 2, no_host, at_once, cut, None, hit_connections, SHARES),
    FaultKind("half-open", 2, no_host, between(8.0, 40.0), vanish, None, hit_connections, SHARES),
    FaultKind("half-closed", 1, no_host, at_once, close_half, None, hit_connections, SHARES),
    FaultKind("unread-answers", 2, no_host, between(2.4, 12.0), stop_reading, _read_again, hit_connections, SHARES),
    FaultKind("small-pieces", 1, no_host, between(1.0, 5.0), _break_up, _leave_whole, delayed),
)
"""A half-open connection is one whose client is gone without a word: its gateway notices it when the fault ends."""
