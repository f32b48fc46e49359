"""What a group's configs allow to its share-partitions, as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The configs of a group that decide about acquisition and about the end of deliveries."""

    lock_duration_ms: int
    """share.record.lock.duration.ms"""
    max_record_locks: int
    """share.partition.max.record.locks: how many offsets the window from start to end offset may span."""
    delivery_count_limit: int
    """share.delivery.count.limit"""
    renew_enabled: bool = True
    """share.renew.acknowledge.enable"""
    dead_letters: bool = False
    """Records that are given up are Archiving until their dead letters are stored."""
