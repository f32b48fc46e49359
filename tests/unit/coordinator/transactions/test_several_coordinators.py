"""Transactions with offsets of groups whose coordinator is not the active one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.several_coordinators import Client, SeveralCoordinators

ID = "tx"


async def begun(several: SeveralCoordinators) -> Client:
    await several.start()
    client = await several.client().start()
    assert await client.create_topic("t") == 0
    return client


def groups(several: SeveralCoordinators) -> tuple[str, str, str]:
    """One of the active coordinator, and one of each of the others."""
    active = several.active()
    others = [host for host in several.hosts if host is not active]
    return several.group_of(active), several.group_of(others[0]), several.group_of(others[1])


async def offsets(client: Client, group_ids: tuple[str, ...], *, stable: bool = False) -> list[int | E]:
    return [await client.fetch(group_id, "t", stable=stable) for group_id in group_ids]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
def test_offsets_of_groups_everywhere_take_effect_together_with_the_transaction(committed: bool, bumps: bool) -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        of_three = groups(several)
        for group_id in of_three:
            assert await client.commit(group_id, "t", 1) == 0
        producer = await client.begin(ID)
        for group_id in of_three:
            if not bumps:
                code = await client.transactional_commit(ID, producer, group_id, "t", 9, adds=False)
                assert code == E.TRANSACTION_ABORTABLE, "the group is not in the transaction"
                assert await client.add_offsets(ID, producer, group_id) == 0
            assert await client.transactional_commit(ID, producer, group_id, "t", 9, adds=bumps) == 0
        assert await offsets(client, of_three) == [1, 1, 1]
        assert await offsets(client, of_three, stable=True) == [E.UNSTABLE_OFFSET_COMMIT] * 3
        assert (await client.end(ID, producer, committed=committed, bumps=bumps)).error_code == 0
        await asyncio.sleep(1)
        assert await offsets(client, of_three, stable=True) == [9 if committed else 1] * 3
        described = await client.active(
            methods.DESCRIBE_TRANSACTIONS, pb.DescribeTransactionsRequest(transactional_ids=[ID])
        )
        ended = "CompleteCommit" if committed else "CompleteAbort"
        assert described.transaction_states[0].transaction_state == ended

    several.run(main)


def test_offsets_do_not_wait_for_the_marker_of_a_partition_without_a_leader() -> None:
    """Nor does whoever takes over what they are about."""
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        of_three = groups(several)
        producer = await client.begin(ID)
        added = pb.AddPartitionsToTxnRequest.Transaction(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1]
        )
        added.topics.add(topic_name="t", partitions=[0])
        answer = await client.active(methods.ADD_PARTITIONS_TO_TXN, pb.AddPartitionsToTxnRequest(transactions=[added]))
        assert [result.error_code for result in answer.results[0].partitions] == [0]
        for group_id in of_three:
            assert await client.transactional_commit(ID, producer, group_id, "t", 9) == 0
        assert (await client.end(ID, producer)).error_code == 0
        await asyncio.sleep(1)
        assert await offsets(client, of_three, stable=True) == [9, 9, 9]
        described = await client.active(
            methods.DESCRIBE_TRANSACTIONS, pb.DescribeTransactionsRequest(transactional_ids=[ID])
        )
        assert described.transaction_states[0].transaction_state == "PrepareCommit"
        assert await client.add_offsets(ID, (producer[0], producer[1] + 1), of_three[0]) == E.CONCURRENT_TRANSACTIONS

    several.run(main)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"producer_id": 99}, E.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": 99}, E.INVALID_PRODUCER_EPOCH),
        ({"transactional_id": "other"}, E.INVALID_PRODUCER_ID_MAPPING),
    ],
)
@pytest.mark.parametrize("adds", [True, False])
def test_what_the_active_coordinator_refuses_is_refused_by_the_group(
    change: dict[str, object], code: E, adds: bool
) -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        own, elsewhere, _ = groups(several)
        producer = await client.begin(ID)
        for group_id in (own, elsewhere):
            assert await client.add_offsets(ID, producer, group_id) == 0
            transactional_id = str(change.get("transactional_id", ID))
            wrong = (
                int(str(change.get("producer_id", producer[0]))),
                int(str(change.get("producer_epoch", producer[1]))),
            )
            found = await client.transactional_commit(transactional_id, wrong, group_id, "t", 9, adds=adds)
            assert found == code, "the same, wherever the group is"

    several.run(main)


def test_the_end_of_a_transaction_waits_for_an_owner_that_is_away() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        group_id = groups(several)[1]
        owner = several.owner_of_group(group_id)
        producer = await client.begin(ID)
        assert await client.transactional_commit(ID, producer, group_id, "t", 9) == 0
        owner.crash()
        assert (await client.end(ID, producer)).error_code == 0, "the outcome is decided, whoever is away"
        assert await client.add_offsets(ID, (producer[0], producer[1] + 1), group_id) == E.CONCURRENT_TRANSACTIONS
        assert await client.patiently(lambda: client.fetch(group_id, "t", stable=False)) in (-1, 9)
        await asyncio.sleep(3)
        assert await client.fetch(group_id, "t") == 9
        assert await client.add_offsets(ID, (producer[0], producer[1] + 1), group_id) == 0

    several.run(main)


def test_a_new_active_coordinator_goes_on_with_an_end_that_was_decided() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        group_id = groups(several)[1]
        active = several.active()
        owner = several.owner_of_group(group_id)
        producer = await client.begin(ID)
        assert await client.transactional_commit(ID, producer, group_id, "t", 9) == 0
        several.fabric.block(active.name, owner.name)
        assert (await client.end(ID, producer)).error_code == 0
        await asyncio.sleep(0.5)
        assert await client.fetch(group_id, "t") is E.UNSTABLE_OFFSET_COMMIT
        active.crash()
        while await client.patiently(lambda: client.fetch(group_id, "t")) != 9:
            assert several.loop.time() < 60
            await asyncio.sleep(0.1)

    several.run(main)


def test_a_commit_that_was_allowed_before_the_end_does_not_wait_for_the_next_transaction() -> None:
    """The producer keeps its epoch, so nothing but the order tells its two transactions apart: the active coordinator
    says that the group is in the transaction, and this answer takes longer than the transaction's end."""
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        active, group_id = several.active(), groups(several)[1]
        owner = several.owner_of_group(group_id)
        link = (active.name, owner.name)
        latency = several.fabric.conditions.link_latency

        def tap(source: str, target: str, method: Any, request: Any, answer: object, sent_at: float) -> None:
            if method is methods.ADD_OFFSETS_TO_TXN and source == owner.name and answer and not allowed:
                allowed.append(answer)
                latency[link] = 1.5
                several.loop.call_soon(latency.pop, link)  # only this answer is slow

        allowed: list[Any] = []
        several.fabric.taps.append(tap)
        producer = await client.begin(ID)
        assert await client.add_offsets(ID, producer, group_id) == 0
        slow = asyncio.ensure_future(client.transactional_commit(ID, producer, group_id, "t", 9, adds=False))
        while not allowed:
            await asyncio.sleep(0.0001)
        assert allowed[0].error_code == 0
        assert (await client.end(ID, producer, bumps=False)).error_code == 0
        await asyncio.sleep(0.05)
        assert await client.add_offsets(ID, producer, group_id) == 0, "the next transaction has begun"
        assert not slow.done()
        assert (await client.end(ID, producer, bumps=False)).error_code == 0
        await asyncio.sleep(0.05)
        assert await slow == E.TRANSACTION_ABORTABLE
        assert await client.fetch(group_id, "t") == -1, "nothing waits for the next transaction"

    several.run(main)


def test_an_end_that_comes_late_does_not_end_the_next_transaction_of_the_same_epoch() -> None:
    """The answer of a first call is lost, so it is made again; a copy of the first comes much later."""
    several = SeveralCoordinators()
    told: list[pb.CompleteTransactionOffsetsRequest] = []

    def tap(source: str, target: str, method: Any, request: Any, answer: object, sent_at: float) -> None:
        if method is methods.COMPLETE_TRANSACTION_OFFSETS and answer is None and source.startswith("coordinator"):
            told.append(request)

    async def main() -> None:
        client = await begun(several)
        several.fabric.taps.append(tap)
        group_id = groups(several)[1]
        active, owner = several.active(), several.owner_of_group(group_id)
        producer = await client.begin(ID)
        assert await client.add_offsets(ID, producer, group_id) == 0
        assert await client.transactional_commit(ID, producer, group_id, "t", 5, adds=False) == 0
        several.fabric.block(owner.name, active.name)
        assert (await client.end(ID, producer, bumps=False)).error_code == 0
        await asyncio.sleep(6)
        several.fabric.unblock(owner.name, active.name)
        await asyncio.sleep(8)
        assert len(told) >= 2
        assert told[0].coordinator_epoch < told[-1].coordinator_epoch
        assert await client.add_offsets(ID, producer, group_id) == 0, "the transaction is complete"
        assert await client.transactional_commit(ID, producer, group_id, "t", 6, adds=False) == 0
        refused = await client.at(f"{owner.name}:1", methods.COMPLETE_TRANSACTION_OFFSETS, told[0])
        assert refused.error_code == E.TRANSACTION_COORDINATOR_FENCED
        assert await client.fetch(group_id, "t") is E.UNSTABLE_OFFSET_COMMIT
        assert await client.fetch(group_id, "t", stable=False) == 5
        assert (await client.end(ID, producer, bumps=False, committed=False)).error_code == 0
        await asyncio.sleep(1)
        assert await client.fetch(group_id, "t") == 5

    several.run(main)


def test_the_same_end_told_twice_changes_nothing() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        group_id = groups(several)[1]
        address = f"{several.owner_of_group(group_id).name}:1"
        producer = await client.begin(ID)
        assert await client.transactional_commit(ID, producer, group_id, "t", 5) == 0
        end = pb.CompleteTransactionOffsetsRequest(
            coordinator_epoch=1_000, producer_id=producer[0], committed=True, group_ids=[group_id]
        )
        for _ in range(2):
            assert (await client.at(address, methods.COMPLETE_TRANSACTION_OFFSETS, end)).error_code == 0
            assert await client.fetch(group_id, "t") == 5
        elsewhere = await client.at(f"{several.active().name}:1", methods.COMPLETE_TRANSACTION_OFFSETS, end)
        assert elsewhere.error_code == E.NOT_COORDINATOR

    several.run(main)


def test_producer_ids_are_never_given_twice_across_active_coordinators() -> None:
    several = SeveralCoordinators()

    async def main() -> None:
        client = await begun(several)
        request = pb.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        found: list[int] = []
        for turn in range(3):
            for number in range(3):
                answer = await client.patiently(lambda: client.active(methods.INIT_PRODUCER_ID, request))
                found += [answer.producer_id, (await client.begin(f"{ID}-{turn}-{number}"))[0]]
            several.active().crash()
            while several.owner(-1) is None and turn < 2:
                await asyncio.sleep(0.1)
            if turn == 1:
                for host in several.hosts:
                    if not host.running:
                        await host.start()
        assert len(set(found)) == len(found) == 18

    several.run(main)
