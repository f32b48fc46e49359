"""A KeyValueStore whose disk fails as a whole while a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kshare_core.errors import StorageFailure
from kshare_runtime.memory_store import MemoryStore
from kshare_runtime.ports import KeyRange, Write


class UnreadableStore:
    """A store whose disk fails as a whole for a while: `failing_reads` scans and one write."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.failing_reads = 0
        self.failing_writes = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._store.get(family, key)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if self.failing_reads:
            self.failing_reads -= 1
            raise StorageFailure("Input/output error")
        return self._store.scan(family, start, end, reverse=reverse)

    def write(self, writes: Sequence[Write]) -> None:
        if self.failing_writes:
            self.failing_writes -= 1
            raise StorageFailure("Input/output error")
        self._store.write(writes)

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        if self.failing_writes:
            self.failing_writes -= 1
            raise StorageFailure("Input/output error")
        self._store.begin_write(writes, done)

    def finish_writes(self) -> None:
        self._store.finish_writes()

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self._store.delete_range(family, start, end)

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._store.delete_ranges(ranges)

    def families(self) -> list[str]:
        return self._store.families()

    def close(self) -> None:
        self._store.close()
