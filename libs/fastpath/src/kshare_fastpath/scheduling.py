"""The scheduling of a process: it runs soon after it wakes up, also beside clients that keep every processor busy.

A record passes through several processes, and each of them sleeps until the message before it arrives. By default a
process that wakes up runs when the one that computes has used its slice of some 3 ms, once for each step of a request.
Linux 6.12 and later let a process ask for shorter slices (EEVDF): the one with the shorter slice goes first when both
are entitled to run. Its share of the processor stays the same, so nothing is taken from the clients.

The attribute belongs to the calling thread; threads and processes that it starts later inherit it. Processes of another
policy than SCHED_OTHER are left as they are. Older kernels ignore the wish, and so do systems other than Linux.

What breaks if it is wrong: more switches between processes. The switch is short_slices.
"""

from __future__ import annotations

import ctypes
import os
import platform

from kshare_fastpath.switches import is_on

SLICE_NS = 100_000
"""The shortest slice that Linux gives."""

_SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""The numbers of sched_setattr and sched_getattr by machine; the C library has no functions for them before 2.41."""


class _SchedulingAttributes(ctypes.Structure):
    """struct sched_attr of linux/sched/types.h, as far as its first version goes."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    ]


def _read(call: int) -> _SchedulingAttributes | None:
    attributes = _SchedulingAttributes()
    size = ctypes.sizeof(attributes)
    failed = ctypes.CDLL(None).syscall(call, 0, ctypes.byref(attributes), size, 0)
    return None if failed else attributes


def ask_for_short_slices() -> bool:
    """Asks for slices of SLICE_NS for this thread; returns whether the kernel gives them. To be called at the start."""
    calls = _SYSTEM_CALLS.get(platform.machine()) if platform.system() == "Linux" else None
    if calls is None or not is_on("short_slices"):
        return False
    change, read = calls
    attributes = _read(read)
    if attributes is None or attributes.policy != os.SCHED_OTHER:
        return False
    attributes.size = ctypes.sizeof(attributes)
    attributes.runtime_ns = SLICE_NS
    if ctypes.CDLL(None).syscall(change, 0, ctypes.byref(attributes), 0):
        return False  # a sandbox may forbid the call
    changed = _read(read)
    return changed is not None and changed.runtime_ns == SLICE_NS
