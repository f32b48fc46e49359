"""The configs of a topic that apply to its logs, under Kafka's names, with the broker's values as defaults.

These configs are left out, because they have no meaning here: `file.delete.delay.ms` and `segment.index.bytes` (a
segment is a row, not files), `flush.*` (every append is flushed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_core.configs.definition import ConfigValue, InvalidConfig
from kshare_core.configs.topic import TOPIC_CONFIGS, inherited_topic_configs
from kshare_wire.compression import Codec
from kshare_wire.record_batches import COMPRESSION_NAMES

LOG_APPEND_TIME = "LogAppendTime"
MAX_LONG = (1 << 63) - 1
_LEVELS = {"gzip": "compression.gzip.level", "lz4": "compression.lz4.level", "zstd": "compression.zstd.level"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings that a log validates batches and deletes records by; the defaults are Kafka's."""

    max_message_bytes: int = 1_048_588
    """max.message.bytes: the largest batch, with its header."""
    codec: Codec | None = None
    """compression.type, and the level of that codec; None (producer): batches are kept as they were sent."""
    log_append_time: bool = False
    """message.timestamp.type is LogAppendTime."""
    timestamp_before_max_ms: int = MAX_LONG
    """message.timestamp.before.max.ms"""
    timestamp_after_max_ms: int = 3_600_000
    """message.timestamp.after.max.ms"""
    deletes: bool = True
    """cleanup.policy has delete."""
    compacts: bool = False
    """cleanup.policy has compact."""
    retention_ms: int = 604_800_000
    """retention.ms; -1: no limit."""
    retention_bytes: int = -1
    """retention.bytes; -1: no limit."""
    segment_bytes: int = 1 << 30
    """segment.bytes, or internal.segment.bytes where that is set."""
    segment_ms: int = 604_800_000
    """segment.ms"""
    segment_jitter_ms: int = 0
    """segment.jitter.ms"""
    delete_retention_ms: int = 86_400_000
    """delete.retention.ms"""
    min_cleanable_dirty_ratio: float = 0.5
    """min.cleanable.dirty.ratio"""
    min_compaction_lag_ms: int = 0
    """min.compaction.lag.ms"""
    max_compaction_lag_ms: int = MAX_LONG
    """max.compaction.lag.ms"""

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is rolled (LogConfig.maxSegmentMs)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms


def topic_settings(entries: Mapping[str, str], broker: Configs) -> TopicSettings:
    """The settings of a topic whose own configs are `entries`; unknown names and values are ignored.

    The coordinator checked them when they were set.
    """
    inherited = inherited_topic_configs(broker)

    def value(name: str) -> ConfigValue:
        definition = TOPIC_CONFIGS[name]
        if name in entries:
            try:
                return definition.parse_stored(entries[name])
            except InvalidConfig:
                return definition.default
        return inherited.get(name, definition.default)

    def integer(name: str) -> int:
        found = value(name)
        assert isinstance(found, int), f"{name} is {found!r}, not an integer"
        return found

    policies = value("cleanup.policy")
    assert isinstance(policies, tuple), f"cleanup.policy is {policies!r}, not a list"
    ratio = value("min.cleanable.dirty.ratio")
    assert isinstance(ratio, int | float), f"min.cleanable.dirty.ratio is {ratio!r}, not a number"
    segment_bytes = value("internal.segment.bytes")
    return TopicSettings(
        max_message_bytes=integer("max.message.bytes"),
        codec=_codec(value),
        log_append_time=value("message.timestamp.type") == LOG_APPEND_TIME,
        timestamp_before_max_ms=integer("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=integer("message.timestamp.after.max.ms"),
        deletes="delete" in policies,
        compacts="compact" in policies,
        retention_ms=integer("retention.ms"),
        retention_bytes=integer("retention.bytes"),
        segment_bytes=segment_bytes if isinstance(segment_bytes, int) else integer("segment.bytes"),
        segment_ms=integer("segment.ms"),
        segment_jitter_ms=integer("segment.jitter.ms"),
        delete_retention_ms=integer("delete.retention.ms"),
        min_cleanable_dirty_ratio=float(ratio),
        min_compaction_lag_ms=integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=integer("max.compaction.lag.ms"),
    )


def _codec(value: Callable[[str], ConfigValue]) -> Codec | None:
    name = value("compression.type")
    if name == "producer":
        return None
    if name == "uncompressed":
        return Codec(0)
    level = value(_LEVELS[str(name)]) if name in _LEVELS else None
    assert isinstance(level, int | None), f"the level of {name} is {level!r}, not an integer"
    return Codec(COMPRESSION_NAMES.index(str(name)), level)
