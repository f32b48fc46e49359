"""The store of a simulated leader whose batches lie in files, as large ones do on a real disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kshare_leader.engine.embedded import STORE_NAME
from kshare_leader.log import keys
from kshare_runtime.large_values.store import ValueFileStore
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyValueStore


class FileSizes(NamedTuple):
    """From how many bytes on the appended batches of a write go to a file, and how large a file becomes."""

    from_bytes: int
    file_bytes: int


def drawn_sizes(draw: random.Random) -> FileSizes:
    """Simulated batches have some hundred bytes: all of them go to files, or the larger ones."""
    return FileSizes(draw.choice((1, 1, 150, 400)), draw.choice((1, 1_000, 5_000, 1_000_000)))


def opener(disk: MemoryDisk, sizes: FileSizes) -> Callable[[str], KeyValueStore]:
    """An Environment's `open_store`."""

    def open_store(name: str) -> KeyValueStore:
        store = disk.open_store(name)
        if name != STORE_NAME:
            return store
        return ValueFileStore(
            store,
            disk.open_folder(name),
            family=keys.LOG,
            prefix_bytes=keys.PARTITION_PREFIX_BYTES,
            from_bytes=sizes.from_bytes,
            file_bytes=sizes.file_bytes,
            new_sync=partial(disk.new_sync, name),
        )

    return open_store
