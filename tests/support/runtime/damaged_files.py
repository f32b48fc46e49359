"""Stores as a kill -9 leaves them, with many small logs and tables, and ways to damage a file.

As a program (`DIRECTORY SEED`) this file writes to a store and kills itself, so that nothing tidies up after it.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import kshare_runtime.rocks_store as rocks_store
from kshare_runtime.confirmed_writes import ConfirmedWrites
from kshare_runtime.ports import Write
from kshare_runtime.rocks_store import RocksStore
from kshare_runtime.store_files import examine, read_log

FAMILIES = [f"state-{number}" for number in range(4)]
WRITES = 300
Content = dict[str, dict[bytes, bytes]]


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """In memory where that can be, because hundreds of stores are opened and the disk's fsync is not what is tested."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@contextmanager
def files_no_larger_than(limit_bytes: int) -> Iterator[None]:
    """A disk of this process that is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def newest_log(directory: Path) -> Path:
    """The only write-ahead log of a store in which anything is written."""
    (found,) = [file for file in directory.glob("*.log") if written_bytes(file)]
    return found


def note_up_to(directory: Path, sequence: int) -> None:
    """Notes what was confirmed; a kill in the middle of a write comes before its note."""
    confirmed = ConfirmedWrites(directory)
    confirmed.start()
    confirmed.note(sequence, 0)
    confirmed.close()


def flipped(data: bytes, place: int) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    changed[place] ^= 1 << place % 8
    return bytes(changed)


def cut_off(data: bytes, place: int) -> bytes:
    return data[:place]


def zeroed(data: bytes, place: int) -> bytes:
    """A sector of zeros."""
    return data[:place] + bytes(min(512, len(data) - place)) + data[place + 512 :]


def places_of(size: int, choices: random.Random, count: int) -> list[int]:
    """The first of `size` bytes, the last one, and `count` others."""
    return [0, size - 1, *[choices.randrange(size) for _ in range(count)]]


def written_bytes(file: Path) -> int:
    """How much of a file has content: a log may have reserved length behind its last write."""
    return read_log(file).end_bytes if file.suffix == ".log" else file.stat().st_size


def without_reserved_length(path: Path) -> Path:
    """The same store as a file system leaves it that cannot reserve length."""
    for log in path.glob("*.log"):
        os.truncate(log, written_bytes(log))
    return path


def needed_logs(path: Path) -> list[Path]:
    """Logs with writes that are not in tables yet; others may be there that RocksDB was about to remove."""
    files = examine(path)
    assert files is not None
    logs = [log for log in sorted(path.glob("*.log")) if int(log.stem) >= files.manifest.first_live_log]
    return [log for log in logs if written_bytes(log)]


def damageable_files(path: Path, pattern: str) -> list[Path]:
    """Files of a whole store that have content that matters, in order."""
    if pattern == "*.log":
        return needed_logs(path)
    return [file for file in sorted(path.glob(pattern)) if file.stat().st_size]


def content_of_files(path: Path) -> dict[str, bytes]:
    """All files of a store but the texts for people, by name."""
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith(("LOG", "LOCK"))}


def make_small_files() -> None:
    """Logs and tables of this process are begun often."""
    rocks_store.WRITE_BUFFER_BYTES = 64 * 1024
    rocks_store.WRITE_AHEAD_LOG_BYTES = 200_000


def random_writes(seed: int) -> list[list[Write]]:
    choices = random.Random(seed)
    return [
        [
            Write(
                choices.choice(FAMILIES),
                b"%04d" % choices.randrange(300),
                choices.randbytes(choices.randrange(800)) if choices.random() < 0.9 else None,
            )
            for _ in range(choices.randrange(1, 4))
        ]
        for _ in range(WRITES)
    ]


def killed_store(directory: Path) -> tuple[Path, Content]:
    """A store with more than one log that is needed, and what it must have."""
    path, content = directory / "killed", {family: dict[bytes, bytes]() for family in FAMILIES}
    for seed in range(30):
        kill_after_writes(path, seed)
        for family, key, value in chain.from_iterable(random_writes(seed)):
            content[family].pop(key, None)
            if value is not None:
                content[family][key] = value
        if seed and len(needed_logs(path)) > 1:
            return path, content
    raise AssertionError("no kill left more than one log")


def kill_after_writes(path: Path, seed: int) -> None:
    process = subprocess.run([sys.executable, __file__, str(path), str(seed)], check=False)
    assert process.returncode == -signal.SIGKILL


def damage_a_state_partition(node: Path) -> int:
    """Cuts one byte off a table of a stopped share coordinator; the number of the state partition it belongs to."""
    store = node / "share-coordinator"
    files = examine(store)
    assert files is not None
    family = next(family for family in files.manifest.families.values() if family.tables and "state" in family.name)
    table = store / f"{max(family.tables):06}.sst"
    table.write_bytes(table.read_bytes()[:-1])
    return int(family.name.removeprefix("state-"))


if __name__ == "__main__":
    make_small_files()
    opened = RocksStore(Path(sys.argv[1]), isolate_damage=True)
    for batch in random_writes(int(sys.argv[2])):
        opened.write(batch)
    os.kill(os.getpid(), signal.SIGKILL)
