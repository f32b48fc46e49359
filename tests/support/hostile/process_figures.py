"""Memory and open descriptors of the roles over time."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.clients.good_client import resident_bytes

INTERVAL_S = 0.5
MIB = 1 << 20


@dataclass
class ProcessFigures:
    """One process: samples of (seconds, resident bytes, descriptors)."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    processor_s: float = 0.0
    """Processor time within the block."""
    waited_s: float = 0.0
    """How long the main thread could run within the block and had no processor: what a busy machine adds."""

    @property
    def seconds(self) -> float:
        return self.samples[-1][0] - self.samples[0][0]

    @property
    def first_bytes(self) -> int:
        return self.samples[0][1]

    @property
    def peak_bytes(self) -> int:
        return max(resident for _, resident, _ in self.samples)

    @property
    def last_bytes(self) -> int:
        return self.samples[-1][1]

    @property
    def first_descriptors(self) -> int:
        return self.samples[0][2]

    @property
    def peak_descriptors(self) -> int:
        return max(descriptors for _, _, descriptors in self.samples)

    @property
    def last_descriptors(self) -> int:
        return self.samples[-1][2]

    @property
    def bytes_per_second_at_the_end(self) -> float:
        """How fast memory grew in the second half: between the averages of its two halves."""
        later = self.samples[len(self.samples) // 2 :]
        if len(later) < 8:
            return 0.0
        middle = len(later) // 2
        averages = [sum(sample[1] for sample in part) / len(part) for part in (later[:middle], later[middle:])]
        return (averages[1] - averages[0]) / ((later[-1][0] - later[0][0]) / 2)

    def __str__(self) -> str:
        return (
            f"memory {self.first_bytes // MIB} MiB at first, {self.peak_bytes // MIB} at most, "
            f"{self.last_bytes // MIB} at last, "
            f"{self.bytes_per_second_at_the_end / 1024:+.1f} KiB/s in the second half; "
            f"descriptors {self.first_descriptors}, {self.peak_descriptors}, {self.last_descriptors}; "
            f"processor {self.processor_s:.1f} s, and {self.waited_s:.1f} s of waiting for one"
        )


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waiting_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def watched(pids: Mapping[str, int]) -> Iterator[dict[str, ProcessFigures]]:
    """Samples each process every INTERVAL_S while the block runs, and once more at its end."""
    figures = {name: ProcessFigures() for name in pids}
    ended = threading.Event()

    def sample() -> None:
        for name, pid in pids.items():
            with contextlib.suppress(OSError):  # a process that has ended is found by whom the figures are for
                row = time.monotonic(), resident_bytes(pid), descriptors_of(pid)
                figures[name].samples.append(row)

    def run() -> None:
        while not ended.wait(INTERVAL_S):
            sample()

    sample()
    before = {name: (processor_seconds(pid), waiting_seconds(pid)) for name, pid in pids.items()}
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield figures
    finally:
        ended.set()
        thread.join()
        sample()
        for name, pid in pids.items():
            with contextlib.suppress(OSError):
                figures[name].processor_s = processor_seconds(pid) - before[name][0]
                figures[name].waited_s = waiting_seconds(pid) - before[name][1]
