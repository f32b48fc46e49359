"""Liveness while faults go on: with a working quorum, something is delivered within STALL_LIMIT_S.

The quorum works while every leader, share coordinator and broker is untouched (each has data of its own), a majority of
the coordinators is, and one gateway; no fault of the whole network is under way. Something must be delivered where a
group has a confirmed record to get in each partition: then every living member has one, whatever it is assigned.
Groups that read committed records only do not count, because an open transaction may hold all of them.

That everything is delivered after the faults is `SeedRun`'s "not drained".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from support.simulation.evidence import Evidence, Impairment, RecordKey, Violation
from support.simulation.history import Acquired, ProduceConfirmed

STALL_LIMIT_S = 60.0
"""A member may stall for two locks of 15 s; a lease, and a session that has to end, come after it."""


def something_is_delivered(evidence: Evidence) -> Iterator[Violation]:
    times = sorted({event.time for event in evidence.events if isinstance(event, Acquired)})
    if not times or not evidence.expected.hosts:
        return
    for begin, end in _working_periods(evidence.expected.impairments, evidence.expected.hosts, times[-1]):
        inside = [begin, *(time for time in times if begin < time < end), end]
        for earlier, later in pairwise(inside):
            group = _waiting_group(evidence, earlier, later) if later - earlier > STALL_LIMIT_S else None
            if group is not None:
                text = f"no member of any group got a record from {earlier:.1f} to {later:.1f}, while {group} had some"
                yield Violation("nothing was delivered", f"{text} to get in each partition and a quorum worked")


def _working_periods(
    impairments: Sequence[Impairment], hosts: Sequence[str], end: float
) -> Iterator[tuple[float, float]]:
    """Begin and end of each longest period in which the quorum works, until `end`."""
    bounds = sorted({0.0, end, *(one.begin for one in impairments), *(one.end for one in impairments)})
    begin: float | None = None
    for first, last in pairwise([*(time for time in bounds if time <= end), math.inf]):
        touched = [one.hosts for one in impairments if one.begin < last and first <= one.end and one.end > first]
        if last < math.inf and _works(touched, hosts):
            begin = first if begin is None else begin
        else:
            if begin is not None:
                yield begin, first
            begin = None


def _works(touched: Sequence[tuple[str, ...]], hosts: Sequence[str]) -> bool:
    if any(not names for names in touched):
        return False
    all_of = Counter(_role(host) for host in hosts)
    impaired = Counter(_role(host) for host in {name: None for names in touched for name in names})
    has_majority = 2 * impaired.pop("coordinator", 0) < all_of["coordinator"]
    has_gateway = impaired.pop("gateway", 0) < all_of["gateway"]
    return has_majority and has_gateway and not impaired


def _role(host: str) -> str:
    return host.rpartition("-")[0]


def _waiting_group(evidence: Evidence, begin: float, end: float) -> str | None:
    """A group with a record in each partition that was confirmed before `begin`, and that it got after `end` only."""
    for group in evidence.expected.groups:
        if group in evidence.expected.committed_groups:
            continue
        waiting = {
            event.partition
            for event in evidence.events
            if isinstance(event, ProduceConfirmed) and event.base_offset >= 0 and event.time <= begin
            if _waits(evidence, RecordKey(group, event.partition, event.base_offset + len(event.values) - 1), end)
        }
        if waiting and waiting == set(evidence.expected.logs):
            return group
    return None


def _waits(evidence: Evidence, key: RecordKey, end: float) -> bool:
    times = [event.time for event in evidence.acquired.get(key, ())]
    return bisect_right(times, end - 1e-9) == 0 and not evidence.is_deleted(key.partition, key.offset)
