"""A refused batch is produced again before the later batches of its idempotent producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_gateway.records import awaited_batches
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.record_batches import read_header
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayClient, GatewayHarness, run, topic
from support.simulation.loop import Incarnation, VirtualLoop
from support.wire.record_building import build_batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
MAX_SEQUENCE = (1 << 31) - 1


def batch(sequence: int, *, producer_id: int = 7, producer_epoch: int = 0) -> bytes:
    return build_batch(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)


class ProducerLog:
    """A scripted leader that keeps sequences as Kafka does: unknown producers begin anywhere, others go on."""

    def __init__(self, harness: GatewayHarness) -> None:
        self.stored: list[tuple[int, int]] = []
        """Epoch and sequence of each batch, in order."""
        self.came: list[int] = []
        self.is_away = False
        self.refuses_with = 0
        """The error code of all batches, unless it is 0."""
        self.loses_answers_to: list[int] = []
        """Sequences that are stored without an answer, once each."""
        self.gates: dict[int, asyncio.Event] = {}
        """What the leader waits for before it answers, by sequence."""
        harness.leaders[1].answers["Produce"] = self._produce

    async def _produce(self, request: Any, payload: memoryview) -> Any:
        header = read_header(payload)
        sequence = header.base_sequence
        self.came.append(sequence)
        if self.is_away:
            raise RuntimeError("the leader goes away")
        code = self.refuses_with or self._store(header.producer_epoch, sequence)
        if sequence in self.gates:
            await self.gates[sequence].wait()
        if sequence in self.loses_answers_to:
            self.loses_answers_to.remove(sequence)
            raise RuntimeError("the leader went away after it had stored the batch")
        answer = leader_pb2.ProduceResponse()
        for entry in request.partitions:
            answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, error_code=code)
        return answer

    def _store(self, producer_epoch: int, sequence: int) -> int:
        if (producer_epoch, sequence) in self.stored:
            return 0
        if self.stored:
            epoch, last = self.stored[-1]
            expected = last + 1 if epoch == producer_epoch else 0
            if sequence != expected:
                return OUT_OF_ORDER
        self.stored.append((producer_epoch, sequence))
        return 0


def produce(
    client: GatewayClient,
    records: bytes,
    *,
    partition: int = 0,
    version: int = 13,
    name: str = "",
    topic_id: bytes = TOPIC_ID,
) -> asyncio.Future[Any]:
    asked: dict[str, Any] = {"topic_id": topic_id} if version >= 13 else {"name": name}
    data = [{**asked, "partition_data": [{"index": partition, "records": records}]}]
    return client.send(ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=data)


async def code_of(answer: asyncio.Future[Any]) -> int:
    found = await asyncio.wait_for(answer, 5)
    return int(found.responses[0].partition_responses[0].error_code)


async def codes_of(*answers: asyncio.Future[Any]) -> list[int]:
    return [await code_of(answer) for answer in answers]


def test_nothing_is_stored_twice_when_a_leader_comes_back_while_requests_are_under_way() -> None:
    """Sequence 0 is stored and its answer is lost, 1 is lost on its way, 2 reaches the leader that came back.

    Answered with OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would send 0 again in a new epoch, and it would be stored.
    """

    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.loses_answers_to = [0]
        log.gates[0] = asyncio.Event()
        client = harness.client()
        first = produce(client, batch(0))
        await harness.settle()
        log.is_away = True
        second = produce(client, batch(1))
        await harness.settle()
        log.is_away = False
        third = produce(client, batch(2))
        await harness.settle()
        log.gates[0].set()
        assert await codes_of(first, second, third) == [NOT_LEADER] * 3
        assert await codes_of(*[produce(client, batch(sequence)) for sequence in range(4)]) == [0] * 4
        assert log.stored == [(0, 0), (0, 1), (0, 2), (0, 3)]

    run(scenario)


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    """2 is out of order before the gateway knows that 1 is lost."""

    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        client = harness.client()
        assert await code_of(produce(client, batch(0))) == 0
        log.gates[5] = asyncio.Event()
        log.loses_answers_to = [5]
        early = produce(client, batch(5))  # out of order itself, and without an answer for now
        await harness.settle()
        late = produce(client, batch(6))
        await harness.settle()
        assert log.came == [0, 5, 6] and not late.done()
        log.gates[5].set()
        assert await codes_of(early, late) == [NOT_LEADER, NOT_LEADER]

    run(scenario)


def test_what_comes_after_a_lost_batch_is_not_sent_to_a_leader_that_takes_any_sequence() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.is_away = True
        client = harness.client()
        assert await code_of(produce(client, batch(0))) == NOT_LEADER
        log.is_away = False
        assert await codes_of(produce(client, batch(1)), produce(client, batch(2))) == [NOT_LEADER] * 2
        assert log.came == [0] and log.stored == []
        assert await codes_of(*[produce(client, batch(sequence)) for sequence in range(3)]) == [0] * 3
        assert log.stored == [(0, 0), (0, 1), (0, 2)]

    run(scenario)


def test_nothing_overtakes_a_lost_batch_whose_request_has_another_leader_to_wait_for() -> None:
    """Leader 1 fails at once and is back at once; leader 2, which has the other half of the request, takes its time."""

    async def scenario(harness: GatewayHarness) -> None:
        log, slow = ProducerLog(harness), asyncio.Event()

        async def answer_late(request: Any, payload: memoryview) -> Any:
            await slow.wait()
            answer = leader_pb2.ProduceResponse()
            for entry in request.partitions:
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition)
            return answer

        harness.leaders[2].answers["Produce"] = answer_late
        client = harness.client()
        log.is_away = True
        partitions = [{"index": index, "records": batch(0)} for index in (0, 1)]
        topic_data = [{"topic_id": OTHER_TOPIC_ID, "partition_data": partitions}]
        first = client.send(ApiKey.PRODUCE, 13, acks=-1, timeout=1000, topic_data=topic_data)
        await harness.settle()
        assert log.came == [0]
        log.is_away = False
        second = produce(client, batch(1), topic_id=OTHER_TOPIC_ID)
        await harness.settle()
        assert log.came == [0] and not second.done()
        slow.set()
        codes = [each.error_code for each in (await first).responses[0].partition_responses]
        assert codes == [NOT_LEADER, 0]
        assert await code_of(second) == NOT_LEADER
        again = [produce(client, batch(sequence), topic_id=OTHER_TOPIC_ID) for sequence in (0, 1)]
        assert await codes_of(*again) == [0, 0]
        assert log.stored == [(0, 0), (0, 1)]

    run(scenario)


def test_it_is_the_same_where_the_topic_was_not_known_yet() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        client = harness.client()

        def send(sequence: int) -> asyncio.Future[Any]:
            return produce(client, batch(sequence), version=9, name="new")

        assert await code_of(send(0)) == UNKNOWN_TOPIC
        harness.catalog.topics["new"] = topic("new", b"n" * 16, [1])
        harness.catalog.change()
        await harness.settle()
        assert await code_of(send(1)) == NOT_LEADER and log.came == []
        assert await codes_of(send(0), send(1)) == [0, 0]

    run(scenario)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("is_known_here", [False, True])
def test_nothing_overtakes_a_refused_batch_whose_request_has_another_topic_to_wait_for(
    is_known_here: bool, version: int
) -> None:
    """The topic is new to this gateway, or to its leader; the other topic's leader takes its time."""

    async def scenario(harness: GatewayHarness) -> None:
        log, slow, client = ProducerLog(harness), asyncio.Event(), harness.client()

        async def answer_late(request: Any, payload: memoryview) -> Any:
            await slow.wait()
            answer = leader_pb2.ProduceResponse()
            for entry in request.partitions:
                answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition)
            return answer

        harness.leaders[2].answers["Produce"] = answer_late
        if is_known_here:
            harness.catalog.topics["new"] = topic("new", b"n" * 16, [1])
            harness.catalog.change()
            await harness.settle()
        log.refuses_with = ErrorCode.UNKNOWN_TOPIC_ID
        new: dict[str, Any] = {"topic_id": b"n" * 16} if version >= 13 else {"name": "new"}
        other: dict[str, Any] = {"topic_id": OTHER_TOPIC_ID} if version >= 13 else {"name": "mixed"}
        new["partition_data"] = [{"index": 0, "records": batch(0)}]
        other["partition_data"] = [{"index": 1, "records": batch(0)}]
        first = client.send(ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=[new, other])
        await harness.settle()
        if not is_known_here:
            harness.catalog.topics["new"] = topic("new", b"n" * 16, [1])
            harness.catalog.change()
            await harness.settle()
        log.refuses_with = 0
        second = produce(client, batch(1), version=version, name="new", topic_id=b"n" * 16)
        await harness.settle()
        assert log.stored == []
        slow.set()
        codes = [each.partition_responses[0].error_code for each in (await first).responses]
        if is_known_here or version >= 13:  # the gateway tries again
            assert codes == [0, 0] and await code_of(second) == 0
        else:
            assert codes == [UNKNOWN_TOPIC, 0] and await code_of(second) == NOT_LEADER
            again = [produce(client, batch(sequence), version=version, name="new") for sequence in (0, 1)]
            assert await codes_of(*again) == [0, 0]
        assert log.stored == [(0, 0), (0, 1)]

    run(scenario)


def test_a_sequence_that_is_wrong_for_no_such_reason_is_refused_as_by_kafka() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        client = harness.client()
        assert await codes_of(produce(client, batch(0)), produce(client, batch(2))) == [0, OUT_OF_ORDER]
        assert await code_of(produce(client, batch(3))) == OUT_OF_ORDER  # that refusal makes nothing wait
        assert log.stored == [(0, 0)]

    run(scenario)


@pytest.mark.parametrize(
    ("sequence", "producer_id", "producer_epoch", "partition"),
    [(5, 7, 0, 0), (4, 7, 0, 0), (6, 8, 0, 0), (6, 7, 1, 0), (6, 7, 0, 2), (-1, -1, -1, 0)],
    ids=["itself", "one before", "other producer", "other epoch", "other partition", "no producer"],
)
def test_what_does_not_wait(sequence: int, producer_id: int, producer_epoch: int, partition: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.is_away = True
        client = harness.client()
        assert await code_of(produce(client, batch(5))) == NOT_LEADER
        assert await code_of(produce(client, batch(6))) == NOT_LEADER
        log.is_away = False
        records = batch(sequence, producer_id=producer_id, producer_epoch=producer_epoch)
        assert await code_of(produce(client, records, partition=partition)) == 0
        assert log.came == [5, sequence]

    run(scenario)


def test_another_connection_and_a_batch_without_producer_id_make_nothing_wait() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.is_away = True
        client, other = harness.client(), harness.client()
        assert await codes_of(produce(client, batch(0)), produce(other, build_batch())) == [NOT_LEADER] * 2
        log.is_away = False
        assert await codes_of(produce(other, batch(1))) == [0]

    run(scenario)


def test_sequences_go_on_at_zero() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.is_away = True
        client = harness.client()
        assert await code_of(produce(client, batch(MAX_SEQUENCE))) == NOT_LEADER
        assert await code_of(produce(client, batch(0))) == NOT_LEADER
        assert log.came == [MAX_SEQUENCE]

    run(scenario)


def test_a_batch_that_comes_again_elsewhere_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_batches, "KEPT_TICKS", 1)
    monkeypatch.setattr(awaited_batches, "TICK_S", 0.01)

    async def scenario(harness: GatewayHarness) -> None:
        log = ProducerLog(harness)
        log.is_away = True
        client = harness.client()
        assert await code_of(produce(client, batch(0))) == NOT_LEADER
        log.is_away = False
        while await code_of(produce(client, batch(1))) == NOT_LEADER:
            await asyncio.sleep(0.001)
        assert log.came == [0, 1]

    run(scenario)


def test_what_is_awaited_no_more_is_forgotten() -> None:
    """Connections come and go: each that left a refused batch behind must not stay in memory."""

    async def connections() -> None:
        awaited = awaited_batches.AwaitedBatches()
        for connection in range(100):
            awaited.refused(connection, "t", 0, batch(5))
            await asyncio.sleep(1.0)
            assert awaited.must_wait(connection, "t", 0, batch(6)), "the newest is awaited"
            assert len(awaited) <= awaited_batches.KEPT_TICKS + 1
        awaited.refused(50, "t", 0, batch(7))
        await asyncio.sleep(awaited_batches.KEPT_TICKS - 1.5)
        awaited.refused(51, "t", 0, batch(7))
        assert [awaited.must_wait(connection, "t", 0, batch(8)) for connection in (50, 51)] == [True, True]
        await asyncio.sleep(awaited_batches.KEPT_TICKS + 1)
        assert len(awaited) == 0

    VirtualLoop().run(connections())


def test_a_batch_is_awaited_for_as_long_as_the_gateway_stands_still() -> None:
    """Seed 52312984: the later batch lay in the connection's buffer for 18 s, and was stored as the first one."""
    awaited, host, found = awaited_batches.AwaitedBatches(), Incarnation("gateway", 1), list[bool]()

    async def paused() -> None:
        loop = VirtualLoop.running()
        loop.run_in(host, awaited.refused, 1, "t", 0, batch(5))
        await asyncio.sleep(3.0)
        host.paused = True
        loop.run_in(host, lambda: found.append(awaited.must_wait(1, "t", 0, batch(6))))
        await asyncio.sleep(3600.0)
        host.paused = False
        loop.resume(host)
        await asyncio.sleep(1.5)
        loop.run_in(host, lambda: found.append(awaited.must_wait(1, "t", 0, batch(6))))
        await asyncio.sleep(awaited_batches.KEPT_TICKS)
        loop.run_in(host, lambda: found.append(awaited.must_wait(1, "t", 0, batch(6))))
        await asyncio.sleep(0.0)

    VirtualLoop(time_limit=7200.0).run(paused())
    assert found == [True, True, False]
