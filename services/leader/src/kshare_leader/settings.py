"""Settings of a leader node."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import DEFAULT_QUEUED_BYTES, Configs
from kshare_leader.reassignment.sender import PAGE_LIMIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """Settings of a leader. `listen` is its gRPC address ("host:port", port 0 picks one); `configs` are broker configs.

    `move_page_bytes`: the page size of a reassignment to this leader.
    """

    node_id: int
    listen: str
    coordinator_address: str
    configs: Configs
    move_page_bytes: int = PAGE_LIMIT_BYTES
    queued_bytes: int = DEFAULT_QUEUED_BYTES
    """The limit of response bytes with records that callers have not read (kshare.queued.max.bytes)."""
    max_share_partitions: int = 20_000
    """The limit of share-partitions in memory (kshare.leader.max.share.partitions)."""

    @property
    def producer_expiration_check_interval_ms(self) -> int:
        """How often producers that were idle for producer.id.expiration.ms are looked for."""
        return self.configs.integer("producer.id.expiration.check.interval.ms")
