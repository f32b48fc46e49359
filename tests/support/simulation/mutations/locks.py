"""Planted bugs of acquisition locks: when they end, who holds them, and what renews them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from kshare_core.states import RecordState
from kshare_leader.machine import share_partition
from kshare_leader.machine.group_limits import GroupLimits
from kshare_leader.machine.interval_map import NO_WRITE, Owner, Run
from kshare_leader.machine.share_partition import SharePartition
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import DROP_SHARE_PARTITIONS, RELEASE_SHARE_SESSION, SHARE_FETCH
from kshare_rpc.network import Handler, Method, Payload
from support.simulation.mutations.mutation import Mutation, Patch, WrapHandler, at_role, planted
from support.simulation.mutations.planted_bug import (
    Focus,
    PlantedBug,
    at_least,
    few_members_with_short_locks,
    often,
    only_faults,
)

EARLY_MS = 1_500

Expire = Callable[[SharePartition, int, GroupLimits], int]
NotHeld = Callable[[Run, Owner, int, int], str | None]


def _expire_early(expire: Expire) -> Expire:
    """Locks run out before their time, together with one that is due."""

    def changed(machine: SharePartition, now_ms: int, limits: GroupLimits) -> int:
        return expire(machine, now_ms + EARLY_MS, limits)

    return changed


def _expire_nothing(expire: Expire) -> Expire:
    """No lock ever runs out: what a member neither acknowledges nor releases stays with it."""

    def changed(machine: SharePartition, now_ms: int, limits: GroupLimits) -> int:
        machine._locks.take_due(now_ms)
        return NO_WRITE

    return changed


def _any_holder(not_held: NotHeld) -> NotHeld:
    """Whoever acknowledges a record is taken for its holder."""

    def changed(run: Run, owner: Owner, delivered_fetch_number: int, now_ms: int) -> str | None:
        if run.state is RecordState.ACQUIRED and run.owner is not None:
            owner, delivered_fetch_number = run.owner, max(delivered_fetch_number, run.fetch_number)
        return not_held(run, owner, delivered_fetch_number, now_ms)

    return changed


def _any_fetch(not_held: NotHeld) -> NotHeld:
    """An acknowledgement of an older acquisition counts for a newer one of the same member."""

    def changed(run: Run, owner: Owner, delivered_fetch_number: int, now_ms: int) -> str | None:
        return not_held(run, owner, max(delivered_fetch_number, run.fetch_number), now_ms)

    return changed


def _renew_nothing(renew: Callable[[SharePartition, Run, int], None]) -> Callable[[SharePartition, Run, int], None]:
    """RENEW is answered as done, and the lock runs out when it would have."""

    def changed(machine: SharePartition, run: Run, deadline_ms: int) -> None:
        renew(machine, run, run.lock_deadline_ms)

    return changed


def _give_to_two(handler: Handler) -> Handler:
    """Every few fetches a member gets what another member has just got: locks mean nothing."""
    last: list[tuple[str, Any]] = []
    seen = 0

    async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
        nonlocal seen
        seen += 1
        others = [answer for member, answer in last if member != request.owner.member_id]
        if others and seen % 7 == 0:
            last.clear()
            return others[-1]  # type: ignore[no-any-return]
        for partition in request.partitions:
            del partition.cached[:]
        answer = await handler(request, payload)
        message = answer[0] if isinstance(answer, tuple) else answer
        if any(partition.acquired_records for partition in message.partitions):  # type: ignore[attr-defined]
            last.append((request.owner.member_id, answer))
        return answer

    return changed


class _SecretCalls:
    """Every few fetches the leader does what nobody asked it to: `method`, with a request that `make` gives.

    The call does not travel on the network, so that no party knows of it.
    """

    def __init__(self, method: Method[Any, Any], make: Callable[[Any, Any], Any], every: int) -> None:
        self._method = method
        self._make = make
        self._every = every
        self._seen = 0
        self._last: Any = None
        self._handler: Handler | None = None

    def handlers(self) -> Mapping[Method[Any, Any], WrapHandler]:
        return {self._method: self._keep, SHARE_FETCH: self._changed}

    def _keep(self, handler: Handler) -> Handler:
        self._handler = handler
        return handler

    def _changed(self, handler: Handler) -> Handler:
        async def changed(request: Any, payload: memoryview) -> Message | tuple[Message, Payload]:
            self._seen += 1
            last = self._last
            if self._seen % self._every == 0 and last is not None and self._handler is not None:
                await self._handler(self._make(request, last), memoryview(b""))
            answer = await handler(request, payload)
            message: Any = answer[0] if isinstance(answer, tuple) else answer
            if any(partition.acquired_records for partition in message.partitions):
                self._last = request
            return answer

        return changed


def _release_of(request: Any, last: Any) -> Any:
    return leader_pb2.ReleaseShareSessionRequest(owner=last.owner)


def _drop_of(request: Any, last: Any) -> Any:
    drop = leader_pb2.DropSharePartitionsRequest(group_id=last.owner.group_id)
    for partition in last.partitions:
        drop.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
    return drop


PLANTED = (
    PlantedBug(
        name="locks run out before their time",
        mutation=planted(Patch(SharePartition, "expire", _expire_early)),
        rules=("two holders", "acknowledgement refused without a reason"),
        seed=2,
    ),
    PlantedBug(
        name="no lock ever runs out",
        mutation=planted(Patch(SharePartition, "expire", _expire_nothing)),
        rules=("not drained",),
        seed=2,
    ),
    PlantedBug(
        name="any member that acknowledges a record is taken for its holder",
        mutation=planted(Patch(share_partition, "not_held", _any_holder)),
        rules=("acknowledged without holding it", "acknowledgement refused without a reason"),
        seed=1,
    ),
    PlantedBug(
        name="an acknowledgement of an older acquisition counts for a newer one",
        mutation=planted(Patch(share_partition, "not_held", _any_fetch)),
        rules=("acknowledged without holding it", "delivered after its confirmation"),
        focus=Focus(
            "two leaders, groups of two, short locks, late acknowledgements often, faults of connections",
            (
                at_least(leaders=2),
                few_members_with_short_locks,
                often("late acknowledgements"),
                only_faults("half-open", "drops", "stream-resets", "cut-clients"),
            ),
        ),
        seed=49,
    ),
    PlantedBug(
        name="a renewal does not prolong the lock",
        mutation=planted(Patch(SharePartition, "_renew", _renew_nothing)),
        rules=("two holders", "acknowledgement refused without a reason"),
        seed=2,
    ),
    PlantedBug(
        name="a record is given to two members",
        mutation=at_role("leader", SHARE_FETCH, _give_to_two),
        rules=("two holders", "delivery count does not grow"),
        seed=1,
    ),
    PlantedBug(
        name="a member's records are released although its session goes on",
        mutation=lambda: Mutation(handlers={"leader": _SecretCalls(RELEASE_SHARE_SESSION, _release_of, 5).handlers}),
        rules=("two holders", "acknowledgement refused without a reason"),
        seed=1,
    ),
    PlantedBug(
        name="a leader forgets who holds what",
        mutation=lambda: Mutation(handlers={"leader": _SecretCalls(DROP_SHARE_PARTITIONS, _drop_of, 9).handlers}),
        rules=("a lock was forgotten",),
        seed=1,
    ),
)
