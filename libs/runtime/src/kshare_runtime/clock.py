"""The environment of a process: wall time, RocksDB below a data directory, and the operating system's randomness."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

from kshare_runtime.held_memory import HeldMemory
from kshare_runtime.ports import DEFAULT_STORE_MEMORY, Environment, KeyValueStore, StoreMemory


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


stopwatch_s = time.perf_counter
"""Seconds of a monotonic, fine clock, to measure durations; the behaviour of a role must not depend on it."""


def system_environment(
    data_dir: Path, *, store_memory: StoreMemory = DEFAULT_STORE_MEMORY, held_memory: HeldMemory | None = None
) -> Environment:
    """The environment of a process whose stores lie in `data_dir`/<name>.

    RocksDB is loaded when a store is opened: a gateway has none, and it takes 7 MB.
    """
    held = HeldMemory() if held_memory is None else held_memory

    def open_store(name: str, *, isolate_damage: bool = False) -> KeyValueStore:
        from kshare_runtime.rocks_store import RocksStore

        return RocksStore(data_dir / name, isolate_damage=isolate_damage, memory=store_memory, held_memory=held)

    return Environment(
        clock=SystemClock(),
        random=random.Random(random.SystemRandom().getrandbits(256)),
        open_store=open_store,
        open_isolated_store=partial(open_store, isolate_damage=True),
        held_memory=held,
    )
