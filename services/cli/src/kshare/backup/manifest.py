"""The manifest of a backup: which stores of which cluster it has, with the size and SHA-256 of every file.

It is written last, so a directory without one is an unfinished backup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kshare.failure import BAD_USE, CommandFailed

FILE_NAME = "manifest.json"
FORMAT = 1
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """A file of a store, named relative to the store's directory."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackedUpStore:
    """One role's store. `directory` is relative to the data directory, and in the backup to `stores`."""

    name: str
    role: str
    directory: str
    files: tuple[BackedUpFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All of a backup; `created` is a UTC time in ISO 8601."""

    cluster_id: str
    created: str
    kshare_version: str
    was_running: bool
    stores: tuple[BackedUpStore, ...]

    @property
    def size_bytes(self) -> int:
        return sum(store.size_bytes for store in self.stores)

    def text(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"


def read_manifest(backup: Path) -> Manifest:
    """The manifest of a backup; CommandFailed where it is none, or not one that this version reads."""
    path = backup / FILE_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        text = f"{backup} is not a finished backup: it has no {FILE_NAME}, which kshare backup writes at its end"
        raise CommandFailed(text, BAD_USE) from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        told = found.get("format") if isinstance(found, dict) else None
        raise CommandFailed(f"{path} has format {told}, and this version reads {FORMAT}: use a newer kshare", BAD_USE)
    try:
        return _parsed(found)
    except (KeyError, TypeError, ValueError) as error:
        raise CommandFailed(f"{path} is damaged: {error!r}") from None


def _parsed(found: dict[str, Any]) -> Manifest:
    stores = tuple(
        BackedUpStore(
            name=str(store["name"]),
            role=str(store["role"]),
            directory=_relative(store["directory"]),
            files=tuple(_file(file) for file in store["files"]),
        )
        for store in found["stores"]
    )
    if not stores:
        raise ValueError("it names no store")
    return Manifest(
        cluster_id=str(found["cluster_id"]),
        created=str(found["created"]),
        kshare_version=str(found["kshare_version"]),
        was_running=bool(found["was_running"]),
        stores=stores,
    )


def _file(found: dict[str, Any]) -> BackedUpFile:
    digits = str(found["sha256"])
    if len(digits) != _SHA256_DIGITS:
        raise ValueError(f"{digits!r} is no SHA-256")
    return BackedUpFile(_relative(found["name"]), int(found["size_bytes"]), digits)


def _relative(name: object) -> str:
    """A path that stays where it is put; ValueError for one that leads elsewhere."""
    path = PurePosixPath(str(name))
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise ValueError(f"{name!r} leads out of the directory")
    return str(path)


def chosen_stores(manifest: Manifest, names: Sequence[str]) -> tuple[BackedUpStore, ...]:
    """The stores of these names, all without a name; CommandFailed for one that the backup does not have."""
    by_name = {store.name: store for store in manifest.stores}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        text = f"the backup has no store {', '.join(unknown)}; it has {', '.join(by_name)}"
        raise CommandFailed(text, BAD_USE)
    return tuple(by_name[name] for name in names) if names else manifest.stores
