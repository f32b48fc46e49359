"""Stores with many share-partitions, written in bulk as a share coordinator would have written them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.share_group_offset import ShareSnapshot
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.state_store import StateStore
from kshare_share_coordinator.state_topic import StateTopicIndex

STATE_PARTITIONS = 50
NOW_MS = 1_700_000_000_000
WRITTEN_AT_ONCE = 2_000


def many_keys(count: int) -> Iterator[SharePartitionKey]:
    """100 partitions of as many topics as it takes, each read by one group."""
    for number in range(count):
        topic, partition = divmod(number, 100)
        yield SharePartitionKey(f"group-{topic % 50}", (1_000_000 + topic).to_bytes(16, "big"), partition)


def snapshot(key: SharePartitionKey, *, batches: int = 4) -> ShareSnapshot:
    """A state with state epoch 1 and leader epoch 0, and some runs."""
    return ShareSnapshot(
        key=key,
        snapshot_epoch=1,
        state_epoch=1,
        leader_epoch=0,
        start_offset=0,
        delivery_complete_count=batches,
        create_timestamp_ms=NOW_MS,
        write_timestamp_ms=NOW_MS,
        state_batches=[StateBatch(10 * run, 10 * run + 3, 2, 1) for run in range(batches)],
    )


def write_states(store: ChecksummedStore, keys: Iterator[SharePartitionKey], *, batches: int = 4) -> None:
    """Adds a state for each key."""
    state_store = StateStore(
        store=store,
        state_partition_of=lambda key: state_partition_of(key, STATE_PARTITIONS),
        state_topic=StateTopicIndex(store=store, now_ms=lambda: NOW_MS),
    )
    if state_store.state_partition_count() is None:
        state_store.write_state_partition_count(STATE_PARTITIONS)
    pending: list[ShareSnapshot] = []
    for key in keys:
        pending.append(snapshot(key, batches=batches))
        if len(pending) == WRITTEN_AT_ONCE:
            state_store.append(pending)
            pending = []
    state_store.append(pending)


def build_store(data_dir: Path, count: int) -> None:
    """A share coordinator's store below `data_dir`."""
    store = ChecksummedStore(RocksStore(data_dir / "share-coordinator", isolate_damage=True))
    write_states(store, many_keys(count))
    store.close()
