"""A leader whose log may lose records, and one consumer; which records were delivered and accepted, by identity.

An identity is the leader epoch in which a record was written, and its offset: what an offset means changes when a disk
is lost. A record that was accepted and confirmed must not come again, and every record of the log must come, or have
been accepted.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Self

from kshare_core.errors import ErrorCode
from kshare_leader.metrics import LeaderMetrics
from support.leader.share.service import Leader

ACCEPT, RELEASE = bytes([1]), bytes([2])
MEMBER = "m1"
Identity = tuple[int, int]


class DeliveredIdentities:
    """See the module's text; begun by `begin`. Group `group`, partition 0, member `MEMBER`."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.accepted: dict[Identity, None] = {}
        self.delivered: dict[Identity, None] = {}
        """In the newest rounds of `fetch_all`, or held since then."""
        self.may_come_again: dict[Identity, None] = {}
        """Accepted, and the state may have been cut below it since."""

    @classmethod
    async def begin(cls, *, metrics: LeaderMetrics | None = None) -> Self:
        leader = Leader(partitions=1, metrics=metrics)
        leader.channel.initialize(0, 0)
        return cls(leader)

    def produce(self, count: int) -> None:
        """Batches of up to ten records."""
        while count > 0:
            self.leader.log().append(min(count, 10))
            count -= 10

    def identity(self, offset: int) -> Identity:
        entries = self.leader.log().leader_epochs
        at = bisect_right(entries, offset, key=lambda entry: entry.start_offset) - 1
        return entries[at].leader_epoch, offset

    def in_log(self) -> list[Identity]:
        log = self.leader.log()
        return [self.identity(offset) for offset in range(log.log_start_offset, log.high_watermark)]

    async def fetch(self, max_records: int) -> list[int]:
        """The offsets that one fetch gets; none of them may be accepted already."""
        runs = await self.leader.acquire(MEMBER, max_records=max_records, max_wait_ms=2_000)
        offsets = [offset for first, last, _ in runs for offset in range(first, last + 1)]
        again = [identity for offset in offsets if (identity := self.identity(offset)) in self.accepted]
        assert not again, f"delivered again after their accept was confirmed: {again}"
        self.delivered.update(dict.fromkeys(map(self.identity, offsets)))
        return offsets

    async def accept(self, count: int, *, first: int = 0) -> None:
        """Accepts so many records at `first` or later; all that is fetched before and behind is released."""
        await self._settle(count, first, ACCEPT)

    async def release(self, count: int) -> None:
        await self._settle(count, 0, RELEASE)

    async def _settle(self, count: int, first: int, types: bytes) -> None:
        held: list[int] = []
        while len([offset for offset in held if offset >= first]) < count:
            got = await self.fetch(500)
            assert got, f"only {len(held)} of {count} records came"
            held += got
        chosen = [offset for offset in sorted(held) if offset >= first][:count]
        for offset in sorted(held):
            is_chosen = offset in chosen
            code = await self.leader.acknowledge(MEMBER, offset, offset, types if is_chosen else RELEASE)
            assert code == ErrorCode.NONE
            self.delivered.pop(self.identity(offset), None)
            if is_chosen and types == ACCEPT:
                self.accepted[self.identity(offset)] = None

    async def fetch_all(self) -> list[Identity]:
        """Whatever comes, which is held then."""
        while await self.fetch(500):
            pass
        return list(self.delivered)

    async def accept_all(self) -> None:
        """What is held."""
        for identity in list(self.delivered):
            offset = identity[1]
            assert await self.leader.acknowledge(MEMBER, offset, offset, ACCEPT) == ErrorCode.NONE
            del self.delivered[identity]
            self.accepted[identity] = None

    async def check_everything_is_delivered(self, expected: int) -> None:
        """Every record of the log was accepted or comes, and exactly `expected` of them come or were accepted anew."""
        await self.fetch_all()
        in_log = self.in_log()
        ended = {**self.delivered, **self.accepted, **self.may_come_again}
        missing = [identity for identity in in_log if identity not in ended]
        assert not missing, f"in the log, and neither delivered nor accepted: {missing[:20]}"
        start_offset = self.leader.channel.state().start_offset
        assert start_offset <= self.leader.log().high_watermark, "a lag below 0"
        assert len(in_log) >= expected
        await self.leader.service.stop()
