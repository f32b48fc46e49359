"""Settings of a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """`configs` are the broker's and kshare's own (kshare_core.configs.PROCESS_CONFIGS)."""

    node_id: int
    listen: str
    """The gRPC listen address, "host:port"; port 0 picks a free one."""
    coordinator_address: str
    """The address for the other roles and other coordinators; empty means the listen address."""
    configs: Configs
