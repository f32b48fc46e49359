"""Makes the script of a failing seed small: drops what it can while the same rule still breaks (delta debugging).

In turn: faults (half of them, quarters, single ones), features, the power loss at the end, members, groups and
partitions, batches, and the time after the last fault. A shorter script is another history, because every message after
the change takes another time; so each candidate is tried with a few seeds. Rounds go on until one drops nothing, or the
time is over.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from support.simulation.evidence import Violation
from support.simulation.faults import Fault
from support.simulation.mutations import Mutation
from support.simulation.plan import Plan
from support.simulation.scenario import Outcome, run_script
from support.simulation.seeds.script import Batch, Script, joining, rounded
from support.simulation.swarm import FEATURES

T = TypeVar("T")
SEEDS_TRIED = 2
AFTER_LAST_S = 2.0
NUMBERS = re.compile(r"[0-9a-f]{8,}|[A-Za-z0-9_-]{22}|\d+(\.\d+)?")
UNNAMED_RULES = ("a bug came to light", "did not finish")
"""Rules that many bugs break: what they say, without its numbers, has to stay the same as well."""


def signature(violation: Violation) -> str:
    """What makes two violations the same bug."""
    if violation.rule not in UNNAMED_RULES:
        return violation.rule
    return f"{violation.rule}: {NUMBERS.sub('#', violation.text)[-120:]}"


@dataclass(slots=True)
class Shrinker:
    """`shrink` gives the smallest script that it found; `runs` counts what it tried."""

    mutation: Callable[[], Mutation] | None
    wanted: str
    deadline: float
    """By time.monotonic()."""
    report: Callable[[str], None] = lambda text: None
    runs: int = 0

    def shrink(self, script: Script) -> Script:
        best = self._breaks(rounded(script)) or script
        while True:
            before = best
            for part in (self._faults, self._features, self._numbers, self._work, self._time):
                best = part(best)
                self.report(f"{self.runs} runs: {best.size()}, {_shape(best.plan)}")
            if best == before or self._is_over():
                return best

    def _is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    def _breaks(self, script: Script) -> Script | None:
        """The script with a seed with which it still breaks the rule."""
        for number in range(SEEDS_TRIED):
            if self._is_over():
                return None
            tried = replace(script, plan=replace(script.plan, seed=script.plan.seed + number))
            self.runs += 1
            if self.wanted in signatures(run_script(tried, self.mutation() if self.mutation else None)):
                return tried
        return None

    def _dropped(self, script: Script, items: Sequence[T], made: Callable[[Script, Sequence[T]], Script]) -> Script:
        """Without as many of the items as possible: chunks of half of them, then of a quarter, at last single ones."""
        best, left = script, list(items)
        size = max(1, len(left))
        while left and not self._is_over():
            start = 0
            while start < len(left):
                without = left[:start] + left[start + size :]
                found = self._breaks(made(best, without))
                if found is not None:
                    best, left = found, without
                else:
                    start += size
            if size == 1:
                break
            size //= 2
        return best

    def _faults(self, script: Script) -> Script:
        def made(best: Script, faults: Sequence[Fault]) -> Script:
            return replace(best, faults=tuple(faults), plan=replace(best.plan, fault_count=len(faults)))

        return self._dropped(script, script.faults, made)

    def _work(self, script: Script) -> Script:
        def made(best: Script, work: Sequence[Batch]) -> Script:
            return replace(best, work=tuple(work))

        return self._dropped(script, script.work, made)

    def _features(self, script: Script) -> Script:
        names = [feature.name for feature in FEATURES if script.plan.has(feature.name)]

        def made(best: Script, kept: Sequence[str]) -> Script:
            plan = best.plan
            for feature in FEATURES:
                if feature.name not in kept and plan.has(feature.name):
                    plan = replace(feature.without(plan), features_off=(*plan.features_off, feature.name))
            return fitted(replace(best, plan=plan))

        return self._dropped(script, names, made)

    def _numbers(self, script: Script) -> Script:
        best = script
        for change in (_without_power_loss, _fewer_members, _fewer_partitions):
            while (smaller := change(best)) is not None:
                found = self._breaks(smaller)
                if found is None:
                    break
                best = found
        return best

    def _time(self, script: Script) -> Script:
        last = max([0.0, *(fault.at + fault.duration for fault in script.faults), *(batch.at for batch in script.work)])
        seconds = min(script.plan.fault_seconds, round(last + AFTER_LAST_S, 1))
        if seconds == script.plan.fault_seconds:
            return script
        shorter = replace(script, plan=replace(script.plan, fault_seconds=seconds))
        return self._breaks(shorter) or script


def signatures(outcome: Outcome) -> set[str]:
    return {signature(violation) for violation in outcome.violations}


def fitted(script: Script) -> Script:
    """Without faults of hosts, and batches of producers, that the plan does not have any more."""
    names = script.plan.shape.host_names()
    brokers = [f"broker-{number + 1}" for number in range(script.plan.shape.brokers)]
    names += joining(script.plan, names)
    faults = tuple(fault for fault in script.faults if set(fault.hosts) <= {*names, *brokers})
    producers = [f"p{number + 1}" for number in range(script.plan.producers)]
    producers += [f"t{number + 1}" for number in range(script.plan.transactional_producers)]
    work = tuple(batch for batch in script.work if batch.producer in producers)
    return replace(script, faults=faults, work=work, plan=replace(script.plan, fault_count=len(faults)))


def _without_power_loss(script: Script) -> Script | None:
    if not script.plan.loses_power_at_end:
        return None
    return replace(script, plan=replace(script.plan, loses_power_at_end=False))


def _fewer_members(script: Script) -> Script | None:
    count = script.plan.members_per_group
    return None if count == 1 else replace(script, plan=replace(script.plan, members_per_group=count - 1))


def _fewer_partitions(script: Script) -> Script | None:
    """What was produced to the last partition goes to the first."""
    count = script.plan.partitions
    if count == 1:
        return None
    work = tuple(replace(batch, partition=batch.partition % (count - 1)) for batch in script.work)
    return replace(script, plan=replace(script.plan, partitions=count - 1), work=work)


def _shape(plan: Plan) -> str:
    features = [feature.name for feature in FEATURES if plan.has(feature.name)]
    return (
        f"{plan.members_per_group} members of {len(plan.groups)} groups, {plan.partitions} partitions, "
        f"{plan.fault_seconds} s, features: {', '.join(features) or 'none'}"
    )
