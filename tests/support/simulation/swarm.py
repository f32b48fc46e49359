"""The registry of features and of kinds of fault, and which of them a seed has at all (swarm testing).

A history with everything in it hides bugs: where members die every few seconds, no lock ever runs out by itself; where
every fifth message is lost, no stream lives long enough to be reordered. Each seed therefore draws for every feature
and for every kind of fault whether it has it. How many it has is drawn too, from a quarter of them to all.

To add a kind of fault: give it a row in a table of `fault_kinds`. To add a feature: name it in `FEATURES`, and let its
code ask `plan.has(name)`, or let `without` change the plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from support.simulation.cluster import EMBEDDED, ENGINES
from support.simulation.disks.kinds import DISK_KINDS
from support.simulation.fault_kinds.clients import CLIENT_KINDS
from support.simulation.fault_kinds.clocks import CLOCK_KINDS
from support.simulation.fault_kinds.etcd import ETCD_KINDS
from support.simulation.fault_kinds.hosts import HOST_KINDS
from support.simulation.fault_kinds.links import LINK_KINDS
from support.simulation.fault_kinds.losses import LOSS_KINDS
from support.simulation.fault_kinds.moves import MOVE_KINDS
from support.simulation.faults import FaultKind
from support.simulation.kafka_clients.member import Behaviour
from support.simulation.plan import ACTIVITIES, DRAW_PLAN, KAFKA_ACTIVITIES, LATER_ACTIVITIES, Plan, whole

FAULT_KINDS: tuple[FaultKind, ...] = (
    *HOST_KINDS,
    *LINK_KINDS,
    *CLIENT_KINDS,
    *CLOCK_KINDS,
    *DISK_KINDS,
    *ETCD_KINDS,
    *MOVE_KINDS,
    *LOSS_KINDS,
)
"""Every kind of fault, under one name each."""

OF_ALL_HOSTS = [
    kind
    for kind in (*HOST_KINDS, *LINK_KINDS, *CLIENT_KINDS, *CLOCK_KINDS)
    if EMBEDDED in kind.engines and not kind.needs
]
"""The kinds that hosts of any role can have, also brokers alone."""

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the features, and of the kinds of fault, that a seed has on average."""


def _unchanged(plan: Plan) -> Plan:
    return plan


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that a history may have. `without`: the plan that does not have it, where its code does not ask."""

    name: str
    without: Callable[[Plan], Plan] = _unchanged
    engines: Sequence[str] = ENGINES
    has_own_stream: bool = False
    """Drawn from a random stream of its own: a feature that came later changes no other draw of a seed."""

    def draw(self, seed: int, shared: random.Random) -> float:
        """A number below the seed's share of features if the seed has the feature."""
        return (random.Random(f"{seed}/swarm/{self.name}") if self.has_own_stream else shared).random()


def _without_transactions(plan: Plan) -> Plan:
    return replace(plan, transactional_producers=0, committed_groups=())


def _with_one_group(plan: Plan) -> Plan:
    groups = plan.groups[:1]
    return replace(
        plan,
        groups=groups,
        committed_groups=tuple(group for group in plan.committed_groups if group in groups),
        dead_letter_groups=tuple(group for group in plan.dead_letter_groups if group in groups),
    )


def _without_activity(name: str) -> Callable[[Plan], Plan]:
    def without(plan: Plan) -> Plan:
        return replace(plan, activities=whole(activity for activity in plan.activities if activity != name))

    return without


def _engines_of_activity(name: str) -> Sequence[str]:
    return ENGINES if name in KAFKA_ACTIVITIES else (EMBEDDED,)


FEATURES: tuple[Feature, ...] = (
    *(Feature(name, _without_activity(name), _engines_of_activity(name)) for name in ACTIVITIES),
    Feature("several groups", _with_one_group),
    Feature("transactions", _without_transactions),
    Feature("read committed", lambda plan: replace(plan, committed_groups=())),
    Feature("dead letters", lambda plan: replace(plan, dead_letter_groups=())),
    Feature("deleted records", lambda plan: replace(plan, deletes_records=False)),
    Feature("short retention", lambda plan: replace(plan, retains_little=False)),
    Feature("several coordinators", lambda plan: replace(plan, shape=replace(plan.shape, coordinators=1))),
    Feature("several share coordinators", lambda plan: replace(plan, shape=replace(plan.shape, share_coordinators=1))),
    Feature("several leaders", lambda plan: replace(plan, shape=replace(plan.shape, leaders=1))),
    Feature("several gateways", lambda plan: replace(plan, shape=replace(plan.shape, gateways=1))),
    Feature("clocks that differ", lambda plan: replace(plan, shape=replace(plan.shape, clocks_differ=False))),
    Feature("churn"),
    Feature("releases"),
    Feature("rejects"),
    Feature("mixed acknowledgements"),
    Feature("late acknowledgements"),
    Feature("missing acknowledgements"),
    Feature("deferred acknowledgements"),
    Feature("separate acknowledgements"),
    Feature("renewals"),
    Feature("wrong session epochs"),
    *(
        Feature(name, _without_activity(name), _engines_of_activity(name), has_own_stream=True)
        for name in LATER_ACTIVITIES
    ),
)


BEHAVIOURS = {
    "releases": "release",
    "rejects": "reject",
    "mixed acknowledgements": "mixed",
    "late acknowledgements": "late",
    "missing acknowledgements": "never",
    "deferred acknowledgements": "deferred",
    "separate acknowledgements": "separate",
    "renewals": "renew",
    "wrong session epochs": "wrong_epoch",
}
"""Features that are probabilities of `Behaviour`."""
BATCH_SPREADS_S = (0.0, 0.0, 0.05, 0.5)
"""Two batches that reach a leader together fail or succeed together; with a pause, the second may succeed alone.

Not so on the kafka engine: a broker that has just become the leader takes any sequence of a new producer.
"""
POWER_LOSS_SHARE = 1 / 3
"""How many seeds of the embedded engine lose the power of all hosts after the drain, and are drained again."""
BATCH_FILES_SHARE = 0.5
"""How many seeds have batches in files beside the leaders' stores; the others have them as rows."""
FEW_FAULTS_SHARE = 0.1
"""How many seeds have few faults in a long time.

Beside more of them hardly any way from a share-partition to a member is left alone for as long as a delivery may take
(`rules.liveness`).
"""
FEW_FAULTS, FEW_FAULTS_S = 2, 60.0
OFTEN = 5
"""So many times as often does a behaviour occur that its plan has often."""


def members_behaviour(plan: Plan) -> Behaviour:
    """How the members of this plan treat records."""
    behaviour = Behaviour(lock_duration_s=plan.lock_duration_ms / 1000, max_wait_ms=plan.max_wait_ms)
    for feature, probability in BEHAVIOURS.items():
        if not plan.has(feature):
            setattr(behaviour, probability, 0.0)
        elif feature == plan.often:
            setattr(behaviour, probability, min(1.0, OFTEN * getattr(behaviour, probability)))
    return behaviour


def fault_kinds_of(plan: Plan) -> list[FaultKind]:
    """The kinds of fault that are drawn for this plan."""
    engine = plan.shape.engine
    return [kind for kind in FAULT_KINDS if engine in kind.engines and kind.name not in plan.fault_kinds_off]


def _draw_often(seed: int, features_off: Sequence[str]) -> str:
    """One behaviour in every other seed: what is seldom everywhere hardly ever meets what is seldom, too."""
    draw = random.Random(f"{seed}/often")
    often = draw.choice(list(BEHAVIOURS))
    return often if draw.random() < 0.5 and often not in features_off else ""


def draw_swarm_plan(seed: int, engine: str) -> Plan:
    """The plan of a seed, without the features and the kinds of fault that the seed does without."""
    draw = random.Random(f"{seed}/swarm")
    plan = DRAW_PLAN[engine](seed)
    kinds = [kind.name for kind in FAULT_KINDS if engine in kind.engines and kind.weight]
    share_of_features, share_of_kinds = draw.choice(SHARES), draw.choice(SHARES)
    # Features of the other engine are drawn as well, so that both engines draw the same.
    without = [feature for feature in FEATURES if feature.draw(seed, draw) >= share_of_features]
    without = [feature for feature in without if engine in feature.engines]
    for feature in without:
        plan = feature.without(plan)
    features_off = tuple(feature.name for feature in without)
    if engine == EMBEDDED:
        has_files = random.Random(f"{seed}/batch files").random() < BATCH_FILES_SHARE
        loses_power = random.Random(f"{seed}/power loss at the end").random() < POWER_LOSS_SHARE
        shape = replace(plan.shape, has_batch_files=has_files)
        plan = replace(plan, shape=shape, loses_power_at_end=loses_power)
    if random.Random(f"{seed}/few faults").random() < FEW_FAULTS_SHARE:
        plan = replace(plan, fault_count=min(plan.fault_count, FEW_FAULTS), fault_seconds=FEW_FAULTS_S)
    return replace(
        plan,
        often=_draw_often(seed, features_off),
        batch_spread_s=random.Random(f"{seed}/batch spread").choice(BATCH_SPREADS_S) if engine == EMBEDDED else 0.0,
        features_off=features_off,
        fault_kinds_off=tuple(name for name in kinds if draw.random() >= share_of_kinds),
    )
