"""The lag of share-partitions without a fetch at this leader: computed from what the share coordinators have stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.metric_reading import LeaderParts, LeaderSource
from kshare_leader.metrics import SHARE_PARTITIONS_KEPT_LIMIT, LeaderMetrics, Progress
from kshare_leader.share.stored_progress import REFRESH_INTERVAL_S, StoredProgress
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from kshare_servicekit.capped_series import OTHERS
from support.leader.share.service import NODE_ID, TOPIC, UNAVAILABLE, Leader, Logs, MemoryTopicLog, key, make_view, run
from support.servicekit.scraped import measured, scraped

ACCEPT = b"\x01"
SOON_S = 5.0


class MemoryLogs:
    """What a scrape asks of the logs, for logs in memory."""

    offline_count = 0

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    def all_logs(self) -> list[PartitionLog]:
        return []

    def find(self, wanted: TopicPartition) -> MemoryTopicLog | None:
        return self._logs.find(wanted)


class WatchedLeader(Leader):
    """A leader of two partitions with ten records each, its metrics, and stored states that nobody fetched."""

    def __init__(self, limit: int = 1_000) -> None:
        self.leader_metrics = LeaderMetrics()
        super().__init__(metrics=self.leader_metrics)
        for index in range(2):
            self.log(index).append(10)
        self.metrics = measured()
        configs = Configs(PROCESS_CONFIGS, {"kshare.metrics.share.partitions.limit": str(limit)})
        self.metrics.add_node(
            "leader",
            NODE_ID,
            LeaderSource(
                self.leader_metrics,
                configs,
                lambda: LeaderParts(
                    self.view, MemoryDisk().open_store("x"), MemoryLogs(self.logs), self.service.directory
                ),
            ),
            self.service.problems,
        )
        self.archiving: list[SharePartitionKey] = []
        self.stored_progress = StoredProgress(
            found_archiving=self.archiving.append,
            view=lambda: self.view,
            channel=lambda address: self.channel,
            logs=self.logs,
            metrics=self.leader_metrics,
            node_id=NODE_ID,
            report=self.reports.append,
        )
        self.leader_metrics.on_forgotten = self.stored_progress.wake

    async def lags(self) -> dict[str, float]:
        """By partition, "(others)" for those that have no sample of their own."""
        found = await scraped(self.metrics)
        return {
            dict(labels)["partition"]: value
            for (name, labels), value in found.samples.items()
            if name == "kshare_leader_share_lag_records"
        }


def play(test: Callable[[WatchedLeader], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def whole() -> None:
        leader = WatchedLeader(**options)
        await test(leader)
        await leader.stored_progress.stop()
        await leader.service.stop()

    run(whole)


def test_lag_is_known_soon_after_the_start_without_loading_anything() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4, (4, 4, 0, 1), (5, 6, 2, 1))
        leader.channel.initialize(1, 10)
        assert await leader.lags() == {}
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 4, "1": 0}
        assert leader.channel.reads == 0 and not leader.service.directory.served
        leader.log().append(5)
        assert await leader.lags() == {"0": 9, "1": 0}

    play(test)


def test_a_share_partition_without_a_start_offset_has_no_lag_and_lag_is_never_negative() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, -1)
        leader.channel.initialize(1, 12)
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"1": 0}

    play(test)


def test_the_lag_is_known_soon_after_a_log_was_opened() -> None:
    """A log of an existing cluster is opened after the state was read."""

    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        leader.channel.initialize(1, 7)
        leader.logs.opening = {1}
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 6}
        leader.logs.opening.clear()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 6, "1": 3}
        lists = leader.channel.lists
        await asyncio.sleep(REFRESH_INTERVAL_S / 2)
        assert leader.channel.lists == lists, "nothing is missing any more"

    play(test)


def test_a_log_that_cannot_be_opened_makes_fewer_and_fewer_requests() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(1, 7)
        leader.logs.opening = {1}
        leader.stored_progress.start()
        await asyncio.sleep(10 * REFRESH_INTERVAL_S)
        assert leader.channel.lists <= 16 and leader.reports == []

    play(test)


@pytest.mark.parametrize("failure", [UNAVAILABLE, int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)])
def test_a_share_coordinator_that_is_away_is_asked_again(failure: int | Exception) -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        leader.channel.list_answers = [failure, failure, failure]
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {} and len(leader.reports) == 1
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 6}
        assert leader.channel.lists == 4, "and then not before the next refresh"

    play(test)


def test_a_partition_that_is_gained_has_its_lag_soon() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        elsewhere = make_view(2)
        elsewhere.topics_by_id[TOPIC].partitions[0].leader_node_id = NODE_ID + 1
        leader.view = elsewhere
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {}
        gained = make_view(2, leader_epoch=6)
        leader.stored_progress.on_view(leader.view, gained)
        leader.view = gained
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 6}

    play(test)


def test_state_that_an_administrator_replaced_is_asked_for_at_once() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        leader.channel.initialize(0, 9)
        request = leader_pb2.DropSharePartitionsRequest(group_id="group")
        request.partitions.add(topic_id=TOPIC, partition=0)
        await leader.service.drop_share_partitions(request, memoryview(b""))
        await asyncio.sleep(SOON_S)
        assert await leader.lags() == {"0": 1}

    play(test)


def test_what_the_leader_knows_itself_is_newer_than_an_answer_that_was_under_way() -> None:
    async def test(leader: WatchedLeader) -> None:
        asked = leader.leader_metrics.next_moment()
        leader.channel.initialize(0, 0)
        assert await leader.acquire() == [(0, 9, 1)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        assert await leader.release("m1") == 0
        assert await leader.lags() == {"0": 0} and not leader.service.directory.served
        assert not leader.leader_metrics.note_stored(key(), Progress(0, 0), 10, asked)
        assert await leader.lags() == {"0": 0}
        leader.leader_metrics.forget_share_partition(key())
        assert not leader.leader_metrics.note_stored(key(), Progress(0, 0), 10, asked)
        assert await leader.lags() == {}

    play(test)


def test_lag_stays_while_the_state_cannot_be_loaded() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        leader.channel.read_answers = [UNAVAILABLE] * 100
        assert await leader.acquire(max_wait_ms=500) == []
        assert leader.service.directory.served[key()].is_loading
        assert await leader.lags() == {"0": 6}

    play(test)


def test_it_is_asked_for_again_after_a_while_and_beyond_the_limit_it_is_summed_up() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4)
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        leader.channel.initialize(1, 3)  # of a group that nobody told this leader of
        await asyncio.sleep(REFRESH_INTERVAL_S)
        assert await leader.lags() == {"1": 7, OTHERS: 6}

    play(test, limit=1)


def test_what_has_no_room_is_left_out() -> None:
    metrics = LeaderMetrics()
    for number in range(SHARE_PARTITIONS_KEPT_LIMIT):
        assert metrics.note_stored(key(number), Progress(0, 0), 0, 1)
    assert not metrics.note_stored(key(SHARE_PARTITIONS_KEPT_LIMIT), Progress(0, 0), 0, 1)
    assert metrics.note_stored(key(3), Progress(5, 0), 0, 2), "those that are known are kept up to date"


def test_share_partitions_with_archiving_records_are_named_although_nobody_fetches() -> None:
    async def test(leader: WatchedLeader) -> None:
        leader.channel.initialize(0, 4, (4, 4, 3, 1), (5, 6, 2, 1))
        leader.channel.initialize(1, 4, (5, 6, 2, 1))
        leader.stored_progress.start()
        await asyncio.sleep(SOON_S)
        assert leader.archiving == [key(0)]

    play(test)
