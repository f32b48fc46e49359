"""The contract of KeyValueStore, for RocksDB and for memory alike."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare_core.errors import StorageFailure
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyRange, KeyValueStore, Write
from kshare_runtime.rocks_store import RocksStore

OpenStore = Callable[[str], KeyValueStore]


@contextmanager
def opener(kind: str) -> Iterator[OpenStore]:
    """Opens stores by name on one disk; the same name again gives the same content."""
    if kind == "memory":
        yield MemoryDisk().open_store
        return
    with tempfile.TemporaryDirectory() as directory:
        yield lambda name: RocksStore(Path(directory) / "not there yet" / name)


@pytest.fixture(params=["rocks", "memory"])
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    with opener(request.param) as found:
        yield found


def put(store: KeyValueStore, family: str, *keys: bytes) -> None:
    store.write([Write(family, key, b"value of " + key) for key in keys])


def keys(pairs: Iterator[tuple[bytes, bytes]]) -> list[bytes]:
    return [key for key, _ in pairs]


def test_a_new_store_is_empty(open_store: OpenStore) -> None:
    store = open_store("a")
    assert store.families() == []
    assert store.get("log", b"k") is None
    assert list(store.scan("log", b"")) == []
    store.delete_range("log", b"a", b"z")
    assert store.families() == []
    store.close()


def test_what_was_written_is_there_after_opening_again(open_store: OpenStore) -> None:
    store = open_store("a")
    large = bytes(range(256)) * 4096
    store.write([Write("log", b"1", large), Write("state", b"1", b""), Write("log", b"\x00\xff", b"zero")])
    store.close()
    store.close()
    store = open_store("a")
    assert store.families() == ["log", "state"]
    assert store.get("log", b"1") == large
    assert store.get("state", b"1") == b""
    assert store.get("log", b"\x00\xff") == b"zero"
    store.close()
    other = open_store("b")
    assert other.families() == []
    other.close()


def test_families_do_not_see_each_other(open_store: OpenStore) -> None:
    store = open_store("a")
    put(store, "x", b"1", b"2")
    put(store, "y", b"2", b"3")
    store.write([Write("x", b"2", None)])
    assert keys(store.scan("x", b"")) == [b"1"]
    assert keys(store.scan("y", b"")) == [b"2", b"3"]
    store.close()


def test_many_families(open_store: OpenStore) -> None:
    store = open_store("a")
    names = [f"partition-{index:02}" for index in range(60)]
    store.write([Write(name, b"k", name.encode()) for name in reversed(names)])
    store.close()
    store = open_store("a")
    assert store.families() == names
    assert [store.get(name, b"k") for name in names] == [name.encode() for name in names]
    store.close()


def test_a_batch_applies_its_writes_in_order(open_store: OpenStore) -> None:
    store = open_store("a")
    store.write(
        [
            Write("x", b"k", b"1"),
            Write("x", b"k", None),
            Write("x", b"k", b"2"),
            Write("x", b"gone", b"1"),
            Write("x", b"gone", None),
        ]
    )
    assert list(store.scan("x", b"")) == [(b"k", b"2")]
    store.close()


@pytest.mark.parametrize("family", ["", "default"])
def test_a_bad_family_refuses_the_whole_batch(open_store: OpenStore, family: str) -> None:
    store = open_store("a")
    with pytest.raises(ValueError, match="is not a valid family name"):
        store.write([Write("x", b"k", b"1"), Write(family, b"k", b"1")])
    assert store.get("x", b"k") is None
    store.close()


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"", None, [b"a", b"b", b"ba", b"c", b"\xff\xff"]),
        (b"b", None, [b"b", b"ba", b"c", b"\xff\xff"]),
        (b"b", b"c", [b"b", b"ba"]),
        (b"aa", b"bz", [b"b", b"ba"]),
        (b"", b"a", []),
        (b"c", b"c", []),
        (b"d", b"b", []),
        (b"d", b"\xff", []),
        (b"\xff\xff\xff", None, []),
    ],
)
def test_scans(open_store: OpenStore, start: bytes, end: bytes | None, expected: list[bytes]) -> None:
    store = open_store("a")
    put(store, "x", b"c", b"a", b"ba", b"\xff\xff", b"b")
    assert list(store.scan("x", start, end)) == [(key, b"value of " + key) for key in expected]
    assert keys(store.scan("x", start, end, reverse=True)) == expected[::-1]
    store.close()


def test_the_last_key_before_another_is_the_first_of_a_reverse_scan(open_store: OpenStore) -> None:
    store = open_store("a")
    put(store, "log", *[index.to_bytes(8, "big") for index in range(0, 1000, 10)])
    key, _ = next(store.scan("log", b"", (555).to_bytes(8, "big"), reverse=True))
    assert int.from_bytes(key, "big") == 550
    store.close()


def test_a_removed_range_stays_removed(open_store: OpenStore) -> None:
    store = open_store("a")
    put(store, "x", b"a", b"b", b"c", b"d")
    put(store, "y", b"b")
    store.delete_range("x", b"b", b"d")
    store.delete_range("x", b"d", b"a")
    put(store, "x", b"ca")
    store.close()
    store = open_store("a")
    assert keys(store.scan("x", b"")) == [b"a", b"ca", b"d"]
    assert store.get("y", b"b") is not None
    store.close()


def test_ranges_of_several_families_are_removed_at_once(open_store: OpenStore) -> None:
    store = open_store("a")
    put(store, "x", b"a", b"b", b"c", b"d")
    put(store, "y", b"a", b"b")
    empty = [KeyRange("x", b"d", b"a"), KeyRange("nothing", b"a", b"z")]
    store.delete_ranges([KeyRange("x", b"a", b"b"), *empty, KeyRange("y", b"", b"z"), KeyRange("x", b"c", b"d")])
    store.delete_ranges(empty)
    store.delete_ranges([])
    assert store.families() == ["x", "y"]
    store.close()
    store = open_store("a")
    assert keys(store.scan("x", b"")) == [b"b", b"d"] and keys(store.scan("y", b"")) == []
    store.close()


def test_only_one_may_have_it_open(open_store: OpenStore) -> None:
    store = open_store("a")
    with pytest.raises(StorageFailure, match="open"):
        open_store("a")
    store.close()
    open_store("a").close()


def test_a_closed_store_refuses_everything(open_store: OpenStore) -> None:
    store = open_store("a")
    put(store, "x", b"1", b"2", b"3")
    scan = store.scan("x", b"")
    assert next(scan)[0] == b"1"
    store.close()
    attempts: list[Callable[[], object]] = [
        lambda: store.get("x", b"1"),
        lambda: store.scan("x", b""),
        lambda: store.write([Write("x", b"1", b"")]),
        lambda: store.delete_range("x", b"1", b"2"),
        lambda: store.delete_ranges([]),
        store.families,
        lambda: next(scan),
    ]
    for attempt in attempts:
        with pytest.raises(StorageFailure, match="closed"):
            attempt()
    store = open_store("a")  # the scan that was left half-way does not keep it locked
    assert keys(store.scan("x", b"")) == [b"1", b"2", b"3"]
    store.close()


families = st.sampled_from(["x", "y"])
small_keys = st.binary(max_size=3)
steps = st.one_of(
    st.lists(st.builds(Write, families, small_keys, st.none() | st.binary(max_size=5)), min_size=1, max_size=6),
    st.tuples(families, small_keys, small_keys),
    st.just("reopen"),
)


def test_begun_writes_are_read_at_once_and_end_in_order(open_store: OpenStore) -> None:
    async def test() -> None:
        store = open_store("a")
        ended: list[int] = []
        loop = asyncio.get_running_loop()
        last = loop.create_future()

        def ends(number: int) -> Callable[[StorageFailure | None], None]:
            return lambda failure: ended.append(number)

        for number in range(50):
            store.begin_write([Write("log", b"%02d" % number, b"x")], ends(number))
            assert len(keys(store.scan("log", b""))) == number + 1
        assert ended == [], "begin_write returns before any done is called"
        store.begin_write([], last.set_result)
        assert await last is None
        assert ended == list(range(50))
        store.begin_write([Write("log", b"99", None), Write("log", b"00", None)], ends(99))
        store.finish_writes()
        assert ended[-1] == 99 and len(keys(store.scan("log", b""))) == 49
        store.close()

    asyncio.run(test())


@pytest.mark.parametrize("kind", ["rocks", "memory"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=st.lists(steps, max_size=12), start=small_keys, end=st.none() | small_keys)
def test_behaves_like_a_dict(kind: str, history: list[object], start: bytes, end: bytes | None) -> None:
    model: dict[str, dict[bytes, bytes]] = {"x": {}, "y": {}}
    with opener(kind) as open_named:
        store = open_named("a")
        for step in history:
            if isinstance(step, list):
                store.write(step)
                for family, key, value in step:
                    model[family].pop(key, None)
                    if value is not None:
                        model[family][key] = value
            elif isinstance(step, tuple):
                family, first, last = step
                store.delete_range(family, first, last)
                model[family] = {k: v for k, v in model[family].items() if not first <= k < last}
            else:
                store.close()
                store = open_named("a")
        for family, content in model.items():
            expected = sorted((k, v) for k, v in content.items() if k >= start and (end is None or k < end))
            assert list(store.scan(family, start, end)) == expected
            assert list(store.scan(family, start, end, reverse=True)) == expected[::-1]
            assert [store.get(family, key) for key in content] == list(content.values())
        store.close()
