"""The store of a share coordinator with the embedded engine."""

from __future__ import annotations

from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.state_log.embedded import EmbeddedStates


def store_of(node: ShareCoordinatorNode) -> ChecksummedStore:
    engine = node.engine
    assert isinstance(engine, EmbeddedStates)
    return engine.store
