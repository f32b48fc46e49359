"""`kshare backup` and `kshare restore` on stores without a process: what is copied, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kshare.backup.create import create_backup
from kshare.backup.manifest import read_manifest
from kshare.backup.restore import restore_backup
from kshare.backup.stores import cluster_id_of
from kshare.failure import CommandFailed
from kshare.up.data_directory import DataDirectory
from kshare_coordinator.machine import records
from kshare_leader.engine.embedded import with_value_files
from kshare_leader.log import keys
from kshare_runtime.checksummed_rows import ChecksummedRows
from kshare_runtime.large_values.store import FROM_BYTES
from kshare_runtime.ports import AppendedWrite, Write
from kshare_runtime.rocks_store import RocksStore
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.state_store import CLUSTER_ID_KEY, METADATA_FAMILY
from support.runtime.damaged_files import scratch_directory

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
BATCH_KEY = bytes(keys.PARTITION_PREFIX_BYTES + 8)
STORES = ("coordinator", "share-coordinator", "leader", "leader-2")


def put(data_dir: Path, name: str, cluster_id: str = CLUSTER) -> None:
    """A store that belongs to the cluster, with a row of its own, and of a leader with a batch in a file."""
    role = "leader" if name.startswith("leader") else name
    store = RocksStore(data_dir / role if name == role else data_dir / name / role)
    if role == "coordinator":
        ChecksummedRows(store).write([records.write_of(records.cluster_text(records.CLUSTER_ID, cluster_id))])
    elif role == "leader":
        ChecksummedRows(store).write([Write(keys.META, keys.CLUSTER_ID_KEY, cluster_id.encode())])
        with_value_files(store).write([AppendedWrite(keys.LOG, BATCH_KEY, batch_of(name))])
    else:
        ChecksummedStore(store).write([Write(METADATA_FAMILY, CLUSTER_ID_KEY, cluster_id.encode())])
    store.write([Write("rows", b"name", name.encode())])
    store.close()


def batch_of(name: str) -> bytes:
    return name.encode() * FROM_BYTES


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A folder with a stopped cluster (`data`) and a backup of it (`backup`)."""
    with scratch_directory() as folder:
        for name in STORES:
            put(folder / "data", name)
        create_backup(folder / "data", folder / "backup", lambda line: None)
        yield folder


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch_directory() as folder:
        yield folder / "restored"


def restore(
    backup: Path, data_dir: Path, *only: str, cluster_id: str | None = None, dry_run: bool = False
) -> list[str]:
    shown: list[str] = []
    restore_backup(backup, data_dir, only=only, cluster_id=cluster_id, dry_run=dry_run, show=shown.append)
    return shown


def changed(made: Path, folder: Path, name: str, old: str, new: str) -> Path:
    """The backup with a manifest in which `old` is `new`; its files are the same ones."""
    backup = folder / name
    backup.mkdir(parents=True)
    (backup / "stores").symlink_to(made / "backup" / "stores")
    text = (made / "backup" / "manifest.json").read_text()
    assert old in text
    (backup / "manifest.json").write_text(text.replace(old, new))
    return backup


def test_all_stores_come_back_with_all_that_they_had(made: Path, place: Path) -> None:
    manifest = read_manifest(made / "backup")
    assert [store.name for store in manifest.stores] == [*STORES]
    assert (manifest.cluster_id, manifest.was_running) == (CLUSTER, False)
    assert not list((made / "data").rglob("copying-*")), "the checkpoints beside the stores are removed"
    shown = restore(made / "backup", place, cluster_id=CLUSTER)
    assert [line.partition(":")[0] for line in shown] == [*STORES]
    for store in manifest.stores:
        assert cluster_id_of(store.role, place / store.directory) == CLUSTER
        opened = RocksStore(place / store.directory)
        assert opened.get("rows", b"name") == store.name.encode()
        if store.role == "leader":
            assert with_value_files(opened).get(keys.LOG, BATCH_KEY) == batch_of(store.name)
        opened.close()
    assert not list(place.glob(".restoring*"))


def test_nothing_is_put_over_data(made: Path, place: Path) -> None:
    put(place, "leader-2")
    with pytest.raises(CommandFailed, match="has leader-2 already, and nothing is put over data"):
        restore(made / "backup", place)
    assert not (place / "coordinator").exists()
    (place / "leader").mkdir()
    (place / "leader" / "unknown").write_text("")
    with pytest.raises(CommandFailed, match="has leader already"):
        restore(made / "backup", place, "leader")


def test_no_store_is_left_when_one_of_them_cannot_be_placed(made: Path, place: Path) -> None:
    place.mkdir()
    (place / "leader-2").symlink_to("a-volume-that-is-not-mounted")
    with pytest.raises(CommandFailed, match=r"cannot write to .*leader-2.*; nothing was restored"):
        restore(made / "backup", place)
    (place / "leader-2").unlink()
    assert [line.partition(":")[0] for line in restore(made / "backup", place)] == [*STORES]


def test_one_store_comes_back_beside_the_others_of_its_cluster(made: Path, place: Path) -> None:
    put(place, "coordinator")
    assert [line.partition(":")[0] for line in restore(made / "backup", place, "leader-2")] == ["leader-2"]
    assert cluster_id_of("leader", place / "leader-2" / "leader") == CLUSTER
    with pytest.raises(CommandFailed, match="the backup has no store leader-9; it has coordinator,"):
        restore(made / "backup", place, "leader-9")


def test_nothing_is_put_beside_stores_of_another_cluster(made: Path, place: Path) -> None:
    put(place, "coordinator", "BBBBBBBBBBBBBBBBBBBBBQ")
    with pytest.raises(CommandFailed, match=r"coordinator of .* belongs to cluster 'BBBBBBBBBBBBBBBBBBBBBQ'"):
        restore(made / "backup", place, "leader-2")
    assert not (place / "leader-2").exists()
    with pytest.raises(CommandFailed, match=f"the backup is of cluster {CLUSTER}, not of C"):
        restore(made / "backup", place.with_name("other"), cluster_id="C")


def test_stores_of_a_cluster_that_the_backup_does_not_have_are_not_mixed_with_it(made: Path, place: Path) -> None:
    put(place, "leader-3")
    with pytest.raises(CommandFailed, match="has leader-3, which the backup does not have: name the stores"):
        restore(made / "backup", place)


@pytest.mark.parametrize("damage", ["bit", "end", "gone"])
def test_a_damaged_backup_restores_nothing(made: Path, place: Path, damage: str) -> None:
    manifest = read_manifest(made / "backup")
    store = manifest.stores[-1]
    file = max(store.files, key=lambda each: each.size_bytes)
    path = made / "backup" / "stores" / store.directory / file.name
    content = path.read_bytes()
    try:
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(content[:-1] if damage == "end" else bytes([content[0] ^ 1]) + content[1:])
        for dry_run in (True, False):
            with pytest.raises(CommandFailed, match=r"the backup is damaged: .*nothing was restored"):
                restore(made / "backup", place, dry_run=dry_run)
        assert not place.exists()
    finally:
        path.write_bytes(content)


def test_an_unfinished_backup_and_one_of_a_newer_version_are_refused(made: Path, place: Path) -> None:
    (place / "unfinished").mkdir(parents=True)
    with pytest.raises(CommandFailed, match=r"is not a finished backup: it has no manifest\.json"):
        restore(place / "unfinished", place / "data")
    newer = changed(made, place, "newer", '"format": 1', '"format": 2')
    with pytest.raises(CommandFailed, match="has format 2, and this version reads 1"):
        restore(newer, place / "data")


def test_a_manifest_that_leads_out_of_the_directory_is_refused(made: Path, place: Path) -> None:
    evil = changed(made, place, "evil", '"directory": "leader-2/leader"', '"directory": "../../leader"')
    with pytest.raises(CommandFailed, match="leads out of the directory"):
        restore(evil, place / "data")


def test_a_dry_run_changes_nothing(made: Path, place: Path) -> None:
    assert restore(made / "backup", place, dry_run=True) == []
    assert not place.exists()


def test_what_cannot_be_backed_up_says_why(made: Path, place: Path) -> None:
    place.mkdir()
    with pytest.raises(CommandFailed, match="has no store: give the directory of a kshare up"):
        create_backup(place, place / "backup", print)
    with pytest.raises(CommandFailed, match="is not empty: give a new directory"):
        create_backup(made / "data", made / "backup", print)
    put(place, "leader", "one")
    put(place, "coordinator", "two")
    with pytest.raises(
        CommandFailed, match="the stores belong to different clusters: coordinator to two, leader to one"
    ):
        create_backup(place, place / "backup", print)
    assert not (place / "backup" / "manifest.json").exists()


def test_a_store_that_runs_by_itself_is_not_copied(place: Path) -> None:
    put(place, "leader")
    opened = RocksStore(place / "leader")
    try:  # a lock of this process would be given to it again, so another one has to look
        program = (
            "import sys, pathlib; from kshare.backup.create import create_backup;"
            "create_backup(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), print)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, place, place / "backup"], capture_output=True, text=True, check=False
        )
    finally:
        opened.close()
    assert "run without a kshare up: stop them, or use volume snapshots" in done.stderr


def test_a_directory_in_use_is_not_restored_to(made: Path, place: Path) -> None:
    used = DataDirectory(place)
    try:
        with pytest.raises(CommandFailed, match="is in use by another kshare up"):
            restore(made / "backup", place)
    finally:
        used.close()
    assert json.loads((made / "backup" / "manifest.json").read_text())["format"] == 1
