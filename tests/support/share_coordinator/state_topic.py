"""`__share_group_state` in tests: a machine whose records have offsets, and the state that a reader of the topic gets.

`StateTopicShell` is the share coordinator's machine over a store that also keeps the offsets. `replayed` folds records
into states: the last snapshot of each key, and the updates after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.ports import KeyValueStore
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset, apply
from kshare_share_coordinator.records import SHARE_SNAPSHOT, decode_key, decode_snapshot, decode_update
from kshare_share_coordinator.state_store import StateStore, family_of
from kshare_share_coordinator.state_topic import StateTopicIndex
from kshare_wire.record_batches import check_crc, read_header
from kshare_wire.record_reading import OpenedRecord, open_records
from support.share_coordinator.shell import NOW_MS, STATE_PARTITION_COUNT, ShareCoordinatorShell


class StateTopicShell(ShareCoordinatorShell):
    """A ShareCoordinatorShell whose records have offsets; `now_ms` is their time."""

    now_ms = NOW_MS

    def restart(self, store: KeyValueStore) -> None:
        super().restart(store)
        self.index = StateTopicIndex(store=self.store, now_ms=lambda: self.now_ms)
        self.state_store = StateStore(
            store=self.store,
            state_partition_of=lambda key: state_partition_of(key, STATE_PARTITION_COUNT),
            state_topic=self.index,
        )
        self._build()

    def records(self, key: SharePartitionKey, from_offset: int = 0) -> list[OpenedRecord]:
        """What a consumer reads from the state partition of a share-partition."""
        return read_state_partition(self.index, family_of(state_partition_of(key, STATE_PARTITION_COUNT)), from_offset)


def read_state_partition(index: StateTopicIndex, family: str, offset: int = 0) -> list[OpenedRecord]:
    """All records from an offset to the end; whatever a consumer may rely on is checked."""
    found: list[OpenedRecord] = []
    while offset < index.next_offset(family):
        batch, next_offset = index.read_batch(family, offset, 1 << 20)
        assert next_offset > offset
        if batch:
            header = read_header(batch)
            check_crc(batch, header)
            records = list(open_records(batch))
            assert len(batch) == header.size and len(records) == header.record_count
            assert offset <= header.base_offset == records[0].offset
            assert records[-1].offset == header.last_offset < next_offset
            found += records
        offset = next_offset
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    timestamps = [record.timestamp_ms for record in found]
    assert timestamps == sorted(timestamps)
    return found


def replayed(records: Iterable[tuple[bytes, bytes | None]]) -> dict[SharePartitionKey, ShareGroupOffset]:
    """The states after keys and values in the order in which they were read."""
    states: dict[SharePartitionKey, ShareGroupOffset] = {}
    for record_key, value in records:
        record_type, key = decode_key(record_key)
        if value is None:
            assert record_type == SHARE_SNAPSHOT
            states.pop(key, None)
            continue
        if record_type == SHARE_SNAPSHOT:
            state = apply(None, decode_snapshot(key, value))
        else:
            before = states[key]
            state = apply(before, decode_update(key, before.update_count + 1, value))
        assert state is not None
        states[key] = state
    return states
