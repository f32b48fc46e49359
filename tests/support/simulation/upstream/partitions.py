"""A partition of the simulated cluster: its leader and epoch, its in-sync replicas, and its high watermark.

There is one log: what its leader has. Up to `committed` every in-sync replica has it too, and no clean election takes
it back. An election cuts the rest at a batch that the seed chooses, as far as the new leader had fetched; what it shows
as high watermark is behind at first, and catches up when its followers have fetched from it (KIP-207).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from kshare_upstream.port import NO_LEADER
from kshare_upstream.port import UpstreamPartitionName as Name
from support.simulation.loop import VirtualLoop
from support.simulation.network import in_no_host
from support.simulation.upstream.replicated_log import ReplicatedLog

LAG_LIMIT_S = 3.0
"""How long a follower may lag before it is out of sync (replica.lag.time.max.ms)."""
CATCH_UP_LIMIT_S = 1.5
"""How far the high watermark of a new leader is behind at most, in time."""


class Replicas(NamedTuple):
    """What a partition asks of the brokers."""

    can_replicate: Callable[[int, int], bool]
    """Whether the second broker can fetch from the first one now."""
    delay_s: Callable[[int, int], float]
    """How long it takes to fetch what is new, from the first broker to the second."""


class LeaderLost(Exception):
    """The leader changed while a batch was not replicated yet."""


class SimulatedPartition:
    """See the module's text."""

    def __init__(
        self, loop: VirtualLoop, at: Name, replica_ids: list[int], brokers: Replicas, draw: random.Random
    ) -> None:
        self.at = at
        self.log = ReplicatedLog()
        self.replica_ids = replica_ids
        self.in_sync = list(replica_ids)
        self.leader = replica_ids[0]
        self.leader_epoch = 0
        self.committed = 0
        """Up to here the log is on every in-sync replica."""
        self.high_watermark = 0
        """What the leader knows of it."""
        self.former_leader = NO_LEADER
        self.elected_at = loop.now_s
        self.log.begin_epoch(self.leader_epoch)
        self._loop = loop
        self._brokers = brokers
        self._draw = draw
        self._lagging_since: dict[int, float] = {}
        self.catches_up_at = 0.0
        """When a new leader learns how far its log is replicated, at the earliest."""
        self._waiting: list[asyncio.Future[None]] = []

    # What requests see

    @property
    def first_offset_of_epoch(self) -> int:
        """Where the leader's own epoch begins: below it, its high watermark is behind."""
        epochs = self.log.leader_epochs
        return epochs[-1][1] if epochs and epochs[-1][0] == self.leader_epoch else self.log.end

    @property
    def is_behind(self) -> bool:
        """Whether the leader does not know yet how far its log is replicated (OFFSET_NOT_AVAILABLE)."""
        return self.high_watermark < self.first_offset_of_epoch

    @property
    def stable_offset(self) -> int:
        return self.log.stable_offset(self.high_watermark)

    def tell(self, waiter: asyncio.Future[None]) -> None:
        """Ends the future when the high watermark or the leader has changed."""
        self._waiting = [each for each in self._waiting if not each.done()]
        self._waiting.append(waiter)

    async def changed(self) -> None:
        """Returns when the high watermark or the leader has changed."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.tell(waiter)
        await waiter

    async def replicated(self, next_offset: int) -> None:
        """Returns when the leader knows that the log is replicated up to here; LeaderLost."""
        leader_epoch = self.leader_epoch
        self.replicate_soon()
        while self.leader_epoch == leader_epoch and self.leader != NO_LEADER:
            if self.high_watermark >= next_offset:
                return
            await self.changed()
        raise LeaderLost(f"{self.at} has leader {self.leader} in epoch {self.leader_epoch}")

    # Replication

    def replicate_soon(self) -> None:
        """Followers fetch what the log has now."""
        leader = self.leader
        if leader == NO_LEADER:
            return
        delays = [self._brokers.delay_s(leader, each) for each in self.in_sync if each != leader]
        end, epoch = self.log.end, self.leader_epoch
        in_no_host(self._loop, self._loop.now_s + max(delays, default=0.0), self._fetched, end, epoch)

    def _fetched(self, end: int, leader_epoch: int) -> None:
        if leader_epoch == self.leader_epoch and self.leader != NO_LEADER and self._all_fetch():
            self._commit(end)

    def _all_fetch(self) -> bool:
        return all(each == self.leader or self._brokers.can_replicate(self.leader, each) for each in self.in_sync)

    def _commit(self, end: int) -> None:
        self.committed = max(self.committed, min(end, self.log.end))
        if self._loop.now_s >= self.catches_up_at and self.high_watermark < self.committed:
            self.high_watermark = self.committed
            self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def tick(self, is_alive: Callable[[int], bool]) -> None:
        """What the controller and the leader do now and then; `is_alive`: whether a broker is not fenced."""
        now, leader = self._loop.now_s, self.leader
        if leader == NO_LEADER:
            return
        for each in self.replica_ids:
            if each == leader:
                continue
            if each in self.in_sync and not self._brokers.can_replicate(leader, each):
                if now - self._lagging_since.setdefault(each, now) > LAG_LIMIT_S or not is_alive(each):
                    self.in_sync.remove(each)
                    self._lagging_since.pop(each)
            elif each not in self.in_sync and is_alive(each) and self._brokers.can_replicate(leader, each):
                self.in_sync.append(each)
            else:
                self._lagging_since.pop(each, None)
        if self._all_fetch():
            self._commit(self.log.end)

    # Elections

    def lose_leader(self) -> None:
        """The leader is gone, and no other is elected yet."""
        if self.leader != NO_LEADER:
            self.former_leader, self.leader = self.leader, NO_LEADER
            self.wake()

    def elect(self, broker_id: int, *, is_orderly: bool) -> None:
        """A clean election of an in-sync replica; an orderly one, of a broker that stops, loses nothing."""
        assert broker_id in self.in_sync, f"broker {broker_id} is not in sync with {self.at}"
        if not is_orderly and broker_id != self.former_leader:
            self.log.truncate(self._draw.choice(self._ends_from(self.committed)))
        self._begin(broker_id)

    def elect_uncleanly(self, broker_id: int, end_offset: int) -> None:
        """A replica that was not in sync leads: what is above `end_offset` is lost, confirmed or not."""
        self.log.truncate(end_offset)
        self.committed = min(self.committed, self.log.end)
        self.in_sync = [broker_id]
        self._begin(broker_id)

    def _ends_from(self, offset: int) -> list[int]:
        """The offset itself, and the ends of batches above it."""
        return [offset, *(batch.next_offset for batch in self.log.batches if batch.next_offset > offset)]

    def _begin(self, broker_id: int) -> None:
        self.leader = broker_id
        self.leader_epoch += 1
        self.log.begin_epoch(self.leader_epoch)
        self.elected_at = self._loop.now_s
        known = [end for end in self._ends_from(self.log.start) if end <= self.committed]
        self.high_watermark = min(self.high_watermark, self._draw.choice(known[-3:]), self.log.end)
        self.catches_up_at = self._loop.now_s + self._draw.random() * CATCH_UP_LIMIT_S
        self._lagging_since.clear()
        self.wake()
