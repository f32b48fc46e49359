"""The memory settings of a process: large buffers stay on the heap, and full garbage collections are rare.

Record batches use buffers of about a megabyte. By default glibc maps each one from the kernel and unmaps it again, and
each of its pages is a fault: a tenth of a gateway's time. So buffers up to LARGE_BUFFER_BYTES come from the heap, and
the end of the heap is returned only when KEPT_BYTES of it are free. Other C libraries are left as they are.

All threads share one heap. By default glibc gives each thread its own (an arena), and the end of a thread's heap comes
back only when KEPT_BYTES of it are free: `malloc_trim` does not return it, so the memory watch could not. A leader that
decompressed one batch of 16 MB on its thread kept 45 MB for good.

Python's cycle collector visits every live container, and by default does so often: a share coordinator with 100,000
share-partitions spent a third of its time there. Cyclic objects are rare here and die young. So the young generation is
collected every YOUNG_OBJECTS allocations, and full collections are a hundred times rarer than by default.

While a thousand modules are imported, collections visit what they define again and again: a tenth of the time, for a
few hundred objects. So nothing is collected then, and what was imported is never visited afterwards.

What breaks if it is wrong: memory that grows. Freed buffers of up to KEPT_BYTES stay with the process, and cyclic
garbage lives longer. The switches are large_buffers and rare_garbage_collections.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kshare_fastpath.switches import is_on

LARGE_BUFFER_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024

YOUNG_OBJECTS = 20_000
MIDDLE_AGED_COLLECTIONS = 10
OLD_COLLECTIONS = 100

ONE_ARENA = 1

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_large_buffers() -> bool:
    """Sets the limits; returns whether the C library accepted them. To be called before the first thread starts."""
    if not is_on("large_buffers"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    limits = ((_M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, ONE_ARENA))
    return all([mallopt(name, value) for name, value in limits])


def collect_garbage_rarely() -> None:
    """Makes collections rare; to be called after all imports: objects that exist by then are never visited again."""
    if not is_on("rare_garbage_collections"):
        return
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AGED_COLLECTIONS, OLD_COLLECTIONS)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For large imports: collections are off within it, and never visit what exists by its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
