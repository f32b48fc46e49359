"""Broker configs of groups, offsets, share state and transactions, as in Apache Kafka 4.3.1.

A row with a text has an effect here; the others are accepted and ignored.
"""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition
from kshare_core.configs.rows import MAX_INT, boolean, empty_list_problem, integer, listing, long, short, string

BROKER_GROUPS: tuple[ConfigDefinition, ...] = (
    integer(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        low=0,
        text="How long a leader tries to add a partition to a transaction while the former one is ending.",
    ),
    integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        low=1,
        text="The pause between two tries of a leader to add a partition to a transaction.",
    ),
    integer(
        "group.consumer.assignment.interval.ms",
        1000,
        low=0,
        text="How long a consumer group's target assignment stands at least before it is computed anew.",
        dynamic=True,
    ),
    listing(
        "group.consumer.assignors",
        ("uniform", "range"),
        choices=("uniform", "range"),
        check=empty_list_problem,
        text="What members of consumer groups may ask for; the first one is for groups whose members ask for none.",
    ),
    integer(
        "group.consumer.heartbeat.interval.ms", 5000, low=1, text="How often members of a consumer group heartbeat."
    ),
    integer("group.consumer.max.assignment.interval.ms", 15000, low=0, text="The most that a group may set."),
    integer("group.consumer.max.heartbeat.interval.ms", 15000, low=1, text="The most that a group may set."),
    integer("group.consumer.max.session.timeout.ms", 60000, low=1, text="The most that a group may set."),
    integer("group.consumer.max.size", MAX_INT, low=1, text="Members of one consumer group."),
    string(
        "group.consumer.migration.policy",
        "bidirectional",
        choices=("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"),
        ignore_case=True,
        text="Whether a group with members may go from the classic protocol to the consumer protocol (upgrade), back "
        "(downgrade), or both.",
    ),
    integer("group.consumer.min.assignment.interval.ms", 0, low=0, text="The least that a group may set."),
    integer("group.consumer.min.heartbeat.interval.ms", 5000, low=1, text="The least that a group may set."),
    integer("group.consumer.min.session.timeout.ms", 45000, low=1, text="The least that a group may set."),
    integer("group.consumer.regex.refresh.interval.ms", 600000, low=10000, internal=True),
    integer(
        "group.consumer.session.timeout.ms",
        45000,
        low=1,
        text="Silence after which a member of a consumer group is taken out.",
    ),
    integer("group.coordinator.append.linger.ms", -1, low=-1),
    integer("group.coordinator.background.threads", 2, low=1),
    integer("group.coordinator.cached.buffer.max.bytes", 1048588, low=524288, dynamic=True),
    listing(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        choices=("consumer", "classic", "share", "streams"),
        text="Without `consumer`, members of the consumer protocol (KIP-848) are refused; the others have no effect.",
    ),
    integer("group.coordinator.threads", 4, low=1),
    integer(
        "group.initial.rebalance.delay.ms",
        3000,
        text="How long the first rebalance of an empty classic group waits for more members.",
    ),
    integer(
        "group.max.session.timeout.ms", 1800000, text="The longest session timeout that a classic member may ask for."
    ),
    integer("group.max.size", MAX_INT, low=1, text="Members of one classic group."),
    integer(
        "group.min.session.timeout.ms", 6000, text="The shortest session timeout that a classic member may ask for."
    ),
    integer(
        "group.share.assignment.interval.ms",
        1000,
        low=0,
        text="How long a share group's target assignment stands at least before it is computed anew.",
        dynamic=True,
    ),
    listing("group.share.assignors", ("simple",), choices=("simple",), check=empty_list_problem),
    integer(
        "group.share.delivery.count.limit",
        5,
        low=2,
        high=10,
        text="How often a record is delivered before it is archived.",
    ),
    integer("group.share.heartbeat.interval.ms", 5000, low=1, text="How often members of share groups heartbeat."),
    integer(
        "group.share.initialize.retry.interval.ms",
        30000,
        low=1,
        text="How long an unanswered initialisation of share-partitions waits before it is tried again.",
        internal=True,
    ),
    integer("group.share.max.assignment.interval.ms", 15000, low=0, text="The most that a group may set."),
    integer("group.share.max.delivery.count.limit", 10, low=5, high=25, text="The most that a group may set."),
    integer("group.share.max.heartbeat.interval.ms", 15000, low=1, text="The most that a group may set."),
    integer(
        "group.share.max.partition.max.record.locks", 4000, low=2000, high=10000, text="The most that a group may set."
    ),
    integer(
        "group.share.max.record.lock.duration.ms", 60000, low=30000, high=3600000, text="The most that a group may set."
    ),
    integer("group.share.max.session.timeout.ms", 60000, low=1, text="The most that a group may set."),
    integer("group.share.max.share.sessions", 2000, low=1, text="Share sessions that a gateway keeps at once."),
    integer("group.share.max.size", 200, low=1, high=1000, text="Members of one share group."),
    integer("group.share.min.assignment.interval.ms", 0, low=0, text="The least that a group may set."),
    integer("group.share.min.delivery.count.limit", 2, low=2, high=5, text="The least that a group may set."),
    integer("group.share.min.heartbeat.interval.ms", 5000, low=1, text="The least that a group may set."),
    integer(
        "group.share.min.partition.max.record.locks", 100, low=100, high=2000, text="The least that a group may set."
    ),
    integer(
        "group.share.min.record.lock.duration.ms", 15000, low=1000, high=30000, text="The least that a group may set."
    ),
    integer("group.share.min.session.timeout.ms", 45000, low=1, text="The least that a group may set."),
    integer(
        "group.share.partition.max.record.locks",
        2000,
        low=100,
        high=10000,
        text="Records in flight in one share-partition.",
    ),
    string(
        "group.share.persister.class.name",
        "org.apache.kafka.server.share.persister.DefaultStatePersister",
        internal=True,
    ),
    integer(
        "group.share.record.lock.duration.ms",
        30000,
        low=1000,
        high=3600000,
        text="How long a member may hold a record.",
    ),
    integer(
        "group.share.session.timeout.ms",
        45000,
        low=1,
        text="Silence after which a member of a share group is taken out.",
    ),
    integer("group.streams.assignment.interval.ms", 1000, low=0, dynamic=True),
    integer("group.streams.heartbeat.interval.ms", 5000, low=1),
    integer("group.streams.initial.rebalance.delay.ms", 3000, low=0),
    integer("group.streams.max.assignment.interval.ms", 15000, low=0),
    integer("group.streams.max.heartbeat.interval.ms", 15000, low=1),
    integer("group.streams.max.session.timeout.ms", 60000, low=1),
    integer("group.streams.max.size", MAX_INT, low=1),
    integer("group.streams.max.standby.replicas", 2, low=0),
    integer("group.streams.min.assignment.interval.ms", 0, low=0),
    integer("group.streams.min.heartbeat.interval.ms", 5000, low=1),
    integer("group.streams.min.session.timeout.ms", 45000, low=1),
    integer("group.streams.num.standby.replicas", 0, low=0),
    integer("group.streams.session.timeout.ms", 45000, low=1),
    integer(
        "offset.metadata.max.bytes",
        4096,
        text="The longest metadata of a committed offset; longer is refused with OFFSET_METADATA_TOO_LARGE.",
    ),
    integer("offsets.commit.timeout.ms", 5000, low=1),
    integer("offsets.load.buffer.size", 5242880, low=1),
    long(
        "offsets.retention.check.interval.ms",
        600000,
        low=1,
        text="How often committed offsets to forget are looked for.",
    ),
    integer(
        "offsets.retention.minutes",
        10080,
        low=1,
        text="How long a committed offset of a group without members is kept after its last commit.",
    ),
    integer("offsets.topic.compression.codec", 0),
    integer(
        "offsets.topic.num.partitions",
        50,
        low=1,
        text="How many partitions clients see of `__consumer_offsets`, which they cannot read.",
    ),
    short("offsets.topic.replication.factor", 3, low=1),
    integer(
        "offsets.topic.segment.bytes",
        104857600,
        low=1,
        text="What clients see as segment.bytes of `__consumer_offsets`; it has no segments.",
    ),
    integer(
        "producer.id.expiration.check.interval.ms",
        600000,
        low=1,
        text="How often idempotent producers to forget are looked for.",
        internal=True,
    ),
    integer(
        "producer.id.expiration.ms",
        86400000,
        low=1,
        text="How long an idle idempotent producer is remembered.",
        dynamic=True,
    ),
    integer("share.coordinator.append.linger.ms", -1, low=-1),
    integer("share.coordinator.cached.buffer.max.bytes", 1048588, low=524288, dynamic=True),
    integer(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        300000,
        low=1,
        text="How often all states are verified, and those not written meanwhile get a ShareSnapshot.",
        internal=True,
    ),
    integer("share.coordinator.load.buffer.size", 5242880, low=1),
    integer(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        low=0,
        high=500,
        text="ShareUpdate records after which a ShareSnapshot is written.",
    ),
    integer("share.coordinator.state.topic.compression.codec", 0),
    short(
        "share.coordinator.state.topic.min.isr",
        2,
        low=1,
        text="What clients see as min.insync.replicas of `__share_group_state`; there is one copy.",
    ),
    integer(
        "share.coordinator.state.topic.num.partitions",
        50,
        low=1,
        text="Partitions of `__share_group_state`; must not change once there is state.",
    ),
    integer(
        "share.coordinator.state.topic.prune.interval.ms",
        300000,
        low=1,
        internal=True,
        text="How often old tombstones are removed from __share_group_state as clients read it.",
    ),
    short("share.coordinator.state.topic.replication.factor", 3, low=1),
    integer(
        "share.coordinator.state.topic.segment.bytes",
        104857600,
        low=1,
        text="What clients see as segment.bytes of `__share_group_state`; it has no segments.",
    ),
    integer("share.coordinator.threads", 1, low=1),
    integer(
        "share.coordinator.write.timeout.ms", 5000, low=1, text="How long a write of share-partition state may take."
    ),
    integer("share.fetch.purgatory.purge.interval.requests", 1000),
    integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        low=1,
        text="How often transactions are looked for that are open longer than their timeout.",
    ),
    integer(
        "transaction.max.timeout.ms", 900000, low=1, text="The longest transaction timeout that a producer may ask for."
    ),
    boolean(
        "transaction.partition.verification.enable",
        True,
        text="Whether leaders look up at the coordinator that a partition is part of the transaction.",
        dynamic=True,
    ),
    integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        low=1,
        text="How often expired transactional ids are looked for.",
    ),
    integer("transaction.state.log.load.buffer.size", 5242880, low=1),
    integer("transaction.state.log.min.isr", 2, low=1),
    integer("transaction.state.log.num.partitions", 50, low=1),
    short("transaction.state.log.replication.factor", 3, low=1),
    integer("transaction.state.log.segment.bytes", 104857600, low=1),
    boolean("transaction.two.phase.commit.enable", False),
    integer(
        "transactional.id.expiration.ms",
        604800000,
        low=1,
        text="A transactional id without an open transaction that nobody used for so long is forgotten.",
    ),
    boolean(
        "errors.deadletterqueue.auto.create.topics.enable",
        False,
        text="Whether a group's dead-letter topic is created when it does not exist (KIP-1191).",
        dynamic=True,
    ),
    string(
        "errors.deadletterqueue.topic.name.prefix",
        "dlq.",
        text="How the names of dead-letter topics must begin; empty: any name will do.",
        dynamic=True,
    ),
)
