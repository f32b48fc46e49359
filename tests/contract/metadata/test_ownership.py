"""Coordinators that share their metadata: ownership, and that a former owner's writes have no effect.

On a real etcd in real time, and on the model in virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from kshare_coordinator.metadata.etcd.port import Delete, Put, end_of_prefix
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember, OwnershipLost
from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write
from support.metadata.cluster import FAMILY, LEASE_MS, PREFIX, Cluster, write
from support.metadata.etcd_backends import Backend, Play, allowed_s, play_on, until

LEASE_S = LEASE_MS / 1000
TAKEOVER_S = LEASE_S + 1.0


@pytest.fixture(params=["etcd", "memory"])
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: play_on(request.param, scene)


def test_one_coordinator_owns_everything_and_finds_it_again(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend) as cluster:
            a = await cluster.start(1)
            assert (a.loads, a.catalog) == (1, {})
            await cluster.balanced()
            assert cluster.counts() == [50]
            await a.append(
                {CATALOG: [write("topic", "1")], 7: [write("x", "1"), write("y", "1")], 49: [write("z", "")]}
            )
            await a.append({7: [write("x", None), write("y", "2")]})
            assert (a.rows(CATALOG), a.rows(7), a.rows(49), a.rows(0)) == ({"topic": "1"}, {"y": "2"}, {"z": ""}, {})
            assert a.catalog_appends == [], "its own appends are not told to it"
            assert a.store.append({}) is None
            await cluster.stop(a)
            a = await cluster.start(1)
            assert a.catalog == {"topic": "1"}
            started_at = asyncio.get_running_loop().time()
            await cluster.balanced()
            assert asyncio.get_running_loop().time() - started_at < allowed_s(1, since=started_at)
            assert {p: rows for p, rows in a.gained_rows.items() if rows} == {7: {"y": "2"}, 49: {"z": ""}}
            await a.put(7, "x", "3")
            assert a.rows(7) == {"x": "3", "y": "2"}

    play(scene)


def test_claims_are_balanced_as_coordinators_come_and_go(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            await a.append({p: [write("is", str(p))] for p in range(CATALOG, 50)})
            b = await cluster.start(2)
            await cluster.balanced()
            assert cluster.counts() == [25, 25]
            c = await cluster.start(3)
            await cluster.balanced()
            assert sorted(cluster.counts()) == [16, 17, 17]
            assert cluster.owner(CATALOG) is a
            members = [one.member for one in (a, b, c)]
            for one in (a, b, c):
                await until(lambda one=one: len(one.owners) == 51)  # type: ignore[misc]
                assert one.members == members
                assert one.owners == {p: (cluster.owner(p) or a).node_id for p in range(CATALOG, 50)}
                catalog = [CATALOG] if one is a else []
                assert sorted(one.gained_rows) == catalog + one.group_partitions
                assert all(one.rows(p) == {"is": str(p)} for p in one.group_partitions)
            assert c.gained_rows == {p: {"is": str(p)} for p in c.group_partitions}
            await cluster.stop(a)
            stopped_at = asyncio.get_running_loop().time()
            took_s = await cluster.balanced()
            assert took_s < allowed_s(LEASE_S / 2, since=stopped_at), "what was given back is free at once"
            assert cluster.counts() == [25, 25]
            await cluster.stop(b)
            stopped_at = asyncio.get_running_loop().time()
            took_s = await cluster.balanced()
            assert took_s < allowed_s(LEASE_S / 2, since=stopped_at)
            assert cluster.counts() == [50]
            assert {p: c.rows(p) for p in range(CATALOG, 50)} == {p: {"is": str(p)} for p in range(CATALOG, 50)}

    play(scene)


def test_a_coordinator_that_is_cut_off_loses_all_before_others_take_it(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend) as cluster:
            a, b = await cluster.start(1), await cluster.start(2)
            await cluster.balanced()
            owner = cluster.owner(CATALOG)
            assert owner is not None
            other = b if owner is a else a
            await owner.put(CATALOG, "topic", "1")
            mine = owner.group_partitions
            await owner.append({p: [write("k", "v")] for p in mine})
            owner.etcd.unavailable = True
            loop = asyncio.get_running_loop()
            cut_at = loop.time()
            await until(lambda: not owner.store.owns(mine[0]))
            assert owner.group_partitions == []
            assert loop.time() - cut_at <= allowed_s(LEASE_S + 0.1, since=cut_at)
            await until(lambda: not owner.gained_rows)
            await until(lambda: len(other.group_partitions) == 50 and other.store.owns(CATALOG))
            assert loop.time() - cut_at < allowed_s(TAKEOVER_S, since=cut_at)
            assert all(other.rows(p) == {"k": "v"} for p in mine)
            assert other.rows(CATALOG) == {"topic": "1"}
            assert owner.store.problems() != []
            with pytest.raises(OwnershipLost):
                await owner.put(mine[0], "k", "w")
            await other.put(CATALOG, "topic", "2")
            owner.etcd.unavailable = False
            await cluster.balanced()
            await until(lambda: owner.catalog == {"topic": "2"})
            assert owner.loads == 2, "what it had written itself may be unknown to it"
            await until(lambda: owner.store.problems() == [])

    play(scene)


def test_a_write_that_etcd_takes_up_after_the_owner_changed_has_no_effect(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            await a.append({0: [write("k", "first")], CATALOG: [write("k", "first")]})
            b = await cluster.start(2)
            await cluster.balanced()
            partition = a.group_partitions[0]
            a.etcd.apply_late(1, int(TAKEOVER_S * 1000) + 1_000)
            waiting = asyncio.ensure_future(a.append({p: [write("k", "late")] for p in (partition, CATALOG)}))
            await until(lambda: a.etcd.transactions > 0 and not a.etcd.has_faults)
            a.etcd.unavailable = True
            await until(lambda: len(b.group_partitions) == 2 and b.store.owns(CATALOG))
            with pytest.raises(OwnershipLost):
                await waiting
            await a.etcd.wait_for_late()  # nothing but the fence keeps it away: the sequences are free
            await b.put(partition, "other", "2")
            await b.put(CATALOG, "other", "2")
            await cluster.stop(b)
            c = await cluster.start(3)
            await until(lambda: c.store.owns(partition) and c.store.owns(CATALOG))
            assert "late" not in c.rows(partition).values()
            assert c.rows(partition)["other"] == "2"
            assert c.rows(CATALOG) == {"k": "first", "other": "2"}

    play(scene)


def test_a_coordinator_whose_key_was_deleted_is_fenced_and_starts_over(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            await a.append({0: [write("k", "1")], 1: [write("k", "1")]})
            await cluster.raw.transact([], [Delete(PREFIX.encode() + b"owners/0")])
            with pytest.raises(OwnershipLost):
                await a.append({1: [write("k", "2")], 0: [write("k", "2")]})
            assert a.group_partitions == []
            await cluster.balanced()
            assert (a.rows(0), a.rows(1)) == ({"k": "1"}, {"k": "1"})
            await a.append({0: [write("k", "3")], 1: [write("k", "3")]})
            assert (a.rows(0), a.rows(1)) == ({"k": "3"}, {"k": "3"})

    play(scene)


def test_a_lost_answer_is_never_guessed(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            a.etcd.lose_answers(3)
            await a.append({0: [write("k", "1")], CATALOG: [write("k", "1")]})
            a.etcd.lose_requests(3)
            await a.append({0: [write("k", "2")], CATALOG: [write("k", "2")]})
            a.etcd.apply_late(2, 300)
            await a.append({0: [write("k", "3")]})
            await a.append({0: [write("k", "4")]})
            await a.etcd.wait_for_late()
            assert a.rows(0) == {"k": "4"}
            journal = PREFIX.encode() + b"rows/0/journal/"
            entries = (await cluster.raw.range(journal, end_of_prefix(journal))).pairs
            assert [entry.version for entry in entries] == [1, 1, 1, 1], "each append wrote once, however often sent"
            await cluster.stop(a)
            a = await cluster.start(1)
            await cluster.balanced()
            assert (a.rows(0), a.rows(CATALOG)) == ({"k": "4"}, {"k": "2"})

    play(scene)


def test_a_write_that_stays_unknown_ends_the_lease_although_it_is_kept_alive(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            a.etcd.lose_requests(1_000, key=PREFIX.encode() + b"rows/0/journal/%020d" % 0)
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            with pytest.raises(OwnershipLost):
                await a.put(0, "k", "1")
            assert LEASE_S <= loop.time() - began_at < allowed_s(2 * LEASE_S, since=began_at)
            assert a.group_partitions == []
            await cluster.balanced()
            assert a.rows(0) == {}
            await a.put(1, "k", "1")

    play(scene)


def test_followers_see_each_append_once_and_in_order_over_a_compaction(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await until(lambda: a.store.owns(CATALOG))
            await a.put(CATALOG, "before", "1")
            b = await cluster.start(2)
            assert b.catalog == {"before": "1"}
            for number in range(10):
                await a.append({CATALOG: [write("n", str(number)), write(f"k{number}", None)]})
            await until(lambda: len(b.catalog_appends) == 10)
            b.etcd.unavailable = True
            for number in range(10, 30):
                await a.append({CATALOG: [write("n", str(number)), write(f"k{number}", None)], 0: [write("g", "1")]})
            revision = (await cluster.raw.range(b"x")).revision
            await cluster.raw.compact(revision)
            b.etcd.unavailable = False
            await a.put(CATALOG, "n", "30")
            await until(lambda: len(b.catalog_appends) == 31)
            expected: list[dict[str, str | None]] = [{"n": str(n), f"k{n}": None} for n in range(30)]
            assert b.catalog_appends == [*expected, {"n": "30"}]
            assert b.loads == 1
            assert b.catalog == a.rows(CATALOG) == {"before": "1", "n": "30"}

    play(scene)


def test_a_follower_that_missed_a_snapshot_loads_the_catalog_anew(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1, journal_limit=3)
            await until(lambda: a.store.owns(CATALOG))
            b = await cluster.start(2)
            b.etcd.unavailable = True
            for number in range(40):
                await a.put(CATALOG, f"k{number % 7}", str(number))
            await asyncio.sleep(0.3)
            revision = (await cluster.raw.range(b"x")).revision
            await cluster.raw.compact(revision)
            b.etcd.unavailable = False
            await until(lambda: b.catalog == a.rows(CATALOG))
            assert b.loads == 2
            await a.put(CATALOG, "last", "1")
            await until(lambda: b.catalog.get("last") == "1")
            assert b.loads == 2

    play(scene)


def test_a_new_active_coordinator_knows_all_that_the_former_one_wrote(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await until(lambda: a.store.owns(CATALOG))
            b = await cluster.start(2)
            for round_ in range(3):
                former = cluster.owner(CATALOG)
                assert former is not None
                for number in range(20):
                    await former.put(CATALOG, f"{round_}-{number}", "1")
                await cluster.stop(former)
                follower = cluster.coordinators[0]
                await until(lambda follower=follower: follower.store.owns(CATALOG))  # type: ignore[misc]
                assert follower.catalog == follower.rows(CATALOG)
                assert len(follower.catalog) == 20 * (round_ + 1)
                await cluster.start(former.node_id)
            assert b.loads >= 1

    play(scene)


def test_writes_go_on_while_partitions_move(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=12) as cluster:
            confirmed = dict.fromkeys(range(12), 0)
            is_over = asyncio.Event()

            async def count_up() -> None:
                """Each owner adds one to every partition that it owns, in appends over all of them."""
                while not is_over.is_set():
                    for one in list(cluster.coordinators):
                        mine = one.group_partitions
                        waiting = one.store.append({p: [write("n", str(confirmed[p] + 1))] for p in mine})
                        if waiting is None:
                            continue
                        try:
                            await waiting
                        except OwnershipLost:
                            continue
                        for p in mine:
                            confirmed[p] += 1
                    await asyncio.sleep(0.001)

            counting = asyncio.ensure_future(count_up())
            await cluster.start(1, journal_limit=5)
            await cluster.balanced()
            await until(lambda: min(confirmed.values()) > 3)
            for node_id in (2, 3):
                await cluster.start(node_id, journal_limit=5)
                await cluster.balanced()
                least = min(confirmed.values())
                await until(lambda least=least: min(confirmed.values()) > least + 3)  # type: ignore[misc]
            await cluster.stop(cluster.coordinators[0])
            await cluster.balanced()
            is_over.set()
            await counting
            for p in range(12):
                owner = cluster.owner(p)
                assert owner is not None
                newest = int(owner.rows(p)["n"])
                assert newest - confirmed[p] in (0, 1), "at most the one that was under way at the stop is more"

    play(scene)


def test_a_partition_is_given_back_when_its_append_has_ended(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=4) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            a.etcd.delay_ms = lambda: 150
            waiting = asyncio.ensure_future(a.append({p: [write("k", "1")] for p in range(4)}))
            b = await cluster.start(2)
            await until(lambda: len(a.group_partitions) < 4)
            assert not waiting.done()
            assert sorted(a.gained_rows) == [CATALOG, 0, 1, 2, 3], "its rows are needed until the append has ended"
            await waiting
            await cluster.balanced()
            assert sorted(a.gained_rows) == [CATALOG, 0, 1], "nothing else was lost"
            assert b.gained_rows == {2: {"k": "1"}, 3: {"k": "1"}}

    play(scene)


def test_a_new_owner_has_read_the_catalog_up_to_its_claim(play: Play) -> None:
    """However late a watch is: what was committed for a topic is not to be forgotten because the topic is not known."""

    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=2) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            b = await cluster.start(2)
            await cluster.balanced()
            b.etcd.watch_delay_ms = lambda start: 1_500 if b"rows/" in start else 0
            for number in range(10):
                await a.put(CATALOG, f"k{number}", "1")
            mine = a.group_partitions[0]
            await cluster.stop(a)
            await until(lambda: b.store.owns(mine))
            assert b.catalog == {f"k{number}": "1" for number in range(10)}
            await until(lambda: b.store.owns(CATALOG))
            assert b.catalog == b.rows(CATALOG)
            await b.put(CATALOG, "k0", "2")
            await asyncio.sleep(2)
            assert len(b.catalog_appends) == 10, "what the watch tells at last is known"

    play(scene)


def test_an_entry_that_is_missing_is_awaited(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            for number in range(3):
                await a.put(CATALOG, "n", str(number))
            b = await cluster.start(2)
            entries = [PREFIX.encode() + b"rows/-1/journal/%020d" % number for number in range(5)]
            values = [pair.value for key in entries[:3] for pair in (await cluster.raw.range(key)).pairs]
            await cluster.raw.transact([], [Put(entries[4], values[1])])
            await until(lambda: b.store.problems() != [])
            assert "entry 3 of the catalog's journal is missing" in b.store.problems()[0]
            assert b.catalog_appends == []
            await cluster.raw.transact([], [Put(entries[3], values[0])])
            await until(lambda: len(b.catalog_appends) == 2)
            assert b.catalog_appends == [{"n": "0"}, {"n": "1"}]
            await until(lambda: b.store.problems() == [])

    play(scene)


def test_large_appends_are_one_append(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            b = await cluster.start(2)
            await cluster.balanced()
            mine = a.group_partitions
            large = {p: [Write(FAMILY, b"k", b"%d" % p * 60_000)] for p in mine}
            catalog = [write(f"c{number}", "x" * 400_000) for number in range(6)]
            await a.append({CATALOG: catalog, **large})
            await a.put(CATALOG, "after", "1")
            await until(lambda: len(b.catalog_appends) == 2, within_s=10)
            assert b.catalog_appends[0] == {f"c{number}": "x" * 400_000 for number in range(6)}
            with pytest.raises(StorageFailure, match="67108864 are allowed"):
                await a.put(CATALOG, "too large", "x" * 70_000_000)
            await a.put(CATALOG, "after", "2")
            await cluster.stop(a)
            await cluster.balanced()
            assert {p: b.rows(p)["k"] for p in mine} == {p: str(p) * 60_000 for p in mine}
            assert len(b.rows(CATALOG)) == 7

    play(scene)


def test_snapshots_replace_the_journal(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            limits = {"journal_limit": 10, "value_bytes_limit": 300}
            a = await cluster.start(1, **limits)
            await cluster.balanced()
            expected: dict[str, str] = {}
            for number in range(200):
                key, value = f"k{number % 23}", None if number % 5 == 0 else "v" * (number % 40) + str(number)
                await a.put(0, key, value)
                if value is None:
                    expected.pop(key, None)
                else:
                    expected[key] = value
            await a.append({0: [write("large", "x" * 2_000)]})
            expected["large"] = "x" * 2_000
            for number in range(12):
                await a.put(0, "last", str(number))
            expected["last"] = "11"
            start = PREFIX.encode() + b"rows/0/"

            async def stored() -> list[bytes]:
                pairs = (await cluster.raw.range(start, end_of_prefix(start))).pairs
                return [pair.key.removeprefix(start) for pair in pairs]

            for _ in range(200):
                keys = await stored()
                generations = {key.split(b"/")[1] for key in keys if key.startswith(b"snapshot/")}
                journal = [key for key in keys if key.startswith(b"journal/")]
                if len(generations) == 1 and len(journal) <= 12:
                    break
                await asyncio.sleep(0.05)
            assert (len(generations), len(journal) <= 12) == (1, True)
            assert a.rows(0) == expected
            await cluster.stop(a)
            b = await cluster.start(2, **limits)
            await cluster.balanced()
            assert b.gained_rows[0] == b.rows(0) == expected

    play(scene)


def test_a_head_that_etcd_takes_up_late_changes_nothing(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            limits = {"journal_limit": 3, "value_bytes_limit": 60}
            a = await cluster.start(1, **limits)
            await cluster.balanced()
            head = PREFIX.encode() + b"rows/0/head"
            a.etcd.apply_late(1, 1_500, key=head)

            async def until_trimmed(version: int) -> None:
                for number in range(1_000):
                    await a.put(0, f"k{number % 20}", f"{version} {number}")
                    found = (await cluster.raw.range(head)).pairs
                    if found and found[0].version >= version:
                        return
                    await asyncio.sleep(0.005)
                raise AssertionError("not trimmed")

            await until_trimmed(3)
            expected = a.rows(0)
            assert not a.etcd.has_faults
            await a.etcd.wait_for_late()
            await cluster.stop(a)
            b = await cluster.start(2, **limits)
            await cluster.balanced()
            assert b.rows(0) == expected

    play(scene)


def test_each_active_coordinator_goes_on_trimming_the_catalog(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=1) as cluster:
            limits = {"journal_limit": 3, "value_bytes_limit": 60}
            await cluster.start(1, **limits)
            await cluster.start(2, **limits)
            expected: dict[str, str] = {}
            start = PREFIX.encode() + b"rows/-1/"
            for turn in range(6):
                await cluster.balanced()
                active = cluster.owner(CATALOG)
                assert active is not None
                for number in range(7):
                    expected[f"k{number}"] = f"{turn} {number}"
                    await active.put(CATALOG, f"k{number}", f"{turn} {number}")
                for _ in range(200):
                    pairs = (await cluster.raw.range(start, end_of_prefix(start))).pairs
                    keys = [pair.key.removeprefix(start) for pair in pairs]
                    generations = {key.split(b"/")[1] for key in keys if key.startswith(b"snapshot/")}
                    if len(generations) == 1 and len([key for key in keys if key.startswith(b"journal/")]) <= 3:
                        break
                    await asyncio.sleep(0.02)
                else:
                    raise AssertionError(f"not trimmed in turn {turn}: {keys}")
                await cluster.stop(active)
                again = await cluster.start(active.node_id, **limits)
                assert again.catalog == expected

    play(scene)


def test_unreadable_rows_keep_only_their_partition_from_being_served(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=3) as cluster:
            key = PREFIX.encode() + b"rows/1/journal/%020d" % 0
            await cluster.raw.transact([], [Put(key, b"\xff\xff damaged")])
            a = await cluster.start(1)
            await until(lambda: a.group_partitions == [0, 2])
            await a.append({0: [write("k", "1")], 2: [write("k", "1")]})
            await until(lambda: any("partition 1" in problem for problem in a.store.problems()))
            await cluster.raw.transact([], [Delete(key)])
            await until(lambda: a.group_partitions == [0, 1, 2])
            assert not any("partition 1" in problem for problem in a.store.problems())
            assert cluster.owner(CATALOG) is a

    play(scene)


def test_an_unreadable_catalog_ends_the_start(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=3) as cluster:
            await cluster.start(1)
            await cluster.balanced()
            key = PREFIX.encode() + b"rows/-1/journal/%020d" % 0
            await cluster.raw.transact([], [Put(key, b"\xff\xff damaged")])
            with pytest.raises(StorageFailure, match="journal"):
                await cluster.start(2)

    play(scene)


def test_a_coordinator_with_the_node_id_of_a_dead_one_waits_for_its_lease(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        async with Cluster(backend, group_partitions=4) as cluster:
            a = await cluster.start(1)
            await cluster.balanced()
            await a.put(0, "k", "1")
            a.etcd.unavailable = True
            again = await cluster.start(1)
            began_at = asyncio.get_running_loop().time()
            took_s = await until(lambda: len(again.group_partitions) == 4 and again.store.owns(CATALOG))
            assert took_s < allowed_s(TAKEOVER_S, since=began_at)
            assert a.group_partitions == []
            assert again.rows(0) == {"k": "1"}
            await until(lambda: again.members == [CoordinatorMember(1, "life 2", "127.0.0.1:9001")])

    play(scene)
