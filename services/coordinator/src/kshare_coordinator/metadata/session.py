"""A session: one lease of a coordinator, and the partitions that it owns under the lease.

The lease counts from when the last answered keep-alive was sent, with a margin for clocks of different rates
(`kshare_core.leases`), so it ends here before it ends in etcd. Any sign of its end ends the whole session (`lose`): all
ownership ends, the listener is told, and the store starts a session with another lease. A session takes over nothing
from the one before.

Under the lease, the session watches coordinators and owners. It claims free partitions up to this coordinator's
share, and gives back those above it (`claims`). A claimed partition is served once its rows are read and the catalog is
read up to the claim. To give a partition back, the session stops serving it, waits for an append in flight, and then
removes the owner key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kshare_coordinator.metadata.appending import Appender
from kshare_coordinator.metadata.catalog_follower import CatalogFollower
from kshare_coordinator.metadata.claims import plan_claims
from kshare_coordinator.metadata.coordination import Coordination
from kshare_coordinator.metadata.etcd.port import (
    Compare,
    Delete,
    Etcd,
    EtcdCompacted,
    EtcdError,
    Lease,
    Put,
    Target,
    read_range,
)
from kshare_coordinator.metadata.layout import Layout, member_bytes, owner_bytes
from kshare_coordinator.metadata.ownership import RETRY_INTERVAL_MS, OwnedPartition, Ownership
from kshare_coordinator.metadata.partition_rows import PAGE, read_partition
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, MetadataListener, OwnershipLost
from kshare_coordinator.metadata.problems import Problems
from kshare_coordinator.metadata.trimming import Trimmer
from kshare_core.errors import StorageFailure
from kshare_core.leases import held_s
from kshare_runtime.ports import Write

KEEP_ALIVES_PER_LEASE = 3
UNREADABLE_RETRY_MS = 5_000
"""Delay before a partition is claimed again whose rows could not be read."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Length of a lease, number of group partitions, and limits of journals and values."""

    lease_ms: int
    group_partitions: int
    journal_limit: int
    journal_bytes_limit: int
    value_bytes_limit: int


class Session:
    """A session; see the module's text. `sent_at`: the loop's time at which the lease was requested."""

    def __init__(
        self,
        *,
        etcd: Etcd,
        layout: Layout,
        limits: Limits,
        member: CoordinatorMember,
        listener: MetadataListener,
        follower: CatalogFollower,
        problems: Problems,
        report: Callable[[Coordination], None],
        lease: Lease,
        sent_at: float,
    ) -> None:
        self._etcd = etcd
        self._layout = layout
        self._limits = limits
        self._member = member
        self._listener = listener
        self._follower = follower
        self._problems = problems
        self._report = report
        self.lease = lease
        self._lease_s = held_s(min(limits.lease_ms, lease.ttl_ms))
        self._loop = asyncio.get_running_loop()
        self._deadline = sent_at + self._lease_s
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._view = Coordination(layout)
        self._look_again = asyncio.Event()
        self._look_at: asyncio.TimerHandle | None = None
        self._given_back: dict[int, int] = {}
        """Create revisions of owner keys that are removed or being removed; the watch may still show them."""
        self._to_remove: dict[int, int] = {}
        self._unreadable: dict[int, float] = {}
        self._append: asyncio.Future[None] | None = None
        self._trim_wanted: dict[int, None] = {}
        self._trim_wake = asyncio.Event()
        self._ownership = Ownership(etcd, layout, limits.lease_ms, self.lose)
        self._appender = Appender(self._ownership, layout, lease.id, limits.value_bytes_limit)
        self._trimmer = Trimmer(
            self._ownership,
            layout,
            journal_limit=limits.journal_limit,
            journal_bytes_limit=limits.journal_bytes_limit,
            value_bytes_limit=limits.value_bytes_limit,
        )

    async def run(self) -> str:
        """Runs the session until its end; returns the reason of the end."""
        self._check_deadline()
        if not self._ended.done():  # the lease has run out already where this process stood still after its request
            for part in (self._keep_alive, self._watch, self._balance, self._trim):
                self._begin(part())
        return await self._ended

    def owns(self, partition: int) -> bool:
        owned = self._ownership.partitions.get(partition)
        return owned is not None and owned.is_answering and self._loop.time() < self._deadline

    def rows(self) -> dict[int, Sequence[Write]]:
        """The rows of the owned group partitions."""
        owned = self._ownership.partitions
        return {partition: owned[partition].rows.writes() for partition in sorted(owned) if partition != CATALOG}

    def append(self, writes: Mapping[int, Sequence[Write]]) -> Awaitable[None]:
        """See the port."""
        if self._append is not None:
            raise RuntimeError("an append is still in progress")
        future: asyncio.Future[None] = self._loop.create_future()
        foreign = [partition for partition in writes if not self.owns(partition)]
        if foreign:
            future.set_exception(OwnershipLost(f"partitions {foreign} of the metadata are not owned here"))
            return future
        self._append = future
        self._begin(self._append_now(writes, future))
        return future

    def lose(self, reason: str) -> None:
        """Ends the session and all ownership, and tells the listener."""
        if self._ended.done():
            return
        self._ended.set_result(reason)
        owned = list(self._ownership.partitions)
        self.close()
        if CATALOG in owned:
            self._follower.lost()
        for partition in owned:
            self._listener.lost(partition)

    def close(self) -> None:
        """Ends all tasks and all ownership; fails an append in flight, but does not tell the listener."""
        self._ownership.partitions.clear()
        for timer in (self._timer, self._look_at):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        append, self._append = self._append, None
        if append is not None and not append.done():
            append.set_exception(OwnershipLost("the lease may have run out; whether the write took effect is unknown"))

    async def wait_closed(self) -> None:
        """Waits until all tasks have ended, except the calling one."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an unexpected error ended the lease", exc_info=task.exception())
            self.lose(f"{task.exception()!r}")

    # Lease.

    def _check_deadline(self) -> None:
        if self._loop.time() >= self._deadline:
            self.lose("etcd did not answer in time, the lease may have run out")
        else:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    async def _keep_alive(self) -> None:
        interval_s = self._lease_s / KEEP_ALIVES_PER_LEASE
        while True:
            sent_at = self._loop.time()
            try:
                is_alive = await self._etcd.keep_alive(self.lease.id)
            except EtcdError as error:
                self._problems.note("lease", f"the lease cannot be kept alive: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
                continue
            if not is_alive:
                self.lose("etcd has ended the lease")
                return
            self._problems.clear("lease")
            self._deadline = sent_at + self._lease_s
            await asyncio.sleep(max(0.0, sent_at + interval_s - self._loop.time()))

    # Members and owners.

    async def _watch(self) -> None:
        start, end = self._layout.coordination()
        while True:
            try:
                pairs, revision = await read_range(self._etcd, start, end, page=PAGE)
                self._view.replace(pairs, revision)
                self._viewed()
                async with aclosing(self._etcd.watch(start, end, revision + 1)) as watch:
                    async for changes in watch:
                        self._view.apply(changes.events, changes.revision)
                        self._viewed()
            except EtcdCompacted:
                await asyncio.sleep(0)
            except EtcdError as error:
                self._problems.note("watch", f"the other coordinators cannot be watched: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)

    def _viewed(self) -> None:
        self._problems.clear("watch")
        self._look_again.set()
        for partition, owned in self._ownership.partitions.items():
            owner = self._view.owners.get(partition)
            is_known = self._view.revision >= owned.create_revision and owned.is_answering
            if is_known and (owner is None or owner.create_revision != owned.create_revision):
                self.lose(f"the ownership key of partition {partition} was removed or taken over")
                break
        self._report(self._view)

    async def _balance(self) -> None:
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            try:
                await self._balance_now()
            except (EtcdError, StorageFailure, OwnershipLost) as error:
                self._problems.note("claims", f"partitions cannot be claimed or released: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
                self._look_again.set()
            else:
                self._problems.clear("claims")

    async def _balance_now(self) -> None:
        for partition, create_revision in list(self._to_remove.items()):  # where an earlier attempt failed
            await self._remove_owner(partition, create_revision)
        key = self._layout.member(self._member.node_id)
        if key not in self._view.members:  # a late write of an earlier lease replaced it, and ended with that lease
            await self._etcd.transact([], [Put(key, member_bytes(self._member), self.lease.id)])
        live = [member.node_id for member in self._view.live()]
        plan = plan_claims(
            node_id=self._member.node_id,
            live=live,
            owners=self._owner_nodes(),
            group_partitions=self._limits.group_partitions,
        )
        for partition in plan.give_back:
            await self._give_back(partition)
        for partition, create_revision in self._unwanted(plan.claim):
            await self._remove_owner(partition, create_revision)
        if plan.claim:
            await self._claim(plan.claim)

    def _unwanted(self, claim: Sequence[int]) -> list[tuple[int, int]]:
        """Partitions, with create revisions, gained by a claim whose answer was lost, and no longer claimed because the
        share is full."""
        return [
            (partition, owner.create_revision)
            for partition, owner in sorted(self._view.owners.items())
            if owner.lease == self.lease.id
            and partition not in self._ownership.partitions
            and partition not in claim
            and self._given_back.get(partition) != owner.create_revision
        ]

    def _owner_nodes(self) -> dict[int, int]:
        """Owners of partitions: this session's own state overrides the watch. Unreadable partitions count as owned."""
        owners: dict[int, int] = {}
        for partition, owner in self._view.owners.items():
            if owner.lease != self.lease.id:
                owners[partition] = owner.node_id if owner.node_id != self._member.node_id else -1
            elif self._given_back.get(partition) == owner.create_revision:
                owners[partition] = -1
        owners.update(dict.fromkeys(self._ownership.partitions, self._member.node_id))
        for partition in [one for one, until in self._unreadable.items() if until <= self._loop.time()]:
            del self._unreadable[partition]
        owners.update(dict.fromkeys(self._unreadable, -1))
        return owners

    # Claiming.

    async def _claim(self, partitions: Sequence[int]) -> None:
        claimed = await self._claim_keys(partitions)
        if not claimed:
            return
        await self._persistently(self._follower.catch_up)
        for partition in partitions:
            if partition not in claimed:
                continue
            if partition == CATALOG:
                self._follower.is_owned = True
                self._ownership.partitions[CATALOG] = OwnedPartition(claimed[CATALOG], self._follower.rows)
                self._listener.gained(CATALOG, ())
            else:
                await self._gain(partition, claimed[partition])
            self._want_trim(partition)

    async def _claim_keys(self, partitions: Sequence[int]) -> dict[int, int]:
        """Claims all partitions at once, or else each that is free; create revisions of those claimed, by partition."""
        claimed = await self._claim_all(partitions)
        if len(partitions) > 1 and len(claimed) < len(partitions):
            for partition in partitions:
                if partition not in claimed:
                    claimed.update(await self._claim_all([partition]))
        return claimed

    async def _claim_all(self, partitions: Sequence[int]) -> dict[int, int]:
        keys = [self._layout.owner(partition) for partition in partitions]
        value = owner_bytes(self._member)
        answer = await self._etcd.transact(
            [Compare(key, Target.CREATE_REVISION, 0) for key in keys],
            [Put(key, value, self.lease.id) for key in keys],
            keys,
        )
        if answer.succeeded:
            return dict.fromkeys(partitions, answer.revision)
        # An earlier attempt, whose answer was lost, may have claimed some.
        ours = {pair.key: pair.create_revision for pair in answer.found if pair.lease == self.lease.id}
        return {partition: ours[key] for partition, key in zip(partitions, keys, strict=True) if key in ours}

    async def _gain(self, partition: int, create_revision: int) -> None:
        try:
            rows = await self._persistently(lambda: read_partition(self._etcd, self._layout, partition))
        except StorageFailure as failure:
            log.error("partition %d of the metadata cannot be read: %s", partition, failure)
            self._problems.note(f"partition {partition}", f"partition {partition} cannot be read: {failure}")
            self._unreadable[partition] = self._loop.time() + UNREADABLE_RETRY_MS / 1000
            self._look_at = self._loop.call_later(UNREADABLE_RETRY_MS / 1000, self._look_again.set)
            await self._remove_owner(partition, create_revision)
            return
        self._problems.clear(f"partition {partition}")
        self._ownership.partitions[partition] = OwnedPartition(create_revision, rows)
        self._listener.gained(partition, rows.writes())

    async def _persistently(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Calls `read`, with retries until etcd can be reached; StorageFailure."""
        while True:
            try:
                return await read()
            except EtcdError as error:
                self._problems.note("claims", f"claimed partitions cannot be read: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)

    async def _give_back(self, partition: int) -> None:
        owned = self._ownership.partitions[partition]
        owned.is_answering = False
        if self._append is not None:
            await asyncio.wait([self._append])
        del self._ownership.partitions[partition]
        self._listener.lost(partition)
        await self._remove_owner(partition, owned.create_revision)

    async def _remove_owner(self, partition: int, create_revision: int) -> None:
        self._given_back[partition] = self._to_remove[partition] = create_revision
        key = self._layout.owner(partition)
        await self._ownership.transact([Compare(key, Target.CREATE_REVISION, create_revision)], [Delete(key)])
        del self._to_remove[partition]

    # Rows.

    async def _append_now(self, writes: Mapping[int, Sequence[Write]], future: asyncio.Future[None]) -> None:
        failure: Exception | None = None
        try:
            await self._appender.append(writes)
        except OwnershipLost as error:
            self.lose(f"a write was fenced: {error}")
            failure = error
        except StorageFailure as error:
            failure = error
        if future.done():
            return
        self._append = None
        if failure is not None:
            future.set_exception(failure)
            return
        future.set_result(None)
        for partition in writes:
            self._want_trim(partition)

    def _want_trim(self, partition: int) -> None:
        if self._trimmer.is_needed(partition):
            self._trim_wanted[partition] = None
            self._trim_wake.set()

    async def _trim(self) -> None:
        while True:
            await self._trim_wake.wait()
            self._trim_wake.clear()
            while self._trim_wanted:
                partition = next(iter(self._trim_wanted))
                del self._trim_wanted[partition]
                if not self._trimmer.is_needed(partition):
                    continue
                try:
                    await self._trimmer.trim(partition)
                except OwnershipLost:
                    log.info("partition %d was not trimmed, another coordinator owns it now", partition)
                except StorageFailure as failure:
                    self._problems.note("trimming", f"partition {partition} cannot be trimmed: {failure}")
                else:
                    self._problems.clear("trimming")
