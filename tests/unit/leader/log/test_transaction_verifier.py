"""Verification at the transaction coordinator (KIP-890): which calls, when, and the batches that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers import transaction_verifier
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.producers.transaction_verifier import TransactionVerifier
from kshare_rpc.network import CallTimeout, ChannelUnavailable
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.record_batches import read_header
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic, view_of
from support.leader.log.transactional_logs import ScriptedCoordinator, append, end_of, transactional_batch, verifier_of
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch, damage

NAME = TOPIC.decode()
SECOND = TopicPartition(TOPIC, 1)
RETRY = ErrorCode.NOT_ENOUGH_REPLICAS
STALE, NOT_IN_IT = ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Setting:
    """Logs, their verifier, and the coordinator that it asks."""

    def __init__(self, *, sync_delay_s: float = 0.0, configs: Mapping[str, str] | None = None) -> None:
        self.disk = MemoryDisk(sync_delay_s=lambda: sync_delay_s) if sync_delay_s else MemoryDisk()
        self.logs: PartitionLogs = open_logs(self.disk.open_store("leader"))
        self.coordinator = ScriptedCoordinator()
        self.verifier: TransactionVerifier = verifier_of(self.logs, self.coordinator, configs=configs)

    def send(
        self, batch: memoryview, *, key: TopicPartition = KEY, who: str = "pay", adds: bool = False
    ) -> asyncio.Future[Appended]:
        return self.verifier.append(key, batch, transactional_id=who, adds_partition=adds)

    async def outcome(self, *futures: asyncio.Future[Appended]) -> list[int | ErrorCode]:
        """For each append its base offset or its error."""
        results = await asyncio.gather(*futures, return_exceptions=True)
        found: list[int | ErrorCode] = []
        for result in results:
            if isinstance(result, Appended):
                found.append(result.base_offset)
            else:
                assert isinstance(result, KafkaError), repr(result)
                found.append(result.code)
        return found

    async def until_asked(self, count: int) -> None:
        while len(self.coordinator.calls) < count:
            await asyncio.sleep(0.0001)


def run(test: Coroutine[Any, Any, None]) -> None:
    VirtualLoop().run(test)


@pytest.mark.parametrize("adds", [False, True])
def test_the_first_batch_of_a_transaction_asks_and_the_rest_do_not(adds: bool) -> None:
    async def test() -> None:
        it = Setting()
        assert await it.outcome(it.send(transactional_batch(1, 0, 2), adds=adds)) == [0]
        assert it.coordinator.asked() == [[("pay", 0, not adds, [(NAME, 0)])]]
        assert await it.outcome(it.send(transactional_batch(1, 2), adds=adds)) == [2]
        await it.logs.end_transaction(KEY, end_of(1, committed=True))
        assert len(it.coordinator.calls) == 1
        assert await it.outcome(it.send(transactional_batch(1, 3), adds=adds)) == [4]
        assert len(it.coordinator.calls) == 2

    run(test())


def test_one_turn_shares_one_call() -> None:
    async def test() -> None:
        it = Setting()
        futures = [
            it.send(transactional_batch(1, 0)),
            it.send(transactional_batch(1, 0), key=SECOND),
            it.send(transactional_batch(1, 1)),
            it.send(transactional_batch(2, 0), who="ship", adds=True),
        ]
        assert await it.outcome(*futures) == [0, 0, 1, 2]
        assert it.coordinator.asked() == [
            [("pay", 0, True, [(NAME, 0), (NAME, 1)]), ("ship", 0, False, [(NAME, 0)])],
        ]

    run(test())


def test_what_comes_during_a_call_waits_in_order_and_asks_only_what_is_new() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.gate = asyncio.Event()
        first = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        later = [it.send(transactional_batch(1, 1)), it.send(transactional_batch(1, 0), key=SECOND)]
        other = it.send(transactional_batch(2, 0), who="ship")
        it.coordinator.gate.set()
        assert await it.outcome(first, *later, other) == [0, 1, 0, 2]
        assert it.coordinator.asked() == [
            [("pay", 0, True, [(NAME, 0)])],
            [("ship", 0, True, [(NAME, 0)]), ("pay", 0, True, [(NAME, 1)])],
        ]

    run(test())


def test_batches_that_come_with_the_answer_stay_in_order() -> None:
    async def test() -> None:
        it = Setting()
        futures = [it.send(transactional_batch(1, 0))]
        it.coordinator.before_answer = lambda: futures.append(it.send(transactional_batch(1, 1)))
        await it.until_asked(1)
        while len(futures) < 2:
            await asyncio.sleep(0)
        futures.append(it.send(transactional_batch(1, 2)))
        assert await it.outcome(*futures) == [0, 1, 2]
        assert len(it.coordinator.calls) == 1

    run(test())


@pytest.mark.parametrize(
    ("code", "before_version_2", "version_2"),
    [
        (ErrorCode.PRODUCER_FENCED, STALE, STALE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, STALE, STALE),
        (ErrorCode.INVALID_TXN_STATE, NOT_IN_IT, NOT_IN_IT),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING,) + (ErrorCode.INVALID_PRODUCER_ID_MAPPING,) * 2,
        (ErrorCode.NETWORK_EXCEPTION, RETRY, RETRY),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, RETRY, RETRY),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, RETRY, RETRY),
        (ErrorCode.NOT_COORDINATOR, RETRY, RETRY),
        (ErrorCode.CONCURRENT_TRANSACTIONS, RETRY, ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_what_producers_are_told(code: ErrorCode, before_version_2: ErrorCode, version_2: ErrorCode) -> None:
    async def test() -> None:
        for adds, expected in ((False, before_version_2), (True, version_2)):
            it = Setting()
            it.coordinator.codes[("pay", NAME, 0)] = code
            futures = [it.send(transactional_batch(1, 0), key=key, adds=adds) for key in (KEY, SECOND)]
            assert await it.outcome(*futures) == [expected, 0]
            assert it.logs.lookup(KEY).high_watermark == 0
            assert adds or len(it.coordinator.calls) == 1, "producers before version 2 try again themselves"

    run(test())


def test_a_coordinator_that_does_not_answer_means_try_again() -> None:
    async def test() -> None:
        for failure in (ChannelUnavailable("away"), CallTimeout("late")):
            it = Setting()
            it.coordinator.failure = failure
            assert await it.outcome(it.send(transactional_batch(1, 0))) == [RETRY]
            it.coordinator.failure = None
            assert await it.outcome(it.send(transactional_batch(1, 0))) == [0]

    run(test())


@pytest.mark.parametrize(
    ("request_code", "expected"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOT_IN_IT),
        (ErrorCode.NOT_COORDINATOR, RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
        (9999, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_whole_call_fails_every_batch(request_code: int, expected: ErrorCode) -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.request_code = request_code
        futures = [it.send(transactional_batch(1, 0)), it.send(transactional_batch(2, 0), who="ship")]
        assert await it.outcome(*futures) == [expected, expected]

    run(test())


def test_a_partition_that_the_answer_leaves_out_is_not_confirmed() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.leaves_out = True
        assert await it.outcome(it.send(transactional_batch(1, 0))) == [RETRY]

    run(test())


@pytest.mark.parametrize("adds", [False, True])
def test_a_batch_that_was_refused_before_its_verification_comes_first(adds: bool) -> None:
    async def test() -> None:
        it = Setting()
        key = TopicPartition(b"a-new-topic-0001", 0)
        assert await it.outcome(it.send(transactional_batch(1, 0), key=key, adds=adds)) == [ErrorCode.UNKNOWN_TOPIC_ID]
        it.logs.on_view(view_of(topic()), view_of(topic(), topic(key.topic_id)))
        assert await it.outcome(it.send(transactional_batch(1, 1), key=key, adds=adds)) == [OUT_OF_ORDER]
        sent = [it.send(transactional_batch(1, sequence), key=key, adds=adds) for sequence in (0, 1)]
        assert await it.outcome(*sent) == [0, 1]

    run(test())


def test_version_2_waits_for_the_transaction_before() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.default = ErrorCode.CONCURRENT_TRANSACTIONS
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await it.outcome(it.send(transactional_batch(1, 0), adds=True)) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert len(it.coordinator.calls) == 6 and loop.time() - began == pytest.approx(0.1)
        future = it.send(transactional_batch(1, 0), adds=True)
        await it.until_asked(8)
        it.coordinator.default = ErrorCode.NONE
        joined = it.send(transactional_batch(1, 1), adds=True)
        assert await it.outcome(future, joined) == [0, 1]
        assert len(it.coordinator.calls) == 9

    run(test())


def test_one_partition_of_a_transaction_may_be_refused_while_the_other_is_tried_again() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.codes = {
            ("pay", NAME, 0): ErrorCode.CONCURRENT_TRANSACTIONS,
            ("pay", NAME, 1): ErrorCode.TRANSACTION_ABORTABLE,
        }
        futures = [it.send(transactional_batch(1, 0), key=key, adds=True) for key in (KEY, SECOND)]
        await it.until_asked(2)
        it.coordinator.codes = {}
        assert await it.outcome(*futures) == [0, ErrorCode.TRANSACTION_ABORTABLE]
        assert it.coordinator.asked()[1] == [("pay", 0, False, [(NAME, 0)])]

    run(test())


def test_a_newer_epoch_ends_the_wait_of_an_older_one() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.gate = asyncio.Event()
        older = it.send(transactional_batch(1, 0, epoch=3))
        await it.until_asked(1)
        newer = it.send(transactional_batch(1, 0, epoch=4))
        oldest = it.send(transactional_batch(1, 0, epoch=2))
        assert await it.outcome(older, oldest) == [STALE, STALE]
        it.coordinator.gate.set()
        assert await it.outcome(newer) == [0]
        assert [call[0][1] for call in it.coordinator.asked()] == [3, 4]
        assert await it.outcome(it.send(transactional_batch(1, 1, epoch=3))) == [STALE]

    run(test())


def test_another_producer_of_the_same_transactional_id_tries_again() -> None:
    async def test() -> None:
        it = Setting()
        futures = [it.send(transactional_batch(1, 0)), it.send(transactional_batch(2, 0))]
        assert await it.outcome(*futures) == [0, RETRY]
        futures = [it.send(transactional_batch(2, 0)), it.send(transactional_batch(2, 0), key=SECOND, adds=True)]
        assert await it.outcome(*futures) == [1, RETRY]

    run(test())


def test_an_answer_from_before_a_marker_lets_nothing_in() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.gate = asyncio.Event()
        late = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        await it.logs.end_transaction(KEY, end_of(1, committed=False))
        it.coordinator.gate.set()
        assert await it.outcome(late) == [NOT_IN_IT]
        log = it.logs.lookup(KEY)
        assert log.last_stable_offset == log.high_watermark == 1

    run(test())


def test_a_batch_from_after_a_marker_does_not_go_by_an_answer_from_before() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.gate = asyncio.Event()
        before = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        await it.logs.end_transaction(KEY, end_of(1, committed=False))
        after = [it.send(transactional_batch(1, 0)), it.send(transactional_batch(1, 1))]
        it.coordinator.gate.set()

        def answer_no_from_now_on() -> None:
            if len(it.coordinator.calls) == 2:
                it.coordinator.default = NOT_IN_IT

        it.coordinator.before_answer = answer_no_from_now_on
        assert await it.outcome(before, *after) == [NOT_IN_IT] * 3
        assert len(it.coordinator.calls) == 2
        assert it.logs.lookup(KEY).last_stable_offset == it.logs.lookup(KEY).high_watermark == 1

    run(test())


def test_a_look_up_that_was_replaced_while_it_backed_off_is_not_sent_again() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.default = ErrorCode.CONCURRENT_TRANSACTIONS
        older = it.send(transactional_batch(1, 0, epoch=3), adds=True)
        await it.until_asked(1)
        await asyncio.sleep(0.005)
        it.coordinator.default = ErrorCode.NONE
        it.coordinator.gate = asyncio.Event()
        other = it.send(transactional_batch(2, 0), who="ship", adds=True)
        await it.until_asked(2)
        newer = it.send(transactional_batch(1, 0, epoch=4), adds=True)
        await asyncio.sleep(0.05)  # the older one's pause is over
        it.coordinator.gate.set()
        assert await it.outcome(older, other, newer) == [STALE, 0, 1]
        await asyncio.sleep(1)
        assert [call[0][:2] for call in it.coordinator.asked()] == [("pay", 3), ("ship", 0), ("pay", 4)]

    run(test())


def test_what_was_confirmed_of_a_newer_epoch_says_nothing_of_an_older_one() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.before_answer = lambda: it.disk.fail_next_writes(1)
        assert await it.outcome(it.send(transactional_batch(1, 0, epoch=3))) == [ErrorCode.KAFKA_STORAGE_ERROR]
        it.coordinator.before_answer = lambda: None
        it.coordinator.default = ErrorCode.PRODUCER_FENCED
        assert await it.outcome(it.send(transactional_batch(1, 0, epoch=2))) == [STALE]
        assert [call[0][1] for call in it.coordinator.asked()] == [3, 2]

    run(test())


def test_a_repeated_marker_takes_back_an_answer_too() -> None:
    async def test() -> None:
        it = Setting()
        await it.logs.end_transaction(KEY, end_of(1, committed=False))
        it.coordinator.gate = asyncio.Event()
        late = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        await it.logs.end_transaction(KEY, end_of(1, committed=False))
        it.coordinator.gate.set()
        assert await it.outcome(late) == [NOT_IN_IT]

    run(test())


def test_a_marker_of_the_epoch_of_the_next_transaction_leaves_that_one_alone() -> None:
    async def test() -> None:
        it = Setting()
        await it.outcome(it.send(transactional_batch(1, 0, epoch=0), adds=True))
        it.coordinator.gate = asyncio.Event()
        coming = it.send(transactional_batch(1, 0, epoch=1), adds=True)
        await it.until_asked(2)
        await it.logs.end_transaction(KEY, end_of(1, committed=True, epoch=1, version=2))
        it.coordinator.gate.set()
        assert await it.outcome(coming) == [2]
        assert it.logs.lookup(KEY).last_stable_offset == 2

    run(test())


def test_a_transaction_that_begins_while_the_marker_before_it_is_written_goes_on() -> None:
    async def test() -> None:
        it = Setting(sync_delay_s=1.0)
        assert await it.outcome(it.send(transactional_batch(1, 0, epoch=0), adds=True)) == [0]
        marker = it.logs.end_transaction(KEY, end_of(1, committed=False, epoch=1, version=2))
        await asyncio.sleep(0.5)
        assert not marker.done(), "it is being written"
        first = it.send(transactional_batch(1, 0, epoch=1), adds=True)
        assert await it.outcome(first, it.send(transactional_batch(1, 1, epoch=1), adds=True)) == [2, 3]

    run(test())


def test_a_confirmed_transaction_need_not_be_asked_again_after_a_failed_write() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.before_answer = lambda: it.disk.fail_next_writes(1)
        assert await it.outcome(it.send(transactional_batch(1, 0))) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert await it.outcome(it.send(transactional_batch(1, 0))) == [0]
        assert len(it.coordinator.calls) == 1

    run(test())


def test_the_lowest_sequence_that_was_seen_comes_first() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.codes[("pay", NAME, 0)] = ErrorCode.NOT_COORDINATOR
        assert await it.outcome(it.send(transactional_batch(1, 4))) == [RETRY]
        it.coordinator.codes.clear()
        assert await it.outcome(it.send(transactional_batch(1, 5))) == [OUT_OF_ORDER]
        assert await it.outcome(it.send(transactional_batch(1, 4)), it.send(transactional_batch(1, 5))) == [0, 1]

    run(test())


def test_damaged_batches_are_refused_before_anybody_is_asked() -> None:
    async def test() -> None:
        it = Setting()
        good = bytes(transactional_batch(1, 5))
        wrong_sequence = damage(good, 53, ">i", 0, fix_crc=False)
        assert read_header(wrong_sequence).base_sequence == 0
        broken = [good[:30], b"", wrong_sequence, damage(good, 53, ">i", -1)]
        codes = await it.outcome(*[it.send(memoryview(data)) for data in broken])
        assert codes == [ErrorCode.CORRUPT_MESSAGE] * 3 + [ErrorCode.INVALID_RECORD]
        assert it.coordinator.calls == []
        assert await it.outcome(it.send(memoryview(good))) == [0], "no sequence of theirs counts as seen"

    run(test())


def test_batches_outside_of_transactions_are_not_verified() -> None:
    async def test() -> None:
        it = Setting()
        plain = memoryview(build_batch())
        assert await it.outcome(it.send(plain), it.send(transactional_batch(1, 0, transactional=False))) == [0, 1]
        assert it.coordinator.calls == []

    run(test())


def test_partitions_that_are_not_here() -> None:
    async def test() -> None:
        it = Setting()
        nowhere = TopicPartition(b"no-such-topic-id", 0)
        assert await it.outcome(it.send(transactional_batch(1, 0), key=nowhere)) == [ErrorCode.UNKNOWN_TOPIC_ID]
        it.coordinator.gate = asyncio.Event()
        waiting = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        it.logs.on_view(view_of(topic()), view_of(version=2))
        it.coordinator.gate.set()
        assert await it.outcome(waiting) == [ErrorCode.UNKNOWN_TOPIC_ID]
        it = Setting()
        waiting = it.send(transactional_batch(1, 0))
        it.logs.on_view(view_of(topic()), view_of(version=2))
        assert await it.outcome(waiting) == [ErrorCode.UNKNOWN_TOPIC_ID]
        assert it.coordinator.calls == []

    run(test())


def test_verification_can_be_switched_off_for_producers_before_version_2() -> None:
    async def test() -> None:
        it = Setting(configs={"transaction.partition.verification.enable": "false"})
        assert await it.outcome(it.send(transactional_batch(1, 0))) == [0]
        assert it.coordinator.calls == []
        assert it.logs.lookup(KEY).last_stable_offset == 0
        assert await it.outcome(it.send(transactional_batch(2, 0), who="ship", adds=True)) == [1]
        assert it.coordinator.asked() == [[("ship", 0, False, [(NAME, 0)])]]

    run(test())


def test_waiting_batches_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        it = Setting()
        futures = [it.send(transactional_batch(1, sequence)) for sequence in range(3)]
        assert await it.outcome(*futures) == [0, 1, RETRY]
        await it.logs.end_transaction(KEY, end_of(1, committed=True))
        assert await it.outcome(it.send(transactional_batch(1, 2)), it.send(transactional_batch(1, 3))) == [3, 4]

    monkeypatch.setattr(transaction_verifier, "WAITING_LIMIT", 2)
    run(test())


def test_a_stopping_leader_ends_all_waits() -> None:
    async def test() -> None:
        it = Setting()
        it.coordinator.gate = asyncio.Event()
        asking = it.send(transactional_batch(1, 0))
        await it.until_asked(1)
        queued = it.send(transactional_batch(2, 0), who="ship")
        await it.verifier.stop()
        assert await it.outcome(asking, queued) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        other = Setting()
        other.coordinator.default = ErrorCode.CONCURRENT_TRANSACTIONS
        backing_off = other.send(transactional_batch(1, 0), adds=True)
        await other.until_asked(1)
        await asyncio.sleep(0.001)
        await other.verifier.stop()
        assert await other.outcome(backing_off) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await asyncio.sleep(1)
        assert len(other.coordinator.calls) == 1

    run(test())


def test_batches_without_a_look_up_are_those_that_follow_in_an_open_transaction() -> None:
    async def test() -> None:
        it = Setting()
        await append(it.logs, KEY, transactional_batch(1, 0))
        assert await it.outcome(it.send(transactional_batch(1, 1))) == [1]
        assert it.coordinator.calls == []
        assert await it.outcome(it.send(transactional_batch(1, 0, epoch=1))) == [2]
        assert len(it.coordinator.calls) == 1, "another epoch's transaction is another one"

    run(test())
