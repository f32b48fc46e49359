"""A small ext4 file system on a loop device, which a test fills, hangs and slows down. It needs root.

`hung` freezes it (FIFREEZE): every write and fsync waits in the kernel until the end of the block, as on a disk that
does not answer. A disk that is `slow` hangs again and again.

with SmallDisk(folder) as disk, disk.hung():
    …
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from support.environment.unavailable import unavailable

SIZE_BYTES = 192 * 1024 * 1024
HANG_S, BETWEEN_S = 0.2, 0.1
"""Of a slow disk."""


class SmallDisk:
    """Mounted at `folder` for the length of the block."""

    def __init__(self, folder: Path, size_bytes: int = SIZE_BYTES) -> None:
        if os.geteuid() != 0:
            unavailable("it mounts a file system, which needs root")
        self.folder = folder
        self._image = folder.with_name(f"{folder.name}.image")
        self._size_bytes = size_bytes

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.folder))
        (self.folder / "lost+found").rmdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("umount", "--lazy", str(self.folder))
        self._image.unlink()

    @contextmanager
    def full(self) -> Iterator[None]:
        """The rest of it is taken by another file."""
        ballast = self.folder / "ballast"
        descriptor = os.open(ballast, os.O_CREAT | os.O_WRONLY)
        try:
            for step in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        os.write(descriptor, bytes(step))
            yield
        finally:
            os.close(descriptor)
            ballast.unlink()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Nothing is written; whoever writes waits until the end of the block."""
        _run("fsfreeze", "--freeze", str(self.folder))
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", str(self.folder))

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Two thirds of the time it does not answer, for 200 ms at a time."""
        ending = threading.Event()

        def slow_down() -> None:
            while not ending.wait(BETWEEN_S):
                with self.hung():
                    ending.wait(HANG_S)

        thread = threading.Thread(target=slow_down, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
