"""The environment of a process: wall time, RocksDB below a data directory, and the operating system's randomness."""

from __future__ import annotations

import random
import time
from pathlib import Path

from kshare_runtime.ports import Environment
from kshare_runtime.rocks_store import RocksStore


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


stopwatch_s = time.perf_counter
"""Seconds of a monotonic, fine clock, to measure durations; the behaviour of a role must not depend on it."""


def system_environment(data_dir: Path) -> Environment:
    """The environment of a process whose stores lie in `data_dir`/<name>."""
    return Environment(
        clock=SystemClock(),
        random=random.Random(random.SystemRandom().getrandbits(256)),
        open_store=lambda name: RocksStore(data_dir / name),
        open_isolated_store=lambda name: RocksStore(data_dir / name, isolate_damage=True),
    )
