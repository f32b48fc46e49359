"""A leader's metrics of share-partitions, by value after known operations, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.metric_reading import LeaderParts, LeaderSource
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.share.limits import IDLE_CHECK_INTERVAL_MS, IDLE_UNLOAD_MS
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from kshare_servicekit.capped_series import OTHERS
from support.leader.share.service import TOPIC, UNAVAILABLE, Leader, Logs, MemoryTopicLog, fetch_partition, owner, run
from support.servicekit.scraped import Scraped, measured, scraped

ACCEPT, RELEASE, REJECT, RENEW, GAP = b"\x01", b"\x02", b"\x03", b"\x04", b"\x00"
LOCK_S = 30
SHARE = {"group": "group", "topic": "orders", "partition": "0"}
PAIR = {"group": "group", "topic": "orders"}


class MemoryLogs:
    """What a scrape asks of the logs, for logs in memory."""

    offline_count = 0

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def all_logs(self) -> Sequence[PartitionLog]:
        return []

    def find(self, key: TopicPartition) -> MemoryTopicLog | None:
        return self._logs.find(key)


class MeasuredLeader(Leader):
    """A leader in memory with its metrics; `append` also notes the append."""

    def __init__(self, *, partitions: int = 2, configs: dict[str, str] | None = None, limit: int = 1_000) -> None:
        self.leader_metrics = LeaderMetrics()
        super().__init__(partitions=partitions, configs=configs, metrics=self.leader_metrics)
        for index in range(partitions):
            self.channel.initialize(index, 0)
        self.metrics = measured()
        self.leader_metrics.now = self.metrics.now
        source = LeaderSource(
            self.leader_metrics,
            Configs(PROCESS_CONFIGS, {"kshare.metrics.share.partitions.limit": str(limit)}),
            lambda: LeaderParts(self.view, MemoryDisk().open_store("x"), MemoryLogs(self.logs), self.service.directory),
        )
        self.metrics.add_node("leader", 7, source, self.service.problems)

    def append(self, count: int, partition: int = 0) -> None:
        log = self.log(partition)
        first = log.high_watermark
        self.leader_metrics.appended(log.topic_partition, first, first + count, 1, 100)
        log.append(count)

    async def scrape(self) -> Scraped:
        return await scraped(self.metrics)


def play(test: Callable[[MeasuredLeader], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def whole() -> None:
        leader = MeasuredLeader(**options)
        await test(leader)
        await leader.service.stop()

    run(whole)


def test_acknowledgements_by_type_count_when_they_are_durable() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(10)
        await leader.acquire()
        leader.channel.gate = asyncio.Event()
        pending = asyncio.ensure_future(leader.acknowledge("m1", 0, 3, ACCEPT))
        await asyncio.sleep(0.1)
        found = await leader.scrape()
        assert found.value("leader_share_acquired_records_total", **SHARE) == 10
        assert found.value("leader_share_acknowledged_records_total", **SHARE, type="accept") == 0
        assert found.value("leader_share_lag_records", **SHARE) == 10
        leader.channel.gate.set()
        assert await pending == 0
        assert await leader.acknowledge("m1", 4, 9, RELEASE + REJECT + ACCEPT + GAP + RELEASE + REJECT) == 0
        found = await leader.scrape()
        types = {
            name: found.value("leader_share_acknowledged_records_total", **SHARE, type=name)
            for name in ("accept", "release", "reject", "renew", "gap")
        }
        assert types == {"accept": 5, "release": 2, "reject": 2, "renew": 0, "gap": 1}
        reasons = {
            name: found.value("leader_share_archived_records_total", **SHARE, reason=name)
            for name in ("delivery_limit", "rejected", "gap")
        }
        assert reasons == {"delivery_limit": 0, "rejected": 2, "gap": 1}
        assert found.value("leader_share_lag_records", **SHARE) == 2
        assert found.value("leader_share_in_flight_records", **SHARE, state="available") == 2
        assert found.value("leader_share_in_flight_records", **SHARE, state="acquired") == 0
        assert found.value("leader_share_partitions") == 1

    play(test)


def test_acknowledgements_that_were_refused_do_not_count() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(10)
        await leader.acquire()
        assert await leader.acknowledge("somebody else", 0, 3, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        leader.channel.write_answers = [ErrorCode.INVALID_REQUEST]
        assert await leader.acknowledge("m1", 0, 3, ACCEPT) != 0
        found = await leader.scrape()
        assert found.total("leader_share_acknowledged_records_total") == 0
        assert found.value("leader_share_lag_records", **SHARE) == 10
        assert await leader.acknowledge("m1", 0, 3, ACCEPT) == 0
        found = await leader.scrape()
        assert found.total("leader_share_acknowledged_records_total") == 4
        assert found.value("leader_share_lag_records", **SHARE) == 6

    play(test)


def test_locks_that_ran_out_sessions_that_ended_and_the_delivery_limit() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(4)
        await leader.acquire()
        await asyncio.sleep(LOCK_S + 1)
        found = await leader.scrape()
        assert found.value("leader_share_expired_locks_records_total", **SHARE) == 4
        await leader.acquire("m2")
        assert await leader.release("m2") == 0
        found = await leader.scrape()
        assert found.value("leader_share_session_released_records_total", **SHARE) == 4
        assert found.value("leader_share_archived_records_total", **SHARE, reason="delivery_limit") == 4
        assert found.value("leader_share_lag_records", **SHARE) == 0
        assert found.value("leader_share_acquired_records_total", **SHARE) == 8

    play(test, configs={"group.share.delivery.count.limit": "2"})


def test_how_long_records_are_held_and_how_often_they_were_delivered() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(3)
        await leader.acquire()
        await asyncio.sleep(5)
        leader.append(2)
        await leader.acquire("m2")
        await asyncio.sleep(2)
        found = await leader.scrape()
        assert 7 <= found.value("leader_share_oldest_acquired_age_seconds", **SHARE) <= 7.1
        assert found.value("leader_share_in_flight_records", **SHARE, state="acquired") == 5
        assert await leader.acknowledge("m1", 0, 2, RELEASE) == 0
        found = await leader.scrape()
        assert 2 <= found.value("leader_share_oldest_acquired_age_seconds", **SHARE) <= 2.1
        assert await leader.acquire("m2") == [(0, 2, 2)]
        found = await leader.scrape()
        assert found.value("leader_share_delivery_count_bucket", **PAIR, le="1.0") == 5
        assert found.value("leader_share_delivery_count_bucket", **PAIR, le="2.0") == 8
        assert found.value("leader_share_delivery_count_sum", **PAIR) == 5 + 2 * 3

    play(test)


def test_from_append_to_accept() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(3)
        await asyncio.sleep(0.2)
        leader.append(5)
        await leader.acquire()
        await asyncio.sleep(0.5)
        assert await leader.acknowledge("m1", 0, 2, ACCEPT) == 0
        assert await leader.acknowledge("m1", 3, 6, ACCEPT + RELEASE + ACCEPT + ACCEPT) == 0
        found = await leader.scrape()
        assert found.value("leader_share_append_to_accept_seconds_count", **PAIR) == 6
        assert 3 * 0.7 + 3 * 0.5 <= found.value("leader_share_append_to_accept_seconds_sum", **PAIR) <= 3.7
        assert found.value("leader_share_append_to_accept_seconds_bucket", **PAIR, le="0.5") == 0
        assert found.value("leader_share_append_to_accept_seconds_bucket", **PAIR, le="1.0") == 6

    play(test)


def test_how_long_calls_took() -> None:
    async def test(leader: MeasuredLeader) -> None:
        assert await leader.acquire(max_wait_ms=400) == []
        leader.append(2)
        assert await leader.acquire() == [(0, 1, 1)]
        assert await leader.acknowledge("m1", 0, 1, ACCEPT) == 0
        found = await leader.scrape()
        waited, at_once = {"group": "group", "waited": "true"}, {"group": "group", "waited": "false"}
        assert found.value("leader_share_fetch_duration_seconds_count", **waited) == 1
        assert found.value("leader_share_fetch_duration_seconds_sum", **waited) >= 0.39
        assert found.value("leader_share_fetch_duration_seconds_count", **at_once) == 1
        assert found.value("leader_share_fetch_duration_seconds_sum", **at_once) == 0
        assert found.value("leader_share_acknowledge_duration_seconds_count", group="group") == 1
        assert 0 < found.value("leader_share_acknowledge_duration_seconds_sum", group="group") < 0.1

    play(test)


def test_an_acquisition_that_no_member_saw_is_taken_back() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(4)
        await leader.acquire(fetch_number=9)
        assert await leader.release("m1", last_fetch_number=8, lost=[9]) == 0
        found = await leader.scrape()
        assert found.value("leader_share_acquisitions_taken_back_records_total", **SHARE) == 4
        assert found.value("leader_share_session_released_records_total", **SHARE) == 0

    play(test)


def test_lag_is_known_when_all_members_are_gone_and_grows() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(10)
        await leader.acquire()
        assert await leader.acknowledge("m1", 0, 9, ACCEPT * 4 + RELEASE * 4 + ACCEPT * 2) == 0
        assert await leader.release("m1") == 0
        await asyncio.sleep((IDLE_UNLOAD_MS + IDLE_CHECK_INTERVAL_MS) / 1000)
        found = await leader.scrape()
        assert found.value("leader_share_partitions") == 0
        assert found.value("leader_share_lag_records", **SHARE) == 4
        leader.append(7)
        found = await leader.scrape()
        assert found.value("leader_share_lag_records", **SHARE) == 11
        assert found.value("leader_share_acknowledged_records_total", **SHARE, type="accept") == 6
        assert await leader.acquire() == [(4, 7, 2), (10, 16, 1)]
        found = await leader.scrape()
        assert found.value("leader_share_lag_records", **SHARE) == 11
        assert found.value("leader_share_acknowledged_records_total", **SHARE, type="accept") == 6

    play(test)


def test_a_state_that_an_administrator_replaced_is_forgotten() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(10)
        await leader.acquire()
        request = leader_pb2.DropSharePartitionsRequest(group_id="group")
        request.partitions.add(topic_id=TOPIC, partition=0)
        await leader.service.drop_share_partitions(request, memoryview(b""))
        found = await leader.scrape()
        assert not found.labels("leader_share_lag_records", "group")
        assert not found.labels("leader_share_delivery_count_count", "group")

    play(test)


def test_beyond_the_limit_the_largest_lag_is_kept_and_the_rest_summed_up() -> None:
    async def test(leader: MeasuredLeader) -> None:
        for partition, count in ((0, 5), (1, 9), (2, 4)):
            leader.append(count, partition)
        await leader.fetch("m1", *(fetch_partition(index) for index in range(3)))
        assert await leader.acknowledge("m1", 0, 1, ACCEPT, partition=0) == 0
        assert await leader.acknowledge("m1", 0, 2, ACCEPT, partition=2) == 0
        others = {"group": OTHERS, "topic": OTHERS, "partition": OTHERS}
        second = {**SHARE, "partition": "1"}
        found = await leader.scrape()
        assert found.labels("leader_share_lag_records", "partition") == {"1", OTHERS}
        assert found.value("leader_share_lag_records", **second) == 9
        assert found.value("leader_share_lag_records", **others) == 3 + 1
        assert found.value("leader_share_in_flight_records", **others, state="acquired") == 4
        assert found.value("leader_share_acknowledged_records_total", **others, type="accept") == 5
        assert found.value("leader_share_acquired_records_total", **others) == 9
        leader.append(50, 0)
        assert await leader.acknowledge("m1", 0, 8, ACCEPT, partition=1) == 0
        found = await leader.scrape()
        assert found.labels("leader_share_lag_records", "partition") == {"0", OTHERS}
        assert found.value("leader_share_acknowledged_records_total", **SHARE, type="accept") == 0
        assert found.value("leader_share_acknowledged_records_total", **others, type="accept") == 5 + 9
        assert found.value("leader_share_acquired_records_total", **others) == 9

    play(test, partitions=3, limit=1)


def test_a_write_of_unknown_outcome_is_not_counted() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(10)
        await leader.acquire()
        leader.channel.write_answers = [UNAVAILABLE] * 100
        assert await leader.acknowledge("m1", 0, 3, ACCEPT) != 0
        leader.channel.write_answers = []
        found = await leader.scrape()
        assert found.total("leader_share_acknowledged_records_total") == 0

    play(test)


def test_many_batches_in_one_request_count_all_and_sample_some() -> None:
    async def test(leader: MeasuredLeader) -> None:
        leader.append(100)
        await leader.acquire()
        request = leader_pb2.ShareAcknowledgeRequest(owner=owner("m1"))
        entry = request.partitions.add(topic_id=TOPIC, partition=0)
        for offset in range(100):
            entry.acknowledgement_batches.add(first_offset=offset, last_offset=offset, acknowledge_types=ACCEPT)
        await leader.service.share_acknowledge(request, memoryview(b""))
        found = await leader.scrape()
        assert found.value("leader_share_acknowledged_records_total", **SHARE, type="accept") == 100
        assert 90 <= found.value("leader_share_append_to_accept_seconds_count", **PAIR) <= 110

    play(test)
