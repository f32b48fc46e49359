"""The starts of the active coordinator, from which a leader sees that this coordinator's store is an older copy.

Each start has a random id and is stored with the catalog's version at that time. After a restore of an older copy the
catalog counts versions again that others have seen already, but under another start.
"""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

STARTS_KEPT = 50
"""A leader that was away for more starts takes the catalog for an older one, and removes nothing at first."""


def starts_of(state: CoordinatorState) -> list[pb.CatalogStart]:
    """The newest starts, the current one last."""
    texts = [text.partition(":") for text in state.texts.get(records.CATALOG_STARTS, "").split()]
    return [pb.CatalogStart(start_id=start_id, version=int(version)) for start_id, _, version in texts]


def current_start_id(state: CoordinatorState) -> str:
    """The id of the current start; empty if none was stored."""
    return state.texts.get(records.CATALOG_STARTS, "").rpartition(" ")[2].partition(":")[0]


def starts_record(state: CoordinatorState, start_id: str) -> Record:
    """Adds a start at the current version."""
    starts = [*starts_of(state), pb.CatalogStart(start_id=start_id, version=state.version)][-STARTS_KEPT:]
    return records.cluster_text(records.CATALOG_STARTS, " ".join(f"{each.start_id}:{each.version}" for each in starts))
