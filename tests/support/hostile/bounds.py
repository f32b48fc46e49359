"""The bounds of the roles' memory, descriptors and log lines under hostile input, of requests and of calls."""

from __future__ import annotations

from collections.abc import Mapping

from kshare_runtime.rocks_store import OPEN_FILES_LIMIT
from support.hostile.process_figures import MIB, ProcessFigures
from support.hostile.role_logs import lines_in_a_second, unexpected_lines

LINES_PER_SECOND_LIMIT = 300
GROWTH_LIMIT_BYTES = {"gateway": 128 * MIB, "leader": 192 * MIB, "share_coordinator": 96 * MIB, "coordinator": 96 * MIB}
"""At any time. Each role: 64 MiB of heap that glibc keeps (KEPT_BYTES of `kshare_fastpath.memory`), and 32 MiB of write
buffers and caches. A gateway: as much again for requests and answers. A leader: two bombs of 64 MB after decompression,
with less beside them. Measured: 41, 124, 27 and 12 MiB after a million requests."""
LONG_RUN_S = 600.0
SLOPE_LIMIT_BYTES_PER_S = 64 * 1024
"""In the second half of a run of LONG_RUN_S or more; 64 bytes for each request at 1,000 a second. What a leader still
takes then: 6 KiB/s of its tails for the good client's records (20 a second, 300 bytes each) until they are full, 4 of
write buffers until they are flushed, 5 for batches of the attack. The rest is heap that glibc keeps after bombs, which
grows in steps: with all of it a leader was measured at 14 KiB/s in 10 minutes, and at 34 in 23."""
RESTED_S = 50.0
"""After so long without clients each role gave back what it only keeps: kshare.memory.quiet.ms is 30 s, and the pages
of flushed write buffers go back with the next check."""
KEPT_LIMIT_BYTES = 40 * MIB
"""After that, more than before the attack: what requests made that has no end of its own, such as column families of
state partitions, topics and groups up to their limits, and modules and decoders that were loaded for them."""
DESCRIPTORS_BESIDE_CONNECTIONS = 64
"""Files of a store (a share coordinator opens some for each of its state partitions), and connections between roles."""
DESCRIPTORS_BESIDE_CALLS = {"share_coordinator": OPEN_FILES_LIMIT}
"""Calls reach all state partitions at once, and each of them has tables of its own: 142 in 25 s were measured."""


def exceeded(
    processes: Mapping[str, ProcessFigures],
    log: str,
    *,
    connections: int,
    descriptors: Mapping[str, int] | None = None,
) -> list[str]:
    """What went beyond a bound. `connections`: how many the senders have open at once, at most.

    `descriptors`: of roles that may have another number than DESCRIPTORS_BESIDE_CONNECTIONS.
    """
    found = [f"in the log: {line}" for line in unexpected_lines(log)[:20]]
    for role, figures in processes.items():
        grown = figures.peak_bytes - figures.first_bytes
        if grown > GROWTH_LIMIT_BYTES[role]:
            found.append(f"{role} grew by {grown // MIB} MiB")
        slope = figures.bytes_per_second_at_the_end
        if figures.seconds >= LONG_RUN_S and slope > SLOPE_LIMIT_BYTES_PER_S:
            found.append(f"{role} grew by {slope / 1024:.1f} KiB/s in the second half")
        limit = figures.first_descriptors + (descriptors or {}).get(role, DESCRIPTORS_BESIDE_CONNECTIONS)
        if figures.peak_descriptors > limit + connections * 2:
            found.append(f"{role} had {figures.peak_descriptors} descriptors, {figures.first_descriptors} at first")
        if figures.last_descriptors > limit:
            found.append(f"{role} kept {figures.last_descriptors} descriptors, {figures.first_descriptors} at first")
    if (most := lines_in_a_second(log)) > LINES_PER_SECOND_LIMIT:
        found.append(f"{most} log lines in one second")
    return found


def kept(processes: Mapping[str, ProcessFigures], rested: Mapping[str, ProcessFigures]) -> list[str]:
    """Memory that a role keeps after the attack; `rested` has the roles since its end."""
    found = []
    for role, figures in rested.items():
        grown = figures.last_bytes - processes[role].first_bytes
        if figures.seconds >= RESTED_S and grown > KEPT_LIMIT_BYTES:
            found.append(f"{role} keeps {grown // MIB} MiB {figures.seconds:.0f} s after the attack")
    return found
