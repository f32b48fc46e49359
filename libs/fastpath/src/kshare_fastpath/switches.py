"""The switches: KSHARE_FASTPATH_OFF names the tricks that a process goes without, separated by commas.

It is for finding out whether a trick is the cause of a problem, and what it is worth; a process reads it once.
"""

from __future__ import annotations

import os

VARIABLE = "KSHARE_FASTPATH_OFF"
TRICKS = ("prompt_future", "large_buffers", "rare_garbage_collections", "http2_frames", "short_slices")


def switched_off(text: str) -> frozenset[str]:
    """The names in the variable's value; ValueError for one that is no trick."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(names - set(TRICKS))
    if unknown:
        raise ValueError(f"{VARIABLE} names {', '.join(unknown)}; allowed are {', '.join(TRICKS)}")
    return names


_OFF = switched_off(os.environ.get(VARIABLE, ""))


def is_on(trick: str) -> bool:
    """Whether this process uses the trick."""
    assert trick in TRICKS, trick
    return trick not in _OFF
