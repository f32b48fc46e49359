"""A model of etcd in memory, for the simulation and for tests: revisions, leases on the event loop's clock, watches.

`MemoryEtcd` is the server with its data; `MemoryEtcd.client` is an `Etcd`. What can happen to the server:

- `pause` and `resume`: as under SIGSTOP; what was asked meanwhile is done at the end, in that order, whether or not
  somebody still waits for it. Leases run out as time passes.
- `restart`: watches and calls under way are lost; leases begin anew, as etcd's do.
- `compact`, and `break_watches`, which makes everyone come back and ask for what was missed.

What happens between a client and its server is `support.metadata.faulty_etcd`'s.
"""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kshare_coordinator.metadata.etcd.port import (
    OPERATIONS_LIMIT,
    REQUEST_BYTES_LIMIT,
    Changes,
    Compare,
    Delete,
    EtcdCompacted,
    EtcdError,
    EtcdRefused,
    EtcdUnavailable,
    KeyValue,
    Lease,
    Put,
    RangeAnswer,
    Removal,
    TransactionAnswer,
)
from support.simulation.loop import time_of

Answer = TypeVar("Answer")
Event = KeyValue | Removal

TIME_LIMIT_MS = 2_000
"""Of one call."""


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    timer: asyncio.TimerHandle
    keys: dict[bytes, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Key:
    """What one key was: the revisions at which it changed, and the pair since each, None where it was removed."""

    revisions: list[int] = field(default_factory=list)
    pairs: list[KeyValue | None] = field(default_factory=list)

    def at(self, revision: int) -> KeyValue | None:
        index = bisect_right(self.revisions, revision)
        return self.pairs[index - 1] if index else None

    def newest(self) -> KeyValue | None:
        return self.pairs[-1] if self.pairs else None

    def note(self, revision: int, pair: KeyValue | None) -> None:
        if self.revisions and self.revisions[-1] == revision:
            self.pairs[-1] = pair
            return
        self.revisions.append(revision)
        self.pairs.append(pair)

    def forget_before(self, revision: int) -> None:
        """Keeps what is needed to look at the key as of `revision` and later."""
        unneeded = max(0, bisect_right(self.revisions, revision) - 1)
        del self.revisions[:unneeded], self.pairs[:unneeded]


class _Watcher:
    """Someone who waits for what happens to a range."""

    def __init__(self, start: bytes, end: bytes, from_revision: int) -> None:
        self.start = start
        self.end = end
        self.next_revision = from_revision
        self.wake = asyncio.Event()
        self.broken = False


class MemoryEtcd:
    """The server; see the module's text. Made outside of any incarnation, its timers belong to nobody's life."""

    def __init__(self, *, kept_revisions: int | None = None) -> None:
        """`kept_revisions`: older ones are compacted from time to time; None: only `compact` does that."""
        self._kept_revisions = kept_revisions
        self._context = contextvars.copy_context()
        self._names: list[bytes] = []
        self._keys: dict[bytes, _Key] = {}
        self._events: list[tuple[int, Event]] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0x694D_0000
        self._watchers: dict[_Watcher, None] = {}
        self._inbox: list[Callable[[], None]] = []
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._is_paused = False
        self.revision = 1
        """Of the newest change."""
        self.compacted_revision = 0
        self.replaced: list[tuple[bytes, int]] = []
        """Keys that were put while they had another value, with the revisions of these changes."""
        self.held_count = 0
        """Calls that came while the server was paused."""
        self.lost_count = 0
        """Watches and calls under way that restarts ended."""

    def client(self, *, time_limit_ms: int = TIME_LIMIT_MS) -> MemoryEtcdClient:
        return MemoryEtcdClient(self, time_limit_ms)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        inbox, self._inbox = self._inbox, []
        for action in inbox:
            action()
        for watcher in self._watchers:
            watcher.wake.set()

    def restart(self) -> None:
        """Also resumes; what waited is lost."""
        self._inbox.clear()
        self._is_paused = False
        self.lost_count += len(self._watchers) + len(self._waiting)
        for number in self._leases:
            self.keep_alive(number)
        self.break_watches()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(EtcdUnavailable("etcd was restarted"))

    def break_watches(self) -> None:
        for watcher in self._watchers:
            watcher.broken = True
            watcher.wake.set()

    def compact(self, revision: int) -> None:
        """EtcdRefused where it has not come yet, EtcdCompacted where it is compacted already."""
        if revision > self.revision:
            raise EtcdRefused(f"revision {revision} has not come yet, the newest one is {self.revision}")
        if revision <= self.compacted_revision:
            raise EtcdCompacted(f"revision {self.compacted_revision} is compacted already")
        self.compacted_revision = revision
        first = bisect_left(self._events, revision, key=lambda event: event[0])
        del self._events[:first]
        for name in self._names:
            key = self._keys[name]
            key.forget_before(revision)
            if key.newest() is None and key.revisions[-1] <= revision:
                del self._keys[name]
        self._names = [name for name in self._names if name in self._keys]

    def submit(self, action: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """What the action returned or raised, once the server runs."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                answer = action()
            except EtcdError as error:
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(answer)

        if self._is_paused:
            self.held_count += 1
            self._inbox.append(run)
        else:
            run()
        return future

    async def while_running(self, future: asyncio.Future[Answer]) -> Answer:
        """The future's result; EtcdUnavailable where the server is restarted before it is there."""
        if future.done():
            return future.result()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[lost] = None
        try:
            either: list[asyncio.Future[Any]] = [future, lost]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            raise EtcdUnavailable("etcd was restarted")
        finally:
            del self._waiting[lost]
            if not lost.cancel():
                lost.exception()

    # What is asked of the data. Each runs in one go.

    def range(self, start: bytes, end: bytes | None, revision: int, limit: int) -> RangeAnswer:
        if revision > self.revision:
            raise EtcdRefused(f"revision {revision} has not come yet, the newest one is {self.revision}")
        if revision and revision < self.compacted_revision:
            raise EtcdCompacted(f"revision {revision} is compacted, the oldest one is {self.compacted_revision}")
        found: list[KeyValue] = []
        for name in self._in_range(start, end):
            pair = self._keys[name].at(revision or self.revision)
            if pair is not None:
                if limit and len(found) == limit:
                    return RangeAnswer(found, self.revision, True)
                found.append(pair)
        return RangeAnswer(found, self.revision, False)

    def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes]
    ) -> TransactionAnswer:
        self._check_transaction(compares, then, otherwise)
        if not all(self._is_true(compare) for compare in compares):
            looked_at = [self._newest(key) for key in otherwise]
            return TransactionAnswer(False, self.revision, [pair for pair in looked_at if pair is not None])
        for operation in then:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise EtcdRefused(f"there is no lease {operation.lease:x}")
        revision = self.revision + 1
        events: list[Event] = []
        for operation in then:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            else:
                events.extend(self._delete(self._in_range(operation.start, operation.end), revision))
        self._happened(revision, events)
        return TransactionAnswer(True, self.revision, [])

    def grant(self, ttl_ms: int) -> Lease:
        self._last_lease += 1
        ttl_ms = -(-ttl_ms // 1000) * 1000
        self._leases[self._last_lease] = _Lease(ttl_ms, self._expiry(self._last_lease, ttl_ms))
        return Lease(self._last_lease, ttl_ms)

    def keep_alive(self, lease: int) -> bool:
        found = self._leases.get(lease)
        if found is None:
            return False
        found.timer.cancel()
        found.timer = self._expiry(lease, found.ttl_ms)
        return True

    def revoke(self, lease: int) -> None:
        found = self._leases.pop(lease, None)
        if found is not None:
            found.timer.cancel()
            revision = self.revision + 1
            self._happened(revision, self._delete(list(found.keys), revision))

    # Watches.

    def open_watch(self, start: bytes, end: bytes, from_revision: int) -> _Watcher:
        watcher = _Watcher(start, end, from_revision)
        watcher.wake.set()
        self._watchers[watcher] = None
        return watcher

    def close_watch(self, watcher: _Watcher) -> None:
        del self._watchers[watcher]

    def seen_by(self, watcher: _Watcher) -> Changes | None:
        """What the watcher has not seen yet; None: nothing. EtcdCompacted where that cannot be told."""
        if self._is_paused or watcher.next_revision > self.revision:
            return None
        if watcher.next_revision < self.compacted_revision:
            raise EtcdCompacted(f"revision {watcher.next_revision} is compacted")
        first = bisect_left(self._events, watcher.next_revision, key=lambda event: event[0])
        watcher.next_revision = self.revision + 1
        seen = [event for _, event in self._events[first:] if watcher.start <= event.key < watcher.end]
        return Changes(self.revision, seen) if seen else None

    # The data.

    def _in_range(self, start: bytes, end: bytes | None) -> list[bytes]:
        if end is None:
            return [start] if start in self._keys else []
        return self._names[bisect_left(self._names, start) : bisect_left(self._names, end)]

    def _newest(self, name: bytes) -> KeyValue | None:
        return self._keys[name].newest() if name in self._keys else None

    def _is_true(self, compare: Compare) -> bool:
        pair = self._newest(compare.key)
        number: int = 0 if pair is None else getattr(pair, compare.target.value)
        return number == compare.number

    @staticmethod
    def _check_transaction(
        compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes]
    ) -> None:
        if max(len(compares), len(then), len(otherwise)) > OPERATIONS_LIMIT:
            raise EtcdRefused(f"a transaction has at most {OPERATIONS_LIMIT} operations")
        puts = [operation for operation in then if isinstance(operation, Put)]
        size = sum(len(compare.key) for compare in compares) + sum(len(put.key) + len(put.value) for put in puts)
        if size > REQUEST_BYTES_LIMIT:
            raise EtcdRefused(f"a request of {size} bytes is too large, {REQUEST_BYTES_LIMIT} are allowed")
        ranges = [(one.start, one.end or one.start + b"\x00") for one in then if isinstance(one, Delete)]
        removed = any(start <= put.key < end for put in puts for start, end in ranges)
        if removed or len({put.key for put in puts}) < len(puts):
            raise EtcdRefused("a transaction may change a key only once")

    def _put(self, put: Put, revision: int) -> KeyValue:
        key = self._keys.get(put.key)
        if key is None:
            key = self._keys[put.key] = _Key()
            insort(self._names, put.key)
        former = key.newest()
        self._unbind(former)
        if former is not None and former.value != put.value:
            self.replaced.append((put.key, revision))
        pair = KeyValue(
            key=put.key,
            value=put.value,
            create_revision=revision if former is None else former.create_revision,
            mod_revision=revision,
            version=1 if former is None else former.version + 1,
            lease=put.lease,
        )
        key.note(revision, pair)
        if put.lease:
            self._leases[put.lease].keys[put.key] = None
        return pair

    def _delete(self, names: Sequence[bytes], revision: int) -> list[Event]:
        events: list[Event] = []
        for name in names:
            former = self._newest(name)
            if former is not None:
                self._unbind(former)
                self._keys[name].note(revision, None)
                events.append(Removal(name, revision))
        return events

    def _unbind(self, former: KeyValue | None) -> None:
        if former is not None and former.lease in self._leases:
            self._leases[former.lease].keys.pop(former.key, None)

    def _happened(self, revision: int, events: Sequence[Event]) -> None:
        if not events:
            return
        self.revision = revision
        self._events.extend((revision, event) for event in events)
        kept = self._kept_revisions
        if kept is not None and self.revision - self.compacted_revision > 2 * kept:
            self.compact(self.revision - kept)
        for watcher in self._watchers:
            watcher.wake.set()

    def _expiry(self, number: int, ttl_ms: int) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        # By etcd's own clock, and not by that of the simulated coordinator that asks.
        return self._context.copy().run(loop.call_later, ttl_ms / 1000, self._expired, number)

    def _expired(self, number: int) -> None:
        if not self._is_paused:
            self.revoke(number)
        else:
            self._inbox.append(lambda: self._expired_while_paused(number))

    def _expired_while_paused(self, number: int) -> None:
        lease = self._leases.get(number)
        now_s = self._context.copy().run(asyncio.get_running_loop().time)
        if lease is not None and time_of(lease.timer) <= now_s:
            self.revoke(number)


class MemoryEtcdClient:
    """One client of a MemoryEtcd, an `Etcd`."""

    def __init__(self, server: MemoryEtcd, time_limit_ms: int) -> None:
        self._server = server
        self._time_limit_ms = time_limit_ms
        self._watchers: dict[_Watcher, None] = {}
        self._is_closed = False

    async def range(self, start: bytes, end: bytes | None = None, *, revision: int = 0, limit: int = 0) -> RangeAnswer:
        return await self._call(lambda: self._server.range(start, end, revision, limit))

    async def transact(
        self, compares: Sequence[Compare], then: Sequence[Put | Delete], otherwise: Sequence[bytes] = ()
    ) -> TransactionAnswer:
        return await self._call(lambda: self._server.transact(compares, then, otherwise))

    async def grant(self, ttl_ms: int) -> Lease:
        return await self._call(lambda: self._server.grant(ttl_ms))

    async def keep_alive(self, lease: int) -> bool:
        return await self._call(lambda: self._server.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda: self._server.revoke(lease))

    async def compact(self, revision: int) -> None:
        await self._call(lambda: self._server.compact(revision))

    async def watch(self, start: bytes, end: bytes, from_revision: int) -> AsyncGenerator[Changes, None]:
        self._check()
        watcher = self._server.open_watch(start, end, from_revision)
        self._watchers[watcher] = None
        try:
            while True:
                await watcher.wake.wait()
                watcher.wake.clear()
                if watcher.broken:
                    raise EtcdUnavailable("the watch is lost")
                changes = self._server.seen_by(watcher)
                if changes is not None:
                    yield changes
        finally:
            self._server.close_watch(watcher)
            del self._watchers[watcher]

    async def close(self) -> None:
        self._is_closed = True
        for watcher in self._watchers:
            watcher.broken = True
            watcher.wake.set()

    def _check(self) -> None:
        if self._is_closed:
            raise EtcdUnavailable("the client is closed")

    async def _call(self, action: Callable[[], Answer]) -> Answer:
        self._check()
        try:
            async with asyncio.timeout(self._time_limit_ms / 1000):
                await asyncio.sleep(0)
                answer = await self._server.while_running(self._server.submit(action))
                await asyncio.sleep(0)
        except TimeoutError:
            raise EtcdUnavailable(f"no answer in {self._time_limit_ms} ms") from None
        self._check()
        return answer
