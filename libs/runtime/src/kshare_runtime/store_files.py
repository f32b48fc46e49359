"""The check of a RocksDB directory's files against each other, without RocksDB and before it changes anything.

RocksDB's manifest and write-ahead logs have one format: blocks of 32 KiB with fragments (masked crc32c, length, type,
payload) that make up records. A manifest's records are edits: which families exist, the tables of each with their
sizes, and the first log whose writes are not all in tables. A log's records are write batches, which begin with their
first sequence number and their count.

A log has zeros behind its last write where its length was reserved (`reserved_log`) and the process was killed. A write
torn by a power cut is then followed by zeros instead of the end of the file. RocksDB would take it for damage;
`without_torn_write` removes it. Any other error in a log is damage, because other writes follow it.

RocksDB alone takes damage for a crash in some places: a truncated log although another one follows, zeros within a log,
a missing log, or a missing end of a manifest. The sequence numbers reveal this: the logs that are still needed must
continue each other without a gap, from where the manifest ends to the newest write. `examine` compares them and names
what does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import SEEK_END, FileIO
from itertools import pairwise
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from kshare_core.errors import StorageFailure
from kshare_runtime.manifest import Manifest, UnknownEdit

CURRENT = "CURRENT"
BLOCK_BYTES = 32 * 1024
ZEROS_BYTES = 64 * 1024
"""A log that ends with so many zeros had its length reserved: a write never fills two whole blocks with zeros."""
_HEADER = Struct("<IHB")  # masked crc32c, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CUT_OFF, _ZEROS = -1, 0
_CRC_MASK_DELTA = 0xA282EAD8
_BATCH = Struct("<QI")  # first sequence number, count


class DamagedFile(Exception):
    """A manifest or log that cannot be as RocksDB wrote it; the text names the file and the place."""


@dataclass(slots=True)
class WriteAheadLog:
    """A write-ahead log with the writes `first_sequence` <= number < `next_sequence`; both None where it has none."""

    number: int
    first_sequence: int | None = None
    next_sequence: int | None = None
    is_empty: bool = False
    """Whether its file has no bytes."""
    is_cut_off: bool = False
    """Whether its last record is torn, as after a crash in the middle of a write."""
    end_bytes: int = 0
    """The end of its complete records."""
    has_torn_write: bool = False
    """Whether its torn record is followed by zeros and not by the end of the file."""


@dataclass(slots=True)
class StoreFiles:
    """The result of examining a directory."""

    manifest: Manifest
    newest_sequence: int
    """The number of the newest write that RocksDB will find."""
    damaged_families: dict[str, str] = field(default_factory=dict)
    """Families with a missing table or one of the wrong size, and the problem."""
    torn_logs: dict[Path, int] = field(default_factory=dict)
    """Logs that end with a torn write before zeros, and the end of their complete writes."""


def examine(directory: Path, noted_logs: Sequence[int] = ()) -> StoreFiles | None:
    """The state of the files, None where no store exists; DamagedFile, StorageFailure.

    `noted_logs` are numbers of logs that existed; each must still exist as long as the manifest needs it.
    """
    try:
        manifest_name = _manifest_name(directory)
        if manifest_name is None:
            return None
        manifest = _read_manifest(directory / manifest_name)
        logs = [read_log(path) for path in _live_logs(directory, manifest)]
        _check_first_log(manifest, logs, noted_logs)
        return StoreFiles(
            manifest=manifest,
            newest_sequence=_newest_sequence(manifest, logs),
            damaged_families=_damaged_families(directory, manifest),
            torn_logs={directory / f"{log.number:06}.log": log.end_bytes for log in logs if log.has_torn_write},
        )
    except OSError as error:
        raise StorageFailure(f"cannot read the store {directory}: {error}") from error


def log_numbers(directory: Path) -> list[int]:
    """The numbers of the existing logs."""
    return list(_log_paths(directory))


def _manifest_name(directory: Path) -> str | None:
    current = directory / CURRENT
    if not directory.exists():
        return None
    if not current.exists():
        left = [path.name for path in directory.iterdir() if path.name.startswith("MANIFEST-") or path.suffix == ".sst"]
        if left:
            raise DamagedFile(f"Corruption: {CURRENT} is missing, but the directory has files of a store: {left[0]} …")
        return None
    name = current.read_bytes()
    if not name.startswith(b"MANIFEST-") or not name[9:-1].isdigit() or not name.endswith(b"\n"):
        raise DamagedFile(f"Corruption: {CURRENT} does not name a manifest, it has {name[:60]!r}")
    if not (directory / name[:-1].decode()).exists():
        raise DamagedFile(f"Corruption: {name[:-1].decode()}, which {CURRENT} names, is missing")
    return name[:-1].decode()


def _read_manifest(path: Path) -> Manifest:
    manifest = Manifest()
    for place, _, record in _records(path):
        if record is None:  # an edit that RocksDB was writing at a crash; its writes are still in the logs
            break
        try:
            manifest.apply(record)
        except (UnknownEdit, IndexError) as error:
            raise DamagedFile(f"Corruption: {path.name} has an invalid edit at byte {place}: {error}") from None
    if not manifest.families:
        raise DamagedFile(f"Corruption: {path.name} has no families")
    return manifest


def _log_paths(directory: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in directory.glob("*.log") if path.stem.isdigit()}


def _live_logs(directory: Path, manifest: Manifest) -> list[Path]:
    """The logs with writes that are not in tables yet, in their order."""
    return [path for number, path in sorted(_log_paths(directory).items()) if number >= manifest.first_live_log]


def read_log(path: Path) -> WriteAheadLog:
    """Reads the extent of a log's writes; DamagedFile, OSError."""
    log = WriteAheadLog(int(path.stem), is_empty=path.stat().st_size == 0)
    for place, end, record in _records(path):
        if record is None:
            log.is_cut_off = True
            log.has_torn_write = _ends_with_zeros(path)
            break
        if len(record) < _BATCH.size:
            raise DamagedFile(f"Corruption: {path.name} has a write of {len(record)} bytes at byte {place}")
        sequence, count = _BATCH.unpack_from(record)
        if log.next_sequence is None:
            log.first_sequence = sequence
        elif sequence != log.next_sequence:
            raise DamagedFile(
                f"Corruption: {path.name} lacks the writes from number {log.next_sequence} to {sequence - 1}, "
                f"before byte {place}"
            )
        log.next_sequence = sequence + count
        log.end_bytes = end
    return log


def _check_first_log(manifest: Manifest, logs: list[WriteAheadLog], noted_logs: Sequence[int]) -> None:
    present = {log.number for log in logs}
    for number in noted_logs:
        if number >= manifest.first_live_log and number not in present:
            raise DamagedFile(f"Corruption: {number:06}.log is missing, but not all of its writes are in tables")
    first = next((log.first_sequence for log in logs if log.first_sequence is not None), None)
    if first is not None and first > manifest.last_sequence + 1:
        raise DamagedFile(
            f"Corruption: the writes from number {manifest.last_sequence + 1} to {first - 1} are in no log and no table"
        )


def _newest_sequence(manifest: Manifest, logs: list[WriteAheadLog]) -> int:
    """The number of the newest write; DamagedFile where one log does not continue the one before it."""
    # Logs without a byte at the end: one was begun just before a crash, or one for each flush that failed when a store
    # was closed that could not be written. The note of confirmed writes tells whether one of them had writes.
    written = list(logs)
    while written and written[-1].is_empty:
        written.pop()
    for log, following in pairwise(written):
        if following.first_sequence is None and following is written[-1]:
            continue  # its length was reserved, and then came the crash
        if log.is_cut_off or log.next_sequence is None or log.next_sequence != following.first_sequence:
            raise DamagedFile(
                f"Corruption: {log.number:06}.log was cut off: its writes end before number "
                f"{following.first_sequence}, with which {following.number:06}.log begins"
            )
    found = [log.next_sequence - 1 for log in logs if log.next_sequence is not None]
    return max([manifest.last_sequence, *found])


def _damaged_families(directory: Path, manifest: Manifest) -> dict[str, str]:
    damaged: dict[str, str] = {}
    for family in manifest.families.values():
        for number, size_bytes in family.tables.items():
            path = directory / f"{number:06}.sst"
            if not path.exists():
                damaged[family.name] = f"Corruption: its table {path.name} is missing"
            elif path.stat().st_size != size_bytes:
                found = path.stat().st_size
                damaged[family.name] = f"Corruption: its table {path.name} has {found} of {size_bytes} bytes"
    return damaged


def _records(path: Path) -> Iterator[tuple[int, int, bytes | None]]:
    """Places, ends and records; a last None where the file ends within a record, or a log's zeros begin within one.

    A log's records are cut to their head. DamagedFile where a checksum or a length is wrong elsewhere than at the end.
    """
    head_bytes = _BATCH.size if path.suffix == ".log" else None
    with path.open("rb", buffering=0) as file:
        started: int | None = None
        record = b""
        for place, kind, payload in _fragments(path, file):
            if kind == _ZEROS and started is None:
                continue
            if kind == _CUT_OFF or (kind in (_FULL, _FIRST, _ZEROS)) == (started is not None):
                if kind != _CUT_OFF and not _is_torn(path, place):
                    raise _damage(path.name, place, "has an incomplete record")
                started = place if started is None else started
                break
            if started is None:
                started, record = place, b""
            if head_bytes is None or len(record) < head_bytes:
                record += payload[:head_bytes]
            if kind in (_FULL, _LAST):
                yield started, place + _HEADER.size + len(payload), record
                started = None
        if started is not None:
            yield started, started, None


def _fragments(path: Path, file: FileIO) -> Iterator[tuple[int, int, memoryview]]:
    """Place, type and payload of each; (place, _CUT_OFF, nothing) at the end where bytes are left, and (place, _ZEROS,
    nothing) where a block has no more."""
    block_place = 0
    while block := file.read(BLOCK_BYTES):
        data = memoryview(block)
        place = 0
        while place + _HEADER.size <= len(data):
            crc, length, kind = _HEADER.unpack_from(data, place)
            end = place + _HEADER.size + length
            if crc == length == kind == 0:  # RocksDB skips to the next block; sequence numbers reveal a lost write
                yield block_place + place, _ZEROS, data[:0]
                break
            problem = _problem_of_fragment(data, place)
            is_at_end = end > len(data) and len(data) < BLOCK_BYTES
            if problem and (is_at_end or _is_torn(path, block_place + place)):
                yield block_place + place, _CUT_OFF, data[place:]
                return
            if problem:
                raise _damage(path.name, block_place + place, problem)
            yield block_place + place, kind, data[place + _HEADER.size : end]
            place = end
        if 0 < len(data) - place < _HEADER.size and len(data) < BLOCK_BYTES and any(data[place:]):
            yield block_place + place, _CUT_OFF, data[place:]
        block_place += len(data)


def _problem_of_fragment(data: memoryview, place: int) -> str | None:
    crc, length, kind = _HEADER.unpack_from(data, place)
    end = place + _HEADER.size + length
    if end > len(data) or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
        return f"has a fragment of type {kind} and {length} bytes"
    return None if _masked(crc32c(data[place + 6 : end])) == crc else "has a wrong checksum"


def _is_torn(path: Path, place: int) -> bool:
    """Whether an error at a place of a log is a torn last write: zeros end the log, and no other write begins."""
    if path.suffix != ".log" or not _ends_with_zeros(path):
        return False
    with path.open("rb", buffering=0) as file:
        file.seek(place - place % BLOCK_BYTES)
        start = place % BLOCK_BYTES + 1
        while block := file.read(BLOCK_BYTES):
            if _begins_a_write(memoryview(block), start):
                return False
            start = 0
    return True


def _ends_with_zeros(path: Path) -> bool:
    """Whether the log ends with ZEROS_BYTES zeros, too many for the end of a record: its length was reserved."""
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, SEEK_END)
        file.seek(max(0, size - ZEROS_BYTES))
        return size >= ZEROS_BYTES and not any(file.read(ZEROS_BYTES))


def _begins_a_write(data: memoryview, start: int) -> bool:
    """Whether anywhere from `start` on there is a whole fragment that begins a record."""
    if not any(data[start:]):
        return False
    return any(
        data[place + 6] in (_FULL, _FIRST) and _problem_of_fragment(data, place) is None
        for place in range(start, len(data) - _HEADER.size)
    )


def without_writes_after(directory: Path, newest_sequence: int) -> None:
    """Truncates each log where its first write with a higher number begins. DamagedFile, OSError."""
    for path in _log_paths(directory).values():
        for place, _, record in _records(path):
            if record is None:  # cut off already; opening the store deals with it
                break
            if _BATCH.unpack_from(record)[0] > newest_sequence:
                without_torn_write(path, place)
                break


def without_torn_write(path: Path, end_bytes: int) -> None:
    """Truncates a log after its complete writes. OSError."""
    with path.open("rb+", buffering=0) as file:
        file.truncate(end_bytes)
        os.fsync(file.fileno())


def _damage(name: str, place: int, what: str) -> DamagedFile:
    return DamagedFile(f"Corruption: {name} {what} at byte {place}")


def _masked(crc: int) -> int:
    """RocksDB's masked form of checksums of data that has checksums itself."""
    return (((crc >> 15) | (crc << 17)) + _CRC_MASK_DELTA) & 0xFFFFFFFF
