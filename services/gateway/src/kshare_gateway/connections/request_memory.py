"""The memory budget of a gateway for client data: half-received and queued requests, and responses.

Each connection has a `MemoryAccount`. It counts received bytes, not the length that a frame declares; requests until
they are answered; responses until the socket has taken them; for a fetch in flight, the bytes reserved for its
response; and records that its share sessions keep for their next fetches.

- **Requests.** A connection is read while it holds no more than the rest of the budget, and always while it holds at
  most SMALL_HOLDING_BYTES. So the connections that hold most are muted first, some room always stays free, and small
  requests pass at any time. One muted connection, the one whose frame misses the fewest bytes, is read to the end of
  its frame regardless of the budget; otherwise half-received frames could deadlock.
- **Fetches.** A fetch reserves its response before the leader is asked, and the leader sends no more than that. The
  reservation is FIRST_ANSWER_BYTES, or twice the size of the connection's last response, but at most a fraction of the
  room and at least LEAST_ANSWER_BYTES. So fetches that wait for records, and clients that do not read, reserve little.
  A longer batch needs a longer reservation within the same fraction. Without room the fetch waits. One waiting fetch
  may overdraw the budget, and the next one after its client has read the response, so that all make progress.
- **Kept records.** All share sessions together keep at most 1 / KEPT_SHARE of the budget between their fetches. These
  bytes take room from others, but do not mute their own connection: its next fetch delivers them.
- **Slow clients.** While any fetch or connection waits for room, a connection that holds more than SMALL_HOLDING_BYTES
  is closed when its client has neither sent nor read anything for `stalled_ms`.

So the gateway holds at most the budget, one frame, one response, and the data of clients with small holdings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from kshare_core.identifiers import TopicPartition

SMALL_HOLDING_BYTES = 64 * 1024
LEAST_ANSWER_BYTES = 64 * 1024
FIRST_ANSWER_BYTES = 1024 * 1024
LARGEST_ANSWER_SHARE = 8
"""A response gets at most 1 / LARGEST_ANSWER_SHARE of the room."""
RESERVE_SHARE = 4
"""1 / RESERVE_SHARE of the budget is only for responses of LEAST_ANSWER_BYTES and for requests."""
KEPT_SHARE = 8
"""1 / KEPT_SHARE of the budget is the most that share sessions keep between their fetches."""
REVIEW_INTERVAL_MS = 250


class MemoryHolder(Protocol):
    """The account's interface to its connection."""

    def room_changed(self) -> None:
        """Called when the connection may be read again."""

    def missing_frame_bytes(self) -> int:
        """Missing bytes of the half-received frame; 0 without one."""

    def unsent_bytes(self) -> int:
        """Written bytes of responses that the socket has not taken."""

    def close_slow(self, held_bytes: int) -> None:
        """Closes the connection, whose client is too slow while others wait for room."""


class _Gone:
    """The holder of a closed account. Its connection would otherwise be garbage that only the cycle collector finds."""

    def room_changed(self) -> None:
        pass

    def missing_frame_bytes(self) -> int:
        return 0

    def unsent_bytes(self) -> int:
        return 0

    def close_slow(self, held_bytes: int) -> None:
        pass


_GONE = _Gone()


class LeftOut(NamedTuple):
    """The partitions whose batches were too long for a fetch that had others, and the response that they need."""

    partitions: frozenset[TopicPartition]
    least_bytes: int


class MemoryAccount:
    """The bytes that one connection holds."""

    __slots__ = (
        *(
            "_memory",
            "answer_bytes",
            "expected_bytes",
            "holder",
            "is_closed",
            "is_muted",
            "is_privileged",
            "kept_bytes",
            "left_out",
            "progressed_at",
        ),
        *("request_bytes", "reserved_bytes", "unsent_bytes"),
    )

    def __init__(self, memory: RequestMemory, holder: MemoryHolder) -> None:
        self._memory = memory
        self.holder: MemoryHolder = holder
        self.request_bytes = 0
        self.answer_bytes = 0
        """Bytes of responses that wait for earlier responses."""
        self.unsent_bytes = 0
        """Bytes of responses that were written but not taken by the socket."""
        self.reserved_bytes = 0
        self.kept_bytes = 0
        """Bytes of records that share sessions keep for their next fetches; not in `held_bytes`."""
        self.expected_bytes = FIRST_ANSWER_BYTES
        """Expected size of the next fetch's response."""
        self.left_out: LeftOut | None = None
        self.progressed_at = 0.0
        self.is_muted = False
        self.is_privileged = False
        self.is_closed = False

    @property
    def held_bytes(self) -> int:
        return self.request_bytes + self.answer_bytes + self.unsent_bytes + self.reserved_bytes

    def add_request(self, size: int) -> None:
        self.request_bytes += size
        self._memory.used_bytes += size
        self._memory.request_bytes += size

    def end_request(self, size: int) -> None:
        self.request_bytes -= size
        self._memory.request_bytes -= size
        self._memory.release(size)

    def add_answer(self, size: int) -> None:
        self.answer_bytes += size
        self._memory.used_bytes += size

    def end_answer(self, size: int) -> None:
        self.answer_bytes -= size
        self._memory.release(size)

    def set_unsent(self, size: int) -> None:
        before, self.unsent_bytes = self.unsent_bytes, size
        if size < before:
            self._memory.release(before - size)
        else:
            self._memory.used_bytes += size - before

    def keep(self, size: int) -> bool:
        """Counts kept records; False if they may not be kept: beyond the limit, or after the connection's end."""
        memory = self._memory
        if self.is_closed or memory.kept_bytes + size > memory.limit_bytes // KEPT_SHARE:
            return False
        self.kept_bytes += size
        memory.kept_bytes += size
        memory.used_bytes += size
        return True

    def end_keeping(self, size: int) -> None:
        """Ends `keep`; the end of the connection did so for all its records."""
        if not self.is_closed:
            self.kept_bytes -= size
            self._memory.kept_bytes -= size
            self._memory.release(size)

    def may_receive(self) -> bool:
        """Whether the connection may be read; if not, `room_changed` is called later."""
        held = self.held_bytes
        if held <= SMALL_HOLDING_BYTES or self.is_privileged or held <= self._memory.request_room:
            if self.is_muted:
                self._memory.unmute(self)
            return True
        self._memory.mute(self)
        return False

    def frame_is_whole(self) -> None:
        """Notes that the received bytes end with a whole frame, or begin a new one."""
        if self.is_privileged:
            self._memory.end_privilege(self)

    async def reserve_answer(self, asked_bytes: int, *, least_bytes: int, expected_bytes: int = 0) -> int:
        """Waits for room and returns the bytes that a fetch's response may have; 0 if the connection was closed.

        It replaces the connection's former reservation. Fewer than `least_bytes` are of no use. `expected_bytes` is the
        size that the response may well have.
        """
        terms = self._terms(asked_bytes, least_bytes, expected_bytes)
        if terms is None:
            return 0
        return self._memory.reserve(terms) or await self._memory.wait_for_room(terms)

    def reserve_at_once(self, asked_bytes: int, *, least_bytes: int, expected_bytes: int = 0) -> int:
        """As `reserve_answer`; 0 also if there is no room now."""
        terms = self._terms(asked_bytes, least_bytes, expected_bytes)
        return 0 if terms is None else self._memory.reserve(terms)

    def _terms(self, asked_bytes: int, least_bytes: int, expected_bytes: int) -> ReservationTerms | None:
        """None for a closed connection: nothing would end the reservation."""
        if self.is_closed:
            return None
        self.end_reservation()
        return ReservationTerms(self, min(asked_bytes, max(self.expected_bytes, expected_bytes)), least_bytes)

    def fetch_was_answered(self, size: int) -> None:
        """Ends the reservation of a fetch whose response has `size` bytes."""
        self.end_reservation()
        self.expected_bytes = max(FIRST_ANSWER_BYTES, 2 * size)

    def end_reservation(self) -> None:
        size, self.reserved_bytes = self.reserved_bytes, 0
        if size:
            self._memory.release(size)

    def close(self) -> None:
        """Releases everything after the end of the connection."""
        if self.is_closed:
            return
        self.end_keeping(self.kept_bytes)
        self.is_closed = True
        self.end_reservation()
        size, self._memory.request_bytes = self.held_bytes, self._memory.request_bytes - self.request_bytes
        self.request_bytes = self.answer_bytes = self.unsent_bytes = 0
        self._memory.forget(self)
        self._memory.release(size)
        self.holder = _GONE


class ReservationTerms(NamedTuple):
    """The arguments of `MemoryAccount.reserve_answer`."""

    account: MemoryAccount
    wanted_bytes: int
    least_bytes: int


class RequestMemory:
    """The budget of one gateway; rules in the module docstring.

    `limit_bytes` is kshare.queued.max.bytes. `request_limit_bytes` is queued.max.request.bytes; with 0 or less,
    requests have no limit of their own. `used_bytes` may exceed the limit as the module docstring says.
    """

    def __init__(self, limit_bytes: int, *, request_limit_bytes: int = -1, stalled_ms: int = 10_000) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.request_bytes = 0
        self.kept_bytes = 0
        self.muted_total = 0
        self.closed_total = 0
        self._request_limit_bytes = request_limit_bytes if request_limit_bytes > 0 else -1
        self._stalled_s = stalled_ms / 1000
        self._accounts: dict[MemoryAccount, None] = {}
        self._muted: dict[MemoryAccount, None] = {}
        self._privileged: MemoryAccount | None = None
        self._waiting: deque[tuple[ReservationTerms, asyncio.Future[int]]] = deque()
        self._overdrawn: MemoryAccount | None = None
        self._review: asyncio.Handle | None = None
        self._review_timer: asyncio.TimerHandle | None = None

    @property
    def room_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def request_room(self) -> int:
        """Room for requests."""
        if self._request_limit_bytes < 0:
            return self.room_bytes
        return min(self.room_bytes, self._request_limit_bytes - self.request_bytes)

    @property
    def muted(self) -> int:
        """Number of connections that are not read until there is room."""
        return len(self._muted)

    @property
    def waiting(self) -> int:
        """Number of fetches that wait for room."""
        return len(self._waiting)

    def open(self, account: MemoryAccount) -> None:
        """Registers the account of a new connection."""
        self._accounts[account] = None

    def forget(self, account: MemoryAccount) -> None:
        self._accounts.pop(account, None)
        self.unmute(account)
        if account.is_privileged:
            self.end_privilege(account)

    def end_privilege(self, account: MemoryAccount) -> None:
        """Allows another connection to be read to the end of its frame."""
        account.is_privileged = False
        self._privileged = None
        self.review_soon()

    def release(self, size: int) -> None:
        self.used_bytes -= size
        if self._muted or self._waiting:
            self.review_soon()

    def mute(self, account: MemoryAccount) -> None:
        if not account.is_muted:
            account.is_muted = True
            self._muted[account] = None
            self.muted_total += 1
        self.review_soon()

    def unmute(self, account: MemoryAccount) -> None:
        account.is_muted = False
        self._muted.pop(account, None)

    def reserve(self, terms: ReservationTerms, *, may_overdraw: bool = False) -> int:
        """Reserves bytes and returns their number, 0 without room. `may_overdraw`: reserve even without room."""
        room = self.room_bytes
        largest = (room - self.limit_bytes // RESERVE_SHARE) // LARGEST_ANSWER_SHARE
        fits = terms.least_bytes <= max(LEAST_ANSWER_BYTES, largest) and terms.least_bytes <= room
        if not fits and not may_overdraw:
            return 0
        account = terms.account
        size = max(terms.least_bytes, min(terms.wanted_bytes, largest))
        account.reserved_bytes = size
        self.used_bytes += size
        if not fits:
            self._overdrawn = account
        return size

    async def wait_for_room(self, terms: ReservationTerms) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((terms, future))
        self.review_soon()
        return await future

    def review_soon(self) -> None:
        if self._review is None:
            self._review = asyncio.get_running_loop().call_soon(self._review_now)

    def stop(self) -> None:
        """Cancels the reviews when the gateway stops."""
        for handle in (self._review, self._review_timer):
            if handle is not None:
                handle.cancel()

    def _review_now(self) -> None:
        self._review = None
        self._serve_waiting()
        self._unmute()
        if (self._muted or self._waiting) and self._review_timer is None:
            loop = asyncio.get_running_loop()
            self._review_timer = loop.call_later(REVIEW_INTERVAL_MS / 1000, self._review_in_time)

    def _serve_waiting(self) -> None:
        """Grants waiting reservations that fit, and the first other one if no connection overdraws the budget."""
        waiting, self._waiting = self._waiting, deque()
        overdrawn = self._overdrawn
        if overdrawn is not None and (overdrawn.is_closed or overdrawn.held_bytes <= SMALL_HOLDING_BYTES):
            self._overdrawn = None
        for terms, future in waiting:
            granted = 0
            if not terms.account.is_closed and not future.done():
                granted = self.reserve(terms, may_overdraw=self._overdrawn is None)
                if not granted:
                    self._waiting.append((terms, future))
                    continue
            if not future.done():
                future.set_result(granted)

    def _unmute(self) -> None:
        """Unmutes connections that hold no more than the room, and one that holds more."""
        for account in sorted(self._muted, key=lambda account: account.held_bytes):
            if account.held_bytes > max(SMALL_HOLDING_BYTES, self.request_room):
                break
            self._let_receive(account)
        if self._muted and self._privileged is None:
            partial = [account for account in self._muted if account.holder.missing_frame_bytes()]
            if partial:
                account = min(partial, key=lambda account: account.holder.missing_frame_bytes())
                account.is_privileged, self._privileged = True, account
                self._let_receive(account)

    def _let_receive(self, account: MemoryAccount) -> None:
        self.unmute(account)
        account.progressed_at = asyncio.get_running_loop().time()
        account.holder.room_changed()

    def _review_in_time(self) -> None:
        """Closes slow clients while any fetch or connection waits for room."""
        self._review_timer = None
        now = asyncio.get_running_loop().time()
        for account in list(self._accounts):
            if account.unsent_bytes:
                unsent = account.holder.unsent_bytes()
                if unsent < account.unsent_bytes:
                    account.progressed_at = now
                account.set_unsent(unsent)
            is_slow = account.unsent_bytes or (account.holder.missing_frame_bytes() and not account.is_muted)
            held = account.held_bytes
            if is_slow and held > SMALL_HOLDING_BYTES and now - account.progressed_at >= self._stalled_s:
                self.closed_total += 1
                account.holder.close_slow(held)
        self._review_now()


def unlimited_memory() -> RequestMemory:
    """A budget without an effective limit."""
    return RequestMemory(1 << 62)
