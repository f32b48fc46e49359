"""Settings of a leader node."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import DEFAULT_QUEUED_BYTES, Configs
from kshare_leader.moving.sender import PAGE_LIMIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """`listen` is where it serves gRPC ("host:port", port 0 picks one); `configs` has Kafka's broker configs.

    `move_page_bytes`: how much of a partition that moves here is asked for at once.
    """

    node_id: int
    listen: str
    coordinator_address: str
    configs: Configs
    move_page_bytes: int = PAGE_LIMIT_BYTES
    queued_bytes: int = DEFAULT_QUEUED_BYTES
    """What answers with records may take that callers have not read; what kshare.queued.max.bytes means here."""

    @property
    def producer_expiration_check_interval_ms(self) -> int:
        """How often producers that were silent for producer.id.expiration.ms are looked for."""
        return self.configs.integer("producer.id.expiration.check.interval.ms")
