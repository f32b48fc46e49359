"""`kshare backup`: copies the stores of all roles of a data directory to a new directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from kshare.backup.copies import copied_stores, copies_name
from kshare.backup.files import copied_file, file_names, sync_directories
from kshare.backup.manifest import FILE_NAME, BackedUpStore, Manifest
from kshare.backup.stores import Store, cluster_id_of, found_stores
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import PRIVATE, write_atomically
from kshare.up.plan import COORDINATOR

STORES = "stores"


def create_backup(data_dir: Path, target: Path, show: Callable[[str], None]) -> Manifest:
    """Makes the backup; CommandFailed, and then `target` has no manifest."""
    stores = found_stores(data_dir)
    if not stores:
        text = f"{data_dir} has no store: give the directory of a kshare up; a kshare attach stores nothing here"
        raise CommandFailed(text, BAD_USE)
    if not any(store.role == COORDINATOR for store in stores):
        show("the coordinators' metadata is not here: back up its etcd, or the cluster that has it, as well, and first")
    if target.exists() and any(target.iterdir()):
        raise CommandFailed(f"{target} is not empty: give a new directory", BAD_USE)
    created = datetime.now(UTC)
    with copied_stores(data_dir, stores, copies_name(created), show) as (copies, was_running):
        try:
            manifest = Manifest(
                cluster_id=_common_cluster_id(stores, copies),
                created=created.isoformat(timespec="seconds"),
                kshare_version=version("kshare"),
                was_running=was_running,
                stores=_copied_out(stores, copies, target, show),
            )
            sync_directories(target)
        except OSError as error:
            raise CommandFailed(f"cannot copy the stores to {target}: {error}") from None
    write_atomically(target / FILE_NAME, manifest.text())
    _sync(target)
    return manifest


def _common_cluster_id(stores: Sequence[Store], copies: Sequence[Path]) -> str:
    """CommandFailed where the stores belong to several clusters."""
    by_store = {store.name: cluster_id_of(store.role, copy) for store, copy in zip(stores, copies, strict=True)}
    found = {cluster_id for cluster_id in by_store.values() if cluster_id}
    if len(found) > 1:
        told = ", ".join(f"{name} to {cluster_id or 'none'}" for name, cluster_id in by_store.items())
        raise CommandFailed(f"the stores belong to different clusters: {told}")
    return found.pop() if found else ""


def _copied_out(
    stores: Sequence[Store], copies: Sequence[Path], target: Path, show: Callable[[str], None]
) -> tuple[BackedUpStore, ...]:
    needed_bytes = sum((copy / name).stat().st_size for copy in copies for name in file_names(copy))
    target.mkdir(mode=PRIVATE, parents=True, exist_ok=True)  # records and credentials are in it
    free_bytes = shutil.disk_usage(target).free
    if free_bytes < needed_bytes:
        raise CommandFailed(f"{target} has room for {free_bytes:,} bytes, and the stores have {needed_bytes:,}")
    found = []
    for store, copy in zip(stores, copies, strict=True):
        place = target / STORES / store.directory
        files = tuple(copied_file(copy / name, place / name, name) for name in file_names(copy))
        found.append(BackedUpStore(store.name, store.role, store.directory, files))
        show(f"{store.name}: {len(files)} files, {found[-1].size_bytes:,} bytes")
    return tuple(found)


def _sync(directory: Path) -> None:
    with (directory / FILE_NAME).open("rb") as file:
        os.fsync(file.fileno())
    sync_directories(directory)
