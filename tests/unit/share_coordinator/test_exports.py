"""Exports and imports: an import restores the exported state, and refuses wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import Operation
from kshare_share_coordinator.maintenance.exports import BadExport, StateExport, read_export
from kshare_share_coordinator.maintenance.imports import StateImport
from kshare_share_coordinator.maintenance.verification import verify
from kshare_share_coordinator.state_store import family_of
from support.runtime.damaged_files import scratch_directory
from support.runtime.sync_in_loop import SyncInLoop
from support.share_coordinator.shell import (
    KEY,
    STATE_PARTITION_COUNT,
    TOPIC_ID,
    ShareCoordinatorShell,
    batches,
    initialize,
    read,
    write,
)

NOW_MS = 5_000
MANY = tuple((10 * i, 10 * i, 2, 1) for i in range(20))


def keys(count: int) -> list[SharePartitionKey]:
    return [SharePartitionKey(f"group {number}", TOPIC_ID, number) for number in range(count)]


def filled(*operations: Operation) -> ShareCoordinatorShell:
    shell = ShareCoordinatorShell(MemoryDisk().open_store("test"))
    shell.state_store.write_state_partition_count(STATE_PARTITION_COUNT)
    shell.state_store.write_cluster_id("cluster-one")
    for operation in operations:
        assert shell.run(operation).error_code == 0
    return shell


def filled_with(count: int) -> ShareCoordinatorShell:
    operations: list[Operation] = []
    for number, key in enumerate(keys(count)):
        operations += [initialize(key, start_offset=number), write(key, *MANY), write(key, (900 + number, 950, 4, 3))]
    return filled(*operations)


def exported(shell: ShareCoordinatorShell) -> list[str]:
    return list(StateExport(shell.store).lines())


def empty_store() -> ChecksummedStore:
    return ChecksummedStore(MemoryDisk().open_store("other"))


def import_all(lines: list[str], store: ChecksummedStore, **options: Any) -> None:
    state_import = StateImport(store, read_export(lines, NOW_MS), NOW_MS)
    state_import.carry_out(state_import.plan(**options))


def test_what_is_exported_is_imported_into_an_empty_store() -> None:
    shell = filled_with(12)
    lines = exported(shell)
    store = empty_store()
    import_all(lines, store)
    assert next(StateExport(store).lines()) == lines[0]
    other = ShareCoordinatorShell(store)
    for key in keys(12):
        before, after = shell.run(read(key)).state, other.run(read(key)).state
        assert before is not None and after is not None
        assert after[1:6] == (*before[1:5], list(before.state_batches))
    assert sorted(exported(other)) == sorted(lines)
    assert not any(found.problem_count for found in verify(store))


states = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.sampled_from([0, 2, 3, 4]), st.integers(0, 9)), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(runs=states, start_offset=st.integers(-1, 50), group_id=st.text(min_size=1, max_size=12))
def test_any_state_survives(runs: list[tuple[int, int, int, int]], start_offset: int, group_id: str) -> None:
    key = SharePartitionKey(group_id.encode(errors="replace").decode(), TOPIC_ID, 3)
    shell = filled(
        initialize(key, start_offset=start_offset),
        write(key, *[(first, first + more, state, count) for first, more, state, count in runs], leader_epoch=4),
    )
    lines = exported(shell)
    assert all("\n" not in line for line in lines)
    other = empty_store()
    import_all(lines, other)
    assert list(StateExport(other).lines()) == lines


def test_an_import_replaces_nothing_unseen() -> None:
    shell = filled_with(3)
    lines = exported(shell)
    shell.run(write(keys(3)[1], (2000, 2000, 2, 9)))
    changed = shell.run(read(keys(3)[1])).state
    with pytest.raises(BadExport, match=r"3 of its 3 share-partitions have a state .*--replace.*--overwrite"):
        import_all(lines, shell.store)
    shell.restart(shell.store)
    assert shell.run(read(keys(3)[1])).state == changed
    import_all(lines, shell.store, overwrite=True)
    assert sorted(exported(shell)) == sorted(lines)
    assert not any(found.problem_count for found in verify(shell.store))


def test_replacing_one_state_partition_imports_only_its_own() -> None:
    shell = filled_with(5)
    lines = exported(shell)
    one = keys(5)[2]
    number = state_partition_of(one, STATE_PARTITION_COUNT)
    others = [key for key in keys(5) if state_partition_of(key, STATE_PARTITION_COUNT) != number]
    late = SharePartitionKey("group 2", TOPIC_ID, 2 + STATE_PARTITION_COUNT)
    for key in (*keys(5), late):
        shell.run(initialize(key, state_epoch=9))
    state_import = StateImport(shell.store, read_export(lines, NOW_MS), NOW_MS)
    plan = state_import.plan([number])
    assert (len(plan.snapshots), plan.skipped, plan.emptied) == (5 - len(others), len(others), [number])
    state_import.carry_out(plan)
    shell.restart(shell.store)
    state = shell.run(read(one)).state
    assert state is not None and state.state_epoch == 1
    assert {shell.run(read(key)).state.state_epoch for key in others} == {9}  # type: ignore[union-attr]


def edited(change: Callable[[dict[str, Any]], object], line: int = 1) -> list[str]:
    lines = exported(filled_with(2))
    found = json.loads(lines[line])
    change(found)
    return [*lines[:line], json.dumps(found), *lines[line + 1 :]]


@pytest.mark.parametrize(
    ("change", "line", "problem"),
    [
        (lambda line: line.update(export="?"), 0, "line 1: it is not an export"),
        (lambda line: line.update(version=2), 0, "line 1: it has version 2; known is 1"),
        (lambda line: line.update(cluster_id=7), 0, "line 1: the cluster_id is 7"),
        (lambda line: line.update(state_partitions=0), 0, "line 1: state_partitions is 0"),
        (lambda line: line.pop("state_partitions"), 0, "line 1: state_partitions is None"),
        (lambda line: line.update(group=""), 1, "line 2: the group id is empty"),
        (lambda line: line.update(group=None), 1, "line 2: the group is None"),
        (lambda line: line.update(group="\ud800"), 1, "line 2: .* cannot be read"),
        (lambda line: line.update(topic_id="?"), 1, "line 2: the topic_id '\\?'"),
        (lambda line: line.update(partition=-1), 1, "line 2: partition is -1"),
        (lambda line: line.update(partition=True), 1, "line 2: partition is True"),
        (lambda line: line.update(state_epoch=1 << 31), 1, "line 2: state_epoch is 2147483648"),
        (lambda line: line.update(leader_epoch=-1), 1, "line 2: leader_epoch is -1"),
        (lambda line: line.update(start_offset=-2), 1, "line 2: start_offset is -2"),
        (lambda line: line.update(delivery_complete_count="1"), 1, "line 2: delivery_complete_count is '1'"),
        (lambda line: line.update(state_batches=None), 1, "line 2: state_batches is None"),
        (lambda line: line.update(state_batches=[[1, 2, 2, 1]]), 1, "line 2: .* is not a state batch"),
        (lambda line: line.update(state_batches=[[1, 2, "Acquired", 1]]), 1, "line 2: .* is not a state batch"),
        (lambda line: line.update(state_batches=[[2, 1, "Archived", 1]]), 1, "line 2: the state batch 2-1"),
        (
            lambda line: line.update(state_batches=[[1.0, 2, "Archived", 1]]),
            1,
            "line 2: .* a value that is not a number",
        ),
        (
            lambda line: line.update(state_batches=[[3, 4, "Archived", 1], [1, 2, "Archived", 1]]),
            1,
            "line 2: the state batches of .* are out of order",
        ),
        (lambda line: line.update(share_partitions=3), 3, "line 4: it says that there are 3 .* 2 are there"),
        (lambda line: line.update(left_out=-1), 3, "line 4: left_out is -1"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(change: Callable[[dict[str, Any]], object], line: int, problem: str) -> None:
    with pytest.raises(BadExport, match=problem):
        read_export(edited(change, line), NOW_MS)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_file_that_was_cut_off_is_refused(kept: int) -> None:
    lines = exported(filled_with(2))
    assert len(lines) == 4
    with pytest.raises(BadExport, match=r"is truncated|is not JSON"):
        read_export(lines[:kept], NOW_MS)
    with pytest.raises(BadExport):
        read_export([*lines[:kept], lines[kept][: len(lines[kept]) // 2]], NOW_MS)


def test_a_share_partition_twice_and_lines_after_the_last_are_refused() -> None:
    lines = exported(filled_with(2))
    with pytest.raises(BadExport, match=r"line 4: share-partition .* occurs twice"):
        read_export([*lines[:3], lines[1], lines[3]], NOW_MS)
    with pytest.raises(BadExport, match="line 5 follows the last one"):
        read_export([*lines, lines[1]], NOW_MS)
    assert len(read_export([*lines, "\n"], NOW_MS).snapshots) == 2


@pytest.mark.parametrize(
    ("write_count", "cluster_id", "problem"),
    [(49, "cluster-one", "has 49 state partitions and the export 50"), (50, "two", "belongs to cluster 'two'")],
)
def test_an_export_of_another_cluster_is_refused(write_count: int, cluster_id: str, problem: str) -> None:
    other = ShareCoordinatorShell(MemoryDisk().open_store("other"))
    other.state_store.write_state_partition_count(write_count)
    other.state_store.write_cluster_id(cluster_id)
    with pytest.raises(BadExport, match=problem):
        import_all(exported(filled_with(2)), other.store)


def test_there_are_only_so_many_state_partitions_to_replace() -> None:
    with pytest.raises(BadExport, match="state partition 50 does not exist; the export has 50 state partitions"):
        import_all(exported(filled_with(2)), empty_store(), replace=[50])


def test_a_corrupt_share_partition_is_left_out_and_told() -> None:
    shell = filled_with(3)
    family = family_of(state_partition_of(keys(3)[0], STATE_PARTITION_COUNT))
    (stored, *_) = [key for key, _ in shell.raw_store.scan(family, b"", b"\x80")]
    shell.raw_store.write([Write(family, stored, b"?")])
    export = StateExport(shell.store)
    lines = list(export.lines())
    assert json.loads(lines[-1]) == {"share_partitions": 2, "left_out": 1}
    assert len(export.problems) == 1 and str(keys(3)[0]) in export.problems[0]
    assert read_export(lines, NOW_MS).left_out == 1
    (problem,) = [problem for found in verify(shell.store) for problem in found.problems]
    assert str(keys(3)[0]) in problem


def test_a_share_partition_in_the_wrong_place_is_told() -> None:
    shell = filled_with(1)
    family = family_of(state_partition_of(keys(1)[0], STATE_PARTITION_COUNT))
    shell.raw_store.write([Write("state-49", key, value) for key, value in shell.raw_store.scan(family, b"", b"\x80")])
    assert family != "state-49"
    problems = [problem for found in verify(shell.store) for problem in found.problems]
    assert problems == [f"share-partition {keys(1)[0]} is stored here but belongs to another state partition"]


def test_a_damaged_state_partition_is_restored_from_an_export() -> None:
    with scratch_directory() as directory:
        store = ChecksummedStore(RocksStore(directory / "s", isolate_damage=True, new_sync=SyncInLoop))
        import_all(exported(filled_with(8)), store)
        lines = list(StateExport(store).lines())
        store.close()
        RocksStore(directory / "s").close()  # moves the log into tables
        table = max((directory / "s").glob("*.sst"))
        table.write_bytes(table.read_bytes()[:-1])
        store = ChecksummedStore(RocksStore(directory / "s", isolate_damage=True, new_sync=SyncInLoop))
        assert store.maintained is not None
        (family,) = store.maintained.damaged_families()
        number = int(family.removeprefix("state-"))
        export = StateExport(store)
        assert len(list(export.lines())) < len(lines)
        assert [problem for problem in export.problems if f"state partition {number}" in problem] == export.problems
        import_all(lines, store, replace=[number])
        assert list(StateExport(store).lines()) == lines
        assert not any(found.problem_count for found in verify(store))
        store.close()


def test_batches_are_lists_of_names() -> None:
    shell = filled(initialize(start_offset=3), write(KEY, (5, 6, 2, 1), (7, 9, 3, 2), leader_epoch=8))
    line = json.loads(exported(shell)[1])
    assert line["state_batches"] == [[5, 6, "Acknowledged", 1], [7, 9, "Archiving", 2]]
    assert (line["group"], line["partition"], line["leader_epoch"], line["start_offset"]) == ("orders", 0, 8, 3)
    assert list(read_export(exported(shell), NOW_MS).snapshots[0].state_batches) == batches((5, 6, 2, 1), (7, 9, 3, 2))
