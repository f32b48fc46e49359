"""The metadata store of a single coordinator, in its own KeyValueStore: it owns all partitions while it runs.

Rows are stored under their family and key, with a checksum (`checksummed_rows`): one wrong bit in a row of the catalog
or of a group must not be acted on. `partition_of` gives the partition of a stored row, so a data directory from before
partitions of metadata existed opens unchanged. One append is one atomic batch with one fsync, durable when `append`
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kshare_coordinator.metadata.port import CATALOG, GROUP_PARTITIONS, CoordinatorMember, MetadataListener
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.ports import KeyValueStore, MendableStore, Write


class RocksDbMetadataStore:
    """A MetadataStore; see the module's text. It closes `store` when it stops."""

    def __init__(
        self,
        store: KeyValueStore,
        family: str,
        partition_of: Callable[[Write], int],
        *,
        group_partitions: int = GROUP_PARTITIONS,
    ) -> None:
        self._store = ChecksummedRows(store)
        self._mendable = store if isinstance(store, MendableStore) else None
        self._family = family
        self._partition_of = partition_of
        self._partitions = (CATALOG, *range(group_partitions))
        self._is_running = False

    async def start(self, member: CoordinatorMember, listener: MetadataListener) -> None:
        """Reports all rows to the listener before it returns; StorageFailure if the rows cannot be read."""
        rows = self.rows()
        self._is_running = True
        listener.catalog_loaded(rows[CATALOG])
        owners = dict.fromkeys(self._partitions, member.node_id)
        listener.members_changed([member], owners)
        listener.gained(CATALOG, ())
        for partition in self._partitions[1:]:
            listener.gained(partition, rows[partition])

    def owns(self, partition: int) -> bool:
        return self._is_running and partition in self._partitions

    def append(self, writes: Mapping[int, Sequence[Write]]) -> None:
        """Makes all writes durable; StorageFailure: none was written."""
        newest = {(write.family, write.key): write for of_partition in writes.values() for write in of_partition}
        if newest:
            self._store.write(list(newest.values()))

    def check_writable(self) -> None:
        """StorageFailure while the store refuses all writes because one failed."""
        if self._mendable is not None and self._mendable.write_failure is not None:
            self._store.write([])  # it says why

    def rows(self) -> dict[int, list[Write]]:
        found: dict[int, list[Write]] = {partition: [] for partition in self._partitions}
        for key, value in self._store.scan(self._family, b""):
            row = Write(self._family, key, value)
            found[self._partition_of(row)].append(row)
        return found

    def problems(self) -> list[str]:
        return []

    async def stop(self) -> None:
        self._is_running = False
        self._store.close()
