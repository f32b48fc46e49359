"""Group configs of Apache Kafka 4.3.1, with the broker config that gives each its default.

A row with a text has an effect here; the others are accepted and ignored.
"""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition
from kshare_core.configs.rows import auto_offset_reset_problem, boolean, integer, string

GROUP_ROWS: tuple[ConfigDefinition, ...] = (
    integer(
        "consumer.assignment.interval.ms",
        1000,
        low=0,
        text="Minimum time between computations of the target assignment.",
        broker_synonym="group.consumer.assignment.interval.ms",
    ),
    integer(
        "consumer.heartbeat.interval.ms",
        5000,
        low=1,
        text="Heartbeat interval of members.",
        broker_synonym="group.consumer.heartbeat.interval.ms",
    ),
    integer(
        "consumer.session.timeout.ms",
        45000,
        low=1,
        text="Time without a heartbeat after which a member is removed.",
        broker_synonym="group.consumer.session.timeout.ms",
    ),
    integer(
        "share.assignment.interval.ms",
        1000,
        low=0,
        text="Minimum time between computations of the target assignment.",
        broker_synonym="group.share.assignment.interval.ms",
    ),
    string(
        "share.auto.offset.reset",
        "latest",
        check=auto_offset_reset_problem,
        text="First start offset of a share-partition: latest, earliest or by_duration:<ISO 8601 duration>.",
    ),
    integer(
        "share.delivery.count.limit",
        5,
        low=2,
        text="Maximum deliveries of a record before it is archived.",
        broker_synonym="group.share.delivery.count.limit",
    ),
    integer(
        "share.heartbeat.interval.ms",
        5000,
        low=1,
        text="Heartbeat interval of members.",
        broker_synonym="group.share.heartbeat.interval.ms",
    ),
    string(
        "share.isolation.level",
        "read_uncommitted",
        choices=("read_committed", "read_uncommitted"),
        text="Whether records of open and aborted transactions are delivered (read_uncommitted) or not.",
    ),
    integer(
        "share.partition.max.record.locks",
        2000,
        low=100,
        text="Maximum records in flight in a share-partition.",
        broker_synonym="group.share.partition.max.record.locks",
    ),
    integer(
        "share.record.lock.duration.ms",
        30000,
        low=1000,
        text="Duration of an acquisition lock.",
        broker_synonym="group.share.record.lock.duration.ms",
    ),
    boolean("share.renew.acknowledge.enable", True, text="Whether members may renew their locks (KIP-1222)."),
    integer(
        "share.session.timeout.ms",
        45000,
        low=1,
        text="Time without a heartbeat after which a member is removed.",
        broker_synonym="group.share.session.timeout.ms",
    ),
    integer("streams.assignment.interval.ms", 1000, low=0, broker_synonym="group.streams.assignment.interval.ms"),
    integer("streams.heartbeat.interval.ms", 5000, low=1, broker_synonym="group.streams.heartbeat.interval.ms"),
    integer(
        "streams.initial.rebalance.delay.ms", 3000, low=0, broker_synonym="group.streams.initial.rebalance.delay.ms"
    ),
    integer("streams.num.standby.replicas", 0, low=0, broker_synonym="group.streams.num.standby.replicas"),
    integer("streams.session.timeout.ms", 45000, low=1, broker_synonym="group.streams.session.timeout.ms"),
    string(
        "errors.deadletterqueue.topic.name",
        "",
        text="Topic for rejected records and records at their delivery count limit (KIP-1191); empty: none.",
    ),
    boolean(
        "errors.deadletterqueue.copy.record.enable",
        False,
        text="Whether a dead letter has the record's key, value and headers, or only its topic, partition and offset.",
    ),
)
