"""`kshare partitions give-up` and `kshare state give-up`: remove a node for good, and list the data lost with it.

Without --unsafe both list what would be lost and end with an error. A node's data is only on its own disk, so a node
that can be started again should be started, not given up.
"""

from __future__ import annotations

from collections.abc import Callable

from kshare.addresses import Address
from kshare.commands.state.coordinator_call import call_coordinator, call_one, coordinators_at
from kshare.failure import CommandFailed
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import GIVE_UP_NODE
from kshare_rpc.network import CallFailed

Loss = pb.GiveUpNodeResponse


def give_up_leader(coordinator: Address, node_id: int, *, is_unsafe: bool, show: Callable[[str], None]) -> None:
    """Gives the leader's topic partitions to live leaders with empty logs; CommandFailed if the coordinator refuses."""
    request = pb.GiveUpNodeRequest(role=pb.ROLE_LEADER, node_id=node_id, unsafe=is_unsafe)
    loss = _checked(call_coordinator(coordinator, GIVE_UP_NODE, request))
    for lost in loss.partitions:
        show(f"records of {lost.topic_name}:{lost.partition}{_extent(lost)}")
    count = len(loss.partitions)
    if not is_unsafe:
        raise CommandFailed(
            f"nothing was changed. The records of these {count} partitions are only on the disk of leader {node_id}; "
            "start that leader, or use --unsafe to discard them"
        )
    show(f"leader {node_id} was given up: {count} partitions have new leaders and empty logs")


def _extent(lost: Loss.LostPartition) -> str:
    if lost.highest_committed_offset < 0:
        return ""
    return f" (consumer groups committed up to offset {lost.highest_committed_offset})"


def give_up_share_coordinator(
    coordinator: Address, node_id: int, *, is_unsafe: bool, show: Callable[[str], None]
) -> None:
    """Gives the node's state partitions, emptied, to live share coordinators; CommandFailed if a coordinator refuses.

    The listed share-partitions restart at the first record of their logs.
    """
    request = pb.GiveUpNodeRequest(role=pb.ROLE_SHARE_COORDINATOR, node_id=node_id)
    states = [state for loss in _losses(coordinator, request) for state in loss.states]
    for state in sorted(states, key=lambda state: (state.group_id, state.topic_name)):
        numbers = ",".join(map(str, state.partitions))
        show(f"state of group {state.group_id}, topic {state.topic_name}, partitions {numbers}")
    count = sum(len(state.partitions) for state in states)
    if not is_unsafe:
        raise CommandFailed(
            f"nothing was changed. The state of these {count} share-partitions is only on the disk of share "
            f"coordinator {node_id}; start it, or use --unsafe to discard the state: they restart at the first record"
        )
    request.unsafe = True
    loss = _checked(call_coordinator(coordinator, GIVE_UP_NODE, request))
    show(
        f"share coordinator {node_id} was given up: {len(loss.state_partitions)} state partitions have new owners, and "
        f"{count} share-partitions restart at the first record"
    )


def _losses(coordinator: Address, request: pb.GiveUpNodeRequest) -> list[Loss]:
    """The losses by coordinator, since each knows only its own groups; CommandFailed if one does not respond."""
    found = []
    for address in coordinators_at(coordinator):
        answer = call_one(address, GIVE_UP_NODE, request)
        if isinstance(answer, CallFailed):
            raise CommandFailed(f"cannot read from the coordinator at {address} what its groups would lose: {answer}")
        found.append(_checked(answer))
    return found


def _checked(loss: Loss) -> Loss:
    if loss.error_code:
        raise CommandFailed(loss.error_message)
    return loss
