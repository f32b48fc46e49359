"""The end of the producer ids that a leader's logs have seen: when it is written, and what a restart finds."""

from __future__ import annotations

import asyncio

import pytest

from kshare_coordinator.machine.catalog.seen_producer_ids import MAX_REPORTED_END
from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys
from kshare_leader.log.producers.seen_ids import PRODUCER_ID_LIMIT, SeenProducerIds
from kshare_leader.reassignment.rows import PartitionRows, Row
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from support.leader.log.leader_logs import KEY, TOPIC, open_logs
from support.wire.record_building import build_batch


def produced_by(producer_id: int) -> memoryview:
    return memoryview(build_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))


def stored_end(store: MemoryStore) -> int | None:
    value = store.get(keys.META, keys.PRODUCER_ID_END_KEY)
    return None if value is None else int.from_bytes(value, "big")


def test_a_new_producer_raises_the_end_by_whole_blocks() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = open_logs(store)
        ends = []
        for producer_id in (-1, 0, 999, 1_000, 7, 41_500, PRODUCER_ID_LIMIT):
            await logs.append(KEY, produced_by(producer_id))
            ends.append(stored_end(store))
        assert ends == [None, 1_000, 1_000, 2_000, 2_000, 42_000, 42_000]
        assert SeenProducerIds(store).end() == 42_000

    asyncio.run(test())


def test_the_highest_id_that_counts_gives_an_end_that_the_coordinator_takes() -> None:
    """A client may make it up; an older version stored an end above the limit, and the leader could not register."""

    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        await open_logs(store).append(KEY, produced_by(PRODUCER_ID_LIMIT - 1))
        assert (stored_end(store), SeenProducerIds(store).end()) == (MAX_REPORTED_END, MAX_REPORTED_END)
        store.write([Write(keys.META, keys.PRODUCER_ID_END_KEY, (MAX_REPORTED_END + 8).to_bytes(8, "big"))])
        assert SeenProducerIds(store).end() == MAX_REPORTED_END

    asyncio.run(test())


def test_an_end_whose_write_failed_is_written_with_the_next_append() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        store = disk.open_store("leader")
        logs = open_logs(store)
        disk.fail_next_writes(1, "No space left on device")
        with pytest.raises(KafkaError):
            await logs.append(KEY, produced_by(5))
        assert stored_end(store) is None
        await logs.append(KEY, produced_by(5))
        assert stored_end(store) == 1_000

    asyncio.run(test())


def test_entries_of_an_older_version_are_counted_once() -> None:
    store = MemoryDisk().open_store("leader")
    assert SeenProducerIds(store).end() == 0
    store.write([Write(keys.PRODUCERS, keys.long_key(keys.partition_prefix(KEY), each), b"") for each in (3, 2_345)])
    seen = SeenProducerIds(store)
    assert seen.end() == 3_000
    seen.write([], ())
    assert (seen.end(), stored_end(store)) == (3_000, 3_000)


def test_a_copied_partition_brings_the_ids_of_its_producers() -> None:
    store = MemoryDisk().open_store("leader")
    seen = SeenProducerIds(store)
    rows = PartitionRows(store, seen)
    rows.write_page(KEY, keys.LOG, [Row((9_000).to_bytes(8, "big"), b"a batch")])
    assert (seen.end(), stored_end(store)) == (0, None)
    rows.write_page(KEY, keys.PRODUCERS, [Row((4_000).to_bytes(8, "big"), b"an entry")])
    assert (seen.end(), stored_end(store)) == (5_000, 5_000)


async def store_of_an_older_version(disk: MemoryDisk) -> None:
    """With the producers 5 and 2,345 in partition 0; no end and no node id."""
    below = disk.open_store("leader")
    logs = open_logs(ChecksummedRows(below, plain_families=[keys.LOG]))
    for producer_id in (5, 2_345):
        await logs.append(KEY, produced_by(producer_id))
    logs.close()
    below.write([Write(keys.META, each, None) for each in (keys.PRODUCER_ID_END_KEY, keys.NODE_ID_KEY)])
    disk.crash()


def test_a_damaged_entry_of_an_older_version_stops_its_partition_only() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        await store_of_an_older_version(disk)
        below = disk.open_store("leader")
        key = keys.long_key(keys.partition_prefix(KEY), 5)
        stored = below.get(keys.PRODUCERS, key)
        assert stored is not None
        below.write([Write(keys.PRODUCERS, key, stored[:-1] + bytes([stored[-1] ^ 1]))])
        store = ChecksummedRows(below, plain_families=[keys.LOG])
        seen = SeenProducerIds(store, rows=below)
        logs = open_logs(store, seen_ids=seen)
        assert seen.end() == 3_000  # at the registration, without which the node does not start
        assert len(logs.problems()) == 1
        await logs.append(TopicPartition(TOPIC, 1), produced_by(7))

    asyncio.run(test())


def test_a_leader_with_a_store_of_an_older_version_on_a_full_disk_registers_and_can_be_read() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        await store_of_an_older_version(disk)
        store = ChecksummedRows(disk.open_store("leader"), plain_families=[keys.LOG])
        disk.fail_next_writes(100, "No space left on device")
        seen = SeenProducerIds(store)
        assert seen.end() == 3_000
        logs = open_logs(store, seen_ids=seen)
        log = logs.find(KEY)
        assert not logs.is_foreign and log is not None and len(log.read(0, 1)) == 1

    asyncio.run(test())
