"""Topic configs of Apache Kafka 4.3.1, with the broker config that gives each its default.

A row with a text has an effect here; the others are known and accepted, and nothing depends on them.
"""

from __future__ import annotations

from kshare_core.configs.definition import ConfigDefinition
from kshare_core.configs.rows import (
    MAX_LONG,
    boolean,
    compression_level_or_default,
    double,
    integer,
    listing,
    long,
    string,
    throttled_replicas_problem,
)

TOPIC_ROWS: tuple[ConfigDefinition, ...] = (
    listing("cleanup.policy", ("delete",), choices=("compact", "delete"), broker_synonym="log.cleanup.policy"),
    integer("compression.gzip.level", -1, check=compression_level_or_default, broker_synonym="compression.gzip.level"),
    integer("compression.lz4.level", 9, low=1, high=17, broker_synonym="compression.lz4.level"),
    string(
        "compression.type",
        "producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_synonym="compression.type",
    ),
    integer("compression.zstd.level", 3, low=-131072, high=22, broker_synonym="compression.zstd.level"),
    long("delete.retention.ms", 86400000, low=0, broker_synonym="log.cleaner.delete.retention.ms"),
    long("file.delete.delay.ms", 60000, low=0, broker_synonym="log.segment.delete.delay.ms"),
    long("flush.messages", MAX_LONG, low=1, broker_synonym="log.flush.interval.messages"),
    long("flush.ms", MAX_LONG, low=0, broker_synonym="log.flush.interval.ms"),
    listing("follower.replication.throttled.replicas", (), check=throttled_replicas_problem),
    integer("index.interval.bytes", 4096, low=0, broker_synonym="log.index.interval.bytes"),
    integer("internal.segment.bytes", None, internal=True),
    listing("leader.replication.throttled.replicas", (), check=throttled_replicas_problem),
    long("local.retention.bytes", -2, low=-2, broker_synonym="log.local.retention.bytes"),
    long("local.retention.ms", -2, low=-2, broker_synonym="log.local.retention.ms"),
    long("max.compaction.lag.ms", MAX_LONG, low=1, broker_synonym="log.cleaner.max.compaction.lag.ms"),
    integer(
        "max.message.bytes",
        1048588,
        low=0,
        text="The largest record batch that may be produced to the topic.",
        broker_synonym="message.max.bytes",
    ),
    long(
        "message.timestamp.after.max.ms",
        3600000,
        low=0,
        text="How far a producer's time may lie in the future.",
        broker_synonym="log.message.timestamp.after.max.ms",
    ),
    long(
        "message.timestamp.before.max.ms",
        MAX_LONG,
        low=0,
        text="How far a producer's time may lie in the past.",
        broker_synonym="log.message.timestamp.before.max.ms",
    ),
    string(
        "message.timestamp.type",
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        text="Whether records carry the producer's time or that of the append.",
        broker_synonym="log.message.timestamp.type",
    ),
    double("min.cleanable.dirty.ratio", 0.5, low=0, high=1, broker_synonym="log.cleaner.min.cleanable.ratio"),
    long("min.compaction.lag.ms", 0, low=0, broker_synonym="log.cleaner.min.compaction.lag.ms"),
    integer("min.insync.replicas", 1, low=1, broker_synonym="min.insync.replicas"),
    boolean("preallocate", False, broker_synonym="log.preallocate"),
    boolean("remote.log.copy.disable", False),
    boolean("remote.log.delete.on.disable", False),
    boolean("remote.storage.enable", False),
    long("retention.bytes", -1, broker_synonym="log.retention.bytes"),
    long("retention.ms", 604800000, low=-1, broker_synonym="log.retention.ms"),
    integer("segment.bytes", 1073741824, low=1048576, broker_synonym="log.segment.bytes"),
    integer("segment.index.bytes", 10485760, low=4, broker_synonym="log.index.size.max.bytes"),
    long("segment.jitter.ms", 0, low=0, broker_synonym="log.roll.jitter.ms"),
    long("segment.ms", 604800000, low=1, broker_synonym="log.roll.ms"),
    boolean("unclean.leader.election.enable", False, broker_synonym="unclean.leader.election.enable"),
    boolean(
        "errors.deadletterqueue.group.enable",
        False,
        text="Whether share groups may have the topic as their dead-letter topic (KIP-1191).",
    ),
)
