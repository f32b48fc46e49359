"""`kshare state verify`, `export` and `import` on stores without a running process: output and exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kshare.failure import CommandFailed
from kshare.main import app
from kshare_core.identifiers import state_partition_of
from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import ReadState, TruncateState
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.state_store import StateStore
from support.runtime.damaged_files import content_of_files, damage_a_state_partition, scratch_directory
from support.share_coordinator.many_states import build_store, many_keys

SHARE_PARTITIONS = 250


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    with scratch_directory() as directory:
        build_store(directory, SHARE_PARTITIONS)
        RocksStore(directory / "share-coordinator").close()  # moves the log into tables
        yield directory


@pytest.fixture
def node(built: Path) -> Iterator[Path]:
    """The data directory of a share coordinator that is stopped."""
    with scratch_directory() as directory:
        yield shutil.copytree(built, directory / "node")


def kshare_state(*arguments: str | Path) -> tuple[int, str]:
    """The exit code, and everything that was printed."""
    result = CliRunner().invoke(app, ["state", *map(str, arguments)])
    if isinstance(result.exception, CommandFailed):
        return result.exception.exit_code, f"{result.output}{result.exception}\n"
    assert result.exception is None, result.output
    return result.exit_code, result.output


def test_a_whole_store(node: Path) -> None:
    before = content_of_files(node / "share-coordinator")
    code, text = kshare_state("verify", "--data-dir", node)
    assert code == 0 and f"{SHARE_PARTITIONS} share-partitions with 0 updates" in text
    assert "all checksums are correct" in text
    assert kshare_state("verify", "--data-dir", node / "share-coordinator")[0] == 0
    export = node / "export.jsonl"
    code, text = kshare_state("export", "--data-dir", node, "--output", export)
    assert (code, text) == (0, f"exported {SHARE_PARTITIONS} share-partitions\n")
    assert len(export.read_text().splitlines()) == SHARE_PARTITIONS + 2
    code, text = kshare_state("export", "--data-dir", node, "--output", export)
    assert code == 2 and "already exists" in text
    assert content_of_files(node / "share-coordinator") == before


def test_a_state_that_was_cut_is_named(node: Path) -> None:
    """Its log had lost records; `kshare state verify` says which offsets the state knew."""
    key = next(iter(many_keys(1)))
    store = RocksStore(node / "share-coordinator")
    state_store = StateStore(store=ChecksummedStore(store), state_partition_of=lambda key: state_partition_of(key, 50))
    machine = ShareCoordinatorMachine(load=state_store.load, snapshot_update_records_per_snapshot=500)
    state = machine.decide(ReadState(key, -1), 0).response.state
    assert state is not None
    leader_epochs = encode_leader_epochs([EpochEntry(99, 0)])
    cut = TruncateState(key, state.state_epoch, 99, 3, 1, 0, (), leader_epochs)
    decision = machine.decide(cut, 1_700_000_000_000)
    assert decision.response.error_code == 0, decision.response
    state_store.append(decision.records)
    store.close()
    code, text = kshare_state("verify", "--data-dir", node)
    assert code == 0
    assert "was truncated at offset 3 in leader epoch 99, at 2023-11-14T22:13:20+00:00" in text
    assert f"it had start offset {state.start_offset}" in text


def test_a_damaged_state_partition_is_found_and_restored(built: Path, node: Path) -> None:
    whole = node / "whole.jsonl"
    assert kshare_state("export", "--data-dir", built, "--output", whole)[0] == 0
    number = damage_a_state_partition(node)
    lost = [key for key in many_keys(SHARE_PARTITIONS) if state_partition_of(key, 50) == number]
    code, text = kshare_state("verify", "--data-dir", node)
    assert code == 1 and f"state partition {number}: " in text and "kshare state import --replace" in text
    part = node / "part.jsonl"
    code, text = kshare_state("export", "--data-dir", node, "--output", part)
    assert code == 1 and f"left out: state partition {number}" in text
    last = json.loads(part.read_text().splitlines()[-1])
    assert last == {"share_partitions": SHARE_PARTITIONS - len(lost), "left_out": 1}
    code, text = kshare_state("import", whole, "--data-dir", node, "--replace", str(number), "--dry-run")
    wanted = (
        f"empty state partitions {number}, import {len(lost)} share-partitions, skip {SHARE_PARTITIONS - len(lost)}"
    )
    assert code == 0 and f"dry run: would {wanted}" in text
    assert kshare_state("verify", "--data-dir", node)[0] == 1
    code, text = kshare_state("import", whole, "--data-dir", node, "--replace", str(number))
    assert code == 0 and wanted in text
    assert kshare_state("verify", "--data-dir", node)[0] == 0
    again = node / "again.jsonl"
    assert kshare_state("export", "--data-dir", node, "--output", again)[0] == 0
    assert again.read_text() == whole.read_text()


def test_imports_that_do_not_fit(built: Path, node: Path) -> None:
    whole = node / "whole.jsonl"
    assert kshare_state("export", "--data-dir", built, "--output", whole)[0] == 0
    code, text = kshare_state("import", whole, "--data-dir", node)
    assert code == 2 and f"{SHARE_PARTITIONS} of its {SHARE_PARTITIONS} share-partitions have a state" in text
    cut_off = node / "cut-off.jsonl"
    cut_off.write_text("\n".join(whole.read_text().splitlines()[:100]))
    code, text = kshare_state("import", cut_off, "--data-dir", node / "new")
    assert code == 2 and "is truncated" in text and not (node / "new").exists()
    code, text = kshare_state("import", node / "none.jsonl", "--data-dir", node / "new")
    assert code == 2 and "none.jsonl" in text
    code, text = kshare_state("import", whole, "--data-dir", node / "new", "--dry-run")
    assert (
        code == 0 and f"would import {SHARE_PARTITIONS}" in text and not (node / "new" / "share-coordinator").exists()
    )
    assert kshare_state("import", whole, "--data-dir", node / "new")[0] == 0
    assert kshare_state("verify", "--data-dir", node / "new")[0] == 0


def test_a_store_that_cannot_be_read_at_all(node: Path) -> None:
    (node / "share-coordinator" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    for command in ("verify", "export"):
        code, text = kshare_state(command, "--data-dir", node)
        assert code == 1 and "MANIFEST-999999, which CURRENT names, is missing" in text
    code, text = kshare_state("verify", "--data-dir", node / "nowhere")
    assert code == 1 and "does not contain a store" in text


def test_a_store_that_is_served_needs_its_address(node: Path) -> None:
    code = (
        "import sys, pathlib; from kshare_runtime.rocks_store import RocksStore; "
        "store = RocksStore(pathlib.Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(node / "share-coordinator")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"open\n"
        exit_code, text = kshare_state("verify", "--data-dir", node)
        assert exit_code == 2 and "--share-coordinator HOST:PORT" in text
        (node / "export.jsonl").write_text(
            '{"export": "kshare share-group state", "version": 1, "state_partitions": 50}\n'
            '{"share_partitions": 0, "left_out": 0}\n'
        )
        exit_code, text = kshare_state("import", node / "export.jsonl", "--data-dir", node)
        assert exit_code == 2 and "is in use; stop its share coordinator first" in text
        server.kill()
