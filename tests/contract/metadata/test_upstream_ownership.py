"""Coordinators that share their metadata in an existing cluster: one owns everything, the others stand by.

On Apache Kafka 3.9.1 in real time, and on the cluster in memory in virtual time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, OwnershipLost
from kshare_coordinator.metadata.upstream.store import UpstreamMetadataStore
from kshare_core.errors import StorageFailure
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog
from kshare_upstream.topics import create_topic
from kshare_wire.record_writing import BatchWriter
from support.kafka.existing_cluster import ExistingCluster
from support.metadata.cluster import LEASE_MS, UpstreamCluster, write
from support.metadata.etcd_backends import allowed_s, until
from support.metadata.upstream_backends import UpstreamBackend, UpstreamPlay, backend_at, play_on_upstream

LEASE_S = LEASE_MS / 1000
TAKEOVER_S = LEASE_S + 1.0
LATER_S = 0.3


@pytest.fixture(params=["kafka", "memory"])
def play(request: pytest.FixtureRequest) -> UpstreamPlay:
    return lambda scene: play_on_upstream(request.param, scene)


def in_memory(scene: object) -> None:
    play_on_upstream("memory", scene)  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_one_coordinator_owns_everything_and_finds_it_again(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend) as cluster:
            a = await cluster.start(1)
            assert (a.loads, a.catalog) == (1, {})
            await cluster.owned()
            await a.append(
                {CATALOG: [write("topic", "1")], 7: [write("x", "1"), write("y", "1")], 49: [write("z", "")]}
            )
            await a.append({7: [write("x", None), write("y", "2")]})
            assert (a.rows(CATALOG), a.rows(7), a.rows(49), a.rows(0)) == ({"topic": "1"}, {"y": "2"}, {"z": ""}, {})
            assert a.catalog_appends == [], "its own appends are not told to it"
            assert a.store.append({}) is None
            await cluster.stop(a)
            began_at = now()
            a = await cluster.start(1)
            assert a.catalog == {"topic": "1"}
            await cluster.owned()
            assert now() - began_at < allowed_s(LEASE_S / 2, since=began_at), "the former life has given it up"
            assert {p: rows for p, rows in a.gained_rows.items() if rows} == {7: {"y": "2"}, 49: {"z": ""}}

    play(scene)


def test_standbys_follow_the_catalog_and_know_the_owner(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=3) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            await a.put(CATALOG, "before", "1")
            b, c = await cluster.start(2), await cluster.start(3)
            assert (b.catalog, b.loads) == ({"before": "1"}, 1)
            for number in range(10):
                await a.append({CATALOG: [write("n", str(number)), write(f"k{number}", None)], 0: [write("g", "1")]})
            expected: list[dict[str, str | None]] = [{"n": str(n), f"k{n}": None} for n in range(10)]
            for one in (b, c):
                await until(lambda one=one: one.catalog == a.rows(CATALOG))  # type: ignore[misc]
                assert one.catalog_appends == expected
                assert not one.store.owns(CATALOG) and not one.group_partitions
                with pytest.raises(OwnershipLost):
                    await one.put(0, "x", "1")
            owners = dict.fromkeys(range(CATALOG, 3), 1)
            members = [one.member for one in (a, b, c)]
            for one in (a, b, c):
                await until(lambda one=one: (one.members, one.owners) == (members, owners))  # type: ignore[misc]

    play(scene)


def test_a_coordinator_with_the_node_id_of_another_says_why_it_does_not_serve(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            first = await cluster.start(1)
            await cluster.owned()
            second = await cluster.start(1)
            await until(lambda: bool(second.store.problems()))
            (problem,) = second.store.problems()
            assert f"another coordinator with node id 1 runs, at {first.member.rpc_address}" in problem
            assert not second.store.owns(CATALOG) and first.store.owns(CATALOG) and not first.store.problems()
            await cluster.stop(first)
            await until(lambda: second.store.owns(CATALOG) and not second.store.problems())

    play(scene)


def test_a_clean_stop_is_followed_by_the_next_owner_at_once(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=2) as cluster:
            for node_id in (1, 2, 3):
                await cluster.start(node_id)
                await cluster.owned()
            for round_ in range(3):
                former = await cluster.owned()
                for number in range(20):
                    await former.append(
                        {CATALOG: [write(f"{round_}-{number}", "1")], 0: [write(f"{round_}-{number}", "1")]}
                    )
                began_at = now()
                await cluster.stop(former)
                owner = await cluster.owned()
                assert now() - began_at < allowed_s(LEASE_S / 2, since=began_at)
                assert owner.catalog == owner.rows(CATALOG)
                assert len(owner.catalog) == len(owner.rows(0)) == 20 * (round_ + 1)
                await cluster.start(former.node_id)

    play(scene)


def test_an_owner_that_is_cut_off_stops_before_a_standby_takes_over(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=4) as cluster:
            a, b = await cluster.start(1), await cluster.start(2)
            owner = await cluster.owned()
            other = b if owner is a else a
            await owner.append({p: [write("k", "v")] for p in range(CATALOG, 4)})
            owner.upstream.unavailable = True
            cut_at = now()
            await until(lambda: not owner.store.owns(0))
            assert now() - cut_at <= allowed_s(LEASE_S + 0.1, since=cut_at)
            await until(lambda: not owner.gained_rows)
            await until(lambda: other.store.owns(CATALOG))
            assert now() - cut_at < allowed_s(TAKEOVER_S, since=cut_at)
            assert all(other.rows(p) == {"k": "v"} for p in range(CATALOG, 4))
            assert owner.store.problems() != []
            with pytest.raises(OwnershipLost):
                await owner.put(0, "k", "w")
            await other.put(CATALOG, "k", "2")
            owner.upstream.unavailable = False
            await until(lambda: owner.catalog == {"k": "2"})
            await until(lambda: owner.store.problems() == [])
            assert cluster.owner(CATALOG) is other
            await until(lambda: owner.owners == dict.fromkeys(range(CATALOG, 4), other.node_id))

    play(scene)


def test_a_lost_answer_is_never_guessed(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            a.upstream.lose_answers(3)
            await a.append({0: [write("k", "1")], CATALOG: [write("k", "1")]})
            a.upstream.lose_requests(3)
            await a.append({0: [write("k", "2")], CATALOG: [write("k", "2")]})
            a.upstream.apply_late(1, 300)
            await a.append({0: [write("k", "3")]})
            await a.append({0: [write("k", "4")]})
            await a.upstream.wait_for_late()
            await a.put(1, "k", "5")
            assert a.rows(0) == {"k": "4"}
            assert sorted(a.gained_rows) == [CATALOG, 0, 1], "nothing was lost meanwhile"
            await cluster.stop(a)
            a = await cluster.start(1)
            await cluster.owned()
            assert (a.rows(0), a.rows(1), a.rows(CATALOG)) == ({"k": "4"}, {"k": "5"}, {"k": "2"})

    play(scene)


def test_an_append_given_up_is_found_or_written_again_under_the_next_claim(play: UpstreamPlay) -> None:
    """Its repetitions are lost until the client gives the append up: the claim that follows tells whether it counts."""

    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            for fault in (a.upstream.lose_answers, a.upstream.lose_requests):
                before = int(a.rows(0).get("n", "0"))
                fault(LEASE_MS // 4 // 100 + 1)
                await a.put(0, "n", str(before + 1))
                assert not a.upstream.has_faults
                assert a.rows(0) == {"n": str(before + 1)}
            assert sorted(a.gained_rows) == [CATALOG, 0], "nothing was lost meanwhile"
            await cluster.stop(a)
            b = await cluster.start(2)
            await cluster.owned()
            assert b.rows(0) == {"n": "2"}

    play(scene)


def test_a_write_that_arrives_after_the_owner_changed_has_no_effect(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            await a.append({0: [write("k", "first")], CATALOG: [write("k", "first")]})
            b = await cluster.start(2)
            a.upstream.apply_late(1, int(TAKEOVER_S * 1000) + 1_000)
            waiting = asyncio.ensure_future(a.append({p: [write("k", "late")] for p in (0, CATALOG)}))
            await until(lambda: not a.upstream.has_faults)
            a.upstream.unavailable = True
            await until(lambda: b.store.owns(CATALOG))
            with pytest.raises(OwnershipLost):
                await waiting
            await a.upstream.wait_for_late()  # it is in the log now
            await b.append({0: [write("other", "2")], CATALOG: [write("other", "2")]})
            await cluster.stop(b)
            c = await cluster.start(3)
            await until(lambda: c.store.owns(CATALOG))
            assert c.rows(0) == c.rows(CATALOG) == {"k": "first", "other": "2"}

    play(scene)


def test_an_owner_learns_of_a_rival_from_its_next_record() -> None:
    """A rival that claims too early, as one whose clock runs wrong, takes the log over; only its appends count."""

    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            await a.put(0, "k", "1")
            b = await cluster.start(2)
            tail = b.kafka_store._tail
            assert tail is not None
            tail.free_at = now()
            with pytest.raises(OwnershipLost):
                while True:
                    await a.put(0, "n", "x")
                    await asyncio.sleep(0.05)
            assert not a.store.owns(CATALOG)
            lost_at = now()
            await until(lambda: b.store.owns(CATALOG))
            assert now() - lost_at > LEASE_S / 2, "the new owner waits until the former one's lease is over"
            assert b.rows(0) == {"k": "1", "n": "x"}

    in_memory(scene)


def test_the_log_is_pruned_and_a_standby_that_missed_it_loads_the_catalog_anew(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1, journal_limit=5, piece_bytes=60)
            await cluster.owned()
            b = await cluster.start(2)
            b.upstream.unavailable = True
            for number in range(60):
                await a.append({CATALOG: [write(f"k{number % 7}", str(number))], 0: [write("large", "x" * 500)]})
            log = PartitionLog(cluster.raw, backend.log)
            await asyncio.sleep(LATER_S)
            start, end = await log.offset_at(EARLIEST_TIMESTAMP), await log.offset_at(LATEST_TIMESTAMP)
            assert start > 100 and end - start < 150, (start, end)
            b.upstream.unavailable = False
            await until(lambda: b.catalog == a.rows(CATALOG))
            assert b.loads == 2
            await a.put(CATALOG, "last", "1")
            await until(lambda: b.catalog.get("last") == "1")
            assert b.loads == 2
            rows = (a.rows(CATALOG), a.rows(0))
            await cluster.stop(a)
            await until(lambda: b.store.owns(CATALOG))
            assert (b.rows(CATALOG), b.rows(0)) == rows

    play(scene)


def test_an_owner_keeps_no_appends_for_half_a_snapshot_of_the_former_one() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1, journal_limit=5, piece_bytes=60)
            await cluster.owned()
            b = await cluster.start(2)
            standby = b.store
            assert isinstance(standby, UpstreamMetadataStore) and standby._tail is not None
            rows = standby._tail.rows
            a.upstream.delay_ms = lambda: 20
            await a.put(0, "large", "x" * 500)
            for number in range(5):
                await a.put(0, "n", str(number))
            await until(lambda: rows._snapshot is not None)
            a.upstream.unavailable = True
            await until(lambda: b.store.owns(CATALOG))
            for number in range(3):
                await b.put(0, "n", str(number))
            assert standby._session is not None and standby._session.rows._snapshot is None
            assert b.rows(0) == {"large": "x" * 500, "n": "2"}

    in_memory(scene)


def test_a_snapshot_that_is_too_large_for_the_topic_is_a_problem_and_appends_go_on() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1, journal_limit=5, piece_bytes=400)
            await cluster.owned()
            await a.put(0, "large", "x" * 500)
            assert backend.memory is not None
            backend.memory.max_message_bytes = 300
            log = PartitionLog(cluster.raw, backend.log)
            before = await log.offset_at(LATEST_TIMESTAMP)
            for number in range(20):
                await a.put(0, "n", str(number))
            await asyncio.sleep(2 * LEASE_S)
            assert await log.offset_at(LATEST_TIMESTAMP) - before < 40, "appends, marks of the lease, and few others"
            assert sorted(a.gained_rows) == [CATALOG, 0] and a.rows(0)["n"] == "19"
            (problem,) = a.store.problems()
            assert "takes no snapshot piece" in problem
            backend.memory.max_message_bytes = 1 << 20
            await asyncio.sleep(31)
            await until(lambda: not a.store.problems())

    in_memory(scene)


def test_nobody_owns_anything_while_the_cluster_stands_still_for_longer_than_a_lease() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            for node_id in (1, 2):
                await cluster.start(node_id)
            owner = await cluster.owned()
            await owner.put(0, "k", "1")
            backend.is_paused = True
            paused_at = now()
            await until(lambda: cluster.owner(CATALOG) is None)
            assert now() - paused_at <= LEASE_S + 0.01
            while now() < paused_at + 3 * LEASE_S:
                assert cluster.owner(CATALOG) is None
                await asyncio.sleep(0.02)
            backend.is_paused = False
            owner = await cluster.owned()
            assert owner.rows(0) == {"k": "1"}
            await owner.put(0, "k", "2")
            for one in cluster.coordinators:
                await until(lambda one=one: one.store.problems() == [])  # type: ignore[misc]

    in_memory(scene)


def test_the_cluster_starts_again_and_one_owns_everything_again(tmp_path: Path) -> None:
    async def scene(existing: ExistingCluster) -> None:
        (broker,) = existing.brokers
        async with UpstreamCluster(backend_at(existing.bootstrap), group_partitions=2) as cluster:
            for node_id in (1, 2, 3):
                await cluster.start(node_id)
            owner = await cluster.owned()
            await owner.put(0, "k", "1")
            await asyncio.to_thread(broker.stop)
            await until(lambda: cluster.owner(CATALOG) is None)
            broker.launch()
            await asyncio.to_thread(broker.wait_until_up)
            owner = await cluster.owned()
            assert owner.rows(0) == {"k": "1"}
            await owner.put(0, "k", "2")
            for one in cluster.coordinators:
                await until(lambda one=one: one.store.problems() == [])  # type: ignore[misc]

    with ExistingCluster(tmp_path) as existing:
        asyncio.run(scene(existing))


def test_a_short_standstill_takes_nothing_away() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            backend.is_paused = True
            waiting = asyncio.ensure_future(a.put(0, "k", "1"))
            await asyncio.sleep(LEASE_S / 3)
            assert not waiting.done()
            backend.is_paused = False
            await waiting
            assert sorted(a.gained_rows) == [CATALOG, 0]

    in_memory(scene)


def test_a_log_that_lost_records_gets_all_rows_of_the_owner_again() -> None:
    """An unclean election: the log ends before what was confirmed."""

    async def scene(backend: UpstreamBackend) -> None:
        assert backend.memory is not None
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            for number in range(30):
                await a.append({CATALOG: [write(f"k{number}", "1")], 0: [write(f"g{number}", "1")]})
            b = await cluster.start(2)
            log = backend.memory.logs[backend.log]
            kept = [batch for batch in log.batches if batch[0].base_offset < 20]
            log.batches, log.end = kept, 20
            log.sequences.clear()
            await a.put(0, "after", "1")
            expected = {**{f"g{number}": "1" for number in range(30)}, "after": "1"}
            assert a.rows(0) == expected
            assert sorted(a.gained_rows) == [CATALOG, 0], "it goes on as the owner"
            await a.put(CATALOG, "last", "1")
            await until(lambda: b.catalog == a.rows(CATALOG))
            await cluster.stop(a)
            await until(lambda: b.store.owns(CATALOG))
            assert b.rows(0) == expected
            assert len(b.rows(CATALOG)) == 31

    in_memory(scene)


@pytest.mark.parametrize("deleted_before", [2, 5])
def test_a_log_without_its_beginning_is_refused(deleted_before: int) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        assert backend.memory is not None
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            for number in range(10):
                await a.put(CATALOG, f"k{number}", "1")
            await cluster.stop(a)
            log = backend.memory.logs[backend.log]
            log.start = deleted_before
            log.batches = [batch for batch in log.batches if batch[0].base_offset >= deleted_before]
            with pytest.raises(StorageFailure, match="metadata-0"):
                await cluster.start(2)

    in_memory(scene)


def test_a_log_of_which_only_the_end_is_left_is_refused() -> None:
    """It begins with a claim, as a pruned log does, and has no snapshot."""

    async def scene(backend: UpstreamBackend) -> None:
        assert backend.memory is not None
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            await a.put(CATALOG, "k", "1")
            await cluster.stop(a)
            b = await cluster.start(2)
            await cluster.owned()
            await cluster.stop(b)
            log = backend.memory.logs[backend.log]
            log.start = 3  # the claim of b, after the claim, the append and the resignation of a
            log.batches = [batch for batch in log.batches if batch[0].base_offset >= 3]
            with pytest.raises(StorageFailure, match="metadata-0 begins neither"):
                await cluster.start(3)

    in_memory(scene)


def test_another_log_is_refused() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        assert backend.memory is not None
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            await create_topic(cluster.raw, backend.log.topic, partitions=2, replicas=1, configs={})
            writer = BatchWriter(1_000)
            writer.append(0, b"k", b"v", ())
            await PartitionLog(cluster.raw, backend.log).append(writer.build())
            with pytest.raises(StorageFailure, match="metadata-0 is not a log of coordinators"):
                await cluster.start(1)
            backend.memory.logs.clear()
            await cluster.start(2)
            await cluster.owned()
            cluster.coordinators.pop(0)

    in_memory(scene)


def test_a_start_waits_for_the_cluster_and_says_so() -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=1) as cluster:
            build = cluster.build

            def unreachable(node_id: int, incarnation: str, **limits: int) -> object:
                one = build(node_id, incarnation, **limits)
                one.upstream.unavailable = True
                return one

            cluster.build = unreachable  # type: ignore[method-assign, assignment]
            starting = asyncio.ensure_future(cluster.start(1))
            await asyncio.sleep(5)
            (a,) = cluster.coordinators
            assert not starting.done()
            assert any("the network is cut" in problem for problem in a.store.problems())
            a.upstream.unavailable = False
            await starting
            await cluster.owned()
            await until(lambda: a.store.problems() == [])
            with pytest.raises(StorageFailure, match="the network is cut"):
                await cluster.start(2)
            cluster.coordinators.pop()

    in_memory(scene)


def test_a_coordinator_with_the_node_id_of_a_dead_one_waits_for_its_lease(play: UpstreamPlay) -> None:
    async def scene(backend: UpstreamBackend) -> None:
        async with UpstreamCluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.owned()
            await a.put(0, "k", "1")
            a.upstream.unavailable = True
            began_at = now()
            again = await cluster.start(1)
            await until(lambda: again.store.owns(CATALOG))
            assert now() - began_at < allowed_s(TAKEOVER_S, since=began_at)
            assert not a.store.owns(CATALOG)
            assert again.rows(0) == {"k": "1"}
            await until(lambda: again.members == [CoordinatorMember(1, "life 2", "127.0.0.1:9001")])

    play(scene)
