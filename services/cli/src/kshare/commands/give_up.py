"""`kshare partitions give-up` and `kshare state give-up`: a node that will not come back, and what is lost with it.

Without --unsafe both list what would be lost and end with an error. What a node has is on its own disk, so a node that
may come back should be started, not given up.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import ask, call_coordinator, coordinators_at
from kshare.failure import CommandFailed
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import GIVE_UP_NODE
from kshare_rpc.network import CallFailed

Loss = pb.GiveUpNodeResponse


def give_up_leader(coordinator: Address, node_id: int, *, is_unsafe: bool, show: Callable[[str], None]) -> None:
    """Its topic partitions begin anew at live leaders, without records; CommandFailed where that is refused."""
    request = pb.GiveUpNodeRequest(role=pb.ROLE_LEADER, node_id=node_id, unsafe=is_unsafe)
    loss = _checked(call_coordinator(coordinator, GIVE_UP_NODE, request))
    for lost in loss.partitions:
        show(f"records of {lost.topic_name}:{lost.partition}{_extent(lost)}")
    count = len(loss.partitions)
    if not is_unsafe:
        raise CommandFailed(
            f"nothing was changed. The records of these {count} partitions are on the disk of leader {node_id} only; "
            "start it, or give --unsafe to lose them"
        )
    show(f"leader {node_id} was given up: {count} partitions have new leaders and empty logs")


def _extent(lost: Loss.LostPartition) -> str:
    if lost.highest_committed_offset < 0:
        return ""
    return f" (consumer groups committed up to offset {lost.highest_committed_offset})"


def give_up_share_coordinator(
    coordinator: Address, node_id: int, *, is_unsafe: bool, show: Callable[[str], None]
) -> None:
    """Its state partitions begin anew at live share coordinators; CommandFailed where that is refused.

    The listed share-partitions start again at the first record of their logs.
    """
    request = pb.GiveUpNodeRequest(role=pb.ROLE_SHARE_COORDINATOR, node_id=node_id)
    states = [state for loss in _losses(coordinator, request) for state in loss.states]
    for state in sorted(states, key=lambda state: (state.group_id, state.topic_name)):
        numbers = ",".join(map(str, state.partitions))
        show(f"state of group {state.group_id}, topic {state.topic_name}, partitions {numbers}")
    count = sum(len(state.partitions) for state in states)
    if not is_unsafe:
        raise CommandFailed(
            f"nothing was changed. The state of these {count} share-partitions is on the disk of share coordinator "
            f"{node_id} only; start it, or give --unsafe to lose it: they begin again at the first record of their logs"
        )
    request.unsafe = True
    loss = _checked(call_coordinator(coordinator, GIVE_UP_NODE, request))
    show(
        f"share coordinator {node_id} was given up: {len(loss.state_partitions)} state partitions have new owners, and "
        f"{count} share-partitions begin again at the first record"
    )


def _losses(coordinator: Address, request: pb.GiveUpNodeRequest) -> list[Loss]:
    """Of several coordinators each knows its own groups; CommandFailed where one does not answer."""
    found = []
    for address in coordinators_at(coordinator):
        answer = ask(address, GIVE_UP_NODE, request)
        if isinstance(answer, CallFailed):
            raise CommandFailed(f"the coordinator at {address} does not say what its groups would lose: {answer}")
        found.append(_checked(answer))
    return found


def _checked(loss: Loss) -> Loss:
    if loss.error_code:
        raise CommandFailed(loss.error_message)
    return loss
