"""ShareService under virtual time: loading, long polls, durable answers, failures, timeouts, sessions, the catalog."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kshare_core.errors import CorruptRecords, ErrorCode
from kshare_leader.ports import TimestampOffset
from kshare_leader.share import directory
from kshare_leader.share.limits import FAILED_WRITE_PAUSE_MS, FIRST_READ_BYTES, WRITE_ATTEMPT_MIN_MS
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as state_pb2
from kshare_rpc.network import CallNotStarted
from support.leader.share.service import TOPIC, UNAVAILABLE, Leader, entries, fetch_partition, make_view, owner, run

ACCEPT, RELEASE, REJECT, RENEW = b"\x01", b"\x02", b"\x03", b"\x04"


def now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


def ready(
    *,
    start: int = 0,
    records: int = 10,
    partitions: int = 2,
    configs: dict[str, str] | None = None,
    max_share_partitions: int = 20_000,
) -> Leader:
    """A leader with `records` in partition 0, whose share-partitions start at `start`."""
    leader = Leader(partitions=partitions, configs=configs, max_share_partitions=max_share_partitions)
    for index in range(partitions):
        leader.channel.initialize(index, start)
    if records:
        leader.log().append(records)
    return leader


def test_fetch_acknowledge_and_what_is_written() -> None:
    async def test() -> None:
        leader = ready()
        response, payload = await leader.fetch()
        (partition,) = response.partitions
        assert entries(partition) == [(0, 9, 1)]
        assert [(b.base_offset, b.last_offset, b.length, b.inline) for b in partition.batches] == [(0, 9, 100, True)]
        assert payload.startswith(b"0-9;") and len(payload) == 100
        assert (partition.next_fetch_offset, partition.high_watermark) == (10, 10)
        assert response.acquisition_lock_timeout_ms == 30_000
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        (write,) = leader.channel.writes
        (stored,) = write.partitions
        assert (write.group_id, stored.state_epoch, stored.leader_epoch, stored.start_offset) == ("group", 3, 5, 10)
        assert not stored.state_batches
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize(
    ("reset", "start"),
    [("latest", 30), ("earliest", 10), ("by_duration:PT1M", 20), ("by_duration:PT0S", 30)],
)
def test_the_start_offset_is_found_and_stored_before_anything_is_delivered(reset: str, start: int) -> None:
    async def test() -> None:
        leader = ready(start=-1, records=0)
        log = leader.log()
        for _ in range(3):
            log.append(10)
        log.log_start_offset = 10
        log.timestamps = [TimestampOffset(950_000, 20)]
        leader.change_view(replace(leader.view, group_configs={"group": {"share.auto.offset.reset": reset}}))
        leader.channel.gate = asyncio.Event()
        waiting = asyncio.ensure_future(leader.fetch(max_wait_ms=2000))
        await asyncio.sleep(1)
        log.append(5)
        await asyncio.sleep(0.5)
        assert not waiting.done(), "nothing is delivered before the start offset is durable"
        leader.channel.gate.set()
        response, _ = await waiting
        assert entries(response.partitions[0])[0][0] == start
        assert leader.channel.writes[0].partitions[0].start_offset == start
        await leader.service.stop()

    run(test)


def test_an_acknowledgement_is_answered_only_when_it_is_durable() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.gate = asyncio.Event()
        answer = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(1)
        assert not answer.done()
        leader.channel.gate.set()
        assert await answer == 0
        await leader.service.stop()

    run(test)


def test_a_fetch_waits_for_an_append_and_no_longer() -> None:
    async def test() -> None:
        leader = ready(records=0)
        waiting = asyncio.ensure_future(leader.acquire(max_wait_ms=5000))
        await asyncio.sleep(1.5)
        leader.log().append(3)
        assert await waiting == [(0, 2, 1)]
        assert now_ms() == 1500
        assert await leader.acquire("m2", max_wait_ms=400) == []
        assert now_ms() == 1900
        await leader.service.stop()

    run(test)


def test_one_append_goes_to_the_fetch_that_waits_longest() -> None:
    async def test() -> None:
        leader = ready(records=0)
        first = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=5000))
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=5000))
        await asyncio.sleep(0.1)
        leader.log().append(3)
        assert await first == [(0, 2, 1)]
        assert not second.done()
        leader.log().append(2)
        assert await second == [(3, 4, 1)]
        await leader.service.stop()

    run(test)


def test_kafka_19227_a_fetch_at_the_full_window_is_woken_when_the_start_offset_moves() -> None:
    async def test() -> None:
        leader = ready(records=0, configs={"group.share.partition.max.record.locks": "100"})
        leader.log().append(100)
        leader.log().append(10)
        assert await leader.acquire() == [(0, 99, 1)]
        waiting = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=5000))
        await asyncio.sleep(1)
        assert await leader.acknowledge("m1", 0, 99, ACCEPT) == 0
        assert await waiting == [(100, 109, 1)]
        assert now_ms() < 1100
        await leader.service.stop()

    run(test)


def test_a_lock_expires_and_the_record_goes_to_a_waiting_fetch() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        waiting = asyncio.ensure_future(leader.acquire("m2", max_wait_ms=60_000))
        assert await waiting == [(0, 9, 2)]
        assert 30_000 <= now_ms() < 30_100
        stored = leader.channel.writes[0].partitions[0].state_batches[0]
        assert (stored.delivery_state, stored.delivery_count) == (0, 1), "durable, though nobody waited for it"
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        await leader.service.stop()

    run(test)


def test_a_renewed_lock_lasts_longer() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await asyncio.sleep(20)
        renew = fetch_partition(0, (0, 9, RENEW))
        response, _ = await leader.fetch("m1", renew, is_renew_ack=True, max_wait_ms=0, max_records=0, max_bytes=0)
        assert response.partitions[0].acknowledge_error_code == 0 and not response.partitions[0].acquired_records
        await asyncio.sleep(25)
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        await leader.service.stop()

    run(test)


def test_acknowledgements_in_a_fetch_are_durable_when_it_is_answered() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.log().append(5)
        leader.channel.gate = asyncio.Event()
        answer = asyncio.ensure_future(leader.fetch("m1", fetch_partition(0, (0, 9, ACCEPT))))
        await asyncio.sleep(1)
        assert not answer.done()
        leader.channel.gate.set()
        response, _ = await answer
        assert response.partitions[0].acknowledge_error_code == 0
        assert entries(response.partitions[0]) == [(10, 14, 1)]
        await leader.service.stop()

    run(test)


def test_writes_of_one_turn_travel_in_one_request() -> None:
    async def test() -> None:
        leader = ready()
        leader.log(1).append(4)
        both = (fetch_partition(0), fetch_partition(1))
        await leader.fetch("m1", *both)
        await asyncio.sleep(0.1)
        await leader.fetch("m1", *both, max_wait_ms=0)  # whichever was not loaded the first time
        request = leader_pb2.ShareAcknowledgeRequest(owner=owner("m1"))
        for partition, last in ((0, 9), (1, 3)):
            entry = request.partitions.add(topic_id=TOPIC, partition=partition)
            entry.acknowledgement_batches.add(first_offset=0, last_offset=last, acknowledge_types=ACCEPT)
        answer = await leader.service.share_acknowledge(request, memoryview(b""))
        assert [partition.error_code for partition in answer.partitions] == [0, 0]
        assert [len(write.partitions) for write in leader.channel.writes] == [2]
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("failure", [UNAVAILABLE, int(ErrorCode.NOT_COORDINATOR), 14, 15])
def test_a_write_that_may_be_lost_is_sent_again(failure: int | Exception) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [failure, failure]
        assert await leader.acknowledge("m1", 0, 4, REJECT) == 0
        assert leader.channel.states[TOPIC, 0].start_offset == 5 or leader.channel.states[TOPIC, 0].state_batches
        assert await leader.acknowledge("m1", 5, 9, ACCEPT) == 0
        assert leader.channel.states[TOPIC, 0].start_offset == 10
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("stored", [True, False])
def test_a_write_of_unknown_outcome_is_never_confirmed_and_the_state_is_read_anew(stored: bool) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [UNAVAILABLE] * 100
        leader.channel.stores_anyway = stored
        assert await leader.acknowledge("m1", 0, 4, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 5000 - WRITE_ATTEMPT_MIN_MS <= now_ms() <= 7500
        leader.channel.write_answers = []
        assert await leader.acquire("m2") == ([(5, 9, 1)] if stored else [(0, 9, 1)])
        assert leader.channel.reads == 2
        await leader.service.stop()

    run(test)


def test_writes_that_reach_no_share_coordinator_are_told_once_until_one_is_stored() -> None:
    async def test() -> None:
        leader = ready(records=5)
        await leader.acquire()

        async def fail() -> int:
            leader.channel.write_answers = [CallNotStarted("refused")] * 1000
            for _ in range(2):
                assert await leader.acknowledge("m1", 2, 3, ACCEPT) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            leader.channel.write_answers = []
            return sum("cannot store its state" in report for report in leader.reports)

        assert await fail() == 1
        assert await leader.acknowledge("m1", 0, 0, ACCEPT) == 0
        assert await fail() == 2
        await leader.service.stop()

    run(test)


def test_a_refused_write_leaves_the_records_with_their_holder() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.KAFKA_STORAGE_ERROR
        assert leader.service.problems()
        assert await leader.acquire("m2", max_wait_ms=100) == []
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == 0
        assert leader.service.problems() == []
        await leader.service.stop()

    run(test)


def test_a_lock_timeout_whose_write_is_refused_is_tried_again() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [int(ErrorCode.KAFKA_STORAGE_ERROR)] * 3
        assert await leader.acquire("m2", max_wait_ms=60_000) == [(0, 9, 2)]
        assert 33_000 <= now_ms() <= 34_000
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("code", [ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_fenced_share_partition_is_dropped_and_read_anew(code: ErrorCode) -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire()
        leader.channel.write_answers = [int(code)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert await leader.acquire("m1") == [(0, 9, 1)]
        assert leader.channel.reads == 2
        await leader.service.stop()

    run(test)


def test_loading_waits_for_the_share_coordinator_without_an_error_for_the_client() -> None:
    async def test() -> None:
        leader = ready()
        leader.channel.read_answers = [16, 14, UNAVAILABLE, 15]
        response, _ = await leader.fetch(max_wait_ms=60)
        assert response.partitions[0].error_code == 0 and not response.partitions[0].acquired_records
        assert await leader.acquire(max_wait_ms=5000) == [(0, 9, 1)]
        await leader.service.stop()

    run(test)


def test_a_share_partition_that_the_group_does_not_have() -> None:
    async def test() -> None:
        leader = ready()
        leader.channel.delete(0)
        response, _ = await leader.fetch()
        assert response.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert leader.reports == [], "a client could fill the log with share-partitions that it makes up"
        await leader.service.stop()

    run(test)


def test_partitions_that_are_not_here() -> None:
    async def test() -> None:
        leader = ready()
        leader.view.topics_by_id[TOPIC].partitions[1].leader_node_id = 9
        unknown = leader_pb2.ShareFetchRequest.Partition(topic_id=b"x" * 16, partition=0, fetch=True)
        response, _ = await leader.fetch("m1", fetch_partition(5), fetch_partition(1), unknown, max_wait_ms=9999)
        assert [partition.error_code for partition in response.partitions] == [3, 6, 100]
        leader_id = response.partitions[1].current_leader
        assert (leader_id.leader_id, leader_id.leader_epoch) == (9, 5)
        assert now_ms() == 0, "errors alone do not wait"
        assert await leader.acknowledge("m1", 0, 0, ACCEPT, partition=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await leader.service.stop()

    run(test)


def test_a_session_that_ends_releases_its_records_and_its_waiting_fetch() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await leader.fetch("m2", max_wait_ms=10)
        waiting = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        assert await leader.release("m1") == 0
        assert await waiting == [] and now_ms() < 1000
        assert await leader.acquire("m2") == [(0, 9, 2)], "the delivery counts (KAFKA-19972)"
        await leader.service.stop()

    run(test)


def test_a_gateway_that_is_gone_or_came_back_has_released_everything() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await asyncio.sleep(0.1)
        coordinator = leader.view.nodes[0]
        again = coordinator_pb2.Node(role=coordinator_pb2.ROLE_GATEWAY, node_id=1, incarnation="g2")
        leader.change_view(make_view(2, nodes=(coordinator, again)))
        assert await leader.acquire("m2", gateway="g2") == [(0, 9, 2)]
        leader.change_view(make_view(2, nodes=(coordinator, again)))
        assert await leader.acquire("m3", gateway="g2", max_wait_ms=50) == []
        await leader.service.stop()

    run(test)


def test_a_delivery_does_not_count_if_the_gateway_goes_before_its_fetch_is_answered() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.log().append(5)
        leader.channel.gate = asyncio.Event()
        fetching = asyncio.ensure_future(leader.fetch("m1", fetch_partition(0, (0, 4, ACCEPT))))
        await asyncio.sleep(0.1)
        coordinator = leader.view.nodes[0]
        again = coordinator_pb2.Node(role=coordinator_pb2.ROLE_GATEWAY, node_id=1, incarnation="g2")
        leader.change_view(make_view(2, nodes=(coordinator, again)))
        leader.channel.gate.set()
        response, _ = await fetching
        assert not response.partitions[0].acquired_records, "they are no longer held for this gateway"
        assert response.partitions[0].acknowledge_error_code == 0
        await asyncio.sleep(0.1)
        assert await leader.acquire("m2", gateway="g2") == [(5, 9, 2), (10, 14, 1)]
        await leader.service.stop()

    run(test)


def test_a_cancelled_fetch_gives_back_what_it_acquired() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.log().append(5)
        leader.channel.gate = asyncio.Event()
        fetching = asyncio.ensure_future(leader.fetch("m1", fetch_partition(0, (0, 9, ACCEPT))))
        await asyncio.sleep(0.1)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        leader.channel.gate.set()
        assert await leader.acquire("m2") == [(10, 14, 1)], "never delivered, so it does not count"
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 10, "the acknowledgement went on"
        await leader.service.stop()

    run(test)


def test_a_deleted_topic_ends_waits_and_writes() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        waiting = asyncio.ensure_future(leader.fetch("m2", max_wait_ms=60_000))
        leader.channel.gate = asyncio.Event()
        acknowledging = asyncio.ensure_future(leader.acknowledge("m1", 0, 9, ACCEPT))
        await asyncio.sleep(0.5)
        leader.change_view(replace(leader.view, topics_by_id={}, topics_by_name={}))
        response, _ = await waiting
        assert response.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        leader.channel.gate.set()
        assert await acknowledging == ErrorCode.NONE, "its write was in flight, and is durable"
        await leader.service.stop()

    run(test)


def test_a_malformed_acknowledgement_is_an_invalid_request_although_nothing_is_loaded() -> None:
    async def test() -> None:
        leader = ready()
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert await leader.acknowledge("m1", 9, 0, ACCEPT) == ErrorCode.INVALID_REQUEST
        assert await leader.acknowledge("m1", 0, 9, bytes([7])) == ErrorCode.INVALID_REQUEST
        await leader.service.stop()

    run(test)


def test_a_new_leader_epoch_reads_the_state_anew() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        leader.change_view(make_view(2, leader_epoch=6))
        assert await leader.acquire("m2") == [(0, 9, 1)]
        assert await leader.acknowledge("m1", 0, 9, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
        assert await leader.acknowledge("m2", 0, 9, ACCEPT) == 0
        assert leader.channel.writes[-1].partitions[0].leader_epoch == 6
        await leader.service.stop()

    run(test)


def test_cached_batches_are_named_but_not_sent() -> None:
    async def test() -> None:
        leader = ready()
        leader.log().append(10)
        leader.log().append(10)
        request = fetch_partition(0, cached=((0, 12), (20, 29)))
        response, payload = await leader.fetch("m1", request)
        batches = [(batch.base_offset, batch.inline) for batch in response.partitions[0].batches]
        assert batches == [(0, False), (10, True), (20, False)]
        assert payload.startswith(b"10-19;") and len(payload) == 100
        await leader.service.stop()

    run(test)


def test_max_bytes_holds_over_the_response_with_at_least_one_batch() -> None:
    async def test() -> None:
        leader = ready(records=0)
        for index in (0, 1):
            for _ in range(5):
                leader.log(index).append(1, size=100)
        both = (fetch_partition(0), fetch_partition(1))
        await leader.fetch("other", *both, max_records=1, max_bytes=1, max_wait_ms=10)
        await leader.release("other")
        await leader.acknowledge("other", 0, 0, RELEASE)
        response, payload = await leader.fetch("m1", *both, max_bytes=250)
        assert len(payload) == 200
        response, payload = await leader.fetch("m1", *both, max_bytes=50)
        assert len(payload) == 100
        response, payload = await leader.fetch("m1", *both, max_bytes=450)
        assert [len(partition.acquired_records) > 0 for partition in response.partitions] == [True, True]
        assert len(payload) == 400
        await leader.service.stop()

    run(test)


def test_control_batches_are_not_delivered_and_do_not_stall_the_start_offset() -> None:
    async def test() -> None:
        leader = ready(records=0)
        leader.log().append(4)
        leader.log().append(1, is_control=True)
        leader.log().append(3)
        leader.log().append(1, is_control=True)
        assert await leader.acquire() == [(0, 3, 1), (5, 7, 1)]
        request = leader_pb2.ShareAcknowledgeRequest(owner=owner("m1"))
        entry = request.partitions.add(topic_id=TOPIC, partition=0)
        for first, last in ((0, 3), (5, 7)):
            entry.acknowledgement_batches.add(first_offset=first, last_offset=last, acknowledge_types=ACCEPT)
        await leader.service.share_acknowledge(request, memoryview(b""))
        assert leader.channel.states[TOPIC, 0].start_offset == 9
        await leader.service.stop()

    run(test)


def test_retention_moves_the_start_offset() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", max_wait_ms=10)
        await leader.release("m1")
        leader.log().append(10)
        leader.log().log_start_offset = 10
        assert await leader.acquire("m1") == [(10, 19, 1)]
        await asyncio.sleep(0.1)
        assert leader.channel.states[TOPIC, 0].start_offset == 10
        await leader.service.stop()

    run(test)


def test_a_disk_that_fails_is_a_storage_error_and_acquires_nothing() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", max_wait_ms=10)
        await leader.release("m1")
        leader.log().fails = True
        response, _ = await leader.fetch("m1")
        assert response.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        leader.log().fails = False
        assert await leader.acquire("m1") == [(0, 9, 2)]
        await leader.service.stop()

    run(test)


def test_a_damaged_batch_is_told_as_such_and_acquires_nothing() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1", max_wait_ms=10)
        await leader.release("m1")
        leader.log().fails, leader.log().failure = True, CorruptRecords("the batch at offset 0 is damaged")
        response, _ = await leader.fetch("m1")
        assert response.partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert not response.partitions[0].acquired_records
        await leader.service.stop()

    run(test)


def test_records_before_a_damaged_batch_are_delivered_and_those_behind_it_after_a_delete() -> None:
    async def test() -> None:
        leader = ready()
        for _ in range(4):
            leader.log().append(10)
        leader.log().damaged = 20
        assert await leader.acquire("m1") == [(0, 19, 1)]
        for _ in range(2):
            response, payload = await leader.fetch("m2")
            (partition,) = response.partitions
            assert (partition.error_code, entries(partition), payload) == (ErrorCode.CORRUPT_MESSAGE, [], b"")
        assert await leader.acknowledge("m1", 0, 19, RELEASE) == 0
        assert await leader.acquire("m2") == [(0, 19, 2)]
        leader.log().delete_records(30)
        assert await leader.acquire("m1") == [(30, 49, 1)]
        assert await leader.acknowledge("m1", 30, 49, ACCEPT) == 0
        assert leader.channel.state().start_offset == 50
        await leader.service.stop()

    run(test)


def test_damaged_state_is_told_as_such() -> None:
    async def test() -> None:
        leader = ready()
        leader.channel.read_answers = [int(ErrorCode.CORRUPT_MESSAGE)]
        response, _ = await leader.fetch("m1", max_wait_ms=1_000)
        assert response.partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert not response.partitions[0].acquired_records
        await leader.service.stop()

    run(test)


def test_an_idle_share_partition_is_unloaded_and_comes_back() -> None:
    async def test() -> None:
        leader = ready()
        await leader.acquire("m1")
        await leader.acknowledge("m1", 0, 9, RELEASE)
        await asyncio.sleep(500)
        assert await leader.acquire("m1") == [(0, 9, 2)]
        assert leader.channel.reads == 2
        await leader.service.stop()

    run(test)


def test_stop_answers_waiting_requests() -> None:
    async def test() -> None:
        leader = ready(records=0)
        waiting = asyncio.ensure_future(leader.fetch(max_wait_ms=60_000))
        await asyncio.sleep(0.5)
        await leader.service.stop()
        response, _ = await waiting
        assert now_ms() == 500 and not response.partitions[0].acquired_records

    run(test)


def test_one_share_partition_more_than_the_limit_is_refused() -> None:
    async def test() -> None:
        leader = ready(max_share_partitions=1)
        assert await leader.acquire("m1") == [(0, 9, 1)]
        leader.log(0).append(10)
        response, _ = await leader.fetch("m1", fetch_partition(0), fetch_partition(1))
        assert entries(response.partitions[0]) == [(10, 19, 1)]
        assert response.partitions[1].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "kshare.leader.max.share.partitions" in response.partitions[1].error_message
        assert response.has_no_room
        await leader.service.stop()

    run(test)


def test_one_waiting_fetch_more_than_the_limit_only_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "WAITING_FETCHES_LIMIT", 1)

    async def test() -> None:
        leader = ready(records=0)
        waiting = asyncio.ensure_future(leader.acquire("m1", max_wait_ms=1000))
        await asyncio.sleep(0.1)
        assert await leader.acquire("m2", max_wait_ms=500) == [] and now_ms() == 300
        assert await leader.acquire("m2", max_wait_ms=50) == [] and now_ms() == 350
        assert await waiting == []
        assert await leader.acquire("m2", max_wait_ms=1000) == [] and now_ms() == 2000
        await leader.service.stop()

    run(test)


def test_beyond_the_limit_of_waiting_fetches_fewer_than_the_minimum_bytes_are_acquired_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "WAITING_FETCHES_LIMIT", 0)

    async def test() -> None:
        leader = ready()
        assert await leader.acquire("m1", max_wait_ms=1000) == [], "its state is loading"
        assert await leader.acquire("m1", max_wait_ms=1000, min_bytes=1 << 20) == [(0, 9, 1)]
        assert now_ms() == 200
        await leader.service.stop()

    run(test)


def test_a_group_config_of_another_version_does_not_stop_the_group() -> None:
    async def test() -> None:
        leader = ready()
        texts = {"share.record.lock.duration.ms": "soon"}
        leader.change_view(replace(leader.view, group_configs={"group": texts}))
        response, _ = await leader.fetch()
        assert response.acquisition_lock_timeout_ms == 30_000
        assert any("soon" in report for report in leader.reports)
        texts = {"share.record.lock.duration.ms": "15000"}
        leader.change_view(replace(leader.view, group_configs={"group": texts}))
        response, _ = await leader.fetch(max_wait_ms=0)
        assert response.acquisition_lock_timeout_ms == 15_000
        await leader.service.stop()

    run(test)


def test_state_that_makes_no_sense_is_an_error_and_not_a_guess() -> None:
    async def test() -> None:
        leader = ready()

        def spoil(answer: state_pb2.ReadShareGroupStateResponse) -> None:
            answer.results[0].state_batches.add(first_offset=5, last_offset=4)

        leader.channel.on_its_way = spoil
        response, _ = await leader.fetch()
        assert response.partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        await leader.service.stop()

    run(test)


def test_a_fetch_reads_about_the_bytes_of_the_records_that_it_acquires() -> None:
    async def test() -> None:
        leader = ready(records=0)
        log = leader.log()
        for _ in range(1_000):
            log.append(10, size=1_000)
        assert await leader.acquire("m1", max_records=10) == [(0, 9, 1)]
        assert log.read_bytes <= FIRST_READ_BYTES
        log.read_bytes = log.reads = 0
        found = await leader.acquire("m2", max_records=1_500, fetch_number=1)
        assert (found[0][0], found[-1][1]) == (10, 1_509)
        assert 150_000 <= log.read_bytes <= 150_000 + FIRST_READ_BYTES
        assert log.reads <= 3
        await leader.service.stop()

    run(test)


def test_a_start_offset_whose_writes_are_refused_is_stored_with_pauses() -> None:
    """Nobody waits for such a write. Each refusal made the next one at once."""

    async def test() -> None:
        leader = ready(records=0)
        leader.log().append(1, is_control=True)
        leader.log().append(5)
        leader.channel.write_answers = [int(ErrorCode.KAFKA_STORAGE_ERROR)] * 5
        assert await leader.acquire("m1", max_wait_ms=10)
        before = len(leader.channel.timeouts_ms)
        await asyncio.sleep(3)
        assert len(leader.channel.timeouts_ms) - before <= 3000 // FAILED_WRITE_PAUSE_MS
        await asyncio.sleep(10)  # less than a lock lasts: its end is another write
        assert len(leader.channel.timeouts_ms) - before == 6, "five refusals, and what was stored is not sent again"
        await leader.service.stop()

    run(test)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_record_on_its_last_attempt_is_alone_wherever_reads_of_the_log_end(size: int) -> None:
    async def test() -> None:
        leader = Leader()
        leader.channel.initialize(0, 0, (0, 0, 0, 1), (1, 1, 0, 4), (2, 2, 0, 1))
        leader.channel.initialize(1, 0)
        for _ in range(3):
            leader.log().append(1, size=size)
        found = [await leader.acquire("m1", max_wait_ms=10) for _ in range(3)]
        assert found == [[(0, 0, 2)], [(1, 1, 5)], [(2, 2, 2)]]
        await leader.service.stop()

    run(test)


def test_an_acknowledgement_after_a_refused_one_does_not_wait_for_the_pause() -> None:
    async def test() -> None:
        leader = ready()
        leader.channel.write_answers = [int(ErrorCode.KAFKA_STORAGE_ERROR)]
        assert await leader.acquire("m1") == [(0, 9, 1)]
        refused = await leader.acknowledge("m1", 0, 1, ACCEPT)
        began = now_ms()
        stored = await leader.acknowledge("m1", 2, 3, ACCEPT)
        assert (refused, stored) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
        assert now_ms() - began < 100
        await leader.service.stop()

    run(test)
