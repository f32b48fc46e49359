"""What a partition is at its new leader: every row that the former one had, and every answer that follows from them.

And what becomes of a move that cannot go on: the partition is served where it was, and nothing is left of the copy.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message

from kshare_core.errors import ErrorCode
from kshare_leader.engine.embedded import EmbeddedEngine
from kshare_leader.log import keys
from kshare_leader.reassignment.receiver import FENCED_LIMIT_S
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import ADVANCE_PARTITION_MOVE, DELETE_TOPICS, DRAIN_LEADER, TRANSFER_PARTITION
from kshare_rpc.network import Method
from kshare_runtime.ports import Write
from kshare_runtime.store_mending import CHECK_INTERVAL_S
from support.simulation.cluster import COORDINATOR
from support.simulation.network import in_no_host
from support.simulation.two_leaders import BATCH_TIME_MS, TwoLeaders

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
UNFINISHED = b"group"
BYTES_1_KB = bytes(1024)


async def fill(scene: TwoLeaders) -> None:
    """Every kind of row: producers, open and aborted transactions, an index of times, a log start, dead letters."""
    for _ in range(6):
        assert (await scene.produce(1, [BYTES_1_KB] * 300))[0] == 0
    for sequence in range(3):
        assert (await scene.produce(1, producer_id=7, sequence=sequence))[0] == 0
    assert (await scene.produce(1, producer_id=8, sequence=0, transactional=True))[0] == 0
    assert await scene.end_transaction(1, 8, committed=False) == 0
    assert (await scene.produce(1, producer_id=9, sequence=0, transactional=True))[0] == 0
    assert await scene.delete_records(1, 450) == (0, 450)
    assert await scene.append_dead_letter(1, 40) == (0, [40])
    row = keys.partition_prefix(scene.key()) + UNFINISHED
    scene.store(1).write([Write(keys.UNFINISHED_DEAD_LETTERS, row, b"")])


def test_every_row_is_at_the_new_leader_and_none_at_the_former() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        before = scene.stored(1)
        assert set(before) == set(keys.PARTITION_FAMILIES), "the test fills every family"
        epoch = (await scene.partition()).leader_epoch
        after = await scene.move(2)
        assert (after.leader_node_id, after.is_moving) == (2, False)
        assert after.leader_epoch > epoch
        assert scene.stored(2) == before
        assert scene.stored(1) == {}
        assert scene.mark(1) is None and scene.mark(2) is None

    TwoLeaders().run(body)


def test_the_new_leader_answers_as_the_former_would() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        fetched, data = await scene.fetch(1, 450)
        committed, _ = await scene.fetch(1, 1_700, committed=True)
        at_time = await scene.offset_of_time(1, BATCH_TIME_MS)
        assert (await scene.move(2)).leader_node_id == 2
        again, same = await scene.fetch(2, 450)
        assert same == data and again.high_watermark == fetched.high_watermark
        assert again.log_start_offset == 450 and (await scene.fetch(2, 449))[0].error_code != 0
        in_committed, _ = await scene.fetch(2, 1_700, committed=True)
        assert in_committed.last_stable_offset == committed.last_stable_offset < fetched.high_watermark
        assert list(in_committed.aborted_transactions) == list(committed.aborted_transactions) != []
        assert await scene.offset_of_time(2, BATCH_TIME_MS) == at_time
        assert await scene.produce(2, producer_id=7, sequence=2) == (0, 1802), "sent again: it is there already"
        assert (await scene.produce(2, producer_id=7, sequence=4))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await scene.produce(2, producer_id=7, sequence=3))[0] == 0
        assert await scene.append_dead_letter(2, 40) == (0, [40])
        letters, _ = await scene.fetch(2, 450)
        assert letters.high_watermark == fetched.high_watermark + 1, "only the batch was new"
        assert await scene.end_transaction(2, 9, committed=True) == 0
        ended, _ = await scene.fetch(2, 450, committed=True)
        assert ended.last_stable_offset == ended.high_watermark

    TwoLeaders().run(body)


def test_the_former_leader_refuses_requests_and_wakes_waiting_fetches() -> None:
    async def body(scene: TwoLeaders) -> None:
        assert (await scene.produce(1))[0] == 0
        waiting = asyncio.ensure_future(scene.fetch(1, 1, max_wait_ms=30_000))
        await asyncio.sleep(0.1)
        began = scene.loop.time()
        await scene.move(2)
        assert (await waiting)[0].error_code == NOT_LEADER and scene.loop.time() < began + 2
        assert (await scene.produce(1))[0] == NOT_LEADER
        assert (await scene.fetch(1))[0].error_code == NOT_LEADER
        assert (await scene.delete_records(1, 1))[0] == NOT_LEADER
        assert (await scene.append_dead_letter(1, 1))[0] == NOT_LEADER
        assert await scene.end_transaction(1, 5, committed=True) == NOT_LEADER
        assert await scene.produce(2) == (0, 1)

    TwoLeaders().run(body)


def test_there_and_back_again() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        before = scene.stored(1)
        for to in (2, 1, 2, 1):
            assert (await scene.move(to)).leader_node_id == to
        assert scene.stored(1) == before and scene.stored(2) == {}

    TwoLeaders().run(body)


def test_an_empty_partition_moves() -> None:
    async def body(scene: TwoLeaders) -> None:
        assert (await scene.move(2)).leader_node_id == 2
        assert await scene.produce(2) == (0, 0)

    TwoLeaders().run(body)


def test_all_deleted_records_do_not_come_back_as_offsets() -> None:
    async def body(scene: TwoLeaders) -> None:
        assert (await scene.produce(1, [b"x"] * 5))[0] == 0
        assert await scene.delete_records(1, 5) == (0, 5)
        await scene.move(2)
        assert await scene.produce(2) == (0, 5)

    TwoLeaders().run(body)


def test_other_partitions_are_left_alone() -> None:
    async def body(scene: TwoLeaders) -> None:
        assert (await scene.produce(2, partition=1))[0] == 0
        assert (await scene.produce(1, partition=0))[0] == 0
        others = scene.stored(2, 1)
        await scene.move(2)
        assert scene.stored(2, 1) == others and (await scene.produce(2, partition=1)) == (0, 1)

    TwoLeaders().run(body)


class Watch:
    """Calls of one method that passed, and what to do at one of them."""

    def __init__(self, scene: TwoLeaders, method: Method[Any, Any], *, fenced: bool | None = None) -> None:
        self.count = 0
        self.requests: list[Any] = []
        self._scene = scene
        self._method = method
        self._fenced = fenced
        self.at: dict[int, list[Any]] = {}
        scene.cluster.fabric.taps.append(self._tap)

    def _tap(
        self, source: str, target: str, method: Method[Any, Any], request: Any, answer: Message | None, sent_at: float
    ) -> None:
        if method != self._method or answer is not None:
            return
        if self._fenced is not None and request.is_fenced is not self._fenced:
            return
        self.requests.append(request)
        for action in self.at.get(self.count, []):
            in_no_host(self._scene.loop, self._scene.loop.time(), action)
        self.count += 1


def test_most_of_the_log_is_copied_while_it_is_served() -> None:
    async def body(scene: TwoLeaders) -> None:
        for _ in range(20):
            assert (await scene.produce(1, [BYTES_1_KB] * 10))[0] == 0
        served, fenced = (Watch(scene, TRANSFER_PARTITION, fenced=is_fenced) for is_fenced in (False, True))
        await scene.begin(2)
        produced = 0
        while served.count < 10:
            code, _ = await scene.produce(1)
            assert code == 0, "it is served while it is copied"
            produced += 1
        await scene.settled()
        assert produced and served.count >= 20
        log_pages = [request for request in fenced.requests if request.after_family in ("", keys.LOG)]
        assert len(log_pages) <= 3, "only the newest batches are copied while nobody serves"

    TwoLeaders().run(body)


def test_a_new_leader_that_dies_goes_on_where_it_was() -> None:
    async def body(scene: TwoLeaders) -> None:
        for _ in range(40):
            assert (await scene.produce(1, [BYTES_1_KB] * 4))[0] == 0
        served = Watch(scene, TRANSFER_PARTITION, fenced=False)
        served.at[20] = [scene.host(2).crash]
        await scene.begin(2)
        await scene.until(lambda: served.count > 20)
        await asyncio.sleep(0.3)
        scene.host(2).start()
        assert (await scene.settled()).leader_node_id == 2
        first_again = served.requests[21]
        assert first_again.after_family == keys.LOG and int.from_bytes(first_again.after_key, "big") >= 4 * 18
        assert served.count < 50, "what is there is not copied again"
        assert (await scene.fetch(2))[0].high_watermark == 160

    TwoLeaders().run(body)


def test_what_lies_there_of_an_older_move_is_not_taken_for_this_one() -> None:
    async def body(scene: TwoLeaders) -> None:
        for _ in range(20):
            assert (await scene.produce(1, [BYTES_1_KB] * 4))[0] == 0
        served = Watch(scene, TRANSFER_PARTITION, fenced=False)
        served.at[10] = [scene.host(2).crash]
        await scene.begin(2)
        await scene.until(lambda: served.count > 10)
        assert await scene.begin(-1, cancel=True) == [0]
        assert await scene.delete_records(1, 80) == (0, 80)
        before = scene.stored(1)
        assert await scene.begin(2) == [ErrorCode.NONE]
        scene.host(2).start()
        assert (await scene.settled()).leader_node_id == 2
        assert served.requests[11].after_family == "", "it begins anew"
        assert scene.stored(2) == before

    TwoLeaders().run(body)


# Moves that cannot go on


@pytest.mark.parametrize("when", ["served", "fenced"])
def test_a_move_that_is_cancelled_leaves_nothing(when: str) -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        before = scene.stored(1)
        watch = Watch(scene, TRANSFER_PARTITION, fenced=when == "fenced")
        watch.at[1] = [scene.host(2).pause]
        await scene.begin(2)
        await scene.until(lambda: watch.count > 1)
        code, _ = await scene.produce(1)
        assert code == (NOT_LEADER if when == "fenced" else 0)
        assert await scene.begin(-1, cancel=True) == [0]
        scene.host(2).resume()
        after = await scene.settled()
        assert after.leader_node_id == 1
        code, offset = await scene.produce(1)
        assert code == 0 and offset == (await scene.fetch(1, 450))[0].high_watermark - 1
        await scene.until(lambda: scene.stored(2) == {})
        assert scene.mark(1) is None and scene.mark(2) is None
        # The epoch that leads since the move was cancelled has its row from its first batch on, and no other has.
        row = keys.long_key(keys.partition_prefix(scene.key()), after.leader_epoch)
        before[keys.LEADER_EPOCHS][row] = keys.offset_value(offset)
        assert {family: rows for family, rows in scene.stored(1).items() if family != keys.LOG} == {
            family: rows for family, rows in before.items() if family != keys.LOG
        }

    TwoLeaders().run(body)


@pytest.mark.parametrize("number", [1, 2])
def test_a_disk_that_refuses_ends_the_move(number: int) -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        watch = Watch(scene, ADVANCE_PARTITION_MOVE)
        watch.at[0] = [lambda: scene.host(number).disk.fail_next_writes(1_000)]
        await scene.begin(2)
        after = await scene.settled()
        assert after.leader_node_id == 1
        assert watch.requests[-1].step == pb.AdvancePartitionMoveRequest.GIVE_UP
        scene.host(number).disk.fail_next_writes(0)
        if number == 1:
            assert (await scene.produce(1))[0] == ErrorCode.KAFKA_STORAGE_ERROR, "its store is not mended yet"
            await asyncio.sleep(CHECK_INTERVAL_S)
        assert (await scene.produce(1))[0] == 0
        await scene.until(lambda: scene.stored(2) == {})

    TwoLeaders().run(body)


def test_a_former_leader_that_does_not_give_out_the_rest_gets_the_partition_back() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        watch = Watch(scene, ADVANCE_PARTITION_MOVE)
        fabric = scene.cluster.fabric
        watch.at[0] = [lambda: fabric.block("leader-2", "leader-1")]
        began = scene.loop.time()
        await scene.begin(2)
        await scene.until(lambda: watch.count > 0)
        after = await scene.settled()
        assert after.leader_node_id == 1
        assert scene.loop.time() - began < FENCED_LIMIT_S + 10
        assert (await scene.produce(1))[0] == 0

    TwoLeaders().run(body)


def test_a_copy_that_is_not_the_log_is_given_up() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        served = Watch(scene, TRANSFER_PARTITION, fenced=True)
        last = max(scene.stored(1)[keys.LOG])
        served.at[0] = [lambda: scene.store(2).write([Write(keys.LOG, last[:-1] + bytes([last[-1] + 9]), b"x")])]
        advances = Watch(scene, ADVANCE_PARTITION_MOVE)
        await scene.begin(2)
        after = await scene.settled()
        assert after.leader_node_id == 1
        assert advances.requests[-1].step == pb.AdvancePartitionMoveRequest.GIVE_UP
        assert (await scene.produce(1))[0] == 0

    TwoLeaders().run(body)


def test_a_lost_target_gives_the_partition_back() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        watch = Watch(scene, TRANSFER_PARTITION, fenced=True)
        watch.at[0] = [lambda: scene.host(2).crash(silent=True)]
        await scene.begin(2)
        await scene.until(lambda: watch.count > 0)
        assert (await scene.settled()).leader_node_id == 1
        assert (await scene.produce(1))[0] == 0
        scene.host(2).start()
        await scene.until(lambda: scene.host(2).node is not None and scene.node(2)._engine is not None)
        await scene.until(lambda: scene.stored(2) == {})

    TwoLeaders().run(body)


def test_rows_without_a_mark_are_never_removed() -> None:
    async def body(scene: TwoLeaders) -> None:
        assert (await scene.produce(1))[0] == 0
        row = Write(keys.LOG, keys.long_key(keys.partition_prefix(scene.key()), 3), b"somebody's")
        scene.store(2).write([row])
        scene.host(2).crash()
        scene.host(2).start()
        await asyncio.sleep(5)
        assert scene.stored(2) == {keys.LOG: {row.key: row.value}}

    TwoLeaders().run(body)


def test_a_deleted_topic_takes_its_copy_along() -> None:
    async def body(scene: TwoLeaders) -> None:
        await fill(scene)
        watch = Watch(scene, TRANSFER_PARTITION, fenced=False)
        watch.at[3] = [scene.host(2).pause]
        await scene.begin(2)
        await scene.until(lambda: watch.count > 3)
        reference = pb.DeleteTopicsRequest.TopicReference(topic_id=scene.topic_id)
        await scene.call(COORDINATOR, DELETE_TOPICS, pb.DeleteTopicsRequest(topics=[reference]))
        scene.host(2).resume()
        await scene.until(lambda: scene.stored(2) == {} and scene.mark(2) is None)
        assert scene.stored(1) == {}

    TwoLeaders().run(body)


def test_a_leader_is_emptied_over_the_others() -> None:
    async def body(scene: TwoLeaders) -> None:
        for partition in range(6):
            leader = (await scene.partition(partition)).leader_node_id
            assert (await scene.produce(leader, [b"x"] * (partition + 1), partition=partition))[0] == 0
        left = 6
        while left:
            answer = await scene.call(COORDINATOR, DRAIN_LEADER, pb.DrainLeaderRequest(node_id=1))
            assert answer.error_code == 0
            left = answer.partitions_left
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.5)
        for partition in range(6):
            leader = (await scene.partition(partition)).leader_node_id
            assert leader in (2, 3)
            assert (await scene.produce(leader, partition=partition)) == (0, partition + 1)
        assert all(scene.stored(1, partition) == {} for partition in range(6))

    TwoLeaders(leaders=3, partitions=6).run(body)


def test_a_log_that_moves_is_not_compacted() -> None:
    async def body(scene: TwoLeaders) -> None:
        engine = scene.node(1)._engine
        assert isinstance(engine, EmbeddedEngine)
        logs = engine.logs
        log = logs.find(scene.key())
        assert log is not None and not log.is_moving
        watch = Watch(scene, TRANSFER_PARTITION, fenced=False)
        watch.at[0] = [scene.host(2).pause]
        await scene.begin(2)
        await scene.until(lambda: watch.count > 0)
        assert log.is_moving
        await scene.begin(-1, cancel=True)
        await asyncio.sleep(0.2)
        found = logs.find(scene.key())
        assert found is not None and not found.is_moving
        scene.host(2).resume()

    TwoLeaders().run(body)
