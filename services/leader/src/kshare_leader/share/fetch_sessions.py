"""The fetch sessions of a leader: the share-partitions that a member fetches, so that a fetch need not name them all.

A session is remembered from a ShareFetch that names its partitions in full. Its later fetches look only at those that
are `ready`: since they were looked at, something may have become deliverable there. A share-partition without
deliverable records is not ready; the session sleeps there, and the share-partition's next wake-up makes it ready. So
the cost of a fetch does not grow with the number of partitions. The rule at every moment: the session sleeps at a
share-partition, or it is ready, or both.

The order of `ready` is that in which partitions are tried: those that had records go to its end.

Of several sessions that wait for the same records, the one that has waited longest gets them, and the end of a fetch's
wait does not end its session's: members whose waits ended just before each new record would never get one.

Some changes cause no wake-up, such as a log that is closed and opened again. Therefore a session looks up all of its
share-partitions every LOOK_UP_INTERVAL_MS. A session that is forgotten costs one more request: its gateway then names
all partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from kshare_core.identifiers import SharePartitionKey
from kshare_leader.machine.interval_map import Owner
from kshare_leader.share.limits import IDLE_UNLOAD_MS, LOOK_UP_INTERVAL_MS, REMEMBERED_PARTITIONS_LIMIT
from kshare_leader.share.served_partition import ServedPartition
from kshare_leader.share.waiting_fetches import Waiter

TRIED_AT_ONCE_LIMIT = 16


class FetchSession:
    """See the module docstring. `number` is that of the fetch that named the partitions."""

    __slots__ = (
        "_looked_up_at_ms",
        "_wait_number",
        "last_fetch_number",
        "number",
        "owner",
        "ready",
        "served",
        "tried_at_once",
        "used_at_ms",
        "waiter",
    )

    def __init__(
        self, owner: Owner, number: int, served: dict[SharePartitionKey, ServedPartition | None], now_ms: int
    ) -> None:
        self.owner = owner
        self.number = self.last_fetch_number = number
        self.served = served
        """None where the last look-up failed."""
        self.ready: OrderedDict[SharePartitionKey, None] = OrderedDict.fromkeys(served)
        self.waiter: Waiter | None = None
        """Its fetch that waits for records."""
        self.used_at_ms = self._looked_up_at_ms = now_ms
        self.tried_at_once = TRIED_AT_ONCE_LIMIT
        """How many share-partitions with deliverable records the next attempt collects before it takes from them."""
        self._wait_number: int | None = None

    def wait_from(self, wait_number: int) -> int:
        """The number of its first fetch that waited since it had records; `wait_number` is that of the next one."""
        if self._wait_number is None:
            self._wait_number = wait_number
        return self._wait_number

    def goes_on(self, former: FetchSession) -> None:
        """Takes over the place of the owner's former session among those that wait."""
        self._wait_number = former._wait_number

    def had_records(self) -> None:
        """Its next wait begins behind all others."""
        self._wait_number = None

    def attempted(self, had_records: int, *, was_filled: bool) -> None:
        """An attempt took records from so many share-partitions; `was_filled`: as many as the fetch may have.

        Then the next one probably needs no more of them than this one, and looks at one to spare. Otherwise bytes may
        be the limit, which are divided between all that are collected.
        """
        self.tried_at_once = min(had_records + 1, TRIED_AT_ONCE_LIMIT) if was_filled else TRIED_AT_ONCE_LIMIT

    def rouse(self, key: SharePartitionKey) -> None:
        """Something may be deliverable at a share-partition where it slept."""
        self.ready[key] = None

    def try_first(self, keys: Sequence[SharePartitionKey]) -> None:
        """Makes them ready again, before all others: their turn did not come."""
        for key in reversed(keys):
            self.ready[key] = None
            self.ready.move_to_end(key, last=False)

    def begin_fetch(self, fetch_number: int, now_ms: int) -> bool:
        """Notes a fetch; returns whether all partitions are to be looked up again."""
        self.last_fetch_number = max(self.last_fetch_number, fetch_number)
        self.used_at_ms = now_ms
        is_due = now_ms - self._looked_up_at_ms >= LOOK_UP_INTERVAL_MS
        if is_due:
            self._looked_up_at_ms = now_ms
        return is_due

    def sleep_where_ready(self) -> None:
        """Lets wake-ups come from those that are ready, too: before a wait that their records cannot end."""
        for key in self.ready:
            served = self.served[key]
            if served is not None:
                served.sleep(self)

    def close(self) -> None:
        """Ends its wait; it is never used again."""
        if self.waiter is not None:
            self.waiter.end()
        for served in self.served.values():
            if served is not None:
                served.forget_sleeper(self)


class FetchSessions:
    """The remembered sessions, by group and owner."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, Owner], FetchSession] = {}
        self._partition_count = 0

    def find(self, group_id: str, owner: Owner, number: int) -> FetchSession | None:
        session = self._sessions.get((group_id, owner))
        return session if session is not None and session.number == number else None

    def remember(
        self,
        group_id: str,
        owner: Owner,
        number: int,
        served: dict[SharePartitionKey, ServedPartition | None],
        now_ms: int,
    ) -> FetchSession | None:
        """Replaces the owner's session; None where too many partitions are remembered already."""
        former = self._sessions.get((group_id, owner))
        self._close(group_id, owner)
        if self._partition_count + len(served) > REMEMBERED_PARTITIONS_LIMIT:
            return None
        session = self._sessions[group_id, owner] = FetchSession(owner, number, served, now_ms)
        if former is not None:
            session.goes_on(former)
        self._partition_count += len(served)
        return session

    def forget(self, group_id: str, owner: Owner, last_fetch_number: int) -> None:
        """Forgets a session that has ended, but not the owner's newer one."""
        session = self._sessions.get((group_id, owner))
        if session is not None and session.last_fetch_number <= last_fetch_number:
            self._close(group_id, owner)

    def forget_where(self, is_gone: Callable[[Owner], bool]) -> None:
        for group_id, owner in [key for key in self._sessions if is_gone(key[1])]:
            self._close(group_id, owner)

    def keep_used(self, now_ms: int) -> None:
        """Tells share-partitions that sessions use them, and forgets the sessions that fetch no more."""
        sessions: Mapping[tuple[str, Owner], FetchSession] = dict(self._sessions)
        for (group_id, owner), session in sessions.items():
            if session.waiter is None and now_ms - session.used_at_ms >= IDLE_UNLOAD_MS:
                self._close(group_id, owner)
                continue
            for served in session.served.values():
                if served is not None:
                    served.note_use(session.used_at_ms)

    def _close(self, group_id: str, owner: Owner) -> None:
        session = self._sessions.pop((group_id, owner), None)
        if session is not None:
            self._partition_count -= len(session.served)
            session.close()
