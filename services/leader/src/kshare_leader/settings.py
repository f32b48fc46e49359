"""Settings of a leader node."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """`listen` is where it serves gRPC ("host:port", port 0 picks one); `configs` has Kafka's broker configs."""

    node_id: int
    listen: str
    coordinator_address: str
    configs: Configs

    @property
    def producer_expiration_check_interval_ms(self) -> int:
        """How often producers that were silent for producer.id.expiration.ms are looked for."""
        return self.configs.integer("producer.id.expiration.check.interval.ms")
