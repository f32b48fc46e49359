"""Rates per second, as the difference of two readings of the leaders' counters. Pure.

A leader that restarted counts from 0: its counters have another incarnation, and it is left out of one step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kshare_rpc.generated.kshare.v1 import leader_pb2

Totals = leader_pb2.DescribeShareGroupTotalsResponse


class Counters(NamedTuple):
    """Counters of one leader, of the groups that a viewer may see."""

    delivered: int = 0
    redelivered: int = 0
    accepted: int = 0
    appended: int = 0
    dead_letters: int = 0


class Reading(NamedTuple):
    """The counters of all leaders at a time, by incarnation."""

    at_s: float
    leaders: Mapping[str, Counters]


class Rates(NamedTuple):
    """Records per second."""

    delivered: float
    redelivered: float
    accepted: float
    appended: float


def counters_of(totals: Totals, groups: Collection[str]) -> Counters:
    """The sums over `groups`; what was appended is of all topics."""
    seen = [group for group in totals.groups if group.group_id in groups]
    return Counters(
        delivered=sum(group.delivered_total for group in seen),
        redelivered=sum(group.redelivered_total for group in seen),
        accepted=sum(group.accepted_total for group in seen),
        appended=totals.appended_total,
        dead_letters=sum(group.dead_letters_total for group in seen),
    )


def rates_between(before: Reading | None, now: Reading) -> Rates | None:
    """None without a reading before, or without a leader that is in both."""
    if before is None or now.at_s <= before.at_s:
        return None
    both = [(before.leaders[name], counters) for name, counters in now.leaders.items() if name in before.leaders]
    if not both:
        return None
    seconds = now.at_s - before.at_s

    def rate(number: int) -> float:
        # A topic or group that was deleted, or is not visible any more, takes its counts with it.
        return round(max(0, sum(new[number] - old[number] for old, new in both)) / seconds, 1)

    return Rates(rate(0), rate(1), rate(2), rate(3))
