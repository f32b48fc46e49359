"""Planted bugs of durability: what is answered before it is on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kshare_fastpath.prompt_future import PromptFuture
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2
from kshare_rpc.generated.methods import WRITE_SHARE_GROUP_STATE
from kshare_rpc.network import CallFailed, Method, Payload
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.state_store import StateStore
from support.simulation.mutations.mutation import Call, Mutation, Patch, planted
from support.simulation.mutations.planted_bug import (
    Focus,
    PlantedBug,
    coordinator_with_a_disk,
    only_faults,
    with_activities,
    with_transactions,
)
from support.simulation.plan import ADMINISTRATION, CONSUMER_GROUPS


def _believe_writes_at_once(call: Call) -> Call:
    """The leader goes on as if its write were durable, while it is under way."""

    async def changed(
        method: Method[Any, Any], request: Any, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Any, memoryview]:
        copy = share_coordinator_pb2.WriteShareGroupStateRequest.FromString(request.SerializeToString())

        async def write_later() -> None:
            await asyncio.sleep(0.2)
            try:
                await call(method, copy, payload, timeout_ms=timeout_ms)
            except CallFailed:
                return

        asyncio.get_running_loop().create_task(write_later())
        answer = share_coordinator_pb2.WriteShareGroupStateResponse()
        for partition in request.partitions:
            answer.results.add(topic_id=partition.topic_id, partition=partition.partition)
        return answer, memoryview(b"")

    return changed


BeginAppend = Callable[[StateStore, Sequence[Record], Callable[[], None]], PromptFuture[None]]


def _answer_before_the_sync(begin_append: BeginAppend) -> BeginAppend:
    """A write of share-partition state is answered as soon as its sync has begun."""

    def changed(store: StateStore, records: Sequence[Record], then: Callable[[], None]) -> PromptFuture[None]:
        begin_append(store, records, then)
        answered: PromptFuture[None] = PromptFuture(loop=asyncio.get_running_loop())
        answered.set_result(None)
        return answered

    return changed


PLANTED = (
    PlantedBug(
        name="a write of share-partition state is answered before its sync",
        mutation=planted(Patch(StateStore, "begin_append", _answer_before_the_sync)),
        rules=("a confirmed state was not stored", "delivered after its confirmation", "delivery count forgotten"),
        focus=Focus("power fails, disks are slow", (only_faults("power-cut", "power-loss", "slow-disk", "hung-disk"),)),
        seed=4,
    ),
    PlantedBug(
        name="the disk of a share coordinator says that writes are durable before they are",
        mutation=lambda: Mutation(unsynced_roles=("share-coordinator",)),
        rules=(
            "delivered after its confirmation",
            "delivery count forgotten",
            "a confirmed state was not stored",
            "state went back",
            "not drained",
        ),
        seed=1,
    ),
    PlantedBug(
        name="the disk of a leader says that writes are durable before they are",
        mutation=lambda: Mutation(unsynced_roles=("leader",)),
        rules=(
            "produced and confirmed, but lost",
            "not where the answer said",
            "delivered what is not in the log",
            "not drained",
        ),
        seed=2,
    ),
    PlantedBug(
        name="the disk of the coordinator says that writes are durable before they are",
        mutation=lambda: Mutation(unsynced_roles=("coordinator",)),
        rules=(
            "committed, and yet aborted",
            "half of a transaction",
            "a commit was lost",
            "administration was lost",
            "two leaders",
        ),
        focus=Focus(
            "one coordinator with a disk, transactions, consumer groups, administration, power fails",
            (
                coordinator_with_a_disk,
                with_transactions,
                with_activities(CONSUMER_GROUPS, ADMINISTRATION),
                only_faults("power-loss", "crash"),
            ),
        ),
        seed=1,
    ),
    PlantedBug(
        name="the leader answers acknowledgements before their state is durable",
        mutation=lambda: Mutation(calls={"leader": {WRITE_SHARE_GROUP_STATE: _believe_writes_at_once}}),
        rules=("delivered after its confirmation", "delivery count forgotten"),
        seed=2,
    ),
)
