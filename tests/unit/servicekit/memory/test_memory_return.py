"""The watch over a process's memory: caches shrink above the budget, and after a quiet time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field

from kshare_runtime.held_memory import HeldCache, HeldMemory
from kshare_servicekit.memory.giving_back import LONGEST_INTERVAL_MS, MemoryReturn, resident_bytes, return_free_pages

QUIET_MS = 30_000
CHECKS = QUIET_MS // LONGEST_INTERVAL_MS
MEBIBYTE = 1024 * 1024


@dataclass
class FakeProcess:
    """What the system says of a process: 100 bytes besides its caches, and freed bytes until they are given back."""

    processor_s: float = 0.0
    caches: dict[str, int] = field(default_factory=dict)
    free: int = 0
    held: HeldMemory = field(default_factory=HeldMemory)

    def cache(self, name: str, *, limit: int, used: int) -> None:
        self.caches[name] = used

        def shrink(size: int) -> None:
            self.free += max(0, self.caches[name] - size)
            self.caches[name] = min(size, self.caches[name])

        self.held.add(
            HeldCache(name=name, limit_bytes=limit, used_bytes=lambda: self.caches[name], shrink=shrink),
        )

    def resident(self) -> int:
        return 100 + self.free + sum(self.caches.values())

    def give_back(self) -> None:
        self.free = 0

    def watch(self, budget: int) -> MemoryReturn:
        return MemoryReturn(
            self.held,
            budget,
            quiet_ms=QUIET_MS,
            resident=self.resident,
            processor_s=lambda: self.processor_s,
            give_back=self.give_back,
        )


def test_a_quiet_process_keeps_an_eighth_of_each_limit_and_gives_the_pages_back() -> None:
    process = FakeProcess()
    process.cache("large", limit=8000, used=7000)
    process.cache("small", limit=800, used=60)
    watch = process.watch(1_000_000)
    for _ in range(CHECKS - 1):
        watch.check()
    assert process.resident() == 7160
    watch.check()
    assert process.caches == {"large": 1000, "small": 60}
    assert process.resident() == 1160
    assert watch.times_quiet == 1
    process.free = 500  # a flush in the background ended
    watch.check()
    assert process.resident() == 1160
    process.free = 500
    for _ in range(3 * CHECKS):
        watch.check()
    assert (process.free, watch.times_quiet) == (500, 1), "once for each quiet time"


def test_a_busy_process_within_its_budget_is_left_alone_and_a_later_quiet_time_counts_again() -> None:
    process = FakeProcess()
    process.cache("one", limit=800, used=700)
    watch = process.watch(1_000_000)
    for _ in range(3 * CHECKS):
        process.processor_s += 0.5  # a tenth of a processor
        watch.check()
    assert process.caches == {"one": 700}
    for _ in range(CHECKS):
        watch.check()
    assert process.caches == {"one": 100}
    process.caches["one"] = 600
    process.processor_s += 5
    watch.check()
    for _ in range(CHECKS):
        watch.check()
    assert (process.caches, watch.times_quiet) == ({"one": 100}, 2)


def test_above_the_budget_caches_shrink_by_the_excess_in_proportion_even_in_a_busy_process() -> None:
    process = FakeProcess(processor_s=1.0)
    process.cache("a", limit=8000, used=6000)
    process.cache("b", limit=8000, used=3000)
    watch = process.watch(6100)
    process.processor_s += 5
    watch.check()
    assert process.caches == {"a": 4000, "b": 2000}
    assert process.resident() == 6100
    assert watch.times_over_budget == 1
    process.processor_s += 5
    watch.check()
    assert process.caches == {"a": 4000, "b": 2000}


def test_memory_that_is_no_cache_cannot_be_shrunk_and_one_failing_cache_ends_nothing() -> None:
    process = FakeProcess()
    process.watch(10).check()

    def fail(size: int) -> None:
        raise OSError("disk")

    process.held.add(HeldCache(name="broken", limit_bytes=10, used_bytes=lambda: 10, shrink=fail))
    watch = process.watch(10)
    watch.check()
    assert watch.times_over_budget == 1


def test_a_cache_that_is_removed_is_not_asked() -> None:
    held = HeldMemory()
    remove = held.add(HeldCache(name="one", limit_bytes=10, used_bytes=lambda: 7, shrink=lambda size: None))
    assert held.used_bytes == 7
    remove()
    remove()
    assert (held.used_bytes, held.caches) == (0, [])


THREAD = """
import threading
from kshare_fastpath.memory import KEPT_BYTES, keep_large_buffers
from kshare_servicekit.memory.giving_back import resident_bytes, return_free_pages
assert keep_large_buffers()
may_end, is_done = threading.Event(), threading.Event()

def decompress():
    pieces = [bytearray(16 << 20) for _ in range(3)]
    del pieces
    is_done.set()
    may_end.wait()

before = resident_bytes()
thread = threading.Thread(target=decompress)
thread.start()
is_done.wait()
kept = resident_bytes() - before
return_free_pages()
print(kept >> 20, (resident_bytes() - before) >> 20)
may_end.set()
thread.join()
"""


def test_freed_heap_memory_of_a_thread_goes_back_to_the_system() -> None:
    """A thread with a heap of its own kept all of it."""
    result = subprocess.run([sys.executable, "-c", THREAD], capture_output=True, text=True, check=True)
    kept_mib, left_mib = map(int, result.stdout.split())
    assert kept_mib >= 45
    assert left_mib < 5


def test_freed_heap_memory_goes_back_to_the_system() -> None:
    pieces = [bytes(100_000) for _ in range(1000)]
    kept = pieces[::50]
    before = resident_bytes()
    del pieces
    return_free_pages()
    assert before - resident_bytes() > 50 * MEBIBYTE
    assert len(kept) == 20
