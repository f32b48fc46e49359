"""`kshare restore`: puts the stores of a backup into a data directory, for a cluster that is started on it afterwards.

Every file is compared with its checksum, when it is read and as it was written. Nothing is put over a store that is
there, and nothing beside stores of another cluster.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from kshare.backup.create import STORES
from kshare.backup.files import copied_file, examined_file, sync_directories
from kshare.backup.manifest import BackedUpStore, Manifest, chosen_stores, read_manifest
from kshare.backup.stores import cluster_id_of, found_stores
from kshare.failure import BAD_USE, CommandFailed
from kshare.up.data_directory import DataDirectory

DRAFT = ".restoring"


def restore_backup(
    backup: Path,
    data_dir: Path,
    *,
    only: Sequence[str],
    cluster_id: str | None,
    dry_run: bool,
    show: Callable[[str], None],
) -> Manifest:
    """Restores all stores, or `only` these beside the others of their cluster; CommandFailed, and nothing is changed.

    `cluster_id` is what the backup's must be, if it is given. `dry_run` examines everything and changes nothing.
    """
    manifest = read_manifest(backup)
    if cluster_id is not None and cluster_id != manifest.cluster_id:
        text = f"the backup is of cluster {manifest.cluster_id}, not of {cluster_id}"
        raise CommandFailed(text, BAD_USE)
    stores = chosen_stores(manifest, only)
    _examine(backup, stores)
    if dry_run:
        _check_target(manifest, stores, data_dir, has_choice=bool(only))
        return manifest
    with closing(DataDirectory(data_dir)) as directory:
        _check_target(manifest, stores, directory.path, has_choice=bool(only))
        _put(backup, stores, directory.path, show)
    return manifest


def _examine(backup: Path, stores: Sequence[BackedUpStore]) -> None:
    for store in stores:
        place = backup / STORES / store.directory
        for file in store.files:
            try:
                found = examined_file(place / file.name, file.name)
            except OSError as error:
                raise CommandFailed(f"the backup is damaged: {error}; nothing was restored") from None
            if found != file:
                raise CommandFailed(
                    f"the backup is damaged: {place / file.name} has {found.size_bytes} bytes with SHA-256 "
                    f"{found.sha256}, and should have {file.size_bytes} with {file.sha256}; nothing was restored"
                )


def _check_target(manifest: Manifest, stores: Sequence[BackedUpStore], data_dir: Path, *, has_choice: bool) -> None:
    taken = [store.name for store in stores if _has_files(data_dir / store.directory)]
    if taken:
        raise CommandFailed(
            f"{data_dir} has {', '.join(taken)} already, and nothing is put over data: give an empty directory, or "
            "move theirs away",
            BAD_USE,
        )
    names = {store.name for store in stores}
    others = [store for store in found_stores(data_dir) if store.name not in names]
    for other in others:
        theirs = cluster_id_of(other.role, other.path)
        if theirs != manifest.cluster_id:
            text = f"{other.name} of {data_dir} belongs to cluster {theirs!r}, and the backup to"
            raise CommandFailed(f"{text} {manifest.cluster_id!r}: nothing was restored", BAD_USE)
    if others and not has_choice:
        told = ", ".join(store.name for store in others)
        text = f"{data_dir} has {told}, which the backup does not have: name the stores to restore with --only"
        raise CommandFailed(text, BAD_USE)


def _has_files(directory: Path) -> bool:
    return directory.exists() and any(directory.iterdir())


def _put(backup: Path, stores: Sequence[BackedUpStore], data_dir: Path, show: Callable[[str], None]) -> None:
    draft = data_dir / f"{DRAFT}-{os.getpid()}"
    placed: list[Path] = []
    try:
        for store in stores:
            for file in store.files:
                written = draft / store.directory / file.name
                copied_file(backup / STORES / store.directory / file.name, written, file.name)
                if examined_file(written, file.name) != file:
                    text = f"{written} is not what was written to it: the disk fails, and nothing was restored"
                    raise CommandFailed(text)
        sync_directories(draft)
        for store in stores:
            place = data_dir / store.directory
            place.parent.mkdir(parents=True, exist_ok=True)
            (draft / store.directory).replace(place)
            placed.append(place)
        sync_directories(data_dir)
    except OSError as error:
        for place in placed:  # nothing was there before: a part of the stores would keep the next try from them all
            shutil.rmtree(place, ignore_errors=True)
        raise CommandFailed(f"cannot write to {data_dir}: {error}; nothing was restored") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for store in stores:
        show(f"{store.name}: {len(store.files)} files, {store.size_bytes:,} bytes")
