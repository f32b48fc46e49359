"""How a process treats its memory: large buffers stay with it, and the cycle collector looks at all of it rarely.

Record batches travel in buffers of a megabyte or so. By default glibc maps each of them from the kernel and unmaps it
again, and every page of it is a fault: a tenth of a gateway's time. So buffers up to LARGE_BUFFER_BYTES come from the
heap, and the heap's end is given back only when KEPT_BYTES of it are free. On other C libraries nothing happens.

Python's cycle collector walks every container that lives, and by default it does so often: a share coordinator with
100,000 share-partitions spent a third of its time there. Hardly anything here is cyclic, and what is dies young, so the
young are looked at every YOUNG_OBJECTS allocations and all of them a hundred times more rarely than by default.
"""

from __future__ import annotations

import ctypes
import gc

LARGE_BUFFER_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024

YOUNG_OBJECTS = 20_000
MIDDLE_AGED_COLLECTIONS = 10
OLD_COLLECTIONS = 100

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_large_buffers() -> bool:
    """Sets both limits; whether the C library took them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))


def collect_garbage_rarely() -> None:
    """To be called when everything is imported: what is there by then is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, MIDDLE_AGED_COLLECTIONS, OLD_COLLECTIONS)
