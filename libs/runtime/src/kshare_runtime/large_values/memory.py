"""Value files in memory, on a MemoryDisk that outlives the store that they belong to.

A sync makes the bytes durable that a file had when it began. A crash leaves of the others what `DiskEvents.bytes_kept`
says, which may be later bytes without earlier ones. Of the removed files it leaves those that
`DiskEvents.removed_files_found` says. A folder on a disk unlinks beside the event loop, so that a removed name is gone
for good only with the second file that its folder gets afterwards. After a sync that failed, its bytes may never reach
the disk: a later sync that succeeds says nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from kshare_core.errors import StorageFailure
from kshare_runtime.background_sync import Ended


class MemoryDiskError(OSError):
    """A read, write or sync of a value file that the MemoryDisk refuses."""


class FaultyDisk(Protocol):
    """What the files ask of their MemoryDisk."""

    @property
    def unsynced(self) -> bool:
        """Whether syncs make nothing durable."""
        ...

    @property
    def holds_syncs(self) -> bool: ...

    def sync_delay_s(self) -> float: ...

    def write_begins(self) -> None: ...

    def write_applied(self) -> None: ...

    def process_waits(self) -> None: ...

    def refuses_write(self) -> bool: ...

    def sync_fails(self) -> bool: ...

    def value_read(self, place: str, value: bytes) -> bytes:
        """StorageFailure."""
        ...

    def bytes_read(self, data: bytes, files: Callable[[], Sequence[bytes]]) -> bytes: ...

    def bytes_kept(self, data: bytes, position: int) -> bytes: ...

    def removed_files_found(self, count: int) -> int: ...


_descriptors = count(1_000_000)


class MemoryFile:
    """An OpenedFile in memory."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self.descriptor = next(_descriptors)
        self.data = bytearray()
        self.durable = 0
        """Bytes from the start that a crash leaves."""
        self._has_failed = False

    def write(self, values: Sequence[bytes], position: int) -> None:
        self._disk.write_begins()
        written = b"".join(values)
        if self._disk.refuses_write():
            self.data[position:] = written[: len(written) // 2]
            raise MemoryDiskError("No space left on device")
        self.data[position:] = written
        self._disk.write_applied()

    def truncate(self, length: int) -> None:
        del self.data[length:]
        self.durable = min(self.durable, length)

    def sync(self, *, anew: bool = False) -> None:
        self._disk.process_waits()
        if self._has_failed and anew:
            raise MemoryDiskError("the sync failed")
        if not self.is_synced(len(self.data)):
            raise MemoryDiskError("the sync failed")

    def is_synced(self, length: int) -> bool:
        """A sync ends that began when the file had `length` bytes; whether it says that they are durable."""
        if self._disk.sync_fails():
            self._has_failed = True
            return False
        if not self._has_failed and not self._disk.unsynced:
            self.durable = max(self.durable, min(length, len(self.data)))
        return True

    def crash(self) -> None:
        """Loses what is not durable, or some of it."""
        self.data[self.durable :] = self._disk.bytes_kept(bytes(self.data[self.durable :]), self.durable)
        self.durable = len(self.data)

    def close(self) -> None:
        pass


class MemoryFolder:
    """A ValueFolder in memory, which its disk keeps."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self._files: dict[bytes, dict[str, MemoryFile]] = {}
        self._removed: dict[bytes, dict[str, MemoryFile]] = {}
        """Files whose names a crash may bring back."""
        self._outlived: dict[bytes, list[str]] = {}
        """Those of them that were removed before the newest file of their prefix was created."""

    @property
    def name(self) -> str:
        return "values"

    def files(self) -> dict[bytes, dict[str, int]]:
        return {prefix: {name: len(file.data) for name, file in files.items()} for prefix, files in self._files.items()}

    def create(self, prefix: bytes, name: str) -> MemoryFile:
        files = self._files.setdefault(prefix, {})
        if name in files:
            raise FileExistsError(name)
        removed = self._removed.get(prefix, {})
        for gone in self._outlived.get(prefix, ()):
            del removed[gone]
        self._outlived[prefix] = list(removed)
        files[name] = MemoryFile(self._disk)
        return files[name]

    def read(self, prefix: bytes, name: str, position: int, length: int) -> bytes:
        file = self._files.get(prefix, {}).get(name)
        if file is None:
            raise FileNotFoundError(name)
        found = bytes(file.data[position : position + length])
        try:
            return self._disk.value_read(name, self._disk.bytes_read(found, self._bytes_of_all))
        except StorageFailure as failure:
            raise MemoryDiskError("Input/output error") from failure

    def remove(self, prefix: bytes, name: str) -> int:
        file = self._files.get(prefix, {}).pop(name, None)
        if file is None:
            return 0
        self._removed.setdefault(prefix, {})[name] = file
        return len(file.data)

    def remove_prefix(self, prefix: bytes) -> None:
        assert not self._files.pop(prefix), "the folder has files"

    def close(self) -> None:
        pass

    # Its disk

    def file_of(self, descriptor: int) -> MemoryFile | None:
        return next((file for file in self._all_files() if file.descriptor == descriptor), None)

    def contents(self) -> dict[bytes, dict[str, bytes]]:
        """The bytes of each file, by prefix and name."""
        return {
            prefix: {name: bytes(file.data) for name, file in files.items()} for prefix, files in self._files.items()
        }

    def sync(self) -> None:
        """Makes all bytes durable."""
        for file in self._all_files():
            file.durable = len(file.data)

    def crash(self) -> None:
        for prefix, removed in self._removed.items():
            for name in list(removed)[: self._disk.removed_files_found(len(removed))]:
                self._files.setdefault(prefix, {})[name] = removed[name]
        self._removed.clear()
        self._outlived.clear()
        for file in self._all_files():
            file.crash()

    def copy_for(self, disk: FaultyDisk) -> MemoryFolder:
        """A copy, with everything durable, on `disk`."""
        copied = MemoryFolder(disk)
        for prefix, files in self._files.items():
            for name, file in files.items():
                other = copied._files.setdefault(prefix, {})[name] = MemoryFile(disk)
                other.data[:] = file.data
                other.durable = len(file.data)
        return copied

    def _bytes_of_all(self) -> list[bytes]:
        return [bytes(file.data) for file in self._all_files()]

    def _all_files(self) -> list[MemoryFile]:
        return [file for files in self._files.values() for file in files.values()]


class MemorySync:
    """A BackgroundSync of one file of `folder` at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: FaultyDisk, folder: MemoryFolder) -> None:
        self._loop = loop
        self._disk = disk
        self._folder = folder
        self._ended: Ended | None = None
        self._held: tuple[MemoryFile | None, int] | None = None
        """The file of a sync that the disk holds back, and its length when the sync began."""

    @property
    def is_under_way(self) -> bool:
        return self._ended is not None

    def begin(self, descriptor: int, ended: Ended) -> None:
        assert self._ended is None, "one sync at a time"
        file = self._folder.file_of(descriptor)
        self._ended = ended
        length = 0 if file is None else len(file.data)
        self._loop.call_later(self._disk.sync_delay_s(), self._end, file, length)

    def close(self) -> None:
        self._ended = None

    def _end(self, file: MemoryFile | None, length: int) -> None:
        if self._ended is None:
            return
        if self._disk.holds_syncs:
            self._held = file, length
            return
        ended, self._ended = self._ended, None
        ended(file is None or file.is_synced(length))

    def release(self) -> None:
        """Ends a sync that the disk held back."""
        held, self._held = self._held, None
        if held is not None:
            self._end(*held)
