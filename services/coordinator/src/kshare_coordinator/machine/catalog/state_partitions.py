"""Ownership of the partitions of `__share_group_state` by share coordinators, and their moves between nodes.

In the embedded engine the rows of a state partition are on its owner's disk, so it moves by fence, copy and switch:
1. The catalog records the move, with a new owner epoch. The owner stops serving the partition once it sees the move.
2. The new node copies the rows from the owner, which hands them out only after it has seen the move.
3. The new node reports that it has the rows durably; the catalog makes it the owner. The former owner drops its rows.
Until step 3 the owner's rows are complete and no node writes, whichever step fails. A move whose new node is gone or
draining is cancelled by another owner epoch.

Every change ends with `settle`: state partitions without an owner get one, those of draining nodes move away, and the
rest is balanced with the fewest moves. Partitions of an expired node stay, because their data is on its disk. The
number of concurrent moves is limited, so that nodes have capacity to serve the other partitions.

In the kafka engine the rows are in the existing cluster, so every move is a switch to a new owner, with a new owner
epoch, and those of an expired node get another owner at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog import placement
from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.commands import (
    CatalogChanged,
    CompleteStatePartitionMove,
    DrainShareCoordinator,
    Effect,
)
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_runtime.machine import Decision

MOVES_AT_ONCE = 4
NO_OWNER = -1
NO_INCARNATION = "-"

Owner = pb.StatePartitionOwner
DrainResponse = pb.DrainShareCoordinatorResponse
CompleteResponse = pb.CompleteStatePartitionMoveResponse


def settle(
    owners: Mapping[int, Owner],
    count: int,
    live: Collection[int],
    draining: Collection[int],
    owner_epoch: int,
    *,
    data_is_local: bool = True,
) -> list[Owner]:
    """The owners that change; `live` are the live share coordinators, `draining` the draining ones."""
    draft = _Draft(owners, owner_epoch)
    if not data_is_local:
        draft.spread(count, placement.takers(sorted(live), sorted(draining)))
        return [draft.owners[state_partition] for state_partition in sorted(draft.changed)]
    takers = sorted(node_id for node_id in live if node_id not in draining)
    for state_partition, owner in sorted(owners.items()):
        if owner.is_moving and owner.moving_to_node_id not in takers:
            draft.stay(state_partition)
    if takers:
        for state_partition in range(count):
            if state_partition not in draft.owners:
                draft.give(state_partition, draft.least_loaded(takers))
        draft.empty([node_id for node_id in sorted(live) if node_id in draining], takers)
        draft.balance(takers)
    return [draft.owners[state_partition] for state_partition in sorted(draft.changed)]


def owners_instead_of(
    owners: Mapping[int, Owner], lost_node_id: int, live: Sequence[int], draining: Sequence[int], owner_epoch: int
) -> list[Owner]:
    """The new owners of all state partitions of a node that is given up; `live` must not be empty."""
    draft = _Draft(owners, owner_epoch)
    takers = [node_id for node_id in live if node_id not in draining] or list(live)
    for state_partition, owner in sorted(owners.items()):
        if owner.node_id == lost_node_id:
            draft.replace_lost_owner(state_partition, draft.least_loaded(takers))
    return [draft.owners[state_partition] for state_partition in sorted(draft.changed)]


class _Draft:
    """The owners as they will be."""

    def __init__(self, owners: Mapping[int, Owner], owner_epoch: int) -> None:
        self.owners = dict(owners)
        self.changed: dict[int, None] = {}
        self._owner_epoch = owner_epoch

    def _put(self, owner: Owner) -> None:
        owner.owner_epoch = self._owner_epoch
        self.owners[owner.state_partition] = owner
        self.changed[owner.state_partition] = None

    def stay(self, state_partition: int) -> None:
        self.give(state_partition, self.owners[state_partition].node_id)

    def give(self, state_partition: int, node_id: int) -> None:
        self._put(
            Owner(state_partition=state_partition, node_id=node_id, given_up_epoch=self._given_up(state_partition))
        )

    def spread(self, count: int, takers: Sequence[int]) -> None:
        """The owners of the kafka engine."""
        known = {number: self.owners[number].node_id if number in self.owners else NO_OWNER for number in range(count)}
        for state_partition, node_id in placement.spread(known, takers).items():
            self.give(state_partition, node_id)

    def replace_lost_owner(self, state_partition: int, node_id: int) -> None:
        """The owner is given up; the new one begins without any state."""
        self._put(Owner(state_partition=state_partition, node_id=node_id, given_up_epoch=self._owner_epoch))

    def _given_up(self, state_partition: int) -> int:
        known = self.owners.get(state_partition)
        return known.given_up_epoch if known else 0

    def _move(self, state_partition: int, node_id: int) -> None:
        self._put(
            Owner(
                state_partition=state_partition,
                node_id=self.owners[state_partition].node_id,
                is_moving=True,
                moving_to_node_id=node_id,
                given_up_epoch=self._given_up(state_partition),
            )
        )

    def _loads(self, takers: Sequence[int]) -> dict[int, int]:
        """How many each node has once all moves are done."""
        loads = dict.fromkeys(takers, 0)
        for owner in self.owners.values():
            node_id = owner.moving_to_node_id if owner.is_moving else owner.node_id
            if node_id in loads:
                loads[node_id] += 1
        return loads

    def least_loaded(self, takers: Sequence[int]) -> int:
        loads = self._loads(takers)
        return min(takers, key=lambda node_id: (loads[node_id], node_id))

    def _has_room(self) -> bool:
        return sum(owner.is_moving for owner in self.owners.values()) < MOVES_AT_ONCE

    def _settled_at(self, node_id: int) -> list[int]:
        return [
            state_partition
            for state_partition, owner in sorted(self.owners.items())
            if owner.node_id == node_id and not owner.is_moving
        ]

    def empty(self, nodes: Sequence[int], takers: Sequence[int]) -> None:
        for node_id in nodes:
            for state_partition in self._settled_at(node_id):
                if not self._has_room():
                    return
                self._move(state_partition, self.least_loaded(takers))

    def balance(self, takers: Sequence[int]) -> None:
        while self._has_room():
            loads = self._loads(takers)
            most = max(takers, key=lambda node_id: (loads[node_id], -node_id))
            least = self.least_loaded(takers)
            movable = self._settled_at(most)
            if loads[most] - loads[least] < 2 or not movable:
                return
            self._move(movable[-1], least)


def draining_nodes(state: CoordinatorState) -> list[int]:
    """The draining share coordinators."""
    prefix = records.DRAINING_SHARE_COORDINATOR
    return sorted(int(name.removeprefix(prefix)) for name in state.texts if name.startswith(prefix))


def settled(
    state: CoordinatorState, engine: Engine, live: Collection[int], draining: Collection[int], owner_epoch: int
) -> list[Record]:
    """Records that bring the state partitions to where they belong, or a step nearer."""
    count = state.state_partition_count
    changed = settle(state.state_partitions, count, live, draining, owner_epoch, data_is_local=engine.data_is_local)
    return [records.state_partition_owner(owner) for owner in changed]


def registration_records(state: CoordinatorState, engine: Engine, node: pb.Node) -> list[Record]:
    """Handles a registered share coordinator; a new process may have state partitions again."""
    draining = draining_nodes(state)
    found: list[Record] = []
    name = f"{records.DRAINING_SHARE_COORDINATOR}{node.node_id}"
    if node.node_id in draining and state.texts[name] != node.incarnation:
        draining.remove(node.node_id)
        found.append(records.cluster_gone(name))
    live = {*state.live_nodes(pb.ROLE_SHARE_COORDINATOR), node.node_id}
    return found + settled(state, engine, live, draining, node.node_epoch)


def expiry_records(state: CoordinatorState, engine: Engine, node_id: int) -> list[Record]:
    """Cancels moves to a share coordinator whose lease ended; in the kafka engine others take over what it owned."""
    live = [other for other in state.live_nodes(pb.ROLE_SHARE_COORDINATOR) if other != node_id]
    found = settled(state, engine, live, draining_nodes(state), state.epoch_counter + 1)
    return _with_epoch(state, found)


def _with_epoch(state: CoordinatorState, found: list[Record]) -> list[Record]:
    if not found:
        return []
    return [records.cluster_number(records.EPOCH_COUNTER, state.epoch_counter + 1), *found]


@decides(CompleteStatePartitionMove)
def decide_complete_move(
    state: CoordinatorState, command: CompleteStatePartitionMove
) -> Decision[Record, CompleteResponse, Effect]:
    """Completes a move and plans the next ones; KafkaError INVALID_REQUEST if the move no longer exists."""
    request = command.request
    owner = state.state_partitions.get(request.state_partition)
    if owner is not None and owner.node_id == request.node_id and not owner.is_moving:
        return Decision((), CompleteResponse())  # said again, because the answer was lost
    if (
        owner is None
        or not owner.is_moving
        or owner.moving_to_node_id != request.node_id
        or owner.owner_epoch != request.owner_epoch
    ):
        text = (
            f"State partition {request.state_partition} does not move to node {request.node_id} "
            f"with owner epoch {request.owner_epoch}"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    epoch = state.epoch_counter + 1
    switched = Owner(
        state_partition=owner.state_partition,
        node_id=request.node_id,
        owner_epoch=epoch,
        given_up_epoch=owner.given_up_epoch,
    )
    owners = {**state.state_partitions, owner.state_partition: switched}
    live = state.live_nodes(pb.ROLE_SHARE_COORDINATOR)
    following = settle(owners, state.state_partition_count, live, draining_nodes(state), epoch)
    changed = {switched.state_partition: switched} | {other.state_partition: other for other in following}
    found = [records.state_partition_owner(changed[state_partition]) for state_partition in sorted(changed)]
    found = [*_with_epoch(state, found), records.cluster_number(records.CATALOG_VERSION, state.version + 1)]
    return Decision(found, CompleteResponse(), (CatalogChanged(nodes=True),))


@decides(DrainShareCoordinator)
def decide_drain(
    state: CoordinatorState, command: DrainShareCoordinator, engine: Engine
) -> Decision[Record, DrainResponse, Effect]:
    """Starts or cancels the drain of a share coordinator; KafkaError INVALID_REQUEST if it is not possible."""
    node_id, undo = command.request.node_id, command.request.undo
    name = f"{records.DRAINING_SHARE_COORDINATOR}{node_id}"
    left = sum(owner.node_id == node_id for owner in state.state_partitions.values())
    live = state.live_nodes(pb.ROLE_SHARE_COORDINATOR)
    if undo is (name not in state.texts):  # nothing new
        return Decision((), DrainResponse(state_partitions_left=left))
    if not undo:
        _check_can_drain(engine, node_id, left, live, draining_nodes(state))
    node = state.nodes.get((pb.ROLE_SHARE_COORDINATOR, node_id))
    incarnation = NO_INCARNATION if node is None else node.incarnation
    draining = [other for other in draining_nodes(state) if other != node_id]
    if not undo:
        draining.append(node_id)
    found = [records.cluster_gone(name) if undo else records.cluster_text(name, incarnation)]
    found += _with_epoch(state, settled(state, engine, live, draining, state.epoch_counter + 1))
    found.append(records.cluster_number(records.CATALOG_VERSION, state.version + 1))
    return Decision(found, DrainResponse(state_partitions_left=left), (CatalogChanged(nodes=True),))


def _check_can_drain(engine: Engine, node_id: int, left: int, live: Sequence[int], draining: Sequence[int]) -> None:
    problem = None
    if node_id not in live:
        problem = "it is not registered"
        if left and engine.data_is_local:
            problem = f"it is not live, and its {left} state partitions are on its disk"
    elif left and not any(other != node_id and other not in draining for other in live):
        problem = f"no other live share coordinator can take its {left} state partitions"
    if problem:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Share coordinator {node_id} cannot be drained: {problem}")


def describe(state: CoordinatorState) -> pb.DescribeStatePartitionsResponse:
    """Owners, moves, and the share coordinators that own something or are live."""
    live = state.live_nodes(pb.ROLE_SHARE_COORDINATOR)
    draining = draining_nodes(state)
    nodes = sorted({*live, *state.state_partition_owners.values()})
    return pb.DescribeStatePartitionsResponse(
        state_partitions=[owner for _, owner in sorted(state.state_partitions.items())],
        share_coordinators=[
            pb.DescribeStatePartitionsResponse.ShareCoordinator(
                node_id=node_id,
                is_live=node_id in live,
                is_draining=node_id in draining,
                rpc_address=state.nodes[pb.ROLE_SHARE_COORDINATOR, node_id].rpc_address if node_id in live else "",
            )
            for node_id in nodes
        ],
    )
