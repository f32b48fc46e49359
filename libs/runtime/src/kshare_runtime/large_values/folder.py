"""The directory of value files: what `files` needs of a file system, and a directory on a disk.

<directory>/<prefix>/<name>, the prefix in hexadecimal
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import ENOENT
from functools import partial
from pathlib import Path
from typing import Protocol

from kshare_runtime.large_values.removal import Removals, ThreadRemovals

OPEN_FILES_LIMIT = 128
"""Files that are open for reading; the one used longest ago is closed first."""
BUFFERS_AT_ONCE = 512
"""Values that one system call writes; Linux allows 1,024."""


class OpenedFile(Protocol):
    """A new file, open for writing. Every method raises OSError where the disk fails."""

    @property
    def descriptor(self) -> int:
        """For `BackgroundSync.begin`."""
        ...

    def write(self, values: Sequence[bytes], position: int) -> None:
        """Writes the values one after the other, from `position`; after a failure some bytes may be there."""
        ...

    def truncate(self, length: int) -> None: ...

    def sync(self, *, anew: bool = False) -> None:
        """Returns when all bytes written before are durable.

        With `anew` by another opening of the file: Linux tells each opening once that bytes could not be written, so
        what one sync was told, a later one of the same opening is not.
        """
        ...

    def close(self) -> None: ...


class ValueFolder(Protocol):
    """A directory that has a folder for each prefix. Every method raises OSError where the disk fails."""

    @property
    def name(self) -> str:
        """How messages call it."""
        ...

    def files(self) -> dict[bytes, dict[str, int]]:
        """The size in bytes of each file, by prefix and name."""
        ...

    def create(self, prefix: bytes, name: str) -> OpenedFile:
        """A new file, whose name is durable."""
        ...

    def read(self, prefix: bytes, name: str, position: int, length: int) -> bytes:
        """Fewer bytes where the file ends before."""
        ...

    def remove(self, prefix: bytes, name: str) -> int:
        """Removes a file; its size in bytes, 0 where it was missing.

        Its space may come back later. The file may be there again when the folder is next opened, also beside files
        that were created after the removal.
        """
        ...

    def remove_prefix(self, prefix: bytes) -> None:
        """Removes the folder of a prefix that has no file."""
        ...

    def close(self) -> None: ...


class DiskFile:
    """An OpenedFile of a DiskFolder."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self.second_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self.descriptor)
            raise

    def write(self, values: Sequence[bytes], position: int) -> None:
        for start in range(0, len(values), BUFFERS_AT_ONCE):
            buffers = list(values[start : start + BUFFERS_AT_ONCE])
            left = sum(map(len, buffers))
            count = os.pwritev(self.descriptor, buffers, position)
            if count < left:  # a disk that becomes full, or more than the kernel takes at once
                rest = memoryview(b"".join(buffers))[count:]
                while rest:
                    taken = os.pwrite(self.descriptor, rest, position + left - len(rest))
                    rest = rest[taken:]
            position += left

    def truncate(self, length: int) -> None:
        os.ftruncate(self.descriptor, length)

    def sync(self, *, anew: bool = False) -> None:
        os.fdatasync(self.second_descriptor if anew else self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self.second_descriptor)


class DiskFolder:
    """A ValueFolder on a disk; its directory is made with the first file.

    A removed file is left out at once; `removals` unlinks it. Those that `close` finds waiting are left on the disk.
    """

    def __init__(self, directory: Path, *, removals: Removals | None = None) -> None:
        self._directory = directory
        self._opened: OrderedDict[tuple[bytes, str], int] = OrderedDict()
        """Descriptors for reading by prefix and name; the one used last is the last."""
        self._removals = removals or ThreadRemovals()
        self._lock = threading.Lock()
        """Held to read or change the next two, and to make or remove a prefix's folder."""
        self._removed: set[tuple[bytes, str]] = set()
        """Files that are still on the disk, by prefix and name."""
        self._removed_prefixes: set[bytes] = set()
        """Prefixes whose folders are still on the disk."""
        self._failed: deque[tuple[bytes, str]] = deque()
        """Those of `_removed` that could not be unlinked; the next removal tries them again."""
        self._unsynced: set[Path] = set()
        """Folders that were made, and whose names may not be durable."""
        self._holders = 0
        self._held: list[Callable[[], None]] = []
        """Removals that begin when no holder is left."""

    @property
    def name(self) -> str:
        return str(self._directory)

    def files(self) -> dict[bytes, dict[str, int]]:
        if not self._directory.exists():
            return {}
        found: dict[bytes, dict[str, int]] = {}
        with self._lock:
            for folder in self._directory.iterdir():
                prefix = bytes.fromhex(folder.name)
                if prefix not in self._removed_prefixes:
                    paths = [path for path in folder.iterdir() if (prefix, path.name) not in self._removed]
                    found[prefix] = {path.name: path.stat().st_size for path in paths}
        return found

    def create(self, prefix: bytes, name: str) -> DiskFile:
        folder = self._directory / prefix.hex()
        with self._lock:
            self._removed_prefixes.discard(prefix)
            for path in (self._directory, folder):
                with suppress(FileExistsError):
                    path.mkdir()
                    self._unsynced.add(path)
                if path in self._unsynced:
                    _sync_directory(path.parent)
                    self._unsynced.discard(path)
        file = DiskFile(folder / name)
        try:
            _sync_directory(folder)
        except OSError:
            file.close()
            with suppress(OSError):
                (folder / name).unlink()
            raise
        return file

    def read(self, prefix: bytes, name: str, position: int, length: int) -> bytes:
        descriptor = self._open_for_reading(prefix, name)
        data = os.pread(descriptor, length, position)
        while len(data) < length:  # a signal, or more than the kernel reads at once
            more = os.pread(descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def _open_for_reading(self, prefix: bytes, name: str) -> int:
        place = (prefix, name)
        descriptor = self._opened.get(place)
        if descriptor is not None:
            self._opened.move_to_end(place)
            return descriptor
        if place in self._removed:
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), name)
        descriptor = self._opened[place] = os.open(self._path(prefix, name), os.O_RDONLY | os.O_CLOEXEC)
        if len(self._opened) > OPEN_FILES_LIMIT:
            os.close(self._opened.popitem(last=False)[1])
        return descriptor

    def remove(self, prefix: bytes, name: str) -> int:
        size_bytes = 0
        with suppress(FileNotFoundError):
            size_bytes = self._path(prefix, name).stat().st_size
        # Closed first: while a file is open, not its unlink gives back the blocks, but its last close.
        descriptor = self._opened.pop((prefix, name), None)
        if descriptor is not None:
            os.close(descriptor)
        with self._lock:
            again, self._failed = self._failed, deque()
            is_new = (prefix, name) not in self._removed
            self._removed.add((prefix, name))
        for place in (*again, (prefix, name)) if is_new else again:
            self._begin_removal(partial(self._unlink, *place))
        return size_bytes if is_new else 0

    def _unlink(self, prefix: bytes, name: str) -> None:
        try:
            self._path(prefix, name).unlink(missing_ok=True)
        except OSError:
            with self._lock:
                self._failed.append((prefix, name))
            return
        with self._lock:
            self._removed.discard((prefix, name))

    def remove_prefix(self, prefix: bytes) -> None:
        with self._lock:
            self._removed_prefixes.add(prefix)
        self._begin_removal(partial(self._remove_folder, prefix))

    def _remove_folder(self, prefix: bytes) -> None:
        with self._lock:
            if prefix not in self._removed_prefixes:
                return  # it has a new file
            with suppress(OSError):  # a file in it could not be removed
                (self._directory / prefix.hex()).rmdir()
                self._removed_prefixes.discard(prefix)

    def _path(self, prefix: bytes, name: str) -> Path:
        return self._directory / prefix.hex() / name

    def _begin_removal(self, remove: Callable[[], None]) -> None:
        if self._holders:
            self._held.append(remove)
        else:
            self._removals.begin(remove)

    @contextmanager
    def removals_held(self) -> Iterator[None]:
        """Files that are removed meanwhile stay on the disk until the end."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                held, self._held = self._held, []
                for remove in held:
                    self._removals.begin(remove)

    def link_to(self, directory: Path, files: Mapping[bytes, Iterable[str]]) -> None:
        """Links files, names by prefix, into another directory of the same file system, durably. OSError."""
        for prefix, names in files.items():
            folder = directory / prefix.hex()
            folder.mkdir(parents=True)
            for name in names:
                os.link(self._directory / prefix.hex() / name, folder / name)
            _sync_directory(folder)
        if files:
            _sync_directory(directory)
            _sync_directory(directory.parent)

    def close(self) -> None:
        self._held.clear()
        self._removals.close()
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
