"""A planted bug: what it breaks, which rule has to find it, and what all of its seeds have (its focus).

A bug that few seeds meet has a focus. It makes a situation frequent that the swarm has too, only seldom. It does not
change what the rules ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from support.simulation.cluster import EMBEDDED
from support.simulation.evidence import Violation
from support.simulation.mutations.mutation import Mutation
from support.simulation.plan import Plan
from support.simulation.swarm import FAULT_KINDS

Change = Callable[[Plan], Plan]

FOCUSED_FAULTS = 16
UNNAMED = "a bug came to light"
"""The rule of what no other rule names (`scenario.SeedRun.run`)."""


@dataclass(frozen=True, slots=True)
class Focus:
    """`text` says in the table what the seeds have."""

    text: str
    changes: Sequence[Change]

    def on(self, plan: Plan) -> Plan:
        for change in self.changes:
            plan = change(plan)
        return plan


ALL_SEEDS = Focus("", ())
"""What the swarm draws, and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedBug:
    """A bug, and how it has to come to light."""

    name: str
    """What the product does wrong, as a sentence."""
    mutation: Callable[[], Mutation]
    """A new one for each run."""
    rules: tuple[str, ...]
    """The rules of which one must be found broken: others do not say what is wrong."""
    words: str = ""
    """What a violation of UNNAMED says of this bug. Every exception and every wrong answer breaks that rule."""
    seed: int | None
    """The first seed that finds it, which changes with the code; None: none of the first ones does."""
    engine: str = EMBEDDED
    focus: Focus = ALL_SEEDS
    """What all of its seeds have; without a text they are the swarm's own."""

    def __post_init__(self) -> None:
        if UNNAMED in self.rules and not self.words:
            raise ValueError(f"{self.name}: any bug breaks the rule {UNNAMED!r}; give the words that it has to say")

    def is_found_by(self, violation: Violation) -> bool:
        """Whether the violation says what is wrong."""
        return violation.rule in self.rules and (violation.rule != UNNAMED or self.words in violation.text)


def only_faults(*names: str, count: int = FOCUSED_FAULTS) -> Change:
    """By default as many faults as a seed has at most, all of these kinds."""
    others = tuple(kind.name for kind in FAULT_KINDS if kind.name not in names)
    return lambda plan: replace(plan, fault_kinds_off=others, fault_count=count, fault_seconds=60.0)


def with_features(*names: str) -> Change:
    """Features of which a history has a code of its own (`Plan.has`)."""
    return lambda plan: replace(plan, features_off=tuple(name for name in plan.features_off if name not in names))


def often(feature: str) -> Change:
    """The behaviour of members that is much more frequent."""
    return lambda plan: replace(with_features(feature)(plan), often=feature)


def with_activities(*names: str) -> Change:
    return lambda plan: replace(plan, activities=tuple(dict.fromkeys((*plan.activities, *names))))


def at_least(**nodes: int) -> Change:
    """Numbers of nodes by the names of fields of `Shape`."""

    def change(plan: Plan) -> Plan:
        more = {name: max(count, getattr(plan.shape, name)) for name, count in nodes.items()}
        return replace(plan, shape=replace(plan.shape, **more))

    return change


def with_configs(**configs: str) -> Change:
    """Names with underscores instead of dots."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return lambda plan: replace(plan, shape=replace(plan.shape, configs={**plan.shape.configs, **named}))


def coordinator_with_a_disk(plan: Plan) -> Plan:
    """One coordinator, without etcd."""
    return replace(plan, shape=replace(plan.shape, coordinators=1, has_etcd=False))


def on_etcd(plan: Plan) -> Plan:
    """Three coordinators that share their metadata."""
    return replace(plan, shape=replace(plan.shape, coordinators=3, has_etcd=True))


def all_with_dead_letters(plan: Plan) -> Plan:
    return replace(plan, dead_letter_groups=plan.groups)


def fewest_nodes(plan: Plan) -> Plan:
    """One of each role, so that faults hit what the bug is in."""
    shape = replace(plan.shape, coordinators=1, share_coordinators=1, leaders=1, gateways=1, has_etcd=False)
    return replace(plan, shape=shape)


def few_members_with_short_locks(plan: Plan) -> Plan:
    """Groups of two, to which every record comes back soon: a member holds again what it has held."""
    locks = {"group.share.record.lock.duration.ms": "3000", "share.coordinator.write.timeout.ms": "2000"}
    shape = replace(plan.shape, configs={**plan.shape.configs, **locks})
    return replace(plan, members_per_group=2, lock_duration_ms=3_000, shape=shape)


def three_partitions(plan: Plan) -> Plan:
    """So that a member has partitions of several leaders."""
    return replace(plan, partitions=3)


def batches_apart(plan: Plan) -> Plan:
    """Idempotent producers of one partition, whose batches that are under way together are sent one after the
    other, so that the first may fail and the second may not."""
    return replace(plan, producers=2, records=1_600, partitions=1, batch_spread_s=0.5)


def with_transactions(plan: Plan) -> Plan:
    return replace(plan, transactional_producers=2, transactions=20, transaction_timeout_ms=3_000)
