"""Any sequence of produce, deliver, restart, lost disk and older disk: no record is skipped, and none comes again.

The leader's share service runs with the share coordinator's own machine; calls between the two get lost, and the leader
dies at any point. Disks are copied at any time, and a copy may be put back later, also behind another loss: then two
logs have different records at the same offsets, which only their leader epochs tell apart.
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode
from support.leader.share.delivered_identities import DeliveredIdentities
from support.leader.share.service import UNAVAILABLE, Leader, MemoryTopicLog, run

COUNTS = st.integers(1, 35)
STEPS = st.one_of(
    st.tuples(st.just("produce"), COUNTS),
    st.tuples(st.just("accept"), COUNTS),
    st.tuples(st.just("fetch"), COUNTS),
    st.tuples(st.just("copy the disk"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("lose the disk"), st.just(0)),
    st.tuples(st.just("put an older disk back"), st.integers(0, 5)),
    st.tuples(st.just("crash while loading"), st.integers(0, 3)),
)


class LogLossModel(DeliveredIdentities):
    """Carries out the steps; `accepted` is what must not come again.

    When the state is cut, the accepts of records that the log does not have then are forgotten: where a copy of that
    log comes back later, its records may come again.
    """

    def __init__(self, leader: Leader) -> None:
        super().__init__(leader)
        self.copies: list[MemoryTopicLog] = []

    async def step(self, name: str, number: int) -> None:
        if name == "produce":
            self.produce(number)
        elif name == "accept":
            await self.accept_some(number)
        elif name == "fetch":
            await self.fetch(number)
        elif name == "copy the disk":
            self.copies.append(self.leader.log().copy())
        elif name == "restart":
            await self.restart(None)
        elif name == "lose the disk":
            await self.restart(MemoryTopicLog(0))
        elif name == "put an older disk back":
            if self.copies:
                await self.restart(self.copies[number % len(self.copies)].copy())
        else:
            await self.crash_while_loading(number)

    async def restart(self, log: MemoryTopicLog | None) -> None:
        await self.leader.restart(log)
        self.delivered.clear()

    async def crash_while_loading(self, number: int) -> None:
        """The leader dies while the state is read or cut; whether the cut was stored it does not learn."""
        channel = self.leader.channel
        channel.read_answers = [UNAVAILABLE] * (number % 2)
        channel.truncate_answers = [UNAVAILABLE] * 50
        channel.stores_anyway = number >= 2
        await self.leader.acquire("m2", max_wait_ms=500, max_records=1)
        in_log = dict.fromkeys(self.in_log())
        for identity in [identity for identity in self.accepted if identity not in in_log]:
            del self.accepted[identity]
            self.may_come_again[identity] = None
        await self.restart(None)

    async def accept_some(self, number: int) -> None:
        """All that one fetch gets, or every second one of it."""
        for offset in (await self.fetch(number))[:: 1 + number % 2]:
            assert await self.leader.acknowledge("m1", offset, offset, bytes([1])) == ErrorCode.NONE
            self.accepted[self.identity(offset)] = None

    async def fetch(self, max_records: int) -> list[int]:
        offsets = await super().fetch(max_records)
        self.forget_what_the_log_lost()
        return offsets

    def forget_what_the_log_lost(self) -> None:
        """The state agrees with the log now: what the log does not have is not known any more."""
        in_log = dict.fromkeys(self.in_log())
        for identity in [identity for identity in self.accepted if identity not in in_log]:
            del self.accepted[identity]


@settings(max_examples=60, deadline=None)
@example(
    [
        ("produce", 30),
        ("copy the disk", 0),
        ("lose the disk", 0),
        ("produce", 30),
        ("accept", 20),
        ("put an older disk back", 0),
    ]
)
@given(st.lists(STEPS, min_size=10, max_size=30))
def test_no_record_of_the_log_is_skipped_and_no_accepted_one_comes_again(steps: list[tuple[str, int]]) -> None:
    async def test() -> None:
        case = await LogLossModel.begin()
        for name, number in steps:
            await case.step(name, number)
        await case.restart(None)
        await case.check_everything_is_delivered(0)

    run(test)
