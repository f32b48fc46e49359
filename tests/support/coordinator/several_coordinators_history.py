"""One seeded history of several coordinators under faults, and what must be true of it.

Clients commit offsets, are members of share groups, make and delete topics and run transactions over two groups each,
while coordinators are killed, frozen, stopped, cut off from their metadata and from each other, and what keeps the
metadata stands still, is started again or loses answers. A call whose outcome is unknown leaves both possible, for as
long as what was under way may still arrive; everything that was confirmed is there, at once and at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed
from support.coordinator.several_coordinators import (
    ELSEWHERE,
    LEASE_MS,
    Client,
    SeveralCoordinators,
    ShareCoordinatorHost,
)
from support.simulation.hosts import SimulatedHost
from support.simulation.network import LINGER_S

TOPIC = "orders"
GROUPS = 6
MEMBERS = 4
PRODUCERS = 2
LONGEST_FAULT_S = 6.0
UNKNOWN_FOR_S = LINGER_S + LONGEST_FAULT_S + 6.0
"""After so long a call that was not answered has taken effect, or never will."""
RETRIED = (*ELSEWHERE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CONCURRENT_TRANSACTIONS)


class HistoryCounts(NamedTuple):
    """What happened in one history."""

    commits: int
    transactions: int
    topics: int
    heartbeats: int
    unknown: int
    checked_answers: int


@dataclass(slots=True)
class Position:
    """What may be committed of a group: `confirmed`, and for a while what is not known to have failed."""

    confirmed: int = -1
    unknown: dict[int, float] = field(default_factory=dict)

    def possible(self, now: float) -> set[int]:
        return {self.confirmed, *(value for value, sent_at in self.unknown.items() if sent_at + UNKNOWN_FOR_S > now)}


class SeveralCoordinatorsHistory:
    """See the module's text; `run` raises AssertionError where something confirmed is not there."""

    def __init__(self, seed: int, *, faults: int = 6, store: str = "etcd") -> None:
        self.random = random.Random(f"{seed}/history")
        self.several = SeveralCoordinators(seed, configs={"kshare.node.lease.ms": "20000"}, store=store)
        self.faults = faults
        self.is_over = False
        self.commits = self.transactions = self.topics = self.heartbeats = self.unknown = 0
        self.existing: dict[str, bool | None] = {}
        """Topics that were made or deleted: whether they exist, None where that is not known."""

    def run(self) -> HistoryCounts:
        self.several.run(self._main)
        counts = self.commits, self.transactions, self.topics, self.heartbeats, self.unknown
        return HistoryCounts(*counts, self.several.answers)

    async def _main(self) -> None:
        several = self.several
        await several.start()
        client = await several.client().start(1)
        other = await several.client("other").start(2)
        await ShareCoordinatorHost(several).start()
        assert await client.patiently(lambda: client.create_topic(TOPIC, 4)) in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
        loop = several.loop
        work = [loop.create_task(self._commit(client, f"commits-{number}")) for number in range(GROUPS)]
        work += [loop.create_task(self._be_member(other, "share-1", f"m{number}")) for number in range(MEMBERS)]
        work += [loop.create_task(self._transact(client, number)) for number in range(PRODUCERS)]
        work.append(loop.create_task(self._administer(other)))
        await self._break_things()
        await self._heal()
        await asyncio.sleep(UNKNOWN_FOR_S)
        self.is_over = True
        await asyncio.gather(*work)
        await self._check_topics(client)

    # Faults

    async def _break_things(self) -> None:
        breaks: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._freeze,
            self._stop,
            self._cut_off_from_metadata,
            self._cut_link,
            self._pause_metadata,
            self._restart_metadata,
            self._lose_answers,
        ]
        for _ in range(self.faults):
            await asyncio.sleep(self.random.uniform(0.5, 3))
            await self.random.choice(breaks)()

    def _duration(self) -> float:
        return self.random.choice((0.2, 1.0, LEASE_MS / 1000 * 0.9, LEASE_MS / 1000 * 1.2, LONGEST_FAULT_S))

    def _victim(self) -> SimulatedHost:
        """The active one, more often than the others."""
        running = [host for host in self.several.hosts if host.running]
        active = self.several.owner(-1)
        return next(
            (h for h in running if h.name == active and self.random.random() < 0.4), self.random.choice(running)
        )

    async def _kill(self) -> None:
        host = self._victim()
        host.crash(silent=self.random.random() < 0.3)
        await asyncio.sleep(self._duration())
        await asyncio.wait([host.start()], timeout=1)

    async def _freeze(self) -> None:
        host = self._victim()
        host.pause()
        await asyncio.sleep(self._duration())
        host.resume()

    async def _stop(self) -> None:
        host = self._victim()
        await host.stop()
        await asyncio.sleep(self._duration())
        await asyncio.wait([host.start()], timeout=1)

    async def _cut_off_from_metadata(self) -> None:
        way = self.several.ways[self._victim().name]
        way.unavailable = True
        await asyncio.sleep(self._duration())
        way.unavailable = False

    async def _cut_link(self) -> None:
        names = self.random.sample([*(host.name for host in self.several.hosts), "client", "other"], 2)
        self.several.fabric.block(*names)
        self.several.fabric.cut(*names)
        await asyncio.sleep(self._duration())
        self.several.fabric.unblock(*names)

    async def _pause_metadata(self) -> None:
        self.several.pause_metadata()
        await asyncio.sleep(self._duration())
        self.several.resume_metadata()

    async def _restart_metadata(self) -> None:
        await self.several.restart_metadata()

    async def _lose_answers(self) -> None:
        way = self.several.ways[self._victim().name]
        for lose in (way.lose_answers, way.lose_requests, lambda count: way.apply_late(count, 400)):
            lose(self.random.randint(0, 2))
        await asyncio.sleep(1)

    async def _heal(self) -> None:
        for host in self.several.hosts:
            host.resume()
            if not host.running:
                host.start()
        await self.several.settled(within_s=60)

    # What clients do

    async def _commit(self, client: Client, group_id: str) -> None:
        """Each commit is of the next offset, and each offset that is read is a possible one."""
        position = Position()
        value = 0
        while not self.is_over:
            value += 1
            now = self.several.loop.time()
            try:
                code = await client.commit(group_id, TOPIC, value)
            except CallFailed:
                code = None
            if code == 0:
                position.confirmed = value
                self.commits += 1
            else:
                assert code in (None, *RETRIED), f"{group_id}: a commit is refused with {code!r}"
                position.unknown[value] = now
                self.unknown += 1
            await asyncio.sleep(self.random.uniform(0.05, 0.6))
            await self._check_position(client, group_id, position)
        await asyncio.sleep(UNKNOWN_FOR_S)
        found = await client.patiently(lambda: client.fetch(group_id, TOPIC))
        assert found in {position.confirmed, *position.unknown}, f"{group_id}: {found} at the end, {position}"

    async def _check_position(self, client: Client, group_id: str, position: Position) -> None:
        asked_at = self.several.loop.time()
        try:
            found = await client.fetch(group_id, TOPIC)
        except CallFailed:
            return
        if isinstance(found, ErrorCode):
            assert found in RETRIED, f"{group_id}: {found!r}"
            return
        text = f"at {self.several.loop.time():.3f} s {group_id} has {found}, {position}"
        assert found in position.possible(asked_at) or found in position.unknown, text
        assert found >= position.confirmed or found in position.possible(asked_at), text

    async def _be_member(self, client: Client, group_id: str, member_id: str) -> None:
        """A member is never forgotten, and its epoch never falls."""
        epoch = 0
        assigned: list[int] = []
        while not (self.is_over and assigned):
            names = [TOPIC] if epoch == 0 else None
            try:
                answer = await client.heartbeat(group_id, member_id, epoch, names)
            except CallFailed:
                self.unknown += 1
                await asyncio.sleep(0.2)
                continue
            assert answer.error_code in (0, *RETRIED), f"{member_id}: {answer}"
            if answer.error_code == 0:
                self.heartbeats += 1
                assert answer.member_epoch >= epoch, f"{member_id}: from epoch {epoch} to {answer.member_epoch}"
                epoch = answer.member_epoch
                if answer.has_assignment:
                    assigned = [partition for topic in answer.assignment for partition in topic.partitions]
            await asyncio.sleep(self.random.uniform(0.3, 1.0))

    async def _administer(self, client: Client) -> None:
        number = 0
        while not self.is_over:
            number += 1
            name = f"topic-{number}"
            made = await self._change(name, True, lambda name=name: client.create_topic(name))  # type: ignore[misc]
            if made and self.random.random() < 0.4:
                await self._change(name, False, lambda name=name: client.delete_topic(name))  # type: ignore[misc]
            await asyncio.sleep(self.random.uniform(0.2, 2.0))

    async def _change(self, name: str, exists: bool, change: Callable[[], Awaitable[ErrorCode]]) -> bool:
        try:
            code = await change()
        except CallFailed:
            self.existing[name] = None
            self.unknown += 1
            return False
        if code in RETRIED:
            self.existing[name] = None
            return False
        assert code == 0, f"{name}: {code!r}"
        self.existing[name] = exists
        self.topics += 1
        return True

    async def _check_topics(self, client: Client) -> None:
        version = client.follower.view.version
        assert await client.patiently(lambda: client.create_topic("last")) == 0
        while client.follower.view.version == version:
            await asyncio.sleep(0.1)
        names = client.follower.view.topics_by_name
        for name, exists in self.existing.items():
            assert exists is None or (name in names) == exists, f"{name} should exist: {exists}"

    # Transactions

    async def _transact(self, client: Client, number: int) -> None:
        """Both groups of a transaction have its offsets, or neither."""
        transactional_id = f"tx-{number}"
        groups = (f"{transactional_id}-a", f"{transactional_id}-b")
        known = [-1, -1]
        value = 0
        while not self.is_over:
            producer = await self._begin(client, transactional_id)
            await self._expect(client, groups, (known,))
            value += 1
            committed, bumps = self.random.random() < 0.7, self.random.random() < 0.5
            outcome = await self._try(client, transactional_id, producer, groups, value, committed, bumps)
            both = [value, value]
            if outcome is None:
                await self._begin(client, transactional_id)
                known = await self._expect(client, groups, (known, both))
            elif outcome:
                known = both
                self.transactions += 1
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
        await self._begin(client, transactional_id)
        await self._expect(client, groups, (known,))

    async def _begin(self, client: Client, transactional_id: str) -> tuple[int, int]:
        """Once it is there, all that was before has ended."""
        request = pb.InitProducerIdRequest(
            has_transactional_id=True,
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        while True:
            try:
                answer = await client.active(methods.INIT_PRODUCER_ID, request)
            except CallFailed:
                await asyncio.sleep(0.2)
                continue
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            assert answer.error_code in RETRIED, answer
            await asyncio.sleep(0.2)

    async def _expect(self, client: Client, groups: tuple[str, str], possible: tuple[list[int], ...]) -> list[int]:
        """What both groups have, which must be possible; neither waits for a transaction."""
        found = []
        for group_id in groups:
            offset = await client.patiently(lambda group_id=group_id: client.fetch(group_id, TOPIC))  # type: ignore[misc]
            assert not isinstance(offset, ErrorCode), f"{group_id}: {offset!r}, though all transactions have ended"
            found.append(offset)
        assert found in possible, f"{groups} have {found}; possible were {possible}"
        return found

    async def _try(
        self,
        client: Client,
        transactional_id: str,
        producer: tuple[int, int],
        groups: tuple[str, str],
        value: int,
        committed: bool,
        bumps: bool,
    ) -> bool | None:
        """Whether it was committed; None: that is not known."""
        try:
            for group_id in groups:
                if not bumps and await client.add_offsets(transactional_id, producer, group_id):
                    return False
                if await client.transactional_commit(transactional_id, producer, group_id, TOPIC, value, adds=bumps):
                    return False
        except CallFailed:
            self.unknown += 1
            return False
        try:
            answer = await client.end(transactional_id, producer, committed=committed, bumps=bumps)
        except CallFailed:
            self.unknown += 1
            return None
        if answer.error_code in RETRIED:
            return None
        assert answer.error_code == 0, answer
        return committed
