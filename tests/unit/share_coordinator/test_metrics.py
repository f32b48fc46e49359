"""A share coordinator's metrics, by value after known operations, under virtual time."""

from __future__ import annotations

from pathlib import Path

from kshare_core.errors import ErrorCode
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from support.servicekit.scraped import Scraped, measured, scraped
from support.share_coordinator.peers import SHARE_PARTITIONS, STATE_PARTITIONS, Peer, Peers, run_peers


async def scrape(peer: Peer) -> Scraped:
    metrics = measured()
    peer.node.register_metrics(metrics)
    return await scraped(metrics)


def test_operations_records_and_appends() -> None:
    async def test(peers: Peers) -> None:
        found = await scrape(peers.one)
        operations = "share_coordinator_operations_total"
        assert found.value(operations, operation="initialize", error="NONE") == SHARE_PARTITIONS
        assert found.value(operations, operation="write", error="NONE") == SHARE_PARTITIONS
        assert found.total("share_coordinator_state_records_total") == 2 * SHARE_PARTITIONS
        assert found.value("share_coordinator_state_records_total", kind="tombstone") == 0
        assert found.value("share_coordinator_state_append_duration_seconds_count") == 1 + SHARE_PARTITIONS
        assert found.value("share_coordinator_state_append_records_sum") == 2 * SHARE_PARTITIONS
        assert found.value("share_coordinator_state_append_records_bucket", le="1.0") == SHARE_PARTITIONS
        assert found.value("share_coordinator_state_partitions") == STATE_PARTITIONS
        bytes_before = found.value("share_coordinator_state_append_bytes_total")
        assert bytes_before > 0
        assert await peers.one.write(0, start_offset=7) == [0]
        assert (await peers.one.read(0))[1] == 7
        assert await peers.two.write(0, start_offset=8) == [ErrorCode.NOT_COORDINATOR]
        found = await scrape(peers.one)
        assert found.value(operations, operation="write", error="NONE") == SHARE_PARTITIONS + 1
        assert found.value(operations, operation="read", error="NONE") == 1
        assert found.value("share_coordinator_state_append_bytes_total") > bytes_before
        other = await scrape(peers.two)
        assert other.value(operations, operation="write", error="NOT_COORDINATOR") == 1
        assert other.total("share_coordinator_state_records_total") == 0

    run_peers(test)


def test_loads_and_a_disk_that_refuses() -> None:
    async def test(peers: Peers) -> None:
        await peers.one.restart()
        loads = "share_coordinator_state_load_duration_seconds_count"
        assert (await scrape(peers.one)).value(loads) == 0
        for _ in range(2):
            assert (await peers.one.read(3))[0] == 0
        assert (await scrape(peers.one)).value(loads) == 1
        peers.one.disk.fail_next_writes(1)
        assert await peers.one.write(3, start_offset=9) == [ErrorCode.KAFKA_STORAGE_ERROR]
        found = await scrape(peers.one)
        assert found.value("share_coordinator_state_append_failures_total") == 1
        assert found.value("share_coordinator_operations_total", operation="write", error="KAFKA_STORAGE_ERROR") == 1
        assert found.total("share_coordinator_state_records_total") == 0
        assert found.value("node_healthy", role="share-coordinator", node_id="1") == 0

    run_peers(test)


def test_figures_of_rocksdb_below_the_checksums(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "store")
    sealed = ChecksummedStore(store)
    figures = sealed.figures()
    assert figures is not None and figures.memtable_bytes > 0 and figures.background_errors == 0
    store.close()
    assert sealed.figures() is None
