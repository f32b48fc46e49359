"""A store whose large appended values lie in files (`files`); everything else is in the store below it.

**Order.** A row that names a place in a file is written when the bytes there are durable, never before. So whatever a
crash leaves, each row has its value, and the store below alone says which writes there were. A write with
values in files is therefore synced twice, one after the other; it is large enough for the second to be cheap beside the
first. Writes that come meanwhile wait behind it, and are begun in their order.

**Reads** see a begun write at once, as the port says: one that would meet a row that is not written yet makes the write
durable first. Those who append read their newest values from memory, so that this is rare.

**Failures.** What follows a write may build on it: a batch on the offsets and sequence numbers of the one before. So
after a write that failed in a file, those begun behind it fail too, and all others are refused until `mend`, as after
one that failed in the store below.

**Removed files** leave the table at once, and the folder gives back their space later. A file that is still on the
disk at the end is found when the store is next opened. It is removed then, unless newer rows have keys of its range:
then it is removed together with those.

**Small writes** stay rows: below FROM_BYTES of one prefix in one write the second sync would cost more than it saves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import BackgroundSync, background_sync
from kshare_runtime.large_values.files import FILE_BYTES, ValueFile, ValueFiles, pointer_of
from kshare_runtime.large_values.folder import ValueFolder
from kshare_runtime.ports import AppendedWrite, KeyRange, KeyValueStore, MendableStore, Write

FROM_BYTES = 256 * 1024
"""The appended values of one prefix that one write has to bring at least, to lie in a file: with 70 to 130 KB the two
syncs took as long as RocksDB's one with the bytes twice, with 1 MB half as long."""
Done = Callable[[StorageFailure | None], None]


class StoreBelow(KeyValueStore, MendableStore, Protocol):
    """The store that has the rows."""

    def takes_writes(self) -> bool:
        """Whether its disk takes some megabytes now."""
        ...


@dataclass(slots=True)
class _Staged:
    """A begun write that waits until its values are durable, or those of a write before it."""

    writes: list[Write]
    done: Done
    files: list[ValueFile]
    failure: StorageFailure | None = None


class ValueFileStore:
    """A KeyValueStore over `store`. Values of `family` lie in files of `folder`, one series for each `prefix_bytes`.

    It owns both, and closes them. `new_sync` makes what syncs files beside an event loop. StorageFailure.
    """

    def __init__(
        self,
        store: StoreBelow,
        folder: ValueFolder,
        *,
        family: str,
        prefix_bytes: int,
        from_bytes: int = FROM_BYTES,
        file_bytes: int = FILE_BYTES,
        new_sync: Callable[[asyncio.AbstractEventLoop], BackgroundSync] = background_sync,
    ) -> None:
        self._store = store
        self._family = family
        self._from_bytes = from_bytes
        self._new_sync = new_sync
        self._failure: str | None = None
        """The error of the failed write to a file after which all others are refused."""
        self._staged: deque[_Staged] = deque()
        self._group: list[_Staged] = []
        """The staged writes, from the first, whose files are being synced."""
        self._unsynced: list[ValueFile] = []
        """Those of their files that are left; the first is being synced."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sync: BackgroundSync | None = None
        self._folder_name = folder.name
        try:
            self._values = ValueFiles(folder, prefix_bytes, file_bytes=file_bytes)
            for prefix in self._values.prefixes():
                self._keep(prefix)
        except StorageFailure:
            folder.close()
            store.close()
            raise

    # Reading

    @property
    def rows(self) -> KeyValueStore:
        """The store below: for keys alone, of rows whose values in files may be damaged. Staged writes are missing."""
        return self._store

    def get(self, family: str, key: bytes) -> bytes | None:
        if self._staged and any(write.key == key and write.family == family for write in self._staged_writes()):
            self._finish_staged()
        row = self._store.get(family, key)
        return row if row is None or family != self._family else self._value(key, row)

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if self._staged and any(
            write.family == family and start <= write.key and (end is None or write.key < end)
            for write in self._staged_writes()
        ):
            self._finish_staged()
        rows = self._store.scan(family, start, end, reverse=reverse)
        return rows if family != self._family else ((key, self._value(key, row)) for key, row in rows)

    def _value(self, key: bytes, row: bytes) -> bytes:
        pointer = pointer_of(row)
        return row if pointer is None else self._values.read(self._values.prefix_of(key), pointer)

    def _staged_writes(self) -> Iterator[Write]:
        for staged in self._staged:
            yield from staged.writes

    # Writing

    def write(self, writes: Sequence[Write]) -> None:
        self._finish_staged()
        self._check_writable()
        rows, files = self._in_files(writes)
        for file in files:
            self._sync_now(file)
        self._store.write(rows)

    def begin_write(self, writes: Sequence[Write], done: Done) -> None:
        self._check_writable()
        rows, files = self._in_files(writes)
        if not files and not self._staged:
            self._store.begin_write(rows, done)
            return
        for file in files:
            file.hold()
        self._staged.append(_Staged(rows, done, files))
        if not self._unsynced:
            self._begin_sync()

    def finish_writes(self) -> None:
        self._finish_staged()
        self._store.finish_writes()

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.delete_ranges([KeyRange(family, start, end)])

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._finish_staged()
        self._check_writable()
        self._store.delete_ranges(ranges)
        for family, start, end in ranges:
            for prefix in self._values.prefixes_between(start, end) if family == self._family else ():
                self._keep(prefix)

    def _check_writable(self) -> None:
        if self._failure is not None:
            text = f"cannot write the value files {self._folder_name}: an earlier write failed ({self._failure})"
            raise StorageFailure(text)

    def _keep(self, prefix: bytes) -> None:
        """Removes the files of a prefix that no row needs any more."""
        end = _after(prefix)
        first = next((key for key, _ in self._store.scan(self._family, prefix, end)), None)
        last = next((key for key, _ in self._store.scan(self._family, prefix, end, reverse=True)), None)
        self._values.note_last(prefix, last or b"")
        self._values.keep(prefix, first, last)

    def _in_files(self, writes: Sequence[Write]) -> tuple[list[Write], list[ValueFile]]:
        """The writes with places for the values that were appended to files, and these files, which are not synced."""
        if self._store.write_failure is not None:
            return list(writes), []  # it is refused below, and would only fill the disk
        apart: dict[bytes, list[int]] = {}
        for index, write in enumerate(writes):
            if write.family != self._family or write.value is None:
                continue
            if pointer_of(write.value) is not None:
                raise ValueError(f"a value of {self._family} cannot be stored: it looks like a place in a file")
            if write.__class__ is AppendedWrite:
                apart.setdefault(self._values.prefix_of(write.key), []).append(index)
        rows = list(writes)
        files: list[ValueFile] = []
        for prefix, indices in apart.items():
            found = [(writes[index].key, value) for index in indices if (value := writes[index].value) is not None]
            is_large = sum(len(value) for _, value in found) >= self._from_bytes
            if is_large and self._values.takes(prefix, found[0][0]):
                try:
                    pointers, file = self._values.append(prefix, found)
                except StorageFailure as failure:
                    self._failure = str(failure)
                    raise
                files.append(file)
                for index, pointer in zip(indices, pointers, strict=True):
                    rows[index] = Write(self._family, writes[index].key, pointer.encoded())
        return rows, files

    # Staged writes

    def _begin_sync(self) -> None:
        """Syncs the files of all staged writes, then begins these writes; repeats until none is staged."""
        while self._staged:
            self._group = list(self._staged)
            self._unsynced = list(dict.fromkeys(file for staged in self._group for file in staged.files))
            if self._unsynced:
                self._sync_next()
                return
            self._begin_group()

    def _sync_next(self) -> None:
        loop = asyncio.get_running_loop()
        if self._sync is None or self._loop is not loop:
            self._loop, self._sync = loop, self._new_sync(loop)
        self._sync.begin(self._unsynced[0].opened.descriptor, self._synced)

    def _synced(self, is_durable: bool) -> None:
        file = self._unsynced.pop(0)
        if self._group and not is_durable:
            try:
                file.opened.sync(anew=True)  # it may only have refused to be synced in that way
            except OSError as error:
                self._fail(file, error)
        if self._unsynced and self._group:
            self._sync_next()
            return
        self._unsynced.clear()
        self._begin_group()
        self._begin_sync()

    def _begin_group(self) -> None:
        """Begins the writes of the group, which are durable but for their rows, or tells that they failed."""
        while self._group:
            staged = self._group.pop(0)
            assert self._staged.popleft() is staged, "staged writes are begun in order"
            for file in staged.files:
                file.let_go()
            if staged.failure is None:
                try:
                    self._store.begin_write(staged.writes, staged.done)
                except StorageFailure as failure:
                    staged.failure = failure
            if staged.failure is not None:
                self._store.finish_writes()  # those before it are told first
                staged.done(staged.failure)

    def _finish_staged(self) -> None:
        """Makes the values of all staged writes durable now, and begins the writes."""
        if not self._staged:
            return
        self._group = list(self._staged)
        for file in dict.fromkeys(file for staged in self._group for file in staged.files):
            try:
                file.opened.sync(anew=True)
            except OSError as error:
                self._fail(file, error)
        self._begin_group()

    def _sync_now(self, file: ValueFile) -> None:
        try:
            file.opened.sync()
        except OSError as error:
            raise self._fail(file, error) from error

    def _fail(self, file: ValueFile, error: OSError) -> StorageFailure:
        """Fails the staged writes from the first that has values in a file which could not be synced."""
        self._values.end_file(file)
        failure = StorageFailure(f"cannot write the value files {self._folder_name}: {error}")
        failure.__cause__ = error
        self._failure = str(failure)
        has_failed = False
        for staged in self._staged:
            has_failed = has_failed or file in staged.files
            if has_failed:
                staged.failure = staged.failure or failure
        return failure

    # The store as a whole

    @property
    def file_bytes(self) -> int:
        """The bytes of all files. Removed ones do not count, whose space may come back later."""
        return self._values.size_bytes

    def end_files(self) -> None:
        """Nothing more is written to the files that there are."""
        self._values.end_all()

    def families(self) -> list[str]:
        return self._store.families()

    @property
    def write_failure(self) -> str | None:
        """See MendableStore."""
        return self._failure or self._store.write_failure

    def mend(self) -> bool:
        """See MendableStore."""
        self._finish_staged()
        if not self._store.mend() or (self._failure is not None and not self._store.takes_writes()):
            return False
        self._failure = None
        return True

    def close(self) -> None:
        """Makes what was begun durable, and closes the store below."""
        with suppress(StorageFailure):
            self._finish_staged()
        if self._sync is not None:
            self._sync.close()
            self._sync = None
        try:
            self._values.close()  # before the store below lets another process open it: files may be removed until then
        finally:
            self._store.close()


def _after(prefix: bytes) -> bytes | None:
    """The first key after all keys that start with `prefix`; None where there is none."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> (8 * len(prefix)) else number.to_bytes(len(prefix), "big")
