"""The disk of one simulated host: how long it takes, what it does wrong, and where its host dies while it writes.

The module's text of `kshare_runtime.memory_store` says which faults of a disk reach a role through RocksDB.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import MARK
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryDiskFailure
from support.simulation.loop import HostDied, Incarnation, VirtualLoop
from support.simulation.network import in_no_host

SLOW_SYNC_PROBABILITY = 0.02
SECTOR_BYTES, PAGE_BYTES = 512, 4096
"""What a disk writes as a whole, and the kernel's cache. Simulated batches have some hundred bytes."""
HOLES_SHARE = 1 / 3
"""Of the crashes that find unsynced bytes of several sectors or pages."""
_MARK = MARK.to_bytes(4, "big")
"""How the rows of leaders and coordinators begin that have a checksum."""


class DiskOwner(Protocol):
    """The host with the disk."""

    name: str
    disk: MemoryDisk
    incarnation: Incarnation | None

    @property
    def loop(self) -> VirtualLoop: ...

    def crash(self, *, silent: bool = False) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class HostDisk(DiskEvents):
    """The conditions of one disk; faults set them.

    `delays` draws how long syncs take; `randomness` is for what happens only with faults, `of_files` for holes in value
    files and reads of them from other places.
    """

    def __init__(
        self, delays: random.Random, randomness: random.Random, of_files: random.Random, host: DiskOwner
    ) -> None:
        self._delays = delays
        self._random = randomness
        self._of_files = of_files
        self._host = host
        self.failing_reads = 0.0
        """The probability that a read of a row fails."""
        self.flipping_reads = 0.0
        """The probability that a read of a row returns one bit that is wrong."""
        self.misdirected_reads = 0.0
        """The probability that a read of a value file returns the bytes of another place."""
        self.has_older_rows = False
        """Whether the disk has rows of a version that gave rows of leaders and coordinators no checksum."""
        self.slow_sync_s = 0.0
        """How much longer each sync takes."""
        self.is_hung = False
        """Whether no sync ends."""
        self.failed_read_count = 0
        self.flipped_count = 0
        self.misdirected_count = 0
        self.delayed_count = 0
        self.kept_count = 0
        """Begun writes that a crash left."""
        self.lost_count = 0
        """Begun writes that a crash undid."""
        self.hole_count = 0
        """Crashes that left a hole in a file before bytes that were kept."""
        self.found_count = 0
        """Writes that were answered as failed, and were found after a crash."""
        self.death_count = 0
        """How often the host died between two writes or two steps."""
        self._countdown: Callable[[bool], bool] | None = None

    # How long it takes

    def sync_delay_s(self) -> float:
        """A millisecond or so, and now and then as long as on a disk that others keep busy."""
        slowest_s = 0.5 if self._delays.random() < SLOW_SYNC_PROBABILITY else 0.003
        delay_s = self._delays.uniform(0.0001, slowest_s)
        self.delayed_count += self.slow_sync_s > 0
        return delay_s + self.slow_sync_s

    def process_waits(self) -> None:
        """The process stands still. It does so behind this step, whose messages may leave before: they could have left
        after the sync, and the process could have been stopped then."""
        if self.is_hung:
            self.delayed_count += 1
            self._host.pause()
        elif self.slow_sync_s:
            self.delayed_count += 1
            self._host.pause()
            loop = self._host.loop
            in_no_host(loop, loop.now_s + self.slow_sync_s, self._go_on, self._host.incarnation)

    def _go_on(self, incarnation: Incarnation | None) -> None:
        if self._host.incarnation is incarnation and not self.is_hung:
            self._host.resume()

    def hang(self) -> None:
        """From now on no sync ends."""
        self.is_hung = self._host.disk.holds_syncs = True

    def go_on(self) -> None:
        """Ends `hang`: a process that stood still for it runs again, and its begun writes become durable."""
        if not self.is_hung:
            return
        self.is_hung = False
        self._host.resume()
        self._release_syncs()

    def _release_syncs(self) -> None:
        """Begun writes become durable: one whose sync would have ended meanwhile has nothing else that ends it."""
        self._host.disk.holds_syncs = False
        if self._host.incarnation is not None:
            self._host.loop.run_in(self._host.incarnation, self._host.disk.release_syncs)

    # What it does wrong

    def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
        if self.failing_reads and self._random.random() < self.failing_reads:
            self.failed_read_count += 1
            raise MemoryDiskFailure(f"cannot read {key.hex()} of {family}: Input/output error")
        if value and self.flipping_reads and self._random.random() < self.flipping_reads:
            if not self._has_checksum(family, value):
                return value
            self.flipped_count += 1
            if self._host.incarnation is not None:
                self._host.incarnation.damaged_rows[family, key] = None
            return with_flipped_bit(value, self._random.randrange(8 * len(value)))
        return value

    def bytes_read(self, data: bytes, files: Callable[[], Sequence[bytes]]) -> bytes:
        if not data or not self.misdirected_reads or self._of_files.random() >= self.misdirected_reads:
            return data
        file = self._of_files.choice([file for file in files() if file])
        start = self._of_files.randrange(0, len(file), SECTOR_BYTES)
        found = file[start : start + len(data)].ljust(len(data), b"\x00")
        if found != data:
            self.misdirected_count += 1
            if self._host.incarnation is not None:
                self._host.incarnation.has_misdirected_reads = True
        return found

    def _has_checksum(self, family: str, value: bytes) -> bool:
        """False for a row that an older leader or coordinator left: no code can notice a wrong bit in it."""
        return not self.has_older_rows or family == keys.LOG or value.startswith(_MARK)

    def begun_writes_kept(self, count: int) -> int:
        """After `kill -9` all are left; a power cut leaves a part of them, or nothing."""
        kept = self._random.choice((0, count, count, self._random.randint(0, count)))
        self.kept_count += kept
        self.lost_count += count - kept
        return kept

    def failed_writes_found(self, count: int) -> int:
        found = self._random.randint(0, count)
        self.found_count += found
        return found

    def bytes_kept(self, data: bytes, position: int) -> bytes:
        """All of them, some from the first, none, a block that the file system has and never wrote, or a later one
        without an earlier one, because they are written in any order."""
        kept = self._random.choice((0, len(data), self._random.randint(0, len(data))))
        left = bytes(kept) if self._random.random() < 0.25 else data[:kept]
        sizes = [size for size in (SECTOR_BYTES, PAGE_BYTES) if position // size < (position + len(data) - 1) // size]
        if not sizes or self._of_files.random() >= HOLES_SHARE:
            return left
        self.hole_count += 1
        return with_hole(data, position, self._of_files.choice(sizes), self._of_files)

    def removed_files_found(self, count: int) -> int:
        return self._random.randint(0, count)

    # Where the host dies

    def die_at_write(self, writes: int) -> None:
        """The host dies at this write from now, before it or behind it, and the rest of the step does not run."""
        left, is_behind = writes, self._random.random() < 0.5

        def is_now(behind: bool) -> bool:
            nonlocal left
            left -= behind == is_behind
            return left == 0

        self._countdown = is_now

    def die_at_step(self, steps: int) -> None:
        """The host dies before this step from now."""
        incarnation, left = self._host.incarnation, steps
        if incarnation is None:
            return

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.death_count += 1
                self._host.crash()

        incarnation.before_step = count

    def live_on(self) -> None:
        """Takes `die_at_write` and `die_at_step` back."""
        self._countdown = None
        if self._host.incarnation is not None:
            self._host.incarnation.before_step = None

    def write_begins(self) -> None:
        self._die_if_asked(False)

    def write_applied(self) -> None:
        self._die_if_asked(True)

    def _die_if_asked(self, behind: bool) -> None:
        if self._countdown is not None and self._countdown(behind):
            self._countdown = None
            self.death_count += 1
            self._host.crash()
            raise HostDied(self._host.name)

    # Its end

    def heal(self) -> None:
        """All of it is over, also a power cut that was called off before the host died."""
        self.failing_reads = self.flipping_reads = self.misdirected_reads = self.slow_sync_s = 0.0
        self.live_on()
        self.go_on()
        if self._host.disk.holds_syncs:
            self._release_syncs()


def with_flipped_bit(value: bytes, bit: int) -> bytes:
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def with_hole(data: bytes, position: int, block_bytes: int, draw: random.Random) -> bytes:
    """Bytes of a file from `position` on, with zeros in some of its blocks, but not in the last one."""
    blocks = range(position // block_bytes, (position + len(data) - 1) // block_bytes + 1)
    first = draw.choice(blocks[:-1])
    end = draw.randint(first + 1, blocks[-1])
    start, stop = max(0, first * block_bytes - position), end * block_bytes - position
    return data[:start] + bytes(stop - start) + data[stop:]
