"""Liveness while faults go on: what they leave alone goes on to deliver, within a limit.

The rule is asked of each share-partition. Where a record waits, and nothing disturbs its way to a member that fetches
the share-partition (`rules.undisturbed`), some record of the share-partition is delivered to the group within
`LIMIT_S`. Each leader beside the way that a fault hits meanwhile adds `CALL_S`: a gateway asks the leaders of a session
one after the other, and one that is silent keeps it for so long.

A record waits while nothing stands against its delivery:

- Its producer knows that it is in the log, and no member was given it. Or a member was, but the lock has certainly run
  out (after two lock durations, because a member renews it once at most), no acknowledgement can have ended it, and
  its count is below the delivery limit.
- For a group that reads committed records, all transactions that have records up to it have a confirmed end. The rest
  of a log is not judged for such a group where an end is not known, and the whole log where its start has moved.
- It is in the log at the end. A log of more records than a share-partition may have in flight is not judged.

So nothing is asked while members stall, vanish or wait for their assignment (`history.FetchesFrom` is what each of them
knows), while they hold the records, or while transactions are open. A gateway whose metadata or a coordinator whose
assignments are wrong is not found by this rule, but by "not drained", which is `SeedRun`'s: everything is delivered
after the faults.

`Evidence.liveness` counts how often the rule was put: disjoint periods, each as long as the limit, in which a
share-partition that delivers nothing breaks the rule. A rule that is never put finds nothing (`seeds.coverage`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from support.simulation.evidence import ENDS, NEVER, Evidence, RecordKey, Violation
from support.simulation.history import (
    Delivered,
    ProduceConfirmed,
    TransactionBegun,
    TransactionEndConfirmed,
)
from support.simulation.rules.undisturbed import Disturbances, Period, Place, Way, ways

LIMIT_S = 8.0
"""A leader loads the state of a share-partition within 6 s: it reads the catalog's version, waits for it and reads the
state, each up to 2 s (`kshare_leader.share.limits`). A fetch waits for up to 2 s beside it.

Lock durations, session timeouts and leases are not in it: no lock is on the record, the member is assigned, and the
leases are held. What is left of a fault needs further time (`rules.undisturbed.SETTLING_S`)."""
CALL_S = 10.0
"""The timeout of a gateway's call to a leader, `kshare_gateway.gateway.CALL_TIMEOUT_MS`."""
IN_FLIGHT_LIMIT = 2_000
"""group.share.partition.max.record.locks."""

DURING_FAULTS = "before the faults end"
BESIDE_A_FAULT = "among these, while a fault hit what is not on the way"
AFTERWARDS = "that ends after the faults"
PERIODS = (DURING_FAULTS, BESIDE_A_FAULT, AFTERWARDS)

Confirmed = Mapping[tuple[int, int], tuple[float, str]]
"""When its producer knew of the record, and its value, by partition and offset."""


class Waiting(NamedTuple):
    begin: float
    end: float
    offset: int


def something_is_delivered(evidence: Evidence) -> Iterator[Violation]:
    """At most one violation for each share-partition; see the module's text."""
    if not evidence.expected.hosts:
        return
    disturbances = Disturbances(evidence)
    confirmed, ends = _confirmed(evidence), _transaction_ends(evidence)
    of_place: dict[Place, list[Way]] = defaultdict(list)
    for way in ways(evidence):
        if way.place[0] in evidence.expected.groups:
            of_place[way.place].append(way)
    for place, found in of_place.items():
        waiting = list(_waiting(evidence, place, confirmed, ends))
        periods = sorted((period, way) for way in found for period in disturbances.undisturbed(way))
        _count(evidence, disturbances, periods, waiting)
        stalls = _stalls(evidence, disturbances, place, periods, waiting)
        if (violation := next(stalls, None)) is not None:
            yield violation


def _stalls(
    evidence: Evidence,
    disturbances: Disturbances,
    place: Place,
    periods: Sequence[tuple[Period, Way]],
    waiting: Sequence[Waiting],
) -> Iterator[Violation]:
    times = sorted(
        {
            event.time
            for event in evidence.events
            if isinstance(event, Delivered) and (event.group, event.partition) == place
        }
    )
    for (first, last), way in periods:
        for earlier, later in pairwise([first, *(time for time in times if first < time < last), last]):
            for one in waiting if later - earlier > LIMIT_S else ():
                begin, end = max(earlier, one.begin), min(later, one.end)
                limit = _limit_s(disturbances, way, begin) if end - begin > LIMIT_S else NEVER
                if end - begin > limit:
                    text = (
                        f"nothing for {way.member} at {way.gateway} from {begin:.1f} to {end:.1f}, and {limit:.0f} s "
                        "were enough: the record waited, and nothing disturbed its way"
                    )
                    yield evidence.violation("nothing was delivered", RecordKey(*place, one.offset), text)


def _limit_s(disturbances: Disturbances, way: Way, begin: float) -> float:
    """In what time something has to be delivered, from `begin` on."""
    limit = LIMIT_S
    while (longer := LIMIT_S + CALL_S * len(disturbances.other_leaders_hit(way, begin, begin + limit))) > limit:
        limit = longer
    return limit


def _count(
    evidence: Evidence,
    disturbances: Disturbances,
    periods: Sequence[tuple[Period, Way]],
    waiting: Sequence[Waiting],
) -> None:
    """Counts disjoint periods in which something had to be delivered."""
    done = 0.0
    for (first, last), way in periods:
        begin = _waits_from(waiting, max(done, first))
        while begin < last and (end := begin + _limit_s(disturbances, way, begin)) <= last:
            is_before = end <= disturbances.faults_end
            evidence.liveness[DURING_FAULTS if is_before else AFTERWARDS] += 1
            evidence.liveness[BESIDE_A_FAULT] += is_before and disturbances.has_fault(begin, end)
            done = end
            begin = _waits_from(waiting, done)


def _waits_from(waiting: Sequence[Waiting], time: float) -> float:
    """When a record waits, from `time` on."""
    return min((max(one.begin, time) for one in waiting if one.end > max(one.begin, time)), default=NEVER)


# Records that wait


def _confirmed(evidence: Evidence) -> Confirmed:
    found: dict[tuple[int, int], tuple[float, str]] = {}
    for event in evidence.events:
        if isinstance(event, ProduceConfirmed) and event.base_offset >= 0:
            for index, value in enumerate(event.values):
                found.setdefault((event.partition, event.base_offset + index), (event.time, value))
    return found


def _transaction_ends(evidence: Evidence) -> Mapping[str, float]:
    """By the value of each record of a transaction: when its end was confirmed."""
    ended: dict[tuple[str, int], float] = {}
    for event in evidence.events:
        if isinstance(event, TransactionEndConfirmed):
            ended[event.producer, event.number] = event.time
    return {
        value: ended.get((event.producer, event.number), NEVER)
        for event in evidence.events
        if isinstance(event, TransactionBegun)
        for value in event.values
    }


def _waiting(evidence: Evidence, place: Place, confirmed: Confirmed, ends: Mapping[str, float]) -> Iterator[Waiting]:
    group, partition = place
    expected = evidence.expected
    reads_committed = group in expected.committed_groups
    start = expected.log_starts.get(partition, 0)
    if (reads_committed and start) or expected.log_ends.get(partition, 0) - start > IN_FLIGHT_LIMIT:
        return
    stable_at = 0.0
    for record in expected.logs.get(partition, ()):
        if reads_committed:
            stable_at = max(stable_at, ends.get(record.value, 0.0))
        time, value = confirmed.get((partition, record.offset), (NEVER, ""))
        is_for_group = record.committed or not reads_committed
        if is_for_group and value == record.value and not evidence.is_deleted(partition, record.offset):
            yield from _times_of_waiting(evidence, RecordKey(group, partition, record.offset), max(time, stable_at))


def _times_of_waiting(evidence: Evidence, key: RecordKey, since: float) -> Iterator[Waiting]:
    """Before its first acquisition, and between others; `since`: when it could be delivered at all."""
    acquired = sorted(evidence.acquired.get(key, ()), key=attrgetter("time"))
    times = [*(event.time for event in acquired), NEVER]
    if since < times[0]:
        yield Waiting(since, times[0], key.offset)
    if any(sent.event.type in ENDS and sent.may_have_effect for sent in evidence.sent.get(key, ())):
        return
    for event, after in zip(acquired, times[1:], strict=True):
        free_at = event.time + 2 * evidence.expected.lock_duration_s
        if event.delivery_count < evidence.expected.delivery_count_limit and free_at < after:
            yield Waiting(free_at, after, key.offset)
