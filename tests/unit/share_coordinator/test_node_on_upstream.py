"""Whole share coordinators with the kafka engine, over a cluster in memory, under virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from unittest.mock import patch

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    BACKUP_STATE,
    FETCH_STATE_TOPIC,
    INITIALIZE_SHARE_GROUP_STATE,
    LIST_STATE_SUMMARIES,
    LIST_STATE_TOPIC_OFFSETS,
    READ_SHARE_GROUP_STATE_SUMMARY,
)
from kshare_share_coordinator.node import ShareCoordinatorNode
from kshare_share_coordinator.records import SHARE_SNAPSHOT, encode_key
from kshare_share_coordinator.state_log import upstream as upstream_module
from kshare_share_coordinator.state_log.upstream import UpstreamStates
from kshare_upstream.fenced_log.claim import Claim, ControlKind, ControlRecord, control_batch, control_record
from kshare_upstream.fenced_log.owner import LogRecord
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import UpstreamPartitionName
from kshare_wire.generated.requests.delete_records import DeleteRecordsRequest
from kshare_wire.generated.requests.fetch import FetchRequest
from kshare_wire.generated.requests.init_producer_id import InitProducerIdRequest
from kshare_wire.generated.requests.list_offsets import ListOffsetsRequest
from kshare_wire.generated.requests.produce import ProduceRequest
from kshare_wire.record_writing import BatchWriter, ProducerSequence
from support.servicekit.scraped import measured, scraped
from support.share_coordinator.nodes_on_upstream import TIMEOUT_MS, NodesOnUpstream, serves
from support.share_coordinator.states_on_upstream import create_state_topic
from support.simulation.loop import VirtualLoop
from support.upstream.memory_upstream import MemoryUpstream

AT = UpstreamPartitionName("__kshare_state", 0)
TOPIC_ID = bytes(range(1, 17))
KEYS = [SharePartitionKey("orders", TOPIC_ID, number) for number in range(40)]
SMALL_LOG = {"kshare.state.log.mark.interval.records": "100", "kshare.state.log.min.records": "1000"}
QUICK = {"kshare.upstream.request.timeout.ms": "1000"}

Body = Callable[[NodesOnUpstream, MemoryUpstream], Awaitable[None]]


def run(body: Body, *, state_partitions: int = 1) -> None:
    async def with_nodes() -> None:
        upstream = MemoryUpstream()
        await create_state_topic(upstream, state_partitions)
        nodes = NodesOnUpstream(state_partitions=state_partitions)
        await nodes.coordinator.start()
        nodes.coordinator.give(1, range(state_partitions))
        await body(nodes, upstream)

    loop = VirtualLoop(time_limit=20_000)
    loop.run(with_nodes())
    assert loop.problems == []


async def started(
    nodes: NodesOnUpstream, upstream: MemoryUpstream, configs: dict[str, str] | None = None
) -> ShareCoordinatorNode:
    """Node 1 with one initialized state."""
    node = await nodes.start_node(upstream, configs=configs)
    await serves(node)
    assert await nodes.initialize(node, KEYS[0]) == 0
    return node


async def acknowledged(
    nodes: NodesOnUpstream, node: ShareCoordinatorNode, key: SharePartitionKey = KEYS[0]
) -> set[int]:
    state = await nodes.read(node, key)
    assert state.error_code == 0
    return {o for batch in state.state_batches for o in range(batch.first_offset, batch.last_offset + 1)}


def kinds(upstream: MemoryUpstream) -> list[ControlKind | None]:
    """The kinds of the log's batches; None is data."""
    records = [control_record(data, header) for header, data in upstream.logs[AT].batches]
    return [None if record is None else record.kind for record in records]


def test_a_node_that_is_named_the_owner_has_what_the_former_one_confirmed() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        first = await started(nodes, upstream)
        assert [await nodes.write(first, KEYS[0], offset) for offset in range(0, 100, 2)] == [0] * 50
        second = await nodes.start_node(upstream, 2)
        assert (await nodes.read(second, KEYS[0])).error_code == ErrorCode.NOT_COORDINATOR
        nodes.coordinator.give(2, [0])
        await serves(second)
        assert await acknowledged(nodes, second) == set(range(0, 100, 2))
        assert await nodes.write(second, KEYS[0], 101) == 0
        assert await nodes.write(first, KEYS[0], 102) == ErrorCode.NOT_COORDINATOR
        assert first.problems() == second.problems() == []

    run(body)


def test_a_reader_is_not_answered_from_an_ownership_before_the_one_that_it_knows() -> None:
    """The node owned the state, does not hear that another one did, and is named the owner again."""

    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        first = await started(nodes, upstream)
        assert await nodes.write(first, KEYS[0], 0) == 0
        second = await nodes.start_node(upstream, 2)
        nodes.coordinator.unheard.add(1)
        nodes.coordinator.give(2, [0])
        await serves(second)
        assert await nodes.write(second, KEYS[0], 1) == 0
        nodes.coordinator.give(1, [0])
        owner_epoch = nodes.coordinator.owners[0].owner_epoch
        assert await acknowledged(nodes, first) == {0}, "from memory, to a reader that names no owner epoch"
        refused = await nodes.read(first, KEYS[0], owner_epoch)
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert f"has owner epoch {owner_epoch} by now" in refused.error_message
        summary = messages.ReadShareGroupStateSummaryRequest(group_id=KEYS[0].group_id)
        summary.partitions.add(topic_id=TOPIC_ID, partition=KEYS[0].partition, leader_epoch=-1, owner_epoch=owner_epoch)
        channel = nodes.network.connect(first.address)
        answer, _ = await channel.call(READ_SHARE_GROUP_STATE_SUMMARY, summary, timeout_ms=TIMEOUT_MS)
        assert answer.results[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        nodes.coordinator.unheard.clear()
        while (found := await nodes.read(first, KEYS[0], owner_epoch)).error_code:
            assert found.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.1)
        assert await acknowledged(nodes, first) == {0, 1}

    run(body)


def test_what_is_not_claimed_yet_is_loading() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        upstream.flaws.errors[InitProducerIdRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 20
        node = await nodes.start_node(upstream)
        assert await nodes.initialize(node, KEYS[0]) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await serves(node)
        assert await nodes.initialize(node, KEYS[0]) == 0

    run(body)


def test_a_log_of_something_else_is_refused_and_named() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        writer = BatchWriter(1_000)
        writer.append(0, b"key", b"value", ())
        await PartitionLog(upstream, AT).append(writer.build())
        node = await nodes.start_node(upstream)
        await asyncio.sleep(1)
        assert await nodes.initialize(node, KEYS[0]) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        (problem,) = node.problems()
        assert "__kshare_state-0 is not a state log" in problem and "offset 0" in problem

    run(body)


def test_a_log_whose_records_were_all_removed_is_refused_and_named() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        first = await started(nodes, upstream)
        await first.stop(0)
        log = upstream.logs[AT]
        await PartitionLog(upstream, AT).delete_before(log.end)
        second = await nodes.start_node(upstream)
        await asyncio.sleep(1)
        (problem,) = second.problems()
        assert f"it is empty and begins at offset {log.end}" in problem

    run(body)


def test_writes_are_refused_while_the_cluster_is_away_and_then_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream, QUICK)
        away = [ProduceRequest, FetchRequest, ListOffsetsRequest, InitProducerIdRequest]
        upstream.flaws.losing = away * 200
        assert await nodes.write(node, KEYS[0], 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(5)
        assert await nodes.write(node, KEYS[0], 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert any("cannot be read from the existing cluster" in problem for problem in node.problems())
        upstream.flaws.losing.clear()
        await serves(node)
        assert await nodes.write(node, KEYS[0], 2) == 0
        assert 2 in await acknowledged(nodes, node)
        assert node.problems() == []

    run(body)
    lines = [record for record in caplog.records if "cannot be read from the existing cluster" in record.getMessage()]
    assert lines and all(record.levelno == logging.WARNING for record in lines), (
        "a warning: the engine goes on by itself"
    )


def test_a_write_waits_for_replicas_and_is_stored_once() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        before = kinds(upstream)
        upstream.flaws.errors[ProduceRequest] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 5
        upstream.flaws.losing = [ProduceRequest]
        assert await nodes.write(node, KEYS[0], 1) == 0
        assert kinds(upstream) == [*before, None]

    run(body)


def test_a_write_of_unknown_outcome_is_settled_by_another_claim() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream, QUICK)
        upstream.flaws.losing = [ProduceRequest] * 40
        assert await nodes.write(node, KEYS[0], 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        upstream.flaws.losing.clear()
        await serves(node)
        assert await acknowledged(nodes, node) == {1}, "it was stored, so it counts"
        assert kinds(upstream)[-1] == ControlKind.CLAIM

    run(body)


def test_a_node_below_the_logs_epoch_registers_anew_with_it() -> None:
    """The coordinator's metadata are an older copy, so the epochs that it gives are below those in the log."""

    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        former = ControlRecord(ControlKind.CLAIM, Claim(1_000, 3, 9, bytes(16)))
        await PartitionLog(upstream, AT).append(control_batch(former, ProducerSequence(77, 0, 0), 0))
        node = await nodes.start_node(upstream)
        assert await nodes.initialize(node, KEYS[0]) != 0
        await serves(node)
        assert nodes.coordinator.nodes[1].node_epoch > 1_000
        assert await nodes.initialize(node, KEYS[0]) == 0
        assert node.problems() == []

    run(body)


def test_a_node_that_was_superseded_steps_back_before_it_hears_of_the_catalog() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        rival = ControlRecord(ControlKind.CLAIM, Claim(50, 0, 2, bytes(16)))
        await PartitionLog(upstream, AT).append(control_batch(rival, ProducerSequence(77, 0, 0), 0))
        assert await nodes.write(node, KEYS[0], 1) == ErrorCode.NOT_COORDINATOR
        assert (await nodes.read(node, KEYS[0])).error_code == ErrorCode.NOT_COORDINATOR
        nodes.coordinator.give(2, [0])
        await asyncio.sleep(30)
        assert nodes.coordinator.nodes[1].node_epoch < 50, "it had no reason to register anew"

    run(body)


def test_a_stop_resigns_every_log_and_gives_the_lease_back() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await nodes.start_node(upstream)
        await serves(node, 4)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await node.stop(0)
        assert loop.time() - began_at < 0.1
        for number in range(4):
            *_, (header, data) = upstream.logs[UpstreamPartitionName(AT.topic, number)].batches
            record = control_record(data, header)
            assert record is not None and record.kind == ControlKind.RESIGN
        assert nodes.coordinator.deregistered == [1]

    run(body, state_partitions=4)


def test_a_log_is_marked_and_shortened_and_cold_states_are_written_again() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream, SMALL_LOG)
        for key in KEYS[1:]:
            assert await nodes.initialize(node, key) == 0
            assert await nodes.write(node, key, 7) == 0
        log = upstream.logs[AT]
        for number in range(3_000):
            assert await nodes.write(node, KEYS[0], number) == 0
        await asyncio.sleep(5)
        assert log.start > 1_500
        assert log.end - log.start < 1_200
        assert kinds(upstream)[0] == ControlKind.MARK
        second = await nodes.start_node(upstream, 2)
        nodes.coordinator.give(2, [0])
        await serves(second)
        for key in KEYS[1:]:
            assert await acknowledged(nodes, second, key) == {7}
        assert await acknowledged(nodes, second) == set(range(3_000))

    run(body)


def test_a_log_that_must_not_be_shortened_is_a_problem_and_serves() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream, SMALL_LOG)
        upstream.flaws.errors[DeleteRecordsRequest] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 1_000
        for number in range(1_100):
            assert await nodes.write(node, KEYS[0], number) == 0
        await asyncio.sleep(3)
        (problem,) = node.problems()
        assert "cannot be shortened" in problem and "TOPIC_AUTHORIZATION_FAILED" in problem
        upstream.flaws.errors.clear()
        await asyncio.sleep(3)
        assert node.problems() == []
        assert upstream.logs[AT].start > 0

    run(body)


async def damaged(node: ShareCoordinatorNode, key: SharePartitionKey) -> None:
    """Its newest snapshot has become unreadable, in the log and in memory."""
    partition = cast(UpstreamStates, node.engine)._partitions[0]
    records = [LogRecord(encode_key(SHARE_SNAPSHOT, key), b"?")]
    partition._add(partition.rows, await partition._log.append(records), records)


def test_an_unreadable_state_that_keeps_a_log_long_is_a_problem_until_it_is_deleted() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream, SMALL_LOG)
        await damaged(node, KEYS[1])
        for number in range(1_100):
            assert await nodes.write(node, KEYS[0], number) == 0
        for _ in range(3):
            await asyncio.sleep(2)
            problem, corrupt = node.problems()
            assert "state partition 0 cannot be shortened" in problem and "cannot be read" in problem
            assert "corrupt record" in corrupt
        assert await nodes.delete(node, KEYS[1]) == 0
        for number in range(1_100, 2_200):
            assert await nodes.write(node, KEYS[0], number) == 0
        await asyncio.sleep(3)
        assert node.problems() == []
        assert upstream.logs[AT].start > 0

    run(body)


def test_a_corrupt_state_is_reported_until_it_is_deleted_or_lost() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        first = await started(nodes, upstream)
        for key in KEYS[1:3]:
            await damaged(first, key)
            assert (await nodes.read(first, key)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert len(first.problems()) == 2
        assert await nodes.delete(first, KEYS[1]) == 0
        (problem,) = first.problems()
        assert str(KEYS[2]) in problem
        second = await nodes.start_node(upstream, 2)
        nodes.coordinator.give(2, [0])
        await serves(second)
        await asyncio.sleep(1)
        assert first.problems() == []
        assert (await nodes.read(second, KEYS[2])).error_code == ErrorCode.CORRUPT_MESSAGE
        assert len(second.problems()) == 1

    run(body)


def test_a_deletion_that_is_confirmed_after_its_state_partition_was_lost_is_answered() -> None:
    """The batch under way outlives the loss; so do the writes of the same batch."""

    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        assert await nodes.write(node, KEYS[0], 1) == 0
        fenced_log = cast(UpstreamStates, node.engine)._partitions[0]._log
        append = fenced_log.append

        async def lost_meanwhile(records: Sequence[LogRecord]) -> int:
            offset = await append(records)
            nodes.coordinator.give(2, [0])
            await asyncio.sleep(1)
            return offset

        with patch.object(fenced_log, "append", lost_meanwhile):
            assert await nodes.delete(node, KEYS[0]) == 0

    run(body)


def test_what_the_cluster_has_lost_is_written_again_and_shown() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        for offset in range(10):
            assert await nodes.write(node, KEYS[0], offset) == 0
        upstream.lose_newest(AT, 6)
        assert await nodes.write(node, KEYS[0], 10) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await serves(node)
        assert await acknowledged(nodes, node) == set(range(10))
        (problem,) = node.problems()
        assert "the cluster lost acknowledged records" in problem
        second = await nodes.start_node(upstream, 2)
        nodes.coordinator.give(2, [0])
        await serves(second)
        assert await acknowledged(nodes, second) == set(range(10))

    run(body)


def test_summaries_are_read_from_memory() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        request = messages.ListStateSummariesRequest(leader_node_id=1, catalog_version=1)
        answer, _ = await nodes.network.connect(node.address).call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
        assert answer.error_code == 0 and not answer.results, "no leader has the partition"
        (found,), following = node.engine.share_partitions(0, b"", 10)
        assert (found.key, following) == (KEYS[0], None)

    run(body)


def test_a_state_partition_that_is_being_claimed_is_counted_as_loading() -> None:
    """A leader asks again after two seconds then, and not after a minute."""

    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        await started(nodes, upstream)
        second = await nodes.start_node(upstream, 2)
        upstream.flaws.errors[InitProducerIdRequest] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000
        nodes.coordinator.give(2, [0])
        await asyncio.sleep(1)
        request = messages.ListStateSummariesRequest(leader_node_id=1, catalog_version=1)
        channel = nodes.network.connect(second.address)
        answer, _ = await channel.call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
        assert (answer.error_code, answer.loading_state_partitions) == (0, 1)
        upstream.flaws.errors.clear()
        await serves(second)
        answer, _ = await channel.call(LIST_STATE_SUMMARIES, request, timeout_ms=TIMEOUT_MS)
        assert (answer.error_code, answer.loading_state_partitions) == (0, 0)

    run(body)


def test_the_state_topic_and_what_could_be_backed_up_are_elsewhere() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        channel = nodes.network.connect(node.address)
        fetch = leader_pb2.FetchRequest(partitions=[leader_pb2.FetchRequest.Partition(partition=0)])
        fetched, _ = await channel.call(FETCH_STATE_TOPIC, fetch, timeout_ms=TIMEOUT_MS)
        offsets = leader_pb2.ListOffsetsRequest(partitions=[leader_pb2.ListOffsetsRequest.Partition(partition=0)])
        listed, _ = await channel.call(LIST_STATE_TOPIC_OFFSETS, offsets, timeout_ms=TIMEOUT_MS)
        codes = [each.error_code for answer in (fetched, listed) for each in answer.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        backup, _ = await channel.call(BACKUP_STATE, messages.BackupStateRequest(name="a"), timeout_ms=TIMEOUT_MS)
        assert backup.error_code == ErrorCode.INVALID_REQUEST
        assert "topic __kshare_state of the existing cluster" in backup.error_message

    run(body)


def test_no_state_is_begun_beyond_the_memory_and_those_that_exist_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        monkeypatch.setattr(upstream_module, "STATE_BYTES_LIMIT", 100)
        assert await nodes.initialize(node, KEYS[1]) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await nodes.write(node, KEYS[0], 1) == 0
        assert any("bytes of memory" in problem for problem in node.problems())

    run(body)


def test_a_large_request_becomes_several_batches() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        request = messages.InitializeShareGroupStateRequest(group_id="g" * 1_000)
        for number in range(2_000):
            request.partitions.add(topic_id=TOPIC_ID, partition=number, state_epoch=1, start_offset=0)
        channel = nodes.network.connect(node.address)
        answer, _ = await channel.call(INITIALIZE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        assert [result.error_code for result in answer.results] == [0] * 2_000
        sizes = [len(data) for _, data in upstream.logs[AT].batches]
        assert len(sizes) > 5 and max(sizes) < 1_000_000

    run(body)


def test_a_state_that_the_topic_refuses_as_too_large_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        assert await nodes.initialize(node, KEYS[1]) == 0
        upstream.max_message_bytes = 2_000  # as an administrator may set it later
        offset = 0
        while await nodes.write(node, KEYS[0], offset) == 0:
            offset += 2
        for number in range(5):
            await asyncio.sleep(1)
            assert await nodes.write(node, KEYS[0], offset) == ErrorCode.KAFKA_STORAGE_ERROR
            assert await nodes.write(node, KEYS[1], number) == 0
        assert await acknowledged(nodes, node) == set(range(0, offset, 2))
        assert kinds(upstream).count(ControlKind.CLAIM) == 1
        (problem,) = node.problems()
        assert problem.startswith("topic __kshare_state of the existing cluster refused ")
        assert problem.endswith("set its max.message.bytes to 1048588")
        assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [problem], "once"
        upstream.max_message_bytes = 1 << 20
        assert await nodes.write(node, KEYS[0], offset) == 0
        assert node.problems() == []

    run(body)


def test_a_refused_repetition_does_not_tell_that_nothing_was_written() -> None:
    """The batch was taken, its response lost, and the limit of the topic lowered before it was sent again."""

    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        upstream.flaws.losing.append(ProduceRequest)
        upstream.flaws.errors[ProduceRequest] = [ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE]
        assert await nodes.write(node, KEYS[0], 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await serves(node)
        assert await acknowledged(nodes, node) == {1}

    run(body)


def test_metrics_of_the_logs() -> None:
    async def body(nodes: NodesOnUpstream, upstream: MemoryUpstream) -> None:
        node = await started(nodes, upstream)
        metrics = measured()
        node.register_metrics(metrics)
        assert await nodes.write(node, KEYS[0], 1) == 0
        values = await scraped(metrics)
        assert values.value("share_coordinator_state_log_claims_total", outcome="won") == 1
        assert values.value("share_coordinator_state_log_records") == 3, "a claim and two snapshots"
        assert values.value("share_coordinator_state_log_live_records") == 1
        assert values.value("share_coordinator_state_log_truncations_total") == 0
        assert values.value("share_coordinator_state_records_total", kind="snapshot") == 2

    run(body)
