"""A folder in memory for a cluster whose latency is measured while something other than the disk is attacked.

An fsync on the disk of a shared machine takes 0.3 ms at the median and now and then 600 ms, whatever the cluster does:
other virtual machines use the disk, and ext4 discards the blocks of deleted files when it commits its journal. A leader
waits for its fsync, so one of these moments would decide the 99th percentile of a few seconds. What a disk's stalls do
to clients is left out of such a test; what the attack does to processes, sockets and memory is all that is in it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 2 * 1024**3


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A new folder on tmpfs, deleted at the end; on disk where there is no tmpfs with room."""
    has_room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= NEEDED_BYTES
    with tempfile.TemporaryDirectory(prefix="kshare-test-", dir=SHARED_MEMORY if has_room else None) as folder:
        yield Path(folder)
