"""Transactions at a whole coordinator on virtual time: markers to scripted leaders, restarts, timeouts, bad disks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.transactions.metadata import TransactionMetadata
from kshare_coordinator.transaction_markers import TransactionMarkers
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_runtime.memory_store import DiskEvents, MemoryDiskFailure
from support.coordinator.cluster import run_virtually
from support.coordinator.transaction_cluster import ScriptedLeader, started
from support.coordinator.transaction_driver import TransactionDriver


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
def test_each_leader_gets_one_call_with_its_partitions(committed: bool, bumps: bool) -> None:
    async def main() -> None:
        cluster, leaders = await started(leaders=2, partitions=5)
        producer = await cluster.begin([0, 1, 2, 3])
        leaders[0].delays_s = leaders[1].delays_s = [0.5]
        code, told = await cluster.end(producer, committed=committed, bumps=bumps)
        raised = (producer[0], producer[1] + 1)
        assert (code, told) == (E.NONE, raised if bumps else (-1, -1)), "answered before any marker is written"
        assert await cluster.state_of() == ("PrepareCommit" if committed else "PrepareAbort")
        assert (await cluster.add(raised if bumps else producer, [4])) == [E.CONCURRENT_TRANSACTIONS]
        await asyncio.sleep(1)
        assert await cluster.state_of() == ("CompleteCommit" if committed else "CompleteAbort")
        assert sorted(leader.partitions for leader in leaders) == [[[0, 2]], [[1, 3]]]
        for leader in leaders:
            ((_, (marker,)),) = leader.calls
            assert (marker.producer_id, marker.producer_epoch) == (raised if bumps else producer)
            assert (marker.committed, marker.transaction_version) == (committed, 2 if bumps else 0)
            assert marker.coordinator_epoch > 0
        assert (await cluster.add(raised if bumps else producer, [4])) == [E.NONE]
        await cluster.node.stop(0)

    run_virtually(main)


def test_what_ends_while_a_leader_writes_goes_into_its_next_call() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        names = [f"t{number}" for number in range(20)]
        producers = [await cluster.begin([number % 3], name) for number, name in enumerate(names)]
        leader.delays_s = [0.2]
        for producer, name in zip(producers, names, strict=True):
            assert (await cluster.end(producer, transactional_id=name))[0] is E.NONE
        await asyncio.sleep(1)
        assert [len(markers) for _, markers in leader.calls] == [1, 19]
        assert {await cluster.state_of(name) for name in names} == {"CompleteCommit"}
        assert len(set(leader.coordinator_epochs)) == 1
        await cluster.node.stop(0)

    run_virtually(main)


def test_no_call_has_more_partitions_than_a_leader_takes() -> None:
    async def main() -> None:
        cluster, (leader,) = await started(partitions=6_000, configs={"kshare.max.partitions": "6000"})
        names = ["t", "u", "v", "w"]
        sizes = [6_000, 4_000, 6_000, 4_001]
        producers = [await cluster.begin(range(size), name) for size, name in zip(sizes, names, strict=True)]
        leader.delays_s = [0.1]
        await cluster.end(await cluster.begin([0], "first"), transactional_id="first")
        for producer, name in zip(producers, names, strict=True):
            await cluster.end(producer, transactional_id=name)
        await asyncio.sleep(0.2)
        assert [len(partitions) for partitions in leader.partitions] == [1, 10_000, 6_000, 4_001]
        assert {await cluster.state_of(name) for name in names} == {"CompleteCommit"}
        await cluster.node.stop(0)

    run_virtually(main)


def markers_of(
    driver: TransactionDriver,
    network: InProcessNetwork,
    complete: Callable[[commands.CompleteTransaction], asyncio.Future[bool]],
) -> TransactionMarkers:
    """The markers of the only coordinator; `complete` decides when a completion is written."""

    def next_epoch(command: commands.NextCoordinatorEpoch) -> asyncio.Future[int]:
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        taken.set_result(driver.run(command))
        return taken

    async def tell(metadata: TransactionMetadata, group_ids: Sequence[str], epoch: int) -> Mapping[str, str]:
        raise AssertionError("there is one coordinator, which has all groups")

    return TransactionMarkers(
        network=network, state=lambda: driver.state, complete=complete, next_epoch=next_epoch, tell=tell
    )


def test_a_completion_that_fails_after_its_ending_was_forgotten_is_looked_at() -> None:
    """Another coordinator has the metadata then. An error that nobody looks at is logged as a bug."""

    async def main() -> None:
        driver = TransactionDriver()
        driver.register(pb.ROLE_LEADER, 1, rpc_address="leader:1")
        network = InProcessNetwork()
        await network.serve("leader:1", [ScriptedLeader().service()])
        completions: list[asyncio.Future[bool]] = []

        def complete(command: commands.CompleteTransaction) -> asyncio.Future[bool]:
            completions.append(asyncio.get_running_loop().create_future())
            return completions[-1]

        markers = markers_of(driver, network, complete)
        driver.end(driver.begin())
        markers.send("t")
        await asyncio.sleep(0.01)
        (completion,) = completions
        markers.forget()
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        completion.set_exception(KafkaError(E.NOT_COORDINATOR, "another coordinator has the catalog"))
        await asyncio.sleep(0.01)
        completions.clear()
        del completion
        gc.collect()
        assert problems == []
        await markers.stop()

    run_virtually(main)


def test_the_next_end_of_an_id_may_come_before_its_last_one_is_known_to_be_written() -> None:
    """All in one turn of the machine: the completion, and the next transaction up to its end."""

    async def main() -> None:
        driver = TransactionDriver()
        driver.register(pb.ROLE_LEADER, 1, rpc_address="leader:1")
        network = InProcessNetwork()
        leader = ScriptedLeader()
        await network.serve("leader:1", [leader.service()])
        completions: list[asyncio.Future[bool]] = []

        def complete(command: commands.CompleteTransaction) -> asyncio.Future[bool]:
            assert driver.run(command)
            completions.append(asyncio.get_running_loop().create_future())
            return completions[-1]

        markers = markers_of(driver, network, complete)
        producer = driver.begin()
        driver.end(producer)
        markers.send("t")
        await asyncio.sleep(0.01)
        driver.add(producer, [1])
        driver.end(producer, committed=False)
        leader.codes = {1: [E.KAFKA_STORAGE_ERROR]}
        markers.send("t")
        completions[0].set_result(True)
        await asyncio.sleep(0.01)
        before = len(leader.calls)
        markers.catalog_changed()
        await asyncio.sleep(0.01)
        assert len(leader.calls) == before + 1, "the second one was not forgotten"
        assert [(committed, partition) for _, committed, _, partition in leader.written] == [(True, 0), (False, 1)]
        assert len(completions) == 2
        completions[1].set_result(True)
        await asyncio.sleep(0.01)
        await markers.stop()

    run_virtually(main)


def test_a_group_that_could_not_be_told_at_first_does_not_end_the_next_transaction() -> None:
    """Its retry may be due when the transaction is complete, and the id's next one has the same producer epoch."""

    async def main() -> None:
        driver = TransactionDriver()
        driver.register(pb.ROLE_LEADER, 1, rpc_address="leader:1")
        network = InProcessNetwork()
        leader = ScriptedLeader()
        await network.serve("leader:1", [leader.service()])
        told: list[bool] = []
        completed: list[bool] = []

        def answered(result: Any) -> asyncio.Future[Any]:
            future = asyncio.get_running_loop().create_future()
            future.set_result(result)
            return future

        def complete(command: commands.CompleteTransaction) -> asyncio.Future[bool]:
            completed.append(driver.run(command))
            return answered(completed[-1])

        async def tell(metadata: TransactionMetadata, group_ids: Sequence[str], epoch: int) -> Mapping[str, str]:
            told.append(metadata.is_committed)
            return {} if len(told) > 1 else dict.fromkeys(group_ids, "its coordinator is away")

        markers = TransactionMarkers(
            network=network,
            state=lambda: driver.state,
            complete=complete,
            next_epoch=lambda command: answered(driver.run(command)),
            tell=tell,
        )
        producer = driver.begin()
        assert driver.add_offsets(producer) is E.NONE
        driver.end(producer)
        driver.state.group_partitions = {}  # all groups are another coordinator's
        leader.delays_s = [0.02]
        markers.send("t")
        await asyncio.sleep(0.03)
        assert (completed, told) == ([True], [True, True]), "told again when the last marker was written"
        driver.add(producer, [1])
        driver.end(producer, committed=False)
        await asyncio.sleep(1)
        assert completed == [True] and driver.metadata().state.is_ending, "no marker of the next one was sent yet"
        markers.send("t")
        await asyncio.sleep(1)
        assert completed == [True, True]
        assert [(committed, partition) for _, committed, _, partition in leader.written] == [(True, 0), (False, 1)]
        await markers.stop()

    run_virtually(main)


def test_only_what_failed_is_tried_again_with_longer_and_longer_pauses() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        leader.codes = {
            1: [
                E.NOT_LEADER_OR_FOLLOWER,
                E.UNKNOWN_TOPIC_OR_PARTITION,
                E.KAFKA_STORAGE_ERROR,
                E.UNKNOWN_SERVER_ERROR,
                E.REQUEST_TIMED_OUT,
                E.TRANSACTION_COORDINATOR_FENCED,
                E.CORRUPT_MESSAGE,
            ]
        }
        producer = await cluster.begin([0, 1, 2])
        await cluster.end(producer, bumps=True)
        await asyncio.sleep(3.5)
        assert await cluster.state_of() == "PrepareCommit"
        await asyncio.sleep(1)
        assert await cluster.state_of() == "CompleteCommit"
        assert leader.partitions == [[0, 1, 2], *[[1]] * 7]
        pauses = [round(later - earlier, 3) for (earlier, _), (later, _) in pairwise(leader.calls)]
        assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        assert [partition for *_, partition in leader.written] == [0, 2, 1], "each once"
        first, *_, last = leader.coordinator_epochs
        assert leader.coordinator_epochs == [first] * 6 + [last] * 2 and last > first, "a newer one after the fence"
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_failed_partition_does_not_delay_other_partitions() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        leader.codes = {0: [E.KAFKA_STORAGE_ERROR] * 5}
        await cluster.end(await cluster.begin([0, 1]))
        await asyncio.sleep(0.2)
        other = await cluster.begin([1], "u")
        await cluster.end(other, transactional_id="u")
        await asyncio.sleep(0.01)
        assert (await cluster.state_of(), await cluster.state_of("u")) == ("PrepareCommit", "CompleteCommit")
        await asyncio.sleep(3)
        assert await cluster.state_of() == "CompleteCommit"
        await cluster.node.stop(0)

    run_virtually(main)


def test_an_absent_leader_does_not_delay_others_and_gets_its_markers_when_it_returns() -> None:
    async def main() -> None:
        cluster, _ = await started(leaders=2, partitions=2)
        producer = await cluster.begin([0, 1])
        view = await cluster.watch(pb.ROLE_LEADER, 1, 0, 0)
        away, other = [partition.leader_node_id for partition in view.topics[0].partitions]
        await cluster.servers[away].stop(0)
        await cluster.end(producer, committed=False)
        alone = await cluster.begin([1], "u")
        await cluster.end(alone, transactional_id="u")
        await asyncio.sleep(20)
        assert (await cluster.state_of(), await cluster.state_of("u")) == ("PrepareAbort", "CompleteCommit")
        assert cluster.leaders[other].partitions == [[1], [1]] and cluster.leaders[away].partitions == []
        await cluster.serve_leader(away)
        await asyncio.sleep(1)
        assert await cluster.state_of() == "CompleteAbort"
        assert cluster.leaders[other].partitions == [[1], [1]], "it has its marker"
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_leader_at_a_new_address_gets_the_markers_at_once() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        producer = await cluster.begin([0])
        await cluster.servers[1].stop(0)
        await cluster.end(producer)
        await asyncio.sleep(20)
        moved = ScriptedLeader()
        await cluster.network.serve("leader:new", [moved.service()])
        before = asyncio.get_running_loop().time()
        await cluster.register(pb.ROLE_LEADER, 1, "leader:new", incarnation="two")
        await asyncio.sleep(0.001)
        assert [at - before < 0.001 for at, _ in moved.calls] == [True]
        assert await cluster.state_of() == "CompleteCommit" and not leader.calls
        await cluster.node.stop(0)

    run_virtually(main)


def test_markers_wait_while_a_partition_has_no_leader() -> None:
    async def main() -> None:
        cluster, (leader,) = await started(configs={"kshare.node.lease.ms": "6000"})
        producer = await cluster.begin([0])
        await asyncio.sleep(10)
        assert (await cluster.end(producer))[0] is E.NONE
        await asyncio.sleep(10)
        assert await cluster.state_of() == "PrepareCommit" and not leader.calls
        await cluster.register(pb.ROLE_LEADER, 1, "leader:1", incarnation="two")
        await asyncio.sleep(0.001)
        assert await cluster.state_of() == "CompleteCommit"
        await cluster.node.stop(0)

    run_virtually(main)


@pytest.mark.parametrize("before_the_end", [True, False])
def test_partitions_of_deleted_topics_are_done(before_the_end: bool) -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        leader.codes = {number: [E.UNKNOWN_TOPIC_OR_PARTITION] * 1000 for number in range(3)}
        producer = await cluster.begin([0, 2])
        if before_the_end:
            await cluster.delete_topic("orders")
            await cluster.end(producer)
        else:
            await cluster.end(producer)
            await asyncio.sleep(10)
            assert await cluster.state_of() == "PrepareCommit", "the catalog still has them"
            await cluster.delete_topic("orders")
        await asyncio.sleep(0.001)
        assert await cluster.state_of() == "CompleteCommit"
        assert bool(leader.calls) is not before_the_end
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_partition_that_knows_a_later_epoch_of_the_producer_is_done() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        leader.codes = {1: [E.INVALID_PRODUCER_EPOCH]}
        await cluster.end(await cluster.begin([0, 1]))
        await asyncio.sleep(0.001)
        assert await cluster.state_of() == "CompleteCommit" and len(leader.calls) == 1
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_call_without_an_answer_is_repeated_with_a_higher_coordinator_epoch() -> None:
    """So that its markers, when they still arrive, cannot end the producer's next transaction."""

    async def main() -> None:
        cluster, (leader,) = await started()
        producer = await cluster.begin([0])
        leader.delays_s = [30.0]
        await cluster.end(producer)
        await asyncio.sleep(10)
        assert await cluster.state_of() == "CompleteCommit"
        assert await cluster.add(producer, [0]) == [E.NONE]
        await asyncio.sleep(60)
        (_, _, used, _), (_, _, late, _) = leader.written
        assert used > late, "the leader refuses what comes late"
        first, second = leader.coordinator_epochs
        assert (first, second) == (late, used)
        await cluster.end(producer, committed=False)
        await asyncio.sleep(0.001)
        assert leader.coordinator_epochs[2] == used, "an epoch is taken only where an outcome is not known"
        await cluster.node.stop(0)

    run_virtually(main)


# Restarts


@pytest.mark.parametrize("step", ["open", "decided", "half", "written"])
@pytest.mark.parametrize("bumps", [True, False])
def test_a_restart_at_each_step(step: str, bumps: bool) -> None:
    """The outcome that was decided is the one that all partitions get; the coordinator's epoch has grown."""

    async def main() -> None:
        cluster, leaders = await started(leaders=2, partitions=2)
        producer = await cluster.begin([0, 1])
        stuck = [E.KAFKA_STORAGE_ERROR] * 100
        if step in ("decided", "half"):
            leaders[0].codes = {0: list(stuck), 1: list(stuck)}
        if step == "decided":
            leaders[1].codes = {0: list(stuck), 1: list(stuck)}
        if step == "open":
            await cluster.restart()
            assert await cluster.state_of() == "Ongoing"
        code, told = await cluster.end(producer, bumps=bumps)
        assert code is E.NONE
        if step == "written":
            cluster.disk.fail_next_writes(1)
        await asyncio.sleep(1)
        before = [list(leader.coordinator_epochs) for leader in leaders]
        if step != "open":
            assert await cluster.state_of() == ("CompleteCommit" if step == "written" else "PrepareCommit")
        for leader in leaders:
            leader.codes = {}
        await cluster.restart()
        again, _ = await cluster.end(producer, bumps=bumps)
        assert again is (E.CONCURRENT_TRANSACTIONS if step in ("decided", "half") else E.NONE)
        await asyncio.sleep(1)
        assert await cluster.end(producer, bumps=bumps) == (E.NONE, told)
        assert (await cluster.end(producer, bumps=bumps, committed=False))[0] is E.INVALID_TXN_STATE
        assert {committed for leader in leaders for _, committed, _, _ in leader.written} == {True}
        assert {partition for leader in leaders for *_, partition in leader.written} == {0, 1}
        for leader, earlier in zip(leaders, before, strict=True):
            later = leader.coordinator_epochs[len(earlier) :]
            if step in ("decided", "half"):
                assert min(later) > max(earlier), "the earlier incarnation is fenced"
            else:
                assert later == []
        await cluster.node.stop(0)

    run_virtually(main)


# Disks


def test_an_end_that_could_not_be_written_has_no_effect() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        producer = await cluster.begin([0])
        cluster.disk.fail_next_writes(1)
        assert await cluster.end(producer) == (E.COORDINATOR_NOT_AVAILABLE, (-1, -1))
        await asyncio.sleep(1)
        assert await cluster.state_of() == "Ongoing" and not leader.calls
        assert (await cluster.end(producer, committed=False))[0] is E.NONE
        await asyncio.sleep(1)
        assert [committed for _, committed, _, _ in leader.written] == [False]
        await cluster.node.stop(0)

    run_virtually(main)


@pytest.mark.parametrize("failures", [1, 3])
def test_no_coordinator_epoch_no_markers(failures: int) -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        await cluster.servers[1].stop(0)
        await cluster.end(await cluster.begin([0]))
        await asyncio.sleep(0.01)
        await cluster.serve_leader(1)
        cluster.disk.fail_next_writes(failures)
        await asyncio.sleep(0.045)
        assert not leader.calls, "it would be the second call after one whose outcome is not known"
        await asyncio.sleep(1)
        assert await cluster.state_of() == "CompleteCommit" and len(leader.calls) == 1
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_completion_that_could_not_be_written_is_written_later() -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        producer = await cluster.begin([0])
        leader.delays_s = [0.5]
        await cluster.end(producer)
        await asyncio.sleep(0.1)
        cluster.disk.fail_next_writes(2)
        await asyncio.sleep(1.5)
        assert await cluster.state_of() == "PrepareCommit"
        await asyncio.sleep(2)
        assert await cluster.state_of() == "CompleteCommit" and len(leader.calls) == 1
        await cluster.node.stop(0)

    run_virtually(main)


class FailingReads(DiskEvents):
    """Reads fail while `fails`."""

    fails = False

    def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
        if self.fails:
            raise MemoryDiskFailure("Input/output error")
        return value


@pytest.mark.parametrize("count", [1, 3])
def test_markers_that_are_written_while_the_state_cannot_be_read_are_not_forgotten(count: int) -> None:
    async def main() -> None:
        cluster, (leader,) = await started()
        events = cluster.disk.events = FailingReads()
        names = [f"t{number}" for number in range(count)]
        producers = [await cluster.begin([0], name) for name in names]
        leader.delays_s = [0.5, 0.5]
        for producer, name in zip(producers, names, strict=True):
            await cluster.end(producer, transactional_id=name)
        await asyncio.sleep(0.1)
        events.fails = True
        cluster.disk.fail_next_writes(1_000)
        assert (await cluster.init("other"))[0] is E.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(3)
        events.fails = False
        cluster.disk.fail_next_writes(0)
        await asyncio.sleep(5)
        assert {await cluster.state_of(name) for name in names} == {"CompleteCommit"}
        await cluster.node.stop(0)

    run_virtually(main)


@pytest.mark.parametrize("ask", ["init", "add", "offsets", "end"])
def test_a_write_that_fails_is_answered_with_a_code_that_clients_retry(ask: str) -> None:
    async def main() -> None:
        cluster, _ = await started()
        producer = await cluster.begin([0])
        cluster.disk.fail_next_writes(1)
        request = pb.AddOffsetsToTxnRequest(
            transactional_id="t", producer_id=producer[0], producer_epoch=producer[1], group_id="g"
        )
        code: Any
        if ask == "init":
            code, _ = await cluster.init("u")
        elif ask == "add":
            (code,) = await cluster.add(producer, [1])
        elif ask == "offsets":
            code = (await cluster.call(methods.ADD_OFFSETS_TO_TXN, request)).error_code
        else:
            code, _ = await cluster.end(producer)
        assert E(code) is E.COORDINATOR_NOT_AVAILABLE
        assert await cluster.state_of() == "Ongoing" and await cluster.state_of("u") == "TRANSACTIONAL_ID_NOT_FOUND"
        assert await cluster.add(producer, [0, 1], verify_only=True) == [E.NONE, E.TRANSACTION_ABORTABLE]
        assert E((await cluster.call(methods.ADD_OFFSETS_TO_TXN, request)).error_code) is E.NONE
        await cluster.node.stop(0)

    run_virtually(main)


# Times


def test_transactions_that_are_open_too_long_are_aborted() -> None:
    async def main() -> None:
        cluster, (leader,) = await started(
            configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
        )
        code, producer = await cluster.init(timeout_ms=5_000)
        other = await cluster.begin([1], "u")
        assert code is E.NONE and await cluster.add(producer, [0]) == [E.NONE]
        await asyncio.sleep(4.5)
        assert await cluster.state_of() == "Ongoing"
        await asyncio.sleep(2)
        assert (await cluster.state_of(), await cluster.state_of("u")) == ("CompleteAbort", "Ongoing")
        assert [(who, committed) for who, committed, _, _ in leader.written] == [
            ((producer[0], producer[1] + 1), False)
        ]
        assert (await cluster.end(producer))[0] is E.PRODUCER_FENCED
        assert (await cluster.end(other, transactional_id="u"))[0] is E.NONE
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_transaction_is_aborted_in_time_after_wall_time_stepped_back() -> None:
    async def main() -> None:
        cluster, _ = await started(configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        cluster.clock.ahead_ms = 3_600_000
        _, producer = await cluster.init(timeout_ms=5_000)
        assert await cluster.add(producer, [0]) == [E.NONE]
        cluster.clock.ahead_ms = 0
        await asyncio.sleep(3)
        await cluster.restart()  # the next coordinator has another clock and counts from its first scan
        await asyncio.sleep(5.5)
        assert await cluster.state_of() == "Ongoing"
        await asyncio.sleep(2)
        assert await cluster.state_of() == "CompleteAbort"
        assert (await cluster.end(producer))[0] is E.PRODUCER_FENCED
        await cluster.node.stop(0)

    run_virtually(main)


def test_the_next_transaction_of_an_id_has_its_whole_timeout() -> None:
    async def main() -> None:
        cluster, _ = await started(configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        cluster.clock.ahead_ms = 3_600_000
        _, producer = await cluster.init(timeout_ms=5_000)
        cluster.clock.ahead_ms = 0
        for _ in range(4):
            assert await cluster.add(producer, [0]) == [E.NONE]
            await asyncio.sleep(4)
            assert (await cluster.end(producer, bumps=False))[0] is E.NONE
            await asyncio.sleep(0.1)
        await cluster.node.stop(0)

    run_virtually(main)


def test_timeouts_are_looked_at_again_when_the_disk_failed() -> None:
    async def main() -> None:
        cluster, _ = await started(configs={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"})
        _, producer = await cluster.init(timeout_ms=500)
        await cluster.add(producer, [0])
        cluster.disk.fail_next_writes(1)
        await asyncio.sleep(1.5)
        assert await cluster.state_of() == "Ongoing"
        await asyncio.sleep(1)
        assert await cluster.state_of() == "CompleteAbort"
        await cluster.node.stop(0)

    run_virtually(main)


def test_unused_transactional_ids_expire() -> None:
    async def main() -> None:
        configs = {
            "transactional.id.expiration.ms": "20000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
        }
        cluster, _ = await started(configs=configs)
        assert (await cluster.init("old"))[0] is E.NONE
        await asyncio.sleep(10)
        assert (await cluster.init("young"))[0] is E.NONE
        await asyncio.sleep(12)
        states = [await cluster.state_of(name) for name in ("old", "young")]
        assert states == ["TRANSACTIONAL_ID_NOT_FOUND", "Empty"]
        await cluster.restart()
        assert await cluster.state_of("old") == "TRANSACTIONAL_ID_NOT_FOUND"
        await cluster.node.stop(0)

    run_virtually(main)


# What is asked of many at once


def test_a_request_of_many_transactions_is_one_write() -> None:
    """As leaders send it (KIP-890)."""

    async def main() -> None:
        cluster, _ = await started()
        request = pb.AddPartitionsToTxnRequest()
        for number in range(10):
            _, producer = await cluster.init(f"t{number}")
            transaction = request.transactions.add(
                transactional_id=f"t{number}",
                producer_id=producer[0],
                producer_epoch=producer[1] + (number == 3),
                verify_only=number == 4,
            )
            transaction.topics.add(topic_name="orders", partitions=[0, 1])
        cluster.disk.fail_next_writes(1)
        answer = await cluster.call(methods.ADD_PARTITIONS_TO_TXN, request)
        assert E(answer.error_code) is E.COORDINATOR_NOT_AVAILABLE and not answer.results
        answer = await cluster.call(methods.ADD_PARTITIONS_TO_TXN, request)
        assert [result.transactional_id for result in answer.results] == [f"t{number}" for number in range(10)]
        codes = [{E(each.error_code) for each in result.partitions} for result in answer.results]
        assert codes == [
            {{3: E.PRODUCER_FENCED, 4: E.TRANSACTION_ABORTABLE}.get(number, E.NONE)} for number in range(10)
        ]
        listed = await cluster.call(
            methods.LIST_TRANSACTIONS, pb.ListTransactionsRequest(state_filters=["Ongoing"], duration_filter_ms=-1)
        )
        assert len(listed.transaction_states) == 8
        refused = await cluster.call(
            methods.LIST_TRANSACTIONS, pb.ListTransactionsRequest(transactional_id_pattern="(")
        )
        assert E(refused.error_code) is E.INVALID_REGULAR_EXPRESSION
        await cluster.node.stop(0)

    run_virtually(main)


def test_a_node_that_stops_while_markers_are_under_way() -> None:
    async def main() -> None:
        cluster, leaders = await started(leaders=2, partitions=2)
        leaders[0].delays_s = [3.0]
        leaders[1].codes = {0: [E.KAFKA_STORAGE_ERROR] * 10, 1: [E.KAFKA_STORAGE_ERROR] * 10}
        await cluster.end(await cluster.begin([0, 1]))
        await asyncio.sleep(0.01)
        await cluster.node.stop(0)
        await asyncio.sleep(10)
        assert [len(leader.calls) for leader in leaders] == [1, 1]

    run_virtually(main)
