"""The simulated cluster keeps what Kafka promises while its brokers die, stop, are cut off and slow; no more than that.

The clients are those of the whole simulation, here without kshare between them and the brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.source_copies import fetch_copies
from kshare_leader.machine.archiving import ArchivingRun
from kshare_leader.machine.transitions import ArchivingReason
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OutcomeUnknown, PartitionLog, Refused
from kshare_upstream.port import NO_LEADER, Upstream
from kshare_upstream.port import UpstreamPartitionName as Name
from kshare_upstream.producer_ids import fresh_producer_id
from kshare_upstream.topics import create_topic
from kshare_wire.record_batches import read_headers
from kshare_wire.record_writing import BatchWriter, ProducerSequence
from support.simulation.evidence import Evidence, Expectations
from support.simulation.faults import Fault, FaultInjector, draw_faults
from support.simulation.history import ProduceConfirmed
from support.simulation.kafka_clients.admin import Admin, LogContents
from support.simulation.kafka_clients.producer import Producer
from support.simulation.kafka_clients.transactional_producer import TransactionalProducer
from support.simulation.loop import VirtualLoop
from support.simulation.rules.transactions import transactions_are_atomic
from support.simulation.swarm import OF_ALL_HOSTS
from support.simulation.upstream.brokers import BrokerCluster, simulated_cluster
from support.simulation.upstream.partitions import SimulatedPartition

TOPIC = "orders"
FAULT_SECONDS = 30.0
LATE_S = 120.0


def run_brokers(seed: int, main: Callable[[BrokerCluster], Awaitable[None]]) -> BrokerCluster:
    loop = VirtualLoop()
    brokers = BrokerCluster(loop, str(seed))

    async def started() -> None:
        await brokers.start()
        await main(brokers)

    loop.run(started())
    assert brokers.problems() == []
    return brokers


async def disturb(brokers: BrokerCluster, seed: int, faults: Iterable[Fault] = ()) -> None:
    """The seed's faults, or those that are given; when it returns they are over."""
    draw = random.Random(f"{seed}/faults")
    start = brokers.loop.time()
    found = list(faults) or draw_faults(
        draw, list(brokers.hosts), start=start, end=start + FAULT_SECONDS, count=12, kinds_of_fault=OF_ALL_HOSTS
    )
    injector = FaultInjector(brokers, draw, OF_ALL_HOSTS)
    injector.start(found)
    await asyncio.sleep(FAULT_SECONDS)
    await injector.heal()


async def logs_of(brokers: BrokerCluster, partitions: int) -> dict[int, LogContents]:
    admin = Admin(brokers.client("reader"))
    return {index: await admin.read_whole_log(TOPIC, index) for index in range(partitions)}


@pytest.mark.parametrize("seed", range(12))
def test_what_a_producer_was_told_is_in_the_log_once(seed: int) -> None:
    async def main(brokers: BrokerCluster) -> None:
        await Admin(brokers.client("admin")).create_topic(TOPIC, 2, {"min.insync.replicas": "2"}, replicas=3)
        work = {index: [tuple(f"{index}-{n}-{m}" for m in range(1 + n % 3)) for n in range(60)] for index in range(2)}
        producing = asyncio.ensure_future(Producer(brokers.client("p1"), TOPIC).run(work, seconds=FAULT_SECONDS))
        await disturb(brokers, seed)
        await asyncio.wait_for(producing, LATE_S)
        logs = await logs_of(brokers, 2)
        for index, contents in logs.items():
            expected = [value for values in work[index] for value in values]
            assert [record.value for record in contents.records] == expected
        places = {(index, record.value): record.offset for index, log in logs.items() for record in log.records}
        for event in brokers.history.events:
            if isinstance(event, ProduceConfirmed) and event.base_offset >= 0:
                assert places[event.partition, event.values[0]] == event.base_offset, event

    run_brokers(seed, main)


@pytest.mark.parametrize("seed", range(12))
def test_transactions_are_whole(seed: int) -> None:
    async def main(brokers: BrokerCluster) -> None:
        await Admin(brokers.client("admin")).create_topic(TOPIC, 3, {"min.insync.replicas": "2"}, replicas=3)
        works = [
            {index: [(f"{number}-{index}-a",), (f"{number}-{index}-b", f"{number}-{index}-c")] for index in range(3)}
            for number in range(8)
        ]
        producer = TransactionalProducer(brokers.client("t1"), TOPIC, version=1, timeout_ms=4_000)
        producing = asyncio.ensure_future(producer.run(works, seconds=FAULT_SECONDS))
        await disturb(brokers, seed)
        await asyncio.wait_for(producing, LATE_S)
        logs = {index: contents.records for index, contents in (await logs_of(brokers, 3)).items()}
        committed = [record for log in logs.values() for record in log if record.committed]
        assert committed, "no transaction was committed"
        evidence = Evidence(
            brokers.history, Expectations(logs=logs, groups=(), delivery_count_limit=5, lock_duration_s=1.0)
        )
        assert list(transactions_are_atomic(evidence)) == []

    run_brokers(seed, main)


class Probe:
    """A client of the brokers on a host of its own, as nodes have it, and one partition's log."""

    def __init__(self, brokers: BrokerCluster, upstream: Upstream) -> None:
        self.brokers = brokers
        self.upstream = upstream
        self.log = PartitionLog(upstream, Name(TOPIC, 0), deadline_ms=20_000)

    @property
    def partition(self) -> SimulatedPartition:
        found = self.brokers.upstream.partition(self.log.at)
        assert found is not None
        return found

    async def append(self, *values: bytes) -> int:
        return await self.log.append(batch_of(values, ProducerSequence(-1, -1, -1)))


def batch_of(values: Iterable[bytes], producer: ProducerSequence) -> bytes:
    writer = BatchWriter(1 << 20, producer=producer)
    for value in values:
        writer.append(0, None, value, ())
    return writer.build()


def run_probe(body: Callable[[Probe], Awaitable[None]]) -> None:
    async def main() -> None:
        async with simulated_cluster(1) as (client, brokers):
            assert await create_topic(client, TOPIC, partitions=1, replicas=3, configs={"min.insync.replicas": "2"})
            probe = Probe(brokers, client)
            await probe.append(b"first")
            await body(probe)

    VirtualLoop().run(main())


def test_a_new_leader_does_not_know_the_end_of_its_log_at_once() -> None:
    """KIP-207: fetches end at its high watermark, ListOffsets asks for patience, and nothing confirmed is lost."""

    async def body(probe: Probe) -> None:
        for _ in range(5):
            await probe.append(b"x")
        partition = probe.partition
        while not partition.is_behind:
            partition.lose_leader()
            partition.elect(partition.in_sync[1], is_orderly=False)
        assert 0 < partition.high_watermark < partition.log.end == 6
        assert len((await probe.log.read(0)).data) < partition.log.size_bytes()
        assert await probe.log.offset_at(LATEST_TIMESTAMP) == 6
        assert [header.base_offset for header in read_headers((await probe.log.read(0)).data)] == list(range(6))

    run_probe(body)


def test_a_dead_letter_gets_its_copy_from_a_new_leader_whose_high_watermark_is_behind() -> None:
    """Seed 880622228 of the kafka engine: the record was taken for lost, and its dead letter had no value."""

    async def body(probe: Probe) -> None:
        for _ in range(5):
            await probe.append(b"x")
        partition = probe.partition
        while partition.high_watermark > 4:
            partition.lose_leader()
            partition.elect(partition.in_sync[1], is_orderly=False)
        partition.catches_up_at = probe.brokers.loop.time() + 3.0
        run = ArchivingRun(4, 5, 1, ArchivingReason.REJECTED)
        covered, copies = await fetch_copies(TopicPartition(b"t" * 16, 0), probe.log, [run], 1 << 20)
        assert covered == [run]
        assert [copies.read(offset, 1)[0].base_offset for offset in (4, 5)] == [4, 5]
        beyond = ArchivingRun(6, 6, 1, ArchivingReason.REJECTED)  # lost with an unclean election, for example
        covered, copies = await fetch_copies(TopicPartition(b"t" * 16, 0), probe.log, [beyond], 1 << 20)
        assert covered == [beyond]
        assert copies.read(6, 1) == []

    run_probe(body)


def test_an_epoch_without_records_has_an_end_and_is_forgotten_by_the_next_leader() -> None:
    async def body(probe: Probe) -> None:
        partition = probe.partition
        for _ in range(2):
            partition.lose_leader()
            partition.elect(partition.in_sync[1], is_orderly=False)
        assert partition.log.leader_epochs == [(0, 0), (2, 1)]
        assert [partition.log.end_of_epoch(epoch, 2) for epoch in (0, 1, 2, 3)] == [(0, 1), (0, 1), (2, 1), (-1, -1)]

    run_probe(body)


def test_what_is_not_replicated_may_be_lost_with_its_leader_and_is_appended_again() -> None:
    async def body(probe: Probe) -> None:
        partition, fabric = probe.partition, probe.brokers.fabric
        leader = f"broker-{partition.leader}"
        others = [f"broker-{each}" for each in partition.replica_ids if each != partition.leader]
        for other in others:
            fabric.block(leader, other)
        producer = ProducerSequence(*(await fresh_producer_id(probe.upstream)), 0)
        appending = asyncio.ensure_future(probe.log.append(batch_of([b"a", b"b"], producer)))
        await asyncio.sleep(1.0)
        assert partition.log.end == 3 and partition.high_watermark == 1 and not appending.done()
        await asyncio.sleep(10.0)
        assert f"broker-{partition.leader}" in others and partition.leader_epoch == 1
        for other in others:
            fabric.unblock(leader, other)
        assert await appending == 1
        assert [
            (header.base_offset, header.record_count) for header in read_headers((await probe.log.read(0)).data)
        ] == [
            (0, 1),
            (1, 2),
        ]

    run_probe(body)


def test_a_request_may_take_effect_after_its_sender_gave_it_up() -> None:
    async def body(probe: Probe) -> None:
        leader = probe.brokers.hosts[f"broker-{probe.partition.leader}"]
        leader.pause()
        impatient = PartitionLog(probe.upstream, probe.log.at, deadline_ms=500)
        appending = asyncio.ensure_future(impatient.append(batch_of([b"late"], ProducerSequence(-1, -1, -1))))
        await asyncio.sleep(1.0)
        appending.cancel()
        assert probe.partition.log.end == 1
        leader.resume()
        await asyncio.sleep(1.0)
        assert probe.partition.log.end == 2

    run_probe(body)


def test_an_unclean_election_loses_what_was_confirmed() -> None:
    async def body(probe: Probe) -> None:
        for number in range(4):
            await probe.append(bytes([number]))
        probe.brokers.upstream.elect_uncleanly(probe.log.at, 3)
        assert await probe.append(b"another") == 3
        assert await probe.log.offset_at(LATEST_TIMESTAMP) == 4
        assert await probe.log.leader_epochs() == [(0, 0), (1, 3)]

    run_probe(body)


def test_too_few_replicas_refuse_and_a_partition_without_any_waits_for_its_last_one() -> None:
    async def body(probe: Probe) -> None:
        partition, hosts = probe.partition, probe.brokers.hosts
        names = [f"broker-{each}" for each in partition.replica_ids]
        for name in names[1:]:
            hosts[name].crash()
        await asyncio.sleep(5.0)
        assert partition.in_sync == [partition.leader]
        with pytest.raises(OutcomeUnknown, match="NOT_ENOUGH_REPLICAS"):
            await PartitionLog(probe.upstream, probe.log.at, deadline_ms=500).append(
                batch_of([b"x"], ProducerSequence(-1, -1, -1))
            )
        hosts[names[0]].crash()
        await asyncio.sleep(5.0)
        assert partition.leader == NO_LEADER
        for name in names[1:]:
            await hosts[name].start()
        await asyncio.sleep(5.0)
        assert partition.leader == NO_LEADER, "they were not in sync"
        await hosts[names[0]].start()
        assert await probe.append(b"x") == 1

    run_probe(body)


def test_the_high_watermark_limits_what_is_deleted_and_read() -> None:
    async def body(probe: Probe) -> None:
        await probe.append(b"second")
        with pytest.raises(Refused) as refused:
            await probe.log.delete_before(3)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await probe.log.delete_before(1) == 1
        assert await probe.log.offset_at(EARLIEST_TIMESTAMP) == 1

    run_probe(body)
