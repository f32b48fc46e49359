"""A store with value files has what a dictionary has, whatever is written, begun, removed, copied, reopened or lost."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kshare_runtime.large_values.rocks import FOLDER, RocksValueFileStore
from kshare_runtime.ports import AppendedWrite, Write
from kshare_runtime.rocks_store import RocksStore
from support.runtime.damaged_files import scratch_directory
from support.runtime.removals import HeldRemovals

FROM_BYTES, FILE_BYTES = 8, 40
KEYS = st.integers(0, 30)
PREFIXES = st.sampled_from(["a", "b"])
VALUES = st.binary(min_size=1, max_size=20)


class ValueFileStoreModel(RuleBasedStateMachine):
    @initialize()
    def open_first(self) -> None:
        self.ending = ExitStack()
        self.folder = self.ending.enter_context(scratch_directory())
        self.opened_count = 0
        self.expected: dict[bytes, bytes] = {}
        self.path = self.folder / "0"
        self.open()

    def open(self) -> None:
        self.removals = HeldRemovals()
        self.store = RocksValueFileStore(
            RocksStore(self.path),
            family="log",
            prefix_bytes=1,
            from_bytes=FROM_BYTES,
            file_bytes=FILE_BYTES,
            removals=self.removals,
        )

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if write.value is None:
                self.expected.pop(write.key, None)
            else:
                self.expected[write.key] = write.value

    @rule(prefix=PREFIXES, values=st.lists(VALUES, min_size=1, max_size=4))
    def append(self, prefix: str, values: list[bytes]) -> None:
        """As a log does: after the last key of its prefix."""
        last = max((key for key in self.expected if key.startswith(prefix.encode())), default=None)
        first = 0 if last is None else int(last[1:]) + 1
        writes: list[Write] = [
            AppendedWrite("log", b"%s%04d" % (prefix.encode(), first + index), value)
            for index, value in enumerate(values)
        ]
        self.store.write(writes)
        self.apply(writes)

    @rule(prefix=PREFIXES, number=KEYS, value=st.none() | VALUES, is_appended=st.booleans())
    def write_anywhere(self, prefix: str, number: int, value: bytes | None, is_appended: bool) -> None:
        kind = AppendedWrite if is_appended else Write
        write = kind("log", b"%s%04d" % (prefix.encode(), number), value)
        self.store.write([write])
        self.apply([write])

    @rule(start=st.tuples(PREFIXES, KEYS), end=st.tuples(PREFIXES, KEYS))
    def remove_range(self, start: tuple[str, int], end: tuple[str, int]) -> None:
        first, last = (b"%s%04d" % (prefix.encode(), number) for prefix, number in (start, end))
        self.store.delete_range("log", first, last)
        self.expected = {key: value for key, value in self.expected.items() if not first <= key < last}

    @rule(count=st.integers(1, 5))
    def unlink(self, count: int) -> None:
        """A part of the removed files is unlinked: the others are left by what ends the store."""
        self.removals.run(min(count, len(self.removals.waiting)))

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.open()

    @rule(prefix=PREFIXES, values=st.lists(VALUES, min_size=1, max_size=3), is_lost=st.booleans())
    def crash(self, prefix: str, values: list[bytes], is_lost: bool) -> None:
        """The process ends: as it is, or after values were appended whose rows were never written."""
        if is_lost:
            rows = [(b"%s%04d" % (prefix.encode(), 9_000 + index), value) for index, value in enumerate(values)]
            self.store._values.append(prefix.encode(), rows)
        self.opened_count += 1
        path = self.folder / str(self.opened_count)
        shutil.copytree(self.path, path)
        self.store.close()
        self.path = path
        self.open()

    @rule()
    def go_on_with_a_copy(self) -> None:
        self.opened_count += 1
        path = self.folder / str(self.opened_count)
        self.store.checkpoint(path)
        self.store.delete_range("log", b"a", b"c")  # what happens to the original leaves the copy alone
        self.store.close()
        self.path = path
        self.open()

    @invariant()
    def all_is_there(self) -> None:
        if not hasattr(self, "store"):
            return
        rows = sorted(self.expected.items())
        assert list(self.store.scan("log", b"")) == rows
        assert list(self.store.scan("log", b"", reverse=True)) == rows[::-1]
        assert all(self.store.get("log", key) == value for key, value in rows)

    @invariant()
    def the_size_of_the_files_is_known(self) -> None:
        if not hasattr(self, "store"):
            return
        folder = self.path / FOLDER
        removed = {folder / prefix.hex() / name for prefix, name in self.store._folder._removed}
        paths = {path for path in folder.rglob("*") if path.is_file()}
        assert removed <= paths
        assert self.store._values.size_bytes == sum(path.stat().st_size for path in paths - removed)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.ending.close()


TestValueFileStore = ValueFileStoreModel.TestCase
TestValueFileStore.settings = settings(max_examples=25, stateful_step_count=25)
