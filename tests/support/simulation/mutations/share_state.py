"""Planted bugs of share-partition state in share coordinators: epochs, snapshots, and what is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2
from kshare_rpc.generated.methods import WRITE_SHARE_GROUP_STATE
from kshare_rpc.network import Handler, Payload
from kshare_share_coordinator.machine import share_coordinator
from kshare_share_coordinator.machine.operations import WriteState
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine, ShareDecision
from kshare_share_coordinator.machine.share_group_offset import Record, ShareGroupOffset, ShareSnapshot, ShareUpdate
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_store import StateStore
from support.simulation.mutations.mutation import Mutation, Patch, at_role, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, at_least, only_faults, with_activities
from support.simulation.plan import MOVES

OLD_WRITES_KEPT = 20

WriteDecision = Callable[[ShareCoordinatorMachine, WriteState, ShareGroupOffset, int], ShareDecision]
Combined = Callable[[WriteState, ShareGroupOffset], list[StateBatch]]
SnapshotOfWrite = Callable[[WriteState, ShareGroupOffset, int], ShareSnapshot]
Load = Callable[[StateStore, SharePartitionKey], Sequence[Record]]


def _compare_no_leader_epochs(write: WriteDecision) -> WriteDecision:
    """A write of a former leader is stored."""

    def changed(
        machine: ShareCoordinatorMachine, operation: WriteState, state: ShareGroupOffset, now_ms: int
    ) -> ShareDecision:
        if operation.leader_epoch < state.leader_epoch:
            epochs = state.leader_epochs
            operation = operation._replace(leader_epoch=state.leader_epoch, leader_epochs=epochs)
        return write(machine, operation, state, now_ms)

    return changed


def _forget_what_was_stored(combined: Combined) -> Combined:
    """A snapshot has only the state batches of the write that causes it."""

    def changed(operation: WriteState, state: ShareGroupOffset) -> list[StateBatch]:
        return combined(operation, state._replace(state_batches=()))

    return changed


def _start_where_written(snapshot: SnapshotOfWrite) -> SnapshotOfWrite:
    """A write without a start offset moves the start offset back to where the state has its first batch."""

    def changed(operation: WriteState, state: ShareGroupOffset, now_ms: int) -> ShareSnapshot:
        made = snapshot(operation, state, now_ms)
        return made._replace(start_offset=max(0, made.start_offset - 5)) if operation.start_offset < 0 else made

    return changed


def _load_only_snapshots(load: Load) -> Load:
    """Updates since the newest snapshot are not read from the disk."""

    def changed(store: StateStore, key: SharePartitionKey) -> Sequence[Record]:
        return [record for record in load(store, key) if not isinstance(record, ShareUpdate)]

    return changed


class _OldWrites:
    """Writes of share-partition state that come again when a newer leader writes, as from a stream cut long ago.

    One memory for all lives of the share coordinator: what is under way on a network outlives it.
    """

    def __init__(self) -> None:
        self._old: dict[tuple[str, bytes, int], list[Any]] = {}

    def __call__(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            answer = await handler(request, payload)
            for partition in request.partitions:
                key = (request.group_id, partition.topic_id, partition.partition)
                old = self._old.setdefault(key, [])
                for found in reversed(old[-OLD_WRITES_KEPT:]):  # the oldest comes last
                    if found.leader_epoch < partition.leader_epoch:
                        again = share_coordinator_pb2.WriteShareGroupStateRequest(group_id=request.group_id)
                        again.partitions.add().CopyFrom(found)
                        await handler(again, memoryview(b""))
                old.append(partition)
            return answer

        return changed


def _forget_writes(handler: Handler) -> Handler:
    """The share coordinator says that it stored a write, and does not."""
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        if seen % 4:
            return await handler(request, payload)
        answer = share_coordinator_pb2.WriteShareGroupStateResponse()
        for partition in request.partitions:
            answer.results.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer

    return changed


PLANTED = (
    PlantedBug(
        name="a write of a former leader is stored",
        mutation=planted(Patch(ShareCoordinatorMachine, "_write", _compare_no_leader_epochs)),
        rules=("a write of an older leader epoch was stored", "state went back"),
        focus=Focus(
            "two leaders, moves of partitions, crashes and slow links",
            (
                at_least(leaders=2),
                with_activities(MOVES),
                only_faults("crash", "pause", "slow-link", "full-link", "slow-host", "stream-resets", count=32),
            ),
        ),
        seed=4,
    ),
    PlantedBug(
        name="a snapshot forgets what was stored before",
        mutation=planted(Patch(share_coordinator, "_combined", _forget_what_was_stored)),
        rules=("a confirmed state was not stored", "delivery count forgotten", "delivered after its confirmation"),
        seed=1,
    ),
    PlantedBug(
        name="a write without a start offset moves it back",
        mutation=planted(Patch(share_coordinator, "_snapshot_of_write", _start_where_written)),
        rules=("a confirmed state was not stored", "delivered after its confirmation"),
        seed=2,
    ),
    PlantedBug(
        name="updates since the newest snapshot are not read from the disk",
        mutation=planted(Patch(StateStore, "load", _load_only_snapshots)),
        rules=("a confirmed state was not stored", "delivery count forgotten", "delivered after its confirmation"),
        seed=17,
    ),
    PlantedBug(
        name="the share coordinator forgets writes that it confirmed",
        mutation=at_role("share-coordinator", WRITE_SHARE_GROUP_STATE, _forget_writes),
        rules=("a confirmed state was not stored",),
        seed=3,
    ),
)


def old_writes_come_again() -> Mutation:
    """What a cluster has to stand: writes come again when a newer leader writes, and are refused."""
    return at_role("share-coordinator", WRITE_SHARE_GROUP_STATE, _OldWrites())()
