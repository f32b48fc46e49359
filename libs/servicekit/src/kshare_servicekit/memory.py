"""How the C library gives memory back: large buffers stay with the process.

Record batches travel in buffers of a megabyte or so. By default glibc maps each of them from the kernel and unmaps it
again, and every page of it is a fault: a tenth of a gateway's time. So buffers up to LARGE_BUFFER_BYTES come from the
heap, and the heap's end is given back only when KEPT_BYTES of it are free. On other C libraries nothing happens.
"""

from __future__ import annotations

import ctypes

LARGE_BUFFER_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_large_buffers() -> bool:
    """Sets both limits; whether the C library took them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
