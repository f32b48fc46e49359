"""Imports of an export into an offline store.

An empty store takes everything. Otherwise state is replaced only by explicit request. With `replace`, whole state
partitions are emptied first and only those are imported, which also repairs a damaged one. With `overwrite`,
share-partitions that exist already may be replaced.

Everything is checked before the first write. A crash during the writes leaves whole share-partitions, and the same
import with `overwrite` continues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, ShareSnapshot, ShareTombstone
from kshare_share_coordinator.maintenance.exports import BadExport, Export
from kshare_share_coordinator.state_store import StateStore, family_of
from kshare_share_coordinator.state_topic import StateTopicIndex

SHARE_PARTITIONS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The changes that an import will make."""

    snapshots: Sequence[ShareSnapshot]
    overwritten: Sequence[SharePartitionKey]
    skipped: int
    """Share-partitions of state partitions that are not to be replaced."""
    emptied: Sequence[int]


class StateImport:
    """Imports into one store; `now_ms` is the time of its records."""

    def __init__(self, store: ChecksummedStore, export: Export, now_ms: int) -> None:
        self._store = store
        self._export = export
        self._count = export.head.state_partition_count
        self._state_store = StateStore(
            store=store,
            state_partition_of=self._state_partition_of,
            state_topic=StateTopicIndex(store=store, now_ms=lambda: now_ms),
        )

    def plan(self, replace: Collection[int] = (), *, overwrite: bool = False) -> ImportPlan:
        """The plan for `carry_out`; BadExport if the export does not fit the store or would replace state unasked."""
        self._check_head(replace)
        wanted = [
            snapshot
            for snapshot in self._export.snapshots
            if not replace or self._state_partition_of(snapshot.key) in replace
        ]
        present = [] if replace else [snapshot.key for snapshot in wanted if self._is_there(snapshot.key)]
        if present and not overwrite:
            raise BadExport(
                f"{len(present)} of its {len(wanted)} share-partitions have a state in this store, the first is "
                f"{present[0]}. Import into an empty store, replace whole state partitions (--replace), or take the "
                "export's states instead (--overwrite)"
            )
        skipped = len(self._export.snapshots) - len(wanted)
        return ImportPlan(wanted, present, skipped, sorted(replace))

    def carry_out(self, plan: ImportPlan) -> None:
        """Writes the planned changes; StorageFailure."""
        head = self._export.head
        if self._state_store.state_partition_count() is None:
            self._state_store.write_state_partition_count(head.state_partition_count)
        if self._state_store.cluster_id() is None and head.cluster_id:
            self._state_store.write_cluster_id(head.cluster_id)
        for state_partition in plan.emptied:
            self._empty(family_of(state_partition))
        overwritten = dict.fromkeys(plan.overwritten)
        for low in range(0, len(plan.snapshots), SHARE_PARTITIONS_AT_ONCE):
            part = plan.snapshots[low : low + SHARE_PARTITIONS_AT_ONCE]
            ends = [ShareTombstone(snapshot.key, None) for snapshot in part if snapshot.key in overwritten]
            self._state_store.append([*ends, *part])

    def _check_head(self, replace: Collection[int]) -> None:
        head = self._export.head
        count, cluster_id = self._state_store.state_partition_count(), self._state_store.cluster_id()
        if count not in (None, head.state_partition_count):
            raise BadExport(
                f"the store has {count} state partitions and the export {head.state_partition_count}: "
                "a share-partition lies elsewhere then"
            )
        if None not in (cluster_id, head.cluster_id) and cluster_id != head.cluster_id:
            raise BadExport(f"the store belongs to cluster {cluster_id!r} and the export to {head.cluster_id!r}")
        bad = [number for number in replace if not 0 <= number < head.state_partition_count]
        if bad:
            raise BadExport(
                f"state partition {bad[0]} does not exist; the export has {head.state_partition_count} state partitions"
            )

    def _state_partition_of(self, key: SharePartitionKey) -> int:
        return state_partition_of(key, self._count)

    def _is_there(self, key: SharePartitionKey) -> bool:
        try:
            return bool(self._state_store.load(key))
        except CorruptRecord:
            return True

    def _empty(self, family: str) -> None:
        maintained = self._store.maintained
        if maintained is None:
            self._store.write([Write(family, key, None) for key, _ in self._store.scan_stored(family, b"")])
            return
        maintained.drop_family(family)
