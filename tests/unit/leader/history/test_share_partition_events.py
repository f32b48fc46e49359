"""The events that a ShareService records of its share-partitions, one by one, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from kshare_core.delivery_history import HISTORY_TOPIC, EventType, HistoryRecord, decode_history_record
from kshare_core.errors import ErrorCode
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.history.partition_history import CLIENT_ID_LENGTH_LIMIT
from kshare_leader.metrics import HistoryCounts
from kshare_rpc.generated.kshare.v1 import leader_pb2
from support.clients.delivery_history import short
from support.leader.share.service import TOPIC, UNAVAILABLE, Leader, fetch_partition, run

ACCEPT, RELEASE, REJECT, RENEW, GAP = b"\x01", b"\x02", b"\x03", b"\x04", b"\x00"
START_MS = 1_000_000
"""The wall time at which the virtual clock begins."""


class Told:
    """A leader whose share-partition 0 starts at 0, with three batches of ten, and what it tells."""

    def __init__(self, *, limit_bytes: int = 100_000, batches: int = 3, **configs: str) -> None:
        self.counts = HistoryCounts()
        self.buffer = HistoryBuffer(limit_bytes=limit_bytes, counts=self.counts, wake=lambda at_once: None)
        self.leader = Leader(history=self.buffer)
        self.leader.channel.initialize(0, 0)
        texts = {key.replace("_", "."): value for key, value in configs.items()}
        self.leader.change_view(replace(self.leader.view, group_configs={"group": texts}))
        self.leader.log().appended_ms = 777
        for _ in range(batches):
            self.leader.log().append(10)

    def take(self) -> list[HistoryRecord]:
        segments = self.buffer.take()
        self.buffer.release(sum(segment.size_bytes for segment in segments))
        return [decode_history_record(segment.value()) for segment in segments]

    def events(self) -> list[tuple[Any, ...]]:
        return [short(event) for record in self.take() for event in record.events]


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(test)


def test_the_way_of_records() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        assert await leader.acquire("m1", max_records=10) == [(0, 9, 1)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT * 5 + RELEASE * 2 + GAP + REJECT * 2) == 0
        assert told.events() == [
            ("loaded", 0, None),
            ("acquired", 0, 9, 1, None),
            ("accepted", 0, 4, 1, None),
            ("released", 5, 6, 1, None),
            ("archived", 7, 7, 1, "gap"),
            ("rejected", 8, 9, 1, None),
            ("archived", 8, 9, 1, "rejected"),
            ("start_offset_moved", 5, "deliveries_ended"),
        ]
        await leader.service.stop()
        (record,) = told.take()
        assert (record.sequence, record.leader, record.incarnation) == (8, 7, 17)
        assert (record.group, record.topic, record.state_epoch, record.leader_epoch) == ("group", "orders", 3, 5)
        assert [event.event for event in record.events] == [EventType.UNLOADED]

    scenario(test)


def test_an_operators_release_and_rejection() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=10)
        told.take()
        for first, last, kind in ((0, 2, 2), (3, 4, 3)):
            request = leader_pb2.EndAcquisitionsRequest(
                group_id="group", topic_id=TOPIC, first_offset=first, last_offset=last, acknowledge_type=kind
            )
            await leader.service.end_acquisitions(request, memoryview(b""))
        events = [event for record in told.take() for event in record.events]
        assert [short(event) for event in events] == [
            ("released", 0, 2, 1, None),
            ("rejected", 3, 4, 1, None),
            ("archived", 3, 4, 1, "rejected"),
        ]
        assert {event.member_id for event in events[:2]} == {"m1"}
        await leader.service.stop()

    scenario(test)


def test_times_deadlines_and_members() -> None:
    async def test() -> None:
        told = Told(share_record_lock_duration_ms="20000")
        leader = told.leader
        await asyncio.sleep(5)
        await leader.acquire("m1")
        await asyncio.sleep(10)
        renew = fetch_partition(0, (0, 9, RENEW))
        await leader.fetch("m1", renew, is_renew_ack=True, max_wait_ms=0, max_records=0, max_bytes=0)
        await asyncio.sleep(40)
        events = [event for record in told.take() for event in record.events]
        _, acquired, renewed, first, second = events
        assert acquired.append_time_ms == 777 and acquired.member_id == "m1"
        assert acquired.lock_deadline_ms == acquired.time_ms + 20_000
        assert abs(acquired.time_ms - START_MS - 5_000) < 10
        assert short(renewed) == ("renewed", 0, 9, 1, None) and renewed.member_id == "m1"
        assert renewed.lock_deadline_ms == renewed.time_ms + 20_000
        assert abs(renewed.time_ms - START_MS - 15_000) < 20
        assert short(first) == ("expired", 10, 29, 1, None) and short(second) == ("expired", 0, 9, 1, None)
        assert first.time_ms >= acquired.lock_deadline_ms and second.time_ms >= renewed.lock_deadline_ms
        await leader.service.stop()

    scenario(test)


def test_nothing_is_told_before_it_is_durable_nor_when_it_failed() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=10)
        told.take()
        leader.channel.gate = asyncio.Event()
        acknowledging = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(0.5)
        assert told.events() == []
        leader.channel.write_answers = [ErrorCode.INVALID_REQUEST]
        leader.channel.gate.set()
        assert await acknowledging != 0
        assert told.events() == []
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        assert told.events() == [("accepted", 0, 9, 1, None), ("start_offset_moved", 10, "deliveries_ended")]
        await leader.service.stop()

    scenario(test)


def test_an_unknown_outcome_ends_it_and_loaded_says_what_became_of_it() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=10)
        leader.channel.write_answers = [UNAVAILABLE] * 100
        leader.channel.stores_anyway = True
        assert await leader.acknowledge("m1", 0, 4, ACCEPT) != 0
        leader.channel.write_answers = []
        assert (await leader.acquire("m1"))[0][0] == 5
        assert [one[:2] for one in told.events()] == [
            ("loaded", 0),
            ("acquired", 0),
            ("unloaded",),
            ("loaded", 5),
            ("acquired", 5),
        ]
        await leader.service.stop()

    scenario(test)


def test_what_the_log_does_not_have() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        leader.log().compact(10)
        assert await leader.acquire("m1") == [(0, 9, 1), (20, 29, 1)]
        assert told.events() == [
            ("loaded", 0, None),
            ("archived", 10, 19, 0, "missing_in_log"),
            ("acquired", 0, 9, 1, None),
            ("acquired", 20, 29, 1, None),
        ]
        leader.log().delete_records(25)
        leader.log().append(10)
        assert await leader.acquire("m2") == [(30, 39, 1)]
        await asyncio.sleep(1)
        assert told.events() == [
            ("archived", 0, 9, 1, "below_log_start"),
            ("archived", 20, 24, 1, "below_log_start"),
            ("acquired", 30, 39, 1, None),
            ("start_offset_moved", 25, "below_log_start"),
        ]
        await leader.service.stop()

    scenario(test)


def test_an_acceptance_that_the_logs_start_overtook_is_not_told() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=20)
        told.take()
        leader.channel.gate = asyncio.Event()
        acknowledging = asyncio.ensure_future(leader.acknowledge("m1", 0, 19, ACCEPT))
        await asyncio.sleep(0.1)
        leader.log().delete_records(15)
        await leader.acquire("m2")
        leader.channel.gate.set()
        assert await acknowledging == 0
        await asyncio.sleep(1)
        events = told.events()
        assert events[:3] == [
            ("archived", 0, 14, 1, "below_log_start"),
            ("acquired", 20, 29, 1, None),
            ("accepted", 15, 19, 1, None),
        ]
        assert {one[0] for one in events[3:]} == {"start_offset_moved"}
        assert events[-1][1] == 20
        await leader.service.stop()

    scenario(test)


def test_records_that_no_member_saw_are_released_uncounted() -> None:
    async def test() -> None:
        told = Told(batches=1)
        leader = told.leader
        await leader.acquire("m1", fetch_number=3)
        await leader.release("m1", last_fetch_number=3, lost=[3])
        assert told.events()[1:] == [
            ("acquired", 0, 9, 1, None),
            ("released", 0, 9, 1, "not_delivered"),
        ]
        assert await leader.acquire("m2") == [(0, 9, 1)]
        await leader.release("m2")
        await asyncio.sleep(1)
        assert told.events() == [
            ("acquired", 0, 9, 1, None),
            ("released", 0, 9, 1, "session_ended"),
        ]
        await leader.service.stop()

    scenario(test)


def test_a_disk_that_fails_in_the_middle_of_a_fetch() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=10)
        told.take()
        leader.log().fails = True
        response, _ = await leader.fetch("m2")
        assert response.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert told.events() == []
        leader.log().fails = False
        assert await leader.acquire("m2") == [(10, 29, 1)]
        assert told.events() == [("acquired", 10, 29, 1, None)]
        await leader.service.stop()

    scenario(test)


def test_a_start_offset_by_reset_is_told_with_it() -> None:
    async def test() -> None:
        told = Told()
        told.leader.channel.initialize(0, -1)
        told.leader.log().append(1)
        waiting = asyncio.ensure_future(told.leader.acquire("m1", max_wait_ms=2_000))
        await asyncio.sleep(0.5)
        assert told.events() == [("loaded", 31, "latest")]
        told.leader.log().append(2)
        assert await waiting == [(31, 32, 1)]
        await told.leader.service.stop()

    scenario(test)


def test_an_administrators_new_start_is_loaded_with_another_state_epoch() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1")
        assert await leader.acknowledge("m1", 0, 29, ACCEPT) == 0
        told.take()
        leader.channel.initialize(0, 20)
        leader.channel.reset(0, leader.channel.state().start_offset, 4)
        request = leader_pb2.DropSharePartitionsRequest(group_id="group")
        request.partitions.add(topic_id=TOPIC, partition=0)
        await leader.service.drop_share_partitions(request, memoryview(b""))
        assert await leader.acquire("m1") == [(20, 29, 1)]
        before, after = told.take()
        assert (before.state_epoch, before.sequence, len(before.events)) == (3, 4, 1)
        assert (after.state_epoch, after.sequence) == (4, 5)
        assert [short(event)[:2] for event in after.events] == [("loaded", 20), ("acquired", 20)]
        await leader.service.stop()

    scenario(test)


def test_a_full_buffer_changes_nothing_but_the_history() -> None:
    async def test() -> None:
        told = Told(limit_bytes=0)
        assert await told.leader.acquire("m1") == [(0, 29, 1)]
        assert await told.leader.acknowledge("m1", 0, 29, ACCEPT) == 0
        assert (told.counts.events, told.counts.dropped) == (0, 4)
        assert told.events() == []
        await told.leader.service.stop()

    scenario(test)


def test_nothing_is_told_of_the_history_topic() -> None:
    async def test() -> None:
        told = Told()
        topic = told.leader.view.topics_by_id[TOPIC]
        topic.name = HISTORY_TOPIC
        told.leader.change_view(replace(told.leader.view, version=2))
        assert await told.leader.acquire("m1") == [(0, 29, 1)]
        assert await told.leader.acknowledge("m1", 0, 29, ACCEPT) == 0
        assert (told.counts.events, told.counts.dropped) == (0, 0)
        await told.leader.service.stop()

    scenario(test)


def test_an_acquisition_names_the_client() -> None:
    async def test() -> None:
        told = Told()
        leader = told.leader
        await leader.acquire("m1", max_records=1, client_id='billing "worker"')
        await leader.acquire("m2", max_records=1, client_id="x" * (CLIENT_ID_LENGTH_LIMIT + 1))
        await leader.acquire("m3", max_records=1)
        events = [event for record in told.take() for event in record.events]
        acquired = {event.member_id: event.client_id for event in events if event.event is EventType.ACQUIRED}
        assert acquired == {"m1": 'billing "worker"', "m2": "x" * CLIENT_ID_LENGTH_LIMIT, "m3": None}
        assert {event.client_id for event in events if event.event is not EventType.ACQUIRED} == {None}
        await leader.service.stop()

    scenario(test)
