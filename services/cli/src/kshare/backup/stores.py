"""The stores of a data directory, as `kshare up` and the containers of the roles lay them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kshare.failure import CommandFailed
from kshare.up.plan import COORDINATOR, LEADER, SHARE_COORDINATOR
from kshare_coordinator.machine import records
from kshare_coordinator.metadata.opening import STORE_NAME as COORDINATOR_STORE
from kshare_core.errors import StorageFailure
from kshare_leader.engine.embedded import STORE_NAME as LEADER_STORE
from kshare_leader.engine.embedded import with_value_files
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.ports import KeyValueStore
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.maintenance.opening import STORE_NAME as SHARE_COORDINATOR_STORE
from kshare_share_coordinator.state_store import CLUSTER_ID_KEY, METADATA_FAMILY

STORE_NAMES = {
    COORDINATOR: COORDINATOR_STORE,
    SHARE_COORDINATOR: SHARE_COORDINATOR_STORE,
    LEADER: LEADER_STORE,
}
"""The name of a role's store, in the order in which stores are copied (`copies`)."""


@dataclass(frozen=True, slots=True)
class Store:
    """The store of one node; `name` is also the node's in a `kshare up`: leader, leader-2, …"""

    name: str
    role: str
    data_dir: Path

    @property
    def directory(self) -> str:
        """Relative to the data directory."""
        folder = STORE_NAMES[self.role]
        return folder if self.name == self.role else f"{self.name}/{folder}"

    @property
    def path(self) -> Path:
        return self.data_dir / self.directory

    def opened(self) -> KeyValueStore:
        """The store as its role opens it. StorageFailure."""
        store = RocksStore(self.path)
        return with_value_files(store) if self.role == LEADER else store


def found_stores(data_dir: Path) -> list[Store]:
    """The stores below `data_dir`: coordinators, share coordinators, leaders."""
    found: list[Store] = []
    for role in STORE_NAMES:
        names = sorted(
            (path.name for path in data_dir.glob(f"{role}-*") if path.name.removeprefix(f"{role}-").isdecimal()),
            key=lambda name: int(name.rpartition("-")[2]),
        )
        stores = [Store(name, role, data_dir) for name in (role, *names)]
        found += [store for store in stores if (store.path / "CURRENT").exists()]
    return found


def cluster_id_of(role: str, directory: Path) -> str:
    """The cluster to which a store belongs that no process has open; empty before its first start. CommandFailed."""
    try:
        with _opened(directory) as store:
            return _cluster_id(role, store)
    except StorageFailure as failure:
        raise CommandFailed(f"cannot read to which cluster {directory} belongs: {failure}") from None


@contextmanager
def _opened(directory: Path) -> Iterator[RocksStore]:
    store = RocksStore(directory, isolate_damage=True, read_only=True)
    try:
        yield store
    finally:
        store.close()


def _cluster_id(role: str, store: RocksStore) -> str:
    if role == COORDINATOR:
        key = records.write_of(records.cluster_text(records.CLUSTER_ID, "")).key
        value = ChecksummedRows(store).get(records.FAMILY, key)
        return "" if value is None else str(records.record_of(key, value).value.cluster.text)
    if role == SHARE_COORDINATOR:
        stored = ChecksummedStore(store).get(METADATA_FAMILY, CLUSTER_ID_KEY)
    else:
        stored = ChecksummedRows(store).get(keys.META, keys.CLUSTER_ID_KEY)
    return "" if stored is None else stored.decode(errors="replace")
