"""An `Etcd` whose way to the server fails as it is told: for a real etcd and for the model alike.

`unavailable` is a network that is cut, for calls and watches. `delay_ms` is how long each way of each call takes.
`watch_delay_ms` says by the start of its range how much later a watch tells what happened. `lose_answers`,
`lose_requests` and `apply_late`: the next transactions, or the next that put a key, are done but not answered, not done
at all, or done some time after their caller was told that there is no answer. `full` is a link that lets nothing
through to the server: what is asked meanwhile arrives at its end, in order, also where its caller has given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from kshare_coordinator.metadata.etcd.port import (
    Changes,
    Compare,
    Delete,
    Etcd,
    EtcdUnavailable,
    Lease,
    Put,
    RangeAnswer,
    TransactionAnswer,
)

Answer = TypeVar("Answer")

PATIENCE_S = 2.0
"""How long a caller waits for an answer while the link is full."""


class _Fault(Enum):
    LOST_ANSWER = auto()
    LOST_REQUEST = auto()
    LATE = auto()


@dataclass(slots=True)
class Effects:
    """How often faults of a way to etcd have acted: on calls and watches, and not when they were asked for."""

    refused: int = 0
    """Calls that were refused and watches that were broken, because the network was cut."""
    held: int = 0
    """Calls that waited for room in a full link."""
    lost_answers: int = 0
    lost_requests: int = 0
    late: int = 0
    """Transactions that came to the server after their caller was told that there is no answer."""


class FaultyEtcd:
    """See the module's text."""

    def __init__(self, etcd: Etcd, effects: Effects | None = None) -> None:
        """`effects`: those of earlier ways of the same coordinator, which are counted on."""
        self._etcd = etcd
        self.effects = Effects() if effects is None else effects
        self._faults: list[tuple[_Fault, int, bytes | None]] = []
        self._cut = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._late: list[asyncio.Future[Any]] = []
        self.delay_ms: Callable[[], int] = lambda: 0
        self.watch_delay_ms: Callable[[bytes], int] = lambda _: 0
        self.transactions = 0
        """That were asked for."""

    @property
    def unavailable(self) -> bool:
        return self._cut.is_set()

    @unavailable.setter
    def unavailable(self, value: bool) -> None:
        if value:
            self._cut.set()
        else:
            self._cut.clear()

    @property
    def full(self) -> bool:
        return not self._has_room.is_set()

    @full.setter
    def full(self, value: bool) -> None:
        if value:
            self._has_room.clear()
        else:
            self._has_room.set()

    def lose_answers(self, count: int) -> None:
        self._faults.extend([(_Fault.LOST_ANSWER, 0, None)] * count)

    def lose_requests(self, count: int, *, key: bytes | None = None) -> None:
        self._faults.extend([(_Fault.LOST_REQUEST, 0, key)] * count)

    def apply_late(self, count: int, delay_ms: int, *, key: bytes | None = None) -> None:
        self._faults.extend([(_Fault.LATE, delay_ms, key)] * count)

    def _next_fault(self, then: Sequence[Put | Delete]) -> tuple[_Fault, int] | None:
        keys = [operation.key for operation in then if isinstance(operation, Put)]
        for index, (fault, delay_ms, key) in enumerate(self._faults):
            if key is None or key in keys:
                del self._faults[index]
                return fault, delay_ms
        return None

    @property
    def has_faults(self) -> bool:
        """Whether there are some that have not happened yet."""
        return bool(self._faults)

    async def wait_for_late(self) -> None:
        """Until all transactions that come late have come."""
        await asyncio.gather(*self._late)

    async def range(self, start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0) -> RangeAnswer:
        return await self._call(lambda: self._etcd.range(start, end, revision=revision, limit=limit))

    async def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes] = ()
    ) -> TransactionAnswer:
        self.transactions += 1
        return await self._call(lambda: self._transact(compares, then, otherwise))

    async def _transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes]
    ) -> TransactionAnswer:
        found = self._next_fault(then)
        if found is None:
            return await self._etcd.transact(compares, then, otherwise)
        fault, delay_ms = found
        if fault is _Fault.LOST_ANSWER:
            await self._etcd.transact(compares, then, otherwise)
            self.effects.lost_answers += 1
        elif fault is _Fault.LOST_REQUEST:
            self.effects.lost_requests += 1
        else:

            async def late() -> None:
                await asyncio.sleep(delay_ms / 1000)
                self.effects.late += 1
                with suppress(EtcdUnavailable):  # etcd itself stood still: who asked was told that the answer is lost
                    await self._etcd.transact(compares, then, otherwise)

            self._late.append(asyncio.ensure_future(late()))
        raise EtcdUnavailable("the answer was lost")

    async def grant(self, ttl_ms: int) -> Lease:
        return await self._call(lambda: self._etcd.grant(ttl_ms))

    async def keep_alive(self, lease: int) -> bool:
        return await self._call(lambda: self._etcd.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._etcd.revoke(lease))

    async def compact(self, revision: int) -> None:
        await self._call(lambda: self._etcd.compact(revision))

    async def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncGenerator[Changes, None]:
        self._check()
        async with aclosing(self._etcd.watch(start, end, from_revision)) as inner:
            cut = asyncio.ensure_future(self._cut.wait())
            step: asyncio.Future[Changes] | None = None
            try:
                while True:
                    step = asyncio.ensure_future(anext(inner))
                    either: list[asyncio.Future[Any]] = [step, cut]
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if cut.done():
                        self.effects.refused += 1
                        raise EtcdUnavailable("the network is cut")
                    await asyncio.sleep(self.watch_delay_ms(start) / 1000)
                    yield step.result()
            finally:
                cut.cancel()
                if step is not None and not step.done():
                    step.cancel()
                    await asyncio.wait([step])
                if step is not None and not step.cancelled():
                    step.exception()

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await self._etcd.close()

    def _check(self) -> None:
        if self._cut.is_set():
            self.effects.refused += 1
            raise EtcdUnavailable("the network is cut")

    async def _call(self, action: Callable[[], Awaitable[Answer]]) -> Answer:
        self._check()
        await asyncio.sleep(self.delay_ms() / 1000)
        self._check()
        answer = await (self._arrive_late(action) if self.full else action())
        await asyncio.sleep(self.delay_ms() / 1000)
        self._check()
        return answer

    async def _arrive_late(self, action: Callable[[], Awaitable[Answer]]) -> Answer:
        self.effects.held += 1

        async def arrive() -> Answer:
            await self._has_room.wait()  # wakes those that wait in their order
            return await action()

        arriving = asyncio.ensure_future(arrive())
        # The caller may have given up by then, or have been cancelled.
        arriving.add_done_callback(lambda late: None if late.cancelled() else late.exception())
        self._late.append(arriving)
        await asyncio.wait([arriving], timeout=PATIENCE_S)
        if arriving.done():
            return arriving.result()
        raise EtcdUnavailable("the link to etcd is full")
