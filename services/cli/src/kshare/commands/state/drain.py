"""`kshare state drain NODE`: moves all state partitions off a share coordinator and waits until it has none."""

from __future__ import annotations

import time
from collections.abc import Callable

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import CoordinatorUnreachable, call_coordinator
from kshare.failure import CommandFailed
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DRAIN_SHARE_COORDINATOR

POLL_INTERVAL_S = 0.2


def drain_share_coordinator(
    coordinator: Address, node_id: int, *, timeout_s: float, show: Callable[[str], None]
) -> None:
    """Returns when the node has no state partitions; CommandFailed if it is refused or not complete in time."""
    deadline = time.monotonic() + timeout_s
    shown = left = _drain(coordinator, node_id, undo=False)
    show(f"share coordinator {node_id} has {left} state partitions")
    while left:
        if time.monotonic() >= deadline:
            raise CommandFailed(
                f"share coordinator {node_id} still has {left} state partitions after {timeout_s:g} s; "
                "the drain continues (kshare state drain --undo cancels it)"
            )
        time.sleep(POLL_INTERVAL_S)
        try:
            left = _drain(coordinator, node_id, undo=False)
        except CoordinatorUnreachable:  # it may be restarting; the drain is stored in the catalog
            continue
        if left != shown:
            show(f"share coordinator {node_id} has {left} state partitions")
            shown = left


def undo_drain(coordinator: Address, node_id: int) -> None:
    """Allows state partitions to be placed at the node again; CommandFailed."""
    _drain(coordinator, node_id, undo=True)


def _drain(coordinator: Address, node_id: int, *, undo: bool) -> int:
    """Sets or clears the drain; returns the node's number of state partitions."""
    request = pb.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
    answer = call_coordinator(coordinator, DRAIN_SHARE_COORDINATOR, request)
    if answer.error_code:
        raise CommandFailed(answer.error_message)
    return answer.state_partitions_left
