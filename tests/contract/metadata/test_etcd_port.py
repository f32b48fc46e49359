"""The contract of the port to etcd: the gRPC client on a real etcd, and the model in memory."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from kshare_coordinator.metadata.etcd.port import (
    OPERATIONS_LIMIT,
    REQUEST_BYTES_LIMIT,
    Compare,
    Delete,
    Etcd,
    EtcdCompacted,
    EtcdRefused,
    EtcdUnavailable,
    KeyValue,
    Put,
    Removal,
    Target,
    end_of_prefix,
    read_range,
)
from support.metadata.etcd_backends import Backend, Play, allowed_s, play_on, until


@pytest.fixture(params=["etcd", "memory"])
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: play_on(request.param, scene)


async def put(etcd: Etcd, *pairs: tuple[bytes, bytes]) -> int:
    answer = await etcd.transact([], [Put(key, value) for key, value in pairs])
    assert answer.succeeded
    return answer.revision


async def keys(etcd: Etcd, start: bytes, end: bytes | None = None, *, revision: int = 0) -> list[bytes]:
    return [pair.key for pair in (await etcd.range(start, end, revision=revision)).pairs]


def test_ranges_are_in_order_and_have_ends(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        await put(etcd, (b"b", b"2"), (b"a", b"1"), (b"a\x00", b""), (b"c", b"\xff\x00"))
        assert await keys(etcd, b"a", b"c") == [b"a", b"a\x00", b"b"]
        assert await keys(etcd, b"a") == [b"a"]
        assert await keys(etcd, b"x") == []
        assert await keys(etcd, b"b", b"b\x00") == [b"b"]
        limited = await etcd.range(b"a", b"z", limit=2)
        assert ([pair.key for pair in limited.pairs], limited.more) == ([b"a", b"a\x00"], True)
        whole = await etcd.range(b"a", b"z", limit=4)
        assert ([pair.value for pair in whole.pairs], whole.more) == ([b"1", b"", b"2", b"\xff\x00"], False)
        await etcd.close()

    play(scene)


def test_pages_are_of_one_revision(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        names = [b"k/%02d" % number for number in range(25)]
        revision = await put(etcd, *((name, b"old") for name in names))
        await etcd.transact([], [Put(names[3], b"new"), Delete(names[7], names[9])])
        pairs, read = await read_range(etcd, b"k/", end_of_prefix(b"k/"), page=4, revision=revision)
        assert ([pair.key for pair in pairs], read) == (names, revision)
        assert {pair.value for pair in pairs} == {b"old"}
        pairs, read = await read_range(etcd, b"k/", end_of_prefix(b"k/"), page=4)
        assert read == revision + 1
        assert [pair.key for pair in pairs] == names[:7] + names[9:]
        assert pairs[3].value == b"new"
        await etcd.close()

    play(scene)


def test_revisions_and_versions(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        first = await put(etcd, (b"a", b"1"), (b"b", b"1"))
        second = await put(etcd, (b"a", b"2"))
        assert second == first + 1
        a, b = (await etcd.range(b"a", b"c")).pairs
        assert a == KeyValue(b"a", b"2", create_revision=first, mod_revision=second, version=2, lease=0)
        assert b == KeyValue(b"b", b"1", create_revision=first, mod_revision=first, version=1, lease=0)
        await etcd.transact([], [Delete(b"a")])
        third = await put(etcd, (b"a", b"3"))
        (a,) = (await etcd.range(b"a")).pairs
        assert (a.create_revision, a.version) == (third, 1)
        nothing = await etcd.transact([], [Delete(b"nothing")])
        assert nothing.succeeded
        assert (await etcd.range(b"a")).revision == third
        await etcd.close()

    play(scene)


@pytest.mark.parametrize("target", list(Target))
def test_a_transaction_compares(play: Play, target: Target) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        await put(etcd, (b"a", b"1"), (b"b", b"1"))
        await put(etcd, (b"a", b"2"))
        (a,) = (await etcd.range(b"a")).pairs
        number: int = getattr(a, target.value)
        for wrong in (0, number + 1, number - 1):
            refused = await etcd.transact(
                [Compare(b"a", target, wrong), Compare(b"x", target, 0)],
                [Put(b"a", b"wrong"), Put(b"c", b"wrong")],
                [b"a", b"x", b"b"],
            )
            assert not refused.succeeded
            assert [(pair.key, pair.value) for pair in refused.found] == [(b"a", b"2"), (b"b", b"1")]
        done = await etcd.transact(
            [Compare(b"a", target, number), Compare(b"x", target, 0)], [Put(b"a", b"3"), Delete(b"b")], [b"a"]
        )
        assert done.succeeded
        assert not done.found
        assert done.revision == a.mod_revision + 1
        assert [(pair.key, pair.value) for pair in (await etcd.range(b"a", b"z")).pairs] == [(b"a", b"3")]
        await etcd.close()

    play(scene)


def test_what_etcd_refuses_has_no_effect(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        with pytest.raises(EtcdRefused):
            await etcd.transact([], [Put(b"a", bytes(REQUEST_BYTES_LIMIT))])
        with pytest.raises(EtcdRefused):
            await put(etcd, *((b"%d" % number, b"") for number in range(OPERATIONS_LIMIT + 1)))
        with pytest.raises(EtcdRefused):
            await put(etcd, (b"a", b"1"), (b"a", b"2"))
        with pytest.raises(EtcdRefused):
            await etcd.transact([], [Put(b"b", b"1"), Put(b"a", b"1", lease=4711)])
        assert await keys(etcd, b"\x00", b"\xff") == []
        await put(etcd, *((b"%03d" % number, bytes(8_000)) for number in range(OPERATIONS_LIMIT)))
        assert len(await keys(etcd, b"\x00", b"\xff")) == OPERATIONS_LIMIT
        await etcd.close()

    play(scene)


def test_keys_go_with_their_lease(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        lease = await etcd.grant(1_500)
        assert lease.ttl_ms == 2_000
        other = await etcd.grant(10_000)
        assert other.id != lease.id
        await etcd.transact([], [Put(key, b"", lease=lease.id) for key in (b"a", b"b", b"c", b"d")])
        await etcd.transact([], [Put(b"b", b""), Put(b"c", b"", lease=other.id), Delete(b"d")])
        await put(etcd, (b"d", b""))
        (a,) = (await etcd.range(b"a")).pairs
        assert a.lease == lease.id
        loop = asyncio.get_running_loop()
        began_at = last_at = loop.time()
        while loop.time() < began_at + 3:
            last_at = loop.time()
            assert await etcd.keep_alive(lease.id)
            await asyncio.sleep(0.5)
        assert await keys(etcd, b"a", b"e") == [b"a", b"b", b"c", b"d"]
        while len(await keys(etcd, b"a", b"e")) == 4:
            await asyncio.sleep(0.05)
        assert 1.9 < loop.time() - last_at < allowed_s(4, since=last_at)
        assert await keys(etcd, b"a", b"e") == [b"b", b"c", b"d"]
        assert not await etcd.keep_alive(lease.id)
        await etcd.revoke(other.id)
        assert await keys(etcd, b"a", b"e") == [b"b", b"d"]
        await etcd.revoke(other.id)
        assert not await etcd.keep_alive(4711)
        await etcd.close()

    play(scene)


def test_a_watch_sees_everything_from_its_revision_on(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        await put(etcd, (b"k/0", b"before"))
        first = await put(etcd, (b"k/1", b"1"), (b"other", b"1"))
        await put(etcd, (b"other", b"2"))
        seen: list[KeyValue | Removal] = []

        async def watch() -> None:
            async with aclosing(etcd.watch(b"k/", b"k0", first)) as changes:
                async for one in changes:
                    seen.extend(one.events)

        watching = asyncio.ensure_future(watch())
        await until(lambda: len(seen) == 1)
        lease = await etcd.grant(1_000)
        second = (
            await etcd.transact([], [Put(b"k/2", b"2", lease.id), Put(b"k/1", b"again"), Delete(b"k/0")])
        ).revision
        await until(lambda: len(seen) == 4)
        await etcd.revoke(lease.id)
        await until(lambda: len(seen) == 5)
        assert seen == [
            KeyValue(b"k/1", b"1", first, first, 1, 0),
            KeyValue(b"k/2", b"2", second, second, 1, lease.id),
            KeyValue(b"k/1", b"again", first, second, 2, 0),
            Removal(b"k/0", second),
            Removal(b"k/2", second + 1),
        ]
        watching.cancel()
        await asyncio.wait([watching])
        await etcd.close()

    play(scene)


def test_a_quiet_watch_is_still_there_later(play: Play) -> None:
    """Longer than the patience with a silent etcd."""

    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        revision = await put(etcd, (b"a", b"1"))
        async with aclosing(etcd.watch(b"a", b"b", revision + 1)) as changes:
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(2)
            assert not first.done()
            await put(etcd, (b"a", b"2"))
            assert [event.key for event in (await first).events] == [b"a"]
        await etcd.close()

    play(scene)


def test_what_is_compacted_is_neither_read_nor_watched(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        first = await put(etcd, (b"a", b"1"), (b"gone", b"1"))
        await etcd.transact([], [Delete(b"gone")])
        last = await put(etcd, (b"a", b"2"))
        await etcd.compact(last)
        with pytest.raises(EtcdCompacted):
            await etcd.range(b"a", revision=first)
        with pytest.raises(EtcdCompacted):
            async with aclosing(etcd.watch(b"a", b"b", first)) as changes:
                await anext(changes)
        assert await keys(etcd, b"a", b"z", revision=last) == [b"a"]
        async with aclosing(etcd.watch(b"a", b"b", last)) as changes:
            assert [event.mod_revision for event in (await anext(changes)).events] == [last]
        await etcd.close()

    play(scene)


def test_a_paused_etcd_is_unavailable_and_comes_back(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        revision = await put(etcd, (b"a", b"1"))
        backend.pause()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        with pytest.raises(EtcdUnavailable):
            await etcd.range(b"a")
        with pytest.raises(EtcdUnavailable):
            await etcd.keep_alive(1)
        assert loop.time() - began_at < allowed_s(3, since=began_at)
        backend.resume()
        while True:
            try:
                assert await keys(etcd, b"a", revision=revision) == [b"a"]
                break
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
        await etcd.close()

    play(scene)


def test_a_restart_ends_watches_and_keeps_data_and_leases(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        lease = await etcd.grant(5_000)
        revision = (await etcd.transact([], [Put(b"a", b"1", lease.id)])).revision
        async with aclosing(etcd.watch(b"a", b"b", revision)) as changes:
            await anext(changes)
            backend.restart()
            with pytest.raises(EtcdUnavailable):
                await anext(changes)
        while True:
            try:
                assert await etcd.keep_alive(lease.id)
                break
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
        (a,) = (await etcd.range(b"a")).pairs
        assert (a.value, a.mod_revision, a.lease) == (b"1", revision, lease.id)
        await etcd.close()

    play(scene)


def test_a_closed_client(play: Play) -> None:
    async def scene(backend: Backend) -> None:
        etcd = backend.client()
        await put(etcd, (b"a", b"1"))
        await etcd.close()
        with pytest.raises(EtcdUnavailable):
            await etcd.range(b"a")
        with pytest.raises(EtcdUnavailable):
            async with aclosing(etcd.watch(b"a", b"b", 1)) as changes:
                await anext(changes)

    play(scene)
