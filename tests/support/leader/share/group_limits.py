"""The limits of a group for tests: Kafka's defaults but for what a test names."""

from __future__ import annotations

from kshare_leader.machine.group_limits import GroupLimits


def group_limits(
    *,
    lock_duration_ms: int = 30_000,
    max_record_locks: int = 2_000,
    delivery_count_limit: int = 5,
    renew_enabled: bool = True,
    dead_letters: bool = False,
) -> GroupLimits:
    return GroupLimits(
        lock_duration_ms=lock_duration_ms,
        max_record_locks=max_record_locks,
        delivery_count_limit=delivery_count_limit,
        renew_enabled=renew_enabled,
        dead_letters=dead_letters,
    )
