"""Committed offsets at the coordinator as a role, on virtual time: restarts, bad disks, retention."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, run_virtually
from support.coordinator.committed_offsets import offset_of
from support.runtime.unreadable_store import UnreadableStore

CHECK_INTERVAL_S = 10
CONFIGS = {
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": str(CHECK_INTERVAL_S * 1000),
}


async def commit(cluster: CoordinatorCluster, offset: int, group_id: str = "group") -> list[int]:
    """Of partition 0, and of one that does not exist."""
    request = pb.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        api_version=10,
        offsets=[offset_of(("t", 0), offset), offset_of(("t", 5), offset)],
    )
    answer = await cluster.call(methods.OFFSET_COMMIT, request)
    assert [(result.topic_name, result.partition) for result in answer.results] == [("t", 0), ("t", 5)]
    return [result.error_code for result in answer.results]


async def committed(cluster: CoordinatorCluster, group_id: str = "group") -> int | None:
    """The committed offset of partition 0; None where there is none."""
    request = pb.OffsetFetchRequest(group_id=group_id, all_topics=True)
    answer = await cluster.call(methods.OFFSET_FETCH, request)
    assert answer.error_code == 0
    return answer.results[0].offset.committed_offset if answer.results else None


def test_offsets_outlast_a_restart() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        assert await commit(cluster, 5) == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
        await cluster.restart()
        assert await committed(cluster) == 5
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_commit_that_cannot_be_written_is_answered_so() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        await commit(cluster, 5)
        cluster.disk.fail_next_writes(1)
        assert await commit(cluster, 6) == [E.COORDINATOR_NOT_AVAILABLE] * 2
        assert await committed(cluster) == 5
        await commit(cluster, 7)
        assert await committed(cluster) == 7
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_transactional_commit_over_rpc_and_onto_a_bad_disk() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        await cluster.start()
        await cluster.create_topic("t", 1)
        producer = await cluster.call(
            methods.INIT_PRODUCER_ID,
            pb.InitProducerIdRequest(
                producer_id=-1,
                producer_epoch=-1,
                has_transactional_id=True,
                transactional_id="producer",
                transaction_timeout_ms=60_000,
            ),
        )
        request = pb.TxnOffsetCommitRequest(
            transactional_id="producer",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="group",
            generation_id=-1,
            add_to_transaction=True,
            offsets=[offset_of(("t", 0), 8)],
        )
        cluster.disk.fail_next_writes(1)
        for code in (E.COORDINATOR_NOT_AVAILABLE, E.NONE):
            answer = await cluster.call(methods.TXN_OFFSET_COMMIT, request)
            assert [result.error_code for result in answer.results] == [code]
        assert await committed(cluster) is None
        end = pb.EndTxnRequest(
            transactional_id="producer",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
            bumps_epoch=True,
        )
        assert (await cluster.call(methods.END_TXN, end)).error_code == 0
        assert await committed(cluster) == 8
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_store_that_cannot_be_read_knows_no_offsets() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster()
        store = UnreadableStore(cluster.disk.open_store("coordinator"))
        cluster.open_store = lambda name: store
        await cluster.start()
        await cluster.create_topic("t", 1)
        await commit(cluster, 5)
        store.failing_writes, store.failing_reads = 1, 2
        assert await commit(cluster, 6) == [E.COORDINATOR_NOT_AVAILABLE] * 2
        request = pb.OffsetFetchRequest(group_id="group", all_topics=True)
        assert (await cluster.call(methods.OFFSET_FETCH, request)).error_code == E.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(3)
        assert await committed(cluster) == 5
        await cluster.node.stop(0)

    run_virtually(main)


def test_offsets_are_taken_out_when_their_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(CONFIGS)
        await cluster.start()
        await cluster.create_topic("t", 1)
        await commit(cluster, 5)
        await asyncio.sleep(30)
        await commit(cluster, 6, "other")
        await asyncio.sleep(30 + CHECK_INTERVAL_S)
        assert (await committed(cluster), await committed(cluster, "other")) == (None, 6)
        await asyncio.sleep(30)
        assert await committed(cluster, "other") is None
        await cluster.node.stop(0)

    with caplog.at_level(logging.INFO, "kshare_coordinator.offsets_expiry"):
        run_virtually(main)
    assert [record.getMessage()[:21] for record in caplog.records] == ["removed 1 committed o"] * 2


def test_an_expiry_that_cannot_be_written_is_tried_again() -> None:
    async def main() -> None:
        cluster = CoordinatorCluster(CONFIGS)
        await cluster.start()
        await cluster.create_topic("t", 1)
        await commit(cluster, 5)
        await asyncio.sleep(55)
        cluster.disk.fail_next_writes(1)
        await asyncio.sleep(6)
        assert await committed(cluster) == 5
        await asyncio.sleep(CHECK_INTERVAL_S)
        assert await committed(cluster) is None
        await cluster.node.stop(0)

    run_virtually(main)


@pytest.mark.parametrize("at_once", [5_000, 20])
def test_many_groups_are_looked_at(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """In one interval, however many offsets a command removes."""
    for module in ("machine.offsets.commits", "offsets_expiry"):
        monkeypatch.setattr(f"kshare_coordinator.{module}.EXPIRED_AT_ONCE", at_once)

    async def main() -> None:
        cluster = CoordinatorCluster(CONFIGS)
        await cluster.start()
        await cluster.create_topic("t", 1)
        for number in range(250):
            await commit(cluster, number, f"group-{number}")
        await asyncio.sleep(60 + CHECK_INTERVAL_S)
        assert [await committed(cluster, f"group-{number}") for number in range(250)] == [None] * 250
        await cluster.node.stop(0)

    run_virtually(main)
