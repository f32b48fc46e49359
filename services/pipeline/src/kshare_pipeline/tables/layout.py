"""The files in the history service's data folder.

checkpoint/            Spark's: up to where the topic is read
events/date=…/group=…/ rows of delivery events
quarantine/date=…/     records that are no delivery history
marts/<name>/date=….parquet
report.html
touched/<date>.<batch> days whose marts are older than their events
staging/, temporary/   unfinished work; emptied at each start
process.lock           held by the one process that writes here
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below `folder`."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def events(self) -> Path:
        return self.folder / "events"

    @property
    def quarantine(self) -> Path:
        return self.folder / "quarantine"

    @property
    def marts(self) -> Path:
        return self.folder / "marts"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def touched(self) -> Path:
        return self.folder / "touched"

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def lock(self) -> Path:
        return self.folder / "process.lock"

    def mart_file(self, mart: str, day: date) -> Path:
        """The file of a mart's day; it is one file, so that it is replaced atomically."""
        return self.marts / mart / f"date={day.isoformat()}.parquet"

    def prepare(self) -> None:
        """Creates the folders, and empties those of unfinished work."""
        for path in (self.staging, self.temporary):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.folder, self.touched, self.staging, self.temporary):
            path.mkdir(parents=True, exist_ok=True)


def days_of(table: Path) -> list[date]:
    """The days in a partitioned table, oldest first."""
    if not table.exists():
        return []
    found = [path.name.removeprefix("date=") for path in table.iterdir() if path.name.startswith("date=")]
    return sorted(date.fromisoformat(name.removesuffix(".parquet")) for name in found)


class TouchedDays:
    """Days whose events changed since their marts were computed, as empty files, which survive the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, days: Sequence[date], batch_id: int) -> None:
        """Marks days. Call it when the events of the batch are published, before the batch is committed."""
        for day in days:
            (self._folder / f"{day.isoformat()}.{batch_id}").touch()
        sync_folder(self._folder)

    def marks(self) -> dict[date, list[Path]]:
        """The marks by day, oldest first; `remove` deletes them when the day's marts are computed."""
        found: dict[date, list[Path]] = {}
        for path in sorted(self._folder.iterdir()):
            found.setdefault(date.fromisoformat(path.name.partition(".")[0]), []).append(path)
        return found

    @staticmethod
    def remove(marks: list[Path]) -> None:
        for mark in marks:
            mark.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Syncs a folder, so that the names in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
