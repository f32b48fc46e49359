"""Requests for partitions that move: they wait, go to the new leader, and keep the order of their connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_gateway.records import reassignment
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import MEMBER, TOPIC_ID, GatewayClient, GatewayHarness, run, topic

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
VERSION = 13


async def sees(
    harness: GatewayHarness,
    *,
    leader: int = 1,
    leader_epoch: int = 1,
    moving_to: int | None = None,
    fenced: bool = False,
) -> None:
    """The gateway has a catalog in which partition 0 of "orders" is led so."""
    changed = topic("orders", TOPIC_ID, [leader, 1, 1])
    partition: coordinator_pb2.Topic.Partition = changed.partitions[0]
    partition.leader_epoch = leader_epoch
    if moving_to is not None:
        partition.is_moving, partition.moving_to_node_id, partition.is_fenced = True, moving_to, fenced
    harness.catalog.topics["orders"] = changed
    harness.catalog.change()
    await harness.settle()


def produce(client: GatewayClient, payload: bytes, *, partition: int = 0) -> asyncio.Future[Any]:
    data = [{"topic_id": TOPIC_ID, "partition_data": [{"index": partition, "records": payload}]}]
    return client.send(ApiKey.PRODUCE, VERSION, acks=-1, timeout=1000, topic_data=data)


async def code_of(answer: asyncio.Future[Any]) -> int:
    found = await asyncio.wait_for(answer, 5)
    return int(found.responses[0].partition_responses[0].error_code)


class Log:
    """What a scripted leader answers to Produce: a code for each payload, 0 at first; `gate` holds answers back."""

    def __init__(self, harness: GatewayHarness, number: int, default: int = 0) -> None:
        self.codes: dict[bytes, list[int]] = {}
        self.default = default
        self.payloads: list[bytes] = []
        self.gates: dict[bytes, asyncio.Event] = {}
        harness.leaders[number].answers["Produce"] = self._produce

    async def _produce(self, request: Any, payload: memoryview) -> Any:
        sent = bytes(payload)
        self.payloads.append(sent)
        if sent in self.gates:
            await self.gates[sent].wait()
        codes = self.codes.get(sent, [])
        code = codes.pop(0) if codes else self.default
        answer = leader_pb2.ProduceResponse()
        for entry in request.partitions:
            answer.partitions.add(topic_id=entry.topic_id, partition=entry.partition, error_code=code)
        return answer


def test_requests_wait_while_the_partition_has_no_leader() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old, new = Log(harness, 1), Log(harness, 2)
        await sees(harness, moving_to=2, fenced=True)
        answer = produce(harness.client(), b"a")
        await asyncio.sleep(0.05)
        assert not answer.done() and old.payloads == []
        await sees(harness, leader=2)
        assert await code_of(answer) == 0 and new.payloads == [b"a"] and old.payloads == []

    run(scenario)


def test_a_move_that_is_taken_back_ends_the_waiting_too() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old = Log(harness, 1)
        await sees(harness, moving_to=2, fenced=True)
        answer = produce(harness.client(), b"a")
        await asyncio.sleep(0.02)
        await sees(harness)
        assert await code_of(answer) == 0 and old.payloads == [b"a"]

    run(scenario)


def test_what_the_former_leader_refused_is_sent_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old, new = Log(harness, 1, NOT_LEADER), Log(harness, 2)
        await sees(harness, moving_to=2)
        answer = produce(harness.client(), b"a")
        await asyncio.sleep(0.05)
        assert not answer.done() and set(old.payloads) == {b"a"}
        await sees(harness, leader=2)
        assert await code_of(answer) == 0 and new.payloads == [b"a"]

    run(scenario)


def test_a_new_leader_that_does_not_know_yet_is_asked_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1)
        new = Log(harness, 2)
        new.codes[b"a"] = [NOT_LEADER, NOT_LEADER]
        await sees(harness, moving_to=2, fenced=True)
        await sees(harness, leader=2)
        assert await code_of(produce(harness.client(), b"a")) == 0 and new.payloads == [b"a"] * 3

    run(scenario)


def test_where_nothing_moves_the_error_is_answered_at_once() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old = Log(harness, 1, NOT_LEADER)
        assert await code_of(produce(harness.client(), b"a")) == NOT_LEADER
        await sees(harness, moving_to=2)
        assert await code_of(produce(harness.client(), b"b", partition=1)) == NOT_LEADER, "another partition moves"
        assert old.payloads == [b"a", b"b"]

    run(scenario)


@pytest.mark.parametrize("unknown", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
@pytest.mark.parametrize("grown", [False, True])
def test_a_leader_that_has_not_heard_of_a_new_topic_is_asked_again(unknown: ErrorCode, grown: bool) -> None:
    """Or of a new partition: this gateway has just told the client of it."""

    async def scenario(harness: GatewayHarness) -> None:
        leader = Log(harness, 1)
        leader.codes[b"a"] = [unknown, unknown]
        if not grown:
            harness.catalog.topics.pop("orders")
            harness.catalog.change()
            await harness.settle()
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1, 1, 1, 1])
        harness.catalog.change()
        await harness.settle()
        assert await code_of(produce(harness.client(), b"a", partition=3)) == 0
        assert leader.payloads == [b"a"] * 3

    run(scenario)


def test_a_topic_that_is_gone_again_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        leader = Log(harness, 1, ErrorCode.UNKNOWN_TOPIC_ID)
        leader.gates[b"b"] = asyncio.Event()
        assert await code_of(produce(harness.client(), b"a")) == ErrorCode.UNKNOWN_TOPIC_ID, "it is not new"
        harness.catalog.topics["orders"] = topic("orders", TOPIC_ID, [1, 1, 1, 1])
        harness.catalog.change()
        await harness.settle()
        answer = produce(harness.client(), b"b")
        await harness.settle()
        harness.catalog.topics.pop("orders")
        harness.catalog.change()
        await harness.settle()
        leader.gates[b"b"].set()
        assert await code_of(answer) == ErrorCode.UNKNOWN_TOPIC_ID
        assert leader.payloads == [b"a", b"b"]

    monkeypatch.setattr(reassignment, "MOVE_WAIT_MS", 60_000)
    run(scenario)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old = Log(harness, 1, NOT_LEADER)
        await sees(harness, moving_to=2)
        assert await code_of(produce(harness.client(), b"a")) == NOT_LEADER
        assert 1 < len(old.payloads) < 10
        await sees(harness, moving_to=2, fenced=True)
        assert await code_of(produce(harness.client(), b"b")) == NOT_LEADER

    monkeypatch.setattr(reassignment, "MOVE_WAIT_MS", 60)
    run(scenario)


def test_a_leader_that_gave_no_answer_is_not_asked_again() -> None:
    """The batch may be stored: sending it again is the producer's decision."""

    async def scenario(harness: GatewayHarness) -> None:
        calls: list[int] = []

        def fails(request: Any, payload: memoryview) -> Any:
            calls.append(1)
            raise RuntimeError("a bug of the leader's")

        harness.leaders[1].answers["Produce"] = fails
        await sees(harness, moving_to=2)
        assert await code_of(produce(harness.client(), b"a")) == NOT_LEADER and calls == [1]

    run(scenario)


# Order


def test_requests_that_wait_go_on_one_after_the_other() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1, NOT_LEADER)
        new = Log(harness, 2)
        new.codes[b"a"] = [NOT_LEADER, NOT_LEADER]
        await sees(harness, moving_to=2)
        client = harness.client()
        answers = [produce(client, b"a"), produce(client, b"b")]
        await harness.settle()
        await sees(harness, moving_to=2, fenced=True)
        answers.append(produce(client, b"c"))
        await sees(harness, leader=2)
        answers.append(produce(client, b"d"))
        assert [await code_of(answer) for answer in answers] == [0, 0, 0, 0]
        assert new.payloads == [b"a", b"a", b"a", b"b", b"c", b"d"]

    run(scenario)


def test_what_got_past_one_that_was_refused_is_sent_again_when_it_was_out_of_order() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1)
        new = Log(harness, 2)
        new.codes.update({b"a": [NOT_LEADER], b"b": [OUT_OF_ORDER]})
        gate, held = asyncio.Event(), asyncio.Event()
        new.gates.update({b"a": gate, b"b": held})
        await sees(harness, moving_to=2)
        await sees(harness, leader=2)
        client = harness.client()
        first = produce(client, b"a")
        second = produce(client, b"b")
        await harness.settle()
        assert new.payloads == [b"a", b"b"], "the gateway does not know yet that the first is refused"
        gate.set()
        await harness.settle()
        held.set()
        assert await code_of(first) == 0 and await code_of(second) == 0
        assert new.payloads == [b"a", b"b", b"a", b"b"]

    run(scenario)


def test_a_batch_that_is_out_of_order_by_itself_is_not_sent_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        old = Log(harness, 1)
        old.codes[b"a"] = [OUT_OF_ORDER]
        await sees(harness, moving_to=2)
        assert await code_of(produce(harness.client(), b"a")) == OUT_OF_ORDER and old.payloads == [b"a"]

    run(scenario)


def test_other_connections_and_other_partitions_are_not_held() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1, NOT_LEADER)
        new = Log(harness, 2)
        new.gates[b"a"] = gate = asyncio.Event()
        await sees(harness, moving_to=2, fenced=True)
        client, another = harness.client(), harness.client()
        waiting = produce(client, b"a")
        await sees(harness, leader=2)
        harness.leaders[1].answers["Produce"] = Log(harness, 1)._produce
        assert await code_of(produce(another, b"b")) == 0
        elsewhere = produce(client, b"c", partition=1)
        await harness.settle()
        assert ("Produce" in [call[0] for call in harness.leaders[1].calls]) and not elsewhere.done(), (
            "it is sent; its answer comes in the order of requests"
        )
        gate.set()
        assert await code_of(waiting) == 0 and await code_of(elsewhere) == 0

    run(scenario)


@pytest.mark.parametrize(("leader", "leader_epoch"), [(2, 1), (1, 2)])
def test_no_batch_goes_to_a_new_leader_while_one_is_in_flight_to_the_old_one(leader: int, leader_epoch: int) -> None:
    """Seed 811271031: a leader that does not know the producer took its second batch, and the first came too late."""

    async def scenario(harness: GatewayHarness) -> None:
        old, new = Log(harness, 1, NOT_LEADER), Log(harness, 2)
        old.gates[b"a"] = gate = asyncio.Event()
        await sees(harness)
        client = harness.client()
        first = produce(client, b"a")
        await harness.settle()
        await sees(harness, leader=leader, leader_epoch=leader_epoch)
        old.default = 0
        second, elsewhere = produce(client, b"b"), produce(client, b"c", partition=1)
        await harness.settle()
        assert (old.payloads, new.payloads) == ([b"a", b"c"], []), "another partition's batch does not wait"
        old.codes[b"a"] = [NOT_LEADER]
        gate.set()
        assert [await code_of(answer) for answer in (first, second, elsewhere)] == [NOT_LEADER, 0, 0]
        assert old.payloads + new.payloads == [b"a", b"c", b"b"]

    run(scenario)


def test_batches_are_sent_for_the_leader_epoch_of_the_catalog() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1)
        await sees(harness, leader_epoch=9)
        assert await code_of(produce(harness.client(), b"a")) == 0
        (request,) = harness.leaders[1].requests("Produce")
        assert [partition.leader_epoch for partition in request.partitions] == [9]

    run(scenario)


def test_nothing_is_kept_of_requests_that_are_answered() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        Log(harness, 1)
        client = harness.client()
        assert [await code_of(produce(client, b"a")) for _ in range(3)] == [0, 0, 0]
        assert harness.node._gateway.produce_order._lanes == {}

    run(scenario)


# Other requests


def test_fetch_waits_and_asks_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def refuse(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.FetchResponse()
            answer.partitions.add(topic_id=TOPIC_ID, partition=0, error_code=NOT_LEADER)
            return answer, []

        def serve(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.FetchResponse()
            answer.partitions.add(topic_id=TOPIC_ID, partition=0, high_watermark=7, records_length=3)
            return answer, [b"xyz"]

        harness.leaders[1].answers["Fetch"], harness.leaders[2].answers["Fetch"] = refuse, serve
        await sees(harness, moving_to=2)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": -1}
        answer = harness.client().send(
            ApiKey.FETCH,
            13,
            max_wait=100,
            min_bytes=1,
            max_bytes=1000,
            session_epoch=-1,
            topics=[{"topic_id": TOPIC_ID, "partitions": [partition]}],
        )
        await asyncio.sleep(0.03)
        await sees(harness, moving_to=2, fenced=True)
        asked = len(harness.leaders[1].requests("Fetch"))
        await asyncio.sleep(0.05)
        assert not answer.done() and len(harness.leaders[1].requests("Fetch")) <= asked + 1
        await sees(harness, leader=2)
        found = (await asyncio.wait_for(answer, 5)).responses[0].partitions[0]
        assert int(found.error_code) == 0 and found.high_watermark == 7

    run(scenario)


def test_list_offsets_waits_and_asks_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def answering(code: int) -> Any:
            answer = leader_pb2.ListOffsetsResponse()
            answer.partitions.add(topic_id=TOPIC_ID, partition=0, error_code=code, offset=5)
            return answer

        harness.leaders[1].answers["ListOffsets"] = lambda request, payload: answering(NOT_LEADER)
        harness.leaders[2].answers["ListOffsets"] = lambda request, payload: answering(0)
        await sees(harness, moving_to=2)
        partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
        answer = harness.client().send(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": "orders", "partitions": [partition]}]
        )
        await asyncio.sleep(0.03)
        assert not answer.done()
        await sees(harness, leader=2)
        assert (await asyncio.wait_for(answer, 5)).topics[0].partitions[0].offset == 5

    run(scenario)


def test_delete_records_waits_and_asks_again() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def answering(code: int) -> Any:
            answer = leader_pb2.DeleteRecordsResponse()
            answer.results.add(topic_id=TOPIC_ID, partition=0, error_code=code, low_watermark=3)
            return answer

        harness.leaders[1].answers["DeleteRecords"] = lambda request, payload: answering(NOT_LEADER)
        harness.leaders[2].answers["DeleteRecords"] = lambda request, payload: answering(0)
        await sees(harness, moving_to=2)
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 3}]}]
        answer = harness.client().send(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=5_000)
        await asyncio.sleep(0.03)
        assert not answer.done()
        await sees(harness, leader=2)
        found = (await asyncio.wait_for(answer, 5)).topics[0].partitions[0]
        assert int(found.error_code) == 0 and found.low_watermark == 3

    run(scenario)


def test_share_fetches_and_acknowledgements_wait() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def acquired(request: Any, payload: memoryview) -> Any:
            answer = leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=1000)
            answer.partitions.add(topic_id=TOPIC_ID, partition=0)
            return answer, []

        for leader in harness.leaders.values():
            leader.answers["ShareFetch"] = acquired
        await sees(harness, moving_to=2, fenced=True)
        partition = {"partition_index": 0, "acknowledgement_batches": ()}
        answer = harness.client().send(
            ApiKey.SHARE_FETCH,
            1,
            group_id="group",
            member_id=MEMBER,
            share_session_epoch=0,
            max_wait=10,
            max_bytes=1000,
            max_records=10,
            batch_size=10,
            topics=[{"topic_id": TOPIC_ID, "partitions": [partition]}],
        )
        await asyncio.sleep(0.05)
        assert not answer.done() and harness.leaders[1].requests("ShareFetch") == []
        await sees(harness, leader=2)
        assert int((await asyncio.wait_for(answer, 5)).error_code) == 0
        assert len(harness.leaders[2].requests("ShareFetch")) == 1

    run(scenario)
