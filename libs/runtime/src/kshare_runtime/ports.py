"""The ports of a role to the outside: time, disk and randomness, passed in by the code that starts it.

Timers are the running event loop's (`loop.call_at`, `asyncio.sleep`). Under simulation the loop itself has a virtual
clock, so code that uses the loop's time needs no port of its own. `Clock` is for the wall time that goes into records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from kshare_core.errors import StorageFailure
from kshare_core.tracing import Tracer
from kshare_runtime.held_memory import HeldMemory


class Clock(Protocol):
    """Wall time. Monotonic time is `asyncio.get_running_loop().time()`."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class Write(NamedTuple):
    """One change of a store: the new value of a key, or None to remove it."""

    family: str
    key: bytes
    value: bytes | None


class AppendedWrite(Write):
    """A write of a new key after all others of its kind, which is removed together with those before it.

    A store may keep its value in a file, and write it once (`large_values`). To all others it is a Write.
    """


class KeyRange(NamedTuple):
    """The keys of a family with start <= key < end."""

    family: str
    start: bytes
    end: bytes


class KeyValueStore(Protocol):
    """A store of sorted keys in named families on one disk, with one writer.

    Every method raises `StorageFailure` where the disk fails; a failed `write` has no effect that can be read.
    """

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with start <= key < end in order of keys (`end` None: to the last key).

        With `reverse`, the same range from its last key down. The store must not be written while scanning.
        """
        ...

    def write(self, writes: Sequence[Write]) -> None:
        """Applies all writes or none, and returns when they are durable (fsync); so are all that were begun before."""
        ...

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        """Applies all writes or none, and returns before they are durable; reads show them from now on.

        `done` is called once, by the event loop and in the order in which writes were begun: with None when they are
        durable, else with the failure; where the sync of a new log file fails, within this call. After a failure no
        read shows them.
        """
        ...

    def finish_writes(self) -> None:
        """Waits until all begun writes are durable or have failed, and calls their `done` before it returns.

        For the rare callers that must not see a state which may not last.
        """
        ...

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        """Removes keys with start <= key < end, durably."""
        ...

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        """Removes the keys of all ranges or of none, and returns when that is durable; one fsync for all of them."""
        ...

    def families(self) -> list[str]: ...

    def close(self) -> None: ...


class StoreMemory(NamedTuple):
    """The memory of one store on a disk."""

    memtable_bytes: int = 96 * 1024 * 1024
    """All write buffers together; above it the largest is flushed."""
    block_cache_bytes: int = 32 * 1024 * 1024


DEFAULT_STORE_MEMORY = StoreMemory()


class StoreFigures(NamedTuple):
    """Statistics of a store on a disk, over all its families; see RocksDB's properties of similar names."""

    memtable_bytes: int
    table_bytes: int
    pending_compaction_bytes: int
    block_cache_bytes: int
    running_compactions: int
    running_flushes: int
    background_errors: int
    refuses_writes: int
    """1 from a failed write until the store is reopened, else 0."""
    times_mended: int


@runtime_checkable
class FiguredStore(Protocol):
    """A store with statistics; a store in memory has none."""

    def figures(self) -> StoreFigures | None:
        """The statistics, read in some microseconds; None where the store is closed."""
        ...


@runtime_checkable
class MendableStore(Protocol):
    """A store that refuses writes after a failed one, until it is reopened (`store_mending`)."""

    @property
    def write_failure(self) -> str | None:
        """The error of the failed write after which all others are refused; None where writes are taken."""
        ...

    def mend(self) -> bool:
        """Reopens the store if its disk accepts writes again; returns whether the store does.

        The failed write stays without effect, and confirmed writes stay. Unfinished scans end with StorageFailure.
        StorageFailure where the store could not be opened; it can neither be read nor written until a later call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Clock, disk and randomness of one node."""

    clock: Clock
    random: random.Random
    open_store: Callable[[str], KeyValueStore]
    open_isolated_store: Callable[[str], KeyValueStore] | None = None
    """As `open_store`, for a store whose families are independent: damage to one keeps the others served."""
    tracer: Tracer | None = None
    """Records traces; None: nothing is traced."""
    held_memory: HeldMemory = field(default_factory=HeldMemory)
    """Where the node registers its caches, so that the process can ask them for memory."""
