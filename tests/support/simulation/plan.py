"""The plan of a seed: the cluster's shape, producers, consumers and their behaviour, and the amount of faults."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from support.simulation.cluster import EMBEDDED, KAFKA, Shape

MOVES = "moves of partitions"
SCALING = "nodes join and leave"
CONSUMER_GROUPS = "consumer groups"
FORGERIES = "forged requests"
STALLS = "members that stall or vanish"
ADMINISTRATION = "administration"
UPGRADES = "upgrades"
UPGRADES_OF_ALL_ROLES = "upgrades of all roles"
OFFSETS_IN_TRANSACTIONS = "offsets in transactions"
READERS = "readers of the log"

ACTIVITIES = (MOVES, SCALING, CONSUMER_GROUPS, FORGERIES, STALLS, ADMINISTRATION, UPGRADES)
"""What others than producers and members of share groups may do while the faults last."""
LATER_ACTIVITIES = (UPGRADES_OF_ALL_ROLES, OFFSETS_IN_TRANSACTIONS, READERS)
"""The same, each drawn from a random stream of its own: a new one changes no other draw of a seed."""
PART_OF = {UPGRADES_OF_ALL_ROLES: UPGRADES, OFFSETS_IN_TRANSACTIONS: CONSUMER_GROUPS}
"""Activities that add something to another one, and do nothing without it."""
KAFKA_ACTIVITIES = (SCALING, FORGERIES, STALLS, ADMINISTRATION, UPGRADES, UPGRADES_OF_ALL_ROLES)
"""Those of the kafka engine: in mode share, partitions, consumer groups and transactions are the existing cluster's."""

LATER_SHARE = 0.7
"""How many seeds of the embedded engine draw one of LATER_ACTIVITIES."""

RETENTION_BYTES = 8_000
"""retention.bytes of the topic where little is retained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a seed means. Offsets of time are from the moment when the cluster is ready."""

    seed: int
    shape: Shape
    partitions: int
    groups: tuple[str, ...]
    members_per_group: int
    producers: int
    records: int
    transactional_producers: int
    transactions: int
    """Of each transactional producer."""
    transaction_timeout_ms: int
    committed_groups: tuple[str, ...]
    """Those with share.isolation.level=read_committed."""
    dead_letter_groups: tuple[str, ...]
    """Those with a dead-letter topic of their own."""
    deletes_records: bool
    """By DeleteRecords, now and then."""
    retains_little: bool
    """By retention.bytes."""
    delivery_count_limit: int
    lock_duration_ms: int
    max_wait_ms: int
    fault_seconds: float
    fault_count: int
    features_off: tuple[str, ...] = ()
    """Names of `swarm.FEATURES` that the seed does without."""
    fault_kinds_off: tuple[str, ...] = ()
    """Names of `swarm.FAULT_KINDS` that the seed does without."""
    often: str = ""
    """The feature of `swarm.BEHAVIOURS` that members show much more often; empty: none."""
    batch_spread_s: float = 0.0
    """How long after each other an idempotent producer sends batches that are under way together, at most."""
    activities: tuple[str, ...] = ()
    """Which of ACTIVITIES and LATER_ACTIVITIES there are beside producers and members."""
    loses_power_at_end: bool = False
    """Whether all hosts lose their power at once when everything is delivered; with the embedded engine."""

    def has(self, feature: str) -> bool:
        return feature not in self.features_off

    def describe(self) -> str:
        shape = self.shape
        return (
            f"seed {self.seed}: {shape.leaders} leaders, {shape.share_coordinators} share coordinators, "
            f"{shape.gateways} gateways{self._describe_engine()}; {self.partitions} partitions, "
            f"groups {', '.join(self.groups)} of {self.members_per_group}; {self.records} records; "
            f"limit {self.delivery_count_limit}, lock {self.lock_duration_ms} ms; "
            f"{self.transactional_producers} producers of {self.transactions} transactions "
            f"within {self.transaction_timeout_ms} ms; read_committed: {', '.join(self.committed_groups) or 'none'}; "
            f"dead letters: {', '.join(self.dead_letter_groups) or 'none'}; "
            f"{'records are deleted; ' * self.deletes_records}{'little is retained; ' * self.retains_little}"
            f"also {', '.join(self.activities) or 'nothing'}; often {self.often or 'nothing'}; "
            f"batches {self.batch_spread_s} s apart{', in files' * shape.has_batch_files}; "
            f"{self.fault_count} faults in {self.fault_seconds:.0f} s; "
            f"{'the power fails at the end; ' * self.loses_power_at_end}"
            f"without the features {', '.join(self.features_off) or 'none'}; "
            f"without the faults {', '.join(self.fault_kinds_off) or 'none'}"
        )

    def _describe_engine(self) -> str:
        """Nothing with the embedded engine and one coordinator."""
        shape = self.shape
        if shape.has_etcd:
            return f", {shape.coordinators} coordinators on etcd"
        return f", {shape.coordinators} coordinators, {shape.brokers} brokers" if shape.engine == KAFKA else ""

    def group_configs(self, group: str) -> dict[str, str]:
        """The group's configs under Kafka's names."""
        configs = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(self.delivery_count_limit),
        }
        if group in self.committed_groups:
            configs["share.isolation.level"] = "read_committed"
        if group in self.dead_letter_groups:
            configs["errors.deadletterqueue.topic.name"] = dead_letter_topic(group)
            configs["errors.deadletterqueue.copy.record.enable"] = "true"
        return configs

    def topic_configs(self) -> dict[str, str]:
        """The configs of the topic that is produced to."""
        configs = {"min.insync.replicas": str(self.replicas - 1)} if self.replicas > 1 else {}
        if not self.retains_little:
            return configs
        return {**configs, "retention.bytes": str(RETENTION_BYTES), "internal.segment.bytes": "1500"}

    @property
    def replicas(self) -> int:
        """Of each partition of the topic."""
        return max(1, self.shape.brokers)


def dead_letter_topic(group: str) -> str:
    return f"dlq.{group}"


def draw_plan(seed: int) -> Plan:
    """The plan of a seed; one seed in ten has no faults at all."""
    draw = random.Random(f"{seed}/plan")
    lock_duration_ms = draw.choice((3_000, 8_000, 15_000))
    groups = draw.choice((("g1",), ("g1",), ("g1", "g2")))
    transactional_producers = draw.choice((0, 1, 1, 2))
    return Plan(
        seed=seed,
        shape=Shape(
            share_coordinators=draw.choice((1, 2, 3)),
            leaders=draw.choice((1, 1, 2)),
            gateways=draw.choice((1, 2)),
            configs={
                "group.share.min.record.lock.duration.ms": "1000",
                "group.share.record.lock.duration.ms": str(lock_duration_ms),
                # The answer of a fetch waits for its acknowledgements. Where they may take longer than the lock (by
                # default 5 s and 30 s), a record may come to its limit although no member saw its last delivery.
                "share.coordinator.write.timeout.ms": str(min(5_000, lock_duration_ms - 1_000)),
                "share.coordinator.snapshot.update.records.per.snapshot": draw.choice(("3", "20", "500")),
                "share.coordinator.state.topic.num.partitions": "5",
                "num.partitions": "2",
                "errors.deadletterqueue.auto.create.topics.enable": "true",
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
                "log.initial.task.delay.ms": "1000",
                "log.message.timestamp.after.max.ms": str((1 << 63) - 1),  # clocks jump, and producers go on
                "log.retention.check.interval.ms": "2000",
            },
        ),
        partitions=draw.choice((2, 3)),
        groups=groups,
        members_per_group=draw.choice((2, 3, 4)),
        producers=draw.choice((1, 2)),
        records=draw.choice((200, 400, 800)),
        transactional_producers=transactional_producers,
        transactions=draw.choice((4, 10, 20)),
        transaction_timeout_ms=draw.choice((3_000, 10_000)),
        committed_groups=tuple(group for group in groups if transactional_producers and draw.random() < 0.6),
        dead_letter_groups=tuple(group for group in groups if draw.random() < 0.5),
        deletes_records=draw.random() < 0.3,
        retains_little=draw.random() < 0.1,
        delivery_count_limit=draw.choice((3, 5, 5, 10)),
        lock_duration_ms=lock_duration_ms,
        max_wait_ms=draw.choice((500, 1_000, 2_000)),
        fault_seconds=draw.choice((15.0, 30.0, 60.0)),
        fault_count=0 if draw.random() < 0.1 else draw.choice((3, 8, 16)),
    )


def draw_roles(seed: int, shape: Shape) -> Shape:
    """The shape with several nodes of each role, in some seeds; and with several coordinators on etcd."""
    draw = random.Random(f"{seed}/roles")
    has_etcd = draw.random() < 0.4
    return replace(
        shape,
        has_etcd=has_etcd,
        coordinators=draw.choice((1, 2, 3, 3)) if has_etcd else 1,
        leaders=draw.choice((1, 2, 2, 3)),
        gateways=draw.choice((1, 2, 3)),
        clocks_differ=True,
        configs={
            **shape.configs,
            "kshare.coordinator.lease.ms": draw.choice(("2000", "5000")),
            "group.share.min.session.timeout.ms": "6000",
            "group.share.session.timeout.ms": draw.choice(("6000", "45000")),
        },
    )


def draw_activities(seed: int, shape: Shape) -> tuple[str, ...]:
    """Those that the shape allows: all of them in some seeds, and most in the others."""
    draw = random.Random(f"{seed}/activities")
    share = draw.choice((0.5, 0.5, 1.0))
    drawn = [activity for activity in ACTIVITIES if draw.random() < share]
    drawn += [name for name in LATER_ACTIVITIES if random.Random(f"{seed}/activity {name}").random() < LATER_SHARE]
    return whole(activity for activity in drawn if activity != MOVES or shape.leaders > 1 or SCALING in drawn)


def draw_kafka_activities(seed: int) -> tuple[str, ...]:
    """All that the kafka engine has in some seeds, and most in the others."""
    draw = random.Random(f"{seed}/kafka activities")
    share = draw.choice((0.5, 0.5, 1.0))
    return whole([activity for activity in KAFKA_ACTIVITIES if draw.random() < share])


def whole(activities: Iterable[str]) -> tuple[str, ...]:
    """Without those that are part of an activity that is not there."""
    there = tuple(activities)
    return tuple(activity for activity in there if PART_OF.get(activity, activity) in there)


def draw_kafka_plan(seed: int) -> Plan:
    """The plan of a seed on the kafka engine: that of the embedded one, with brokers and several coordinators."""
    plan = draw_plan(seed)
    draw = random.Random(f"{seed}/kafka plan")
    shape = replace(
        plan.shape,
        engine=KAFKA,
        brokers=draw.choice((1, 3, 3)),
        coordinators=draw.choice((1, 2, 2, 3)),
        leaders=draw.choice((1, 2, 3)),
        clocks_differ=True,
    )
    return replace(plan, shape=shape, activities=draw_kafka_activities(seed))


def draw_embedded_plan(seed: int) -> Plan:
    """The plan of a seed on the embedded engine."""
    plan = draw_plan(seed)
    shape = draw_roles(seed, plan.shape)
    return replace(plan, shape=shape, activities=draw_activities(seed, shape))


DRAW_PLAN = {EMBEDDED: draw_embedded_plan, KAFKA: draw_kafka_plan}
