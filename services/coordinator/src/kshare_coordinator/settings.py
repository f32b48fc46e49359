"""What a coordinator is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """`configs` are the broker's and kshare's own (kshare_core.configs.PROCESS_CONFIGS)."""

    node_id: int
    listen: str
    """Where it serves gRPC, "host:port"; port 0 picks one."""
    coordinator_address: str
    """Where the other roles and other coordinators reach it; empty: where it listens."""
    configs: Configs
