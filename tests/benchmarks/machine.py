"""What the share-partition machine costs, in microseconds: `make bench-machine`.

Each figure is the median of many samples, with the write's bookkeeping (`next_write`, `write_succeeded`) inside. The
garbage collector runs as it does in a leader. Exits with 1 when a target of the project is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

from kshare_core.states import AcknowledgeType
from kshare_leader.machine.acknowledgement import AcknowledgementBatch
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.machine.interval_map import Owner
from kshare_leader.machine.share_partition import SharePartition
from support.leader.share.group_limits import group_limits

ACCEPT, REJECT = bytes([AcknowledgeType.ACCEPT]), bytes([AcknowledgeType.REJECT])
MEMBERS = [Owner(f"member-{number}", 1, "gateway") for number in range(2)]
RECORDS = 500
LOCK_MS = 30_000


def limits(owner: Owner, max_records: int) -> FetchLimits:
    return FetchLimits(
        owner=owner,
        max_records=max_records,
        batch_size=max_records,
        group=group_limits(lock_duration_ms=LOCK_MS, max_record_locks=1 << 40, delivery_count_limit=5),
    )


def acknowledge(machine: SharePartition, owner: Owner, first: int, last: int, types: bytes) -> None:
    batch = AcknowledgementBatch(first, last, types)
    machine.acknowledge(owner, 1, [batch], group_limits(delivery_count_limit=5, lock_duration_ms=LOCK_MS))


def store(machine: SharePartition) -> None:
    write = machine.next_write()
    assert write is not None
    machine.write_succeeded(write.write_id)


def with_alternating_runs(count: int) -> SharePartition:
    """`count` runs of one record, held by two members in turn."""
    machine = SharePartition(start_offset=0)
    for offset in range(count):
        machine.acquire(limits(MEMBERS[offset % 2], 1), 0, offset, [(offset, offset)], offset + 1)
    assert len(machine.runs()) == count
    return machine


def batch_of_500(batch_length: int, types: bytes) -> Iterator[float]:
    """Acquires and acknowledges 500 records that arrive in batches of `batch_length`."""
    machine = SharePartition(start_offset=0)
    what = limits(MEMBERS[0], RECORDS)
    for number in range(400):
        first = number * RECORDS
        end = first + RECORDS
        batches = [(base, base + batch_length - 1) for base in range(first, end, batch_length)]
        begin = time.perf_counter()
        position = machine.next_fetch(machine.start_offset, what.group)
        assert position is not None
        machine.acquire(what, 0, position.offset, batches, end)
        acknowledge(machine, MEMBERS[0], first, end - 1, types)
        store(machine)
        yield time.perf_counter() - begin


def acknowledgement_among(count: int) -> Iterator[float]:
    """Accepts one record in the middle of `count` runs; they stay, so that each sample meets as many."""
    machine = with_alternating_runs(count)
    middle = count // 4
    for number in range(min(400, count // 4)):
        offset = middle + 2 * number + middle % 2
        begin = time.perf_counter()
        acknowledge(machine, MEMBERS[0], offset, offset, ACCEPT)
        store(machine)
        yield time.perf_counter() - begin


def redelivery_among(count: int) -> Iterator[float]:
    """Releases one record in the middle of `count` runs, and acquires it again."""
    machine = with_alternating_runs(count)
    offset = count // 2
    for _ in range(3):
        begin = time.perf_counter()
        acknowledge(machine, MEMBERS[0], offset, offset, bytes([AcknowledgeType.RELEASE]))
        store(machine)
        position = machine.next_fetch(0, group_limits(max_record_locks=1 << 40))
        assert position is not None and position.offset == offset
        machine.acquire(limits(MEMBERS[0], 1), 0, offset, [(offset, offset)], offset + 1)
        yield time.perf_counter() - begin


def expiry_among(count: int) -> Iterator[float]:
    """Lets the lock of one record run out, of `count` runs."""
    machine = SharePartition(start_offset=0)
    for offset in range(count):
        machine.acquire(limits(MEMBERS[offset % 2], 1), offset, offset, [(offset, offset)], offset + 1)
    for offset in range(min(100, count)):
        begin = time.perf_counter()
        machine.expire(offset + LOCK_MS, group_limits(delivery_count_limit=5))
        store(machine)
        yield time.perf_counter() - begin


def idle_machine_bytes(count: int = 10_000) -> float:
    """Memory of one machine that served a batch and has nothing in flight any more."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    machines = []
    for _ in range(count):
        machine = SharePartition(start_offset=0)
        machine.acquire(limits(MEMBERS[0], RECORDS), 0, 0, [(0, RECORDS - 1)], RECORDS)
        acknowledge(machine, MEMBERS[0], 0, RECORDS - 1, ACCEPT)
        store(machine)
        machines.append(machine)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used / len(machines)


def median_us(sample: Callable[[], Iterator[float]]) -> float:
    """The median of all samples of several runs, the first run for warming up."""
    list(sample())
    return statistics.median([second for _ in range(5) for second in sample()]) * 1e6


def main() -> int:
    pair = median_us(partial(batch_of_500, 500, ACCEPT))
    print(f"acquire + accept of 500 records, one batch        {pair:10.1f} us (target: below 50)")
    for length in (10, 1):
        figure = median_us(partial(batch_of_500, length, ACCEPT))
        print(f"acquire + accept of 500 records, batches of {length:<6}{figure:10.1f} us")
    figure = median_us(partial(batch_of_500, 500, ACCEPT * RECORDS))
    print(f"the same with 500 equal acknowledge types         {figure:10.1f} us")
    figure = median_us(partial(batch_of_500, 500, (ACCEPT + REJECT) * (RECORDS // 2)))
    print(f"the same with 500 alternating acknowledge types   {figure:10.1f} us")
    growth_reached = True
    for name, among in (
        ("acknowledgement of one record", acknowledgement_among),
        ("release and redelivery of one record", redelivery_among),
        ("expiry of one lock", expiry_among),
    ):
        few, many = median_us(partial(among, 100)), median_us(partial(among, 10_000))
        growth_reached = growth_reached and many < 4 * few
        print(f"{name:37} 100 runs {few:6.1f} us, 10,000 {many:6.1f} us, x{many / few:.2f} (target: below 4)")
    print(f"memory of an idle machine                         {idle_machine_bytes():10.0f} bytes")
    reached = pair < 50 and growth_reached
    print("all targets reached" if reached else "TARGETS MISSED")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
