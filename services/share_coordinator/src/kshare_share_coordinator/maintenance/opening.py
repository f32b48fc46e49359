"""Opening of a share coordinator's store: with one damaged state partition the others must still be served."""

from __future__ import annotations

from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Environment
from kshare_share_coordinator.checksummed_store import ChecksummedStore

STORE_NAME = "share-coordinator"


def open_state_store(environment: Environment) -> ChecksummedStore:
    """Opens the node's store; StorageFailure says what to do."""
    try:
        return ChecksummedStore((environment.open_isolated_store or environment.open_store)(STORE_NAME))
    except StorageFailure as failure:
        if "Another process" in str(failure):
            raise
        raise StorageFailure(
            f"{failure}. `kshare state verify` shows what can be read; `kshare state import` fills an empty store from "
            "an export of a backup"
        ) from failure
