"""A KeyValueStore on RocksDB (rocksdict): one directory, one column family for each family, one writer.

**Durability.** Every write is one WriteBatch with fsync of the write-ahead log: when `write` returns, a power cut loses
none of it. `begin_write` returns before the fsync, which then runs beside the event loop (`begun_writes`). At open, a
torn record at the end of the log (a write that was never confirmed) is dropped. Damage anywhere else in manifest and
logs (`store_files`), or the loss of a confirmed write (`confirmed_writes`), makes the open fail before anything is
changed, because otherwise synced data would be lost silently.

A damaged table makes the open fail too, or, with `isolate_damage`, only the reads of its family, so that independent
families stay available. RocksDB's `paranoid_checks` are off then, because they would end all writes for one damaged
table; their checks of manifest and logs are done here.

After a failed write RocksDB takes no more writes until it is reopened; reads continue. `mend` reopens it once the disk
takes writes. Before that it truncates the log after the newest confirmed write, so that a write which was answered as
failed is not found then. Only after a crash of the process in between may the failed write be found, if all of it had
reached the log. Where only the fsync of a begun write failed, RocksDB shows the write, so nothing is read either until
the store is mended.

**Memory** is bounded for 50 families and more: small arenas, one budget for all write buffers, one block cache
(`StoreMemory`), and a limit on the log, which makes idle families flush. Write buffers and block cache are held memory:
asked to shrink, the store flushes large write buffers and evicts blocks. Values stay in the tables: blob files measured
no quicker (the log's fsync decides), and need more processor time for a scan.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from kshare_core.errors import DamagedFamily, StorageFailure
from kshare_runtime.background_sync import BackgroundSync, background_sync
from kshare_runtime.begun_writes import BegunWrites
from kshare_runtime.confirmed_writes import ConfirmedWrites
from kshare_runtime.held_memory import HeldCache, HeldMemory
from kshare_runtime.ports import DEFAULT_STORE_MEMORY, KeyRange, StoreFigures, StoreMemory, Write
from kshare_runtime.reserved_log import ReservedLog
from kshare_runtime.store_files import DamagedFile, StoreFiles, examine, without_torn_write, without_writes_after

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""The most that the write buffer of one family takes; at most half of all write buffers."""
SMALL_MEMTABLE_BYTES = 1024 * 1024
"""A family with less in memory is not flushed to give memory back: it would leave a tiny table each time."""
MENDING_BYTES = 8 * 1024 * 1024
"""Free bytes, besides the write buffers, that reopening a store requires: for logs, manifest, and new writes."""
ARENA_BLOCK_BYTES = 256 * 1024
MERGED_TABLES, SLOWED_AT_TABLES, STOPPED_AT_TABLES = 16, 40, 60
"""How many tables of flushed write buffers are merged, and how many slow or stop writes. With RocksDB's 4, 20 and 36,
each byte of logs of several partitions was written 4.3 times, with 2.9 s of processor time for a gigabyte; with 16, 3.2
times with 2.2 s. A read looks into each of them, which measured the same."""
WRITE_AHEAD_LOG_BYTES = 256 * 1024 * 1024
OPEN_FILES_LIMIT = 512
PRIVATE = 0o700
"""The mode of a new directory: records, credentials and keys are in it."""
INFO_LOG_BYTES = 4 * 1024 * 1024
INFO_LOG_COUNT = 2

_OWN_FAMILY = "default"
_MEMTABLE_BYTES = "rocksdb.cur-size-all-mem-tables"


class RocksStore:
    """A KeyValueStore in the directory `path`, which is created with its parents when it is missing.

    Raises StorageFailure where the directory cannot be opened: another process has it open, it is damaged, or the disk
    fails; the text says which and what to do.

    `isolate_damage`: see the module's docstring. `read_only` needs an existing store and changes nothing of it; no
    process may have it open for writing meanwhile. `new_sync` makes what syncs begun writes beside an event loop.
    """

    def __init__(
        self,
        path: Path,
        *,
        isolate_damage: bool = False,
        read_only: bool = False,
        new_sync: Callable[[asyncio.AbstractEventLoop], BackgroundSync] = background_sync,
        memory: StoreMemory = DEFAULT_STORE_MEMORY,
        held_memory: HeldMemory | None = None,
    ) -> None:
        self._path = path
        self._new_sync = new_sync
        self._isolate_damage = isolate_damage
        self._read_only = read_only
        self._damaged: dict[str, str] = {}
        self._write_failure: str | None = None
        self._confirmed_sequence = 0
        """The number of the newest confirmed write; `_confirmed` may have an older one."""
        self._is_closed = False
        """Whether `close` was called."""
        self._is_mendable = True
        self._times_mended = 0
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self._memory = memory
        self._cache = Cache(memory.block_cache_bytes)
        self._write_options = WriteOptions()
        self._write_options.sync = True
        self._unsynced_options = WriteOptions()
        self._unsynced_options.sync = False
        self._shows_failed_write = False
        """Whether RocksDB has a write in memory that was answered as failed."""
        # Weak: an abandoned scan is freed with its iterator, which pins files and memory.
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._open = False
        self._open_all()
        self._end_holding = [] if held_memory is None else [held_memory.add(cache) for cache in self._held_caches()]

    def _open_all(self) -> None:
        path = self._path
        self._damaged = {}
        try:
            if not self._read_only:
                path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            self._confirmed = ConfirmedWrites(path)
            self._reserved = ReservedLog(path)
            self._begun = BegunWrites(
                path, sync_by_database=self._sync_by_database, note=self._note, new_sync=self._new_sync
            )
            self._check_files()
            self._database, self._families = self._open_database()
            if not self._read_only:
                self._confirmed.start()
                # The recovered writes are in tables now, and the manifest was synced.
                self._confirmed.note(self._database.latest_sequence_number(), self._confirmed.manifest_bytes())
        except StorageFailure:
            self._let_go()
            raise
        except Exception as error:  # rocksdict raises plain Exception
            self._let_go()
            raise StorageFailure(f"cannot open the store {path}: {error}. {_advice(str(error))}") from error
        if self._write_failure is None:
            self._confirmed_sequence = self._database.latest_sequence_number()
        self._handles = {name: self._database.get_column_family_handle(name) for name in self._families}
        self._open = True
        for family in self._families if self._isolate_damage else ():
            self._look_at(family)

    def get(self, family: str, key: bytes) -> bytes | None:
        column_family = self._family(family)
        if column_family is None:
            return None
        try:
            value: bytes | None = column_family.get(key)
        except Exception as error:
            raise self._read_failure(family, error) from error
        return value

    def scan(
        self, family: str, start: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        column_family = self._family(family)
        if column_family is None or (end is not None and end <= start):
            return iter(())
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        try:
            cursor = column_family.iter(options)
            if reverse:
                cursor.seek_to_last()
            else:
                cursor.seek(start)
        except Exception as error:
            raise self._read_failure(family, error) from error
        # rocksdict 0.3.29 sets the upper bound when asked for a lower one, so the scan itself looks for the start.
        scan = _Scan(self, family, cursor, options, lowest=start if reverse else None)
        self._scans.add(scan)
        return scan

    def write(self, writes: Sequence[Write]) -> None:
        batch = self._batch_of(writes)
        self._begun.settle()
        try:
            self._write(batch)
        except StorageFailure:
            raise
        except Exception as error:
            raise self._failure("write", error) from error

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        batch = self._batch_of(writes)
        try:
            manifest_bytes = self._put(batch, self._unsynced_options)
        except StorageFailure:
            raise
        except Exception as error:
            raise self._failure("write", error) from error
        sequence = self._database.latest_sequence_number()
        self._begun.add(sequence, manifest_bytes, self._confirmed.listed_logs(), done)

    def finish_writes(self) -> None:
        self._begun.finish()

    def _batch_of(self, writes: Sequence[Write]) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        handle: ColumnFamily | None = None
        try:
            for family, key, value in writes:
                handle = self._handles.get(family) or self._create(family)
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
            self._check_open()
        except (StorageFailure, ValueError):
            raise
        except Exception as error:
            raise self._failure("write", error) from error
        finally:
            handle = None  # an error's traceback would keep the database open as long as the error is referenced
        return batch

    def delete_range(self, family: str, start: bytes, end: bytes) -> None:
        self.delete_ranges([KeyRange(family, start, end)])

    def delete_ranges(self, ranges: Sequence[KeyRange]) -> None:
        self._check_open()
        batch = WriteBatch(raw_mode=True)
        handle: ColumnFamily | None = None
        try:
            for family, start, end in ranges:
                handle = self._handles.get(family)
                if handle is not None and start < end:
                    batch.delete_range(start, end, handle)
            if batch.is_empty():
                return
            self._begun.settle()
            self._write(batch)
        except StorageFailure:
            raise
        except Exception as error:
            raise self._failure("write", error) from error
        finally:
            handle = None

    def families(self) -> list[str]:
        self._check_open()
        return sorted(self._families)

    def figures(self) -> StoreFigures | None:
        """See FiguredStore."""
        if self._is_closed:
            return None
        if not self._open:
            return StoreFigures(0, 0, 0, 0, 0, 0, 0, refuses_writes=1, times_mended=self._times_mended)
        parts = [self._database, *self._families.values()]
        return StoreFigures(
            memtable_bytes=_sum_of(parts, _MEMTABLE_BYTES),
            table_bytes=_sum_of(parts, "rocksdb.total-sst-files-size"),
            pending_compaction_bytes=_sum_of(parts, "rocksdb.estimate-pending-compaction-bytes"),
            block_cache_bytes=_sum_of([self._database], "rocksdb.block-cache-usage"),
            running_compactions=_sum_of([self._database], "rocksdb.num-running-compactions"),
            running_flushes=_sum_of([self._database], "rocksdb.num-running-flushes"),
            background_errors=_sum_of([self._database], "rocksdb.background-errors"),
            refuses_writes=int(self._write_failure is not None),
            times_mended=self._times_mended,
        )

    def _held_caches(self) -> tuple[HeldCache, HeldCache]:
        return (
            HeldCache(
                name="memtables",
                limit_bytes=self._memory.memtable_bytes,
                used_bytes=self._memtable_bytes,
                shrink=self._shrink_memtables,
            ),
            HeldCache(
                name="block_cache",
                limit_bytes=self._memory.block_cache_bytes,
                used_bytes=self._cache.get_usage,
                shrink=self._shrink_block_cache,
            ),
        )

    def _memtable_bytes(self) -> int:
        return _sum_of([self._database, *self._families.values()], _MEMTABLE_BYTES) if self._open else 0

    def _shrink_memtables(self, size_bytes: int) -> None:
        """Starts flushes of the largest write buffers until at most `size_bytes` will be left, and returns at once."""
        if not self._open or self._read_only or self._write_failure is not None:
            return
        sizes = {name: _sum_of([family], _MEMTABLE_BYTES) for name, family in self._families.items()}
        excess = sum(sizes.values()) - size_bytes
        for name in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if excess <= 0 or sizes[name] < SMALL_MEMTABLE_BYTES:
                return
            with suppress(Exception):  # a disk that fails is found by the next write
                self._families[name].flush(False)
            excess -= sizes[name]

    def _shrink_block_cache(self, size_bytes: int) -> None:
        """Evicts blocks; those in use stay."""
        self._cache.set_capacity(min(size_bytes, self._memory.block_cache_bytes))
        self._cache.set_capacity(self._memory.block_cache_bytes)

    @property
    def path(self) -> Path:
        """The directory."""
        return self._path

    def damaged_families(self) -> Mapping[str, str]:
        """Families that cannot be read until they are dropped, with the error; only with `isolate_damage`."""
        return self._damaged

    def sync_confirmed(self) -> None:
        """Makes the note of confirmed writes durable, which no write waits for; see `confirmed_writes`."""
        if self._write_failure is None:
            self._check_open()
            self._confirmed.sync()

    def drop_family(self, family: str) -> None:
        """Removes a family with all its data, damaged or not."""
        self._check_open()
        if family not in self._families:
            return
        try:
            self._handles.pop(family)
            self._families.pop(family).close()
            self._database.drop_column_family(family)
        except Exception as error:
            raise self._write_failed(error) from error
        self._damaged.pop(family, None)

    def checkpoint(self, directory: Path) -> None:
        """Copies the store's current state to a directory on the same file system, which must not exist yet.

        The copy costs no space as long as its tables are used here too. Blocks until it is done.
        """
        self._check_open()
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._database).create_checkpoint(str(directory))
            copied = ConfirmedWrites(directory)
            copied.start()
            copied.note(self._database.latest_sequence_number(), copied.manifest_bytes())
            copied.close()
            # RocksDB began new logs for the checkpoint.
            self._confirmed.note(self._database.latest_sequence_number(), self._confirmed.manifest_bytes())
        except Exception as error:
            raise StorageFailure(f"cannot copy the store {self._path} to {directory}: {error}") from error

    def close(self) -> None:
        """Closes the database and unlocks its directory; unfinished scans end with StorageFailure."""
        if self._open:
            self._begun.finish()
        self._is_closed = True
        for end in self._end_holding:
            end()
        self._close_all()
        if self._write_failure is not None:
            with suppress(DamagedFile, OSError):  # it may be there at the next open, as after a crash
                without_writes_after(self._path, self._confirmed_sequence)
            self._write_failure = None

    @property
    def write_failure(self) -> str | None:
        """See MendableStore."""
        return self._write_failure

    def mend(self) -> bool:
        """See MendableStore. Blocks while it writes the write buffers and opens the store."""
        if self._write_failure is None:
            return not self._is_closed
        if self._is_closed or not self._is_mendable or not self.takes_writes():
            return False
        if self._open:
            self._begun.finish()
        self._close_all()
        self._shows_failed_write = False
        gc.collect()  # tracebacks of earlier errors may hold parts of the database, and its directory stays locked then
        confirmed = self._confirmed_sequence
        try:
            without_writes_after(self._path, confirmed)
        except (DamagedFile, OSError) as error:
            raise self._failure("open", error) from error
        self._open_all()
        newest = self._database.latest_sequence_number()
        if newest != confirmed:
            self._is_mendable = False
            self._shows_failed_write = newest > confirmed
            self._write_failure += (
                f"; write {newest} is the newest in its files, but {confirmed} is the newest that was confirmed, so "
                "the process must be started again"
            )
            return False
        self._write_failure = None
        self._times_mended += 1
        return True

    def takes_writes(self) -> bool:
        """Whether the disk takes a file as large as what reopening the store writes."""
        figures = self.figures()
        size_bytes = MENDING_BYTES + (figures.memtable_bytes if figures else 0)
        path = self._path / "probe"
        try:
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
                else:
                    file.write(bytes(size_bytes))
                file.write(b"probe")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        finally:
            with suppress(OSError):
                path.unlink()
        return True

    def _close_all(self) -> None:
        if not self._open:
            return
        self._open = False
        for scan in list(self._scans):
            scan.drop()
        self._let_go()

    def _let_go(self) -> None:
        """Closes all open parts of the database, also where it could not be opened as a whole."""
        self._handles.clear()
        # The directory stays locked as long as anything of the database is alive, so all of it goes. A close
        # also flushes, which fails after a failed write and is no loss: confirmed writes are in the log, read at open.
        for family in self._families.values():
            with suppress(Exception):
                family.close()
        self._families.clear()
        if hasattr(self, "_database"):
            with suppress(Exception):
                self._database.close()
            del self._database
        with suppress(AttributeError):  # the directory could not even be looked at
            self._confirmed.close()
            self._reserved.close()
            self._begun.close()

    @property
    def open_scans(self) -> int:
        """The number of scans that still hold files and memory."""
        return len(self._scans)

    def scan_ended(self, scan: _Scan) -> None:
        """Called by a scan that has ended."""
        self._scans.discard(scan)

    def read_failed(self, family: str, error: Exception) -> StorageFailure:
        """The error that a scan raises for an error of RocksDB."""
        return self._read_failure(family, error)

    def _write(self, batch: WriteBatch) -> None:
        manifest_bytes = self._put(batch, self._write_options)
        self._note(self._database.latest_sequence_number(), manifest_bytes)

    def _put(self, batch: WriteBatch, options: WriteOptions) -> int:
        """Gives a batch to RocksDB; the length of the manifest before."""
        if self._write_failure is not None:
            raise StorageFailure(
                f"cannot write the store {self._path}: an earlier write failed ({self._write_failure}); it is "
                "reopened when its disk accepts writes again"
            )
        manifest_bytes = self._confirmed.manifest_bytes()
        self._reserved.before_write(self._confirmed.logs, batch.size_in_bytes())
        try:
            self._database.write(batch, options)
        except Exception as error:
            raise self._write_failed(error) from error
        return manifest_bytes

    def _note(self, sequence: int, manifest_bytes: int) -> None:
        """Notes a durable write; an older one than the newest that is noted changes nothing."""
        if sequence > self._confirmed_sequence:
            self._confirmed_sequence = sequence
            self._confirmed.note(sequence, manifest_bytes)

    def _sync_by_database(self) -> None:
        try:
            self._database.flush_wal(True)
        except Exception as error:
            self._shows_failed_write = True
            raise self._write_failed(error) from error

    def _check_files(self) -> None:
        """StorageFailure where manifest and logs do not have all confirmed writes."""
        try:
            problem = self._confirmed.problem_before_open()
            files = None if problem else examine(self._path, self._confirmed.logs)
        except DamagedFile as damage:
            problem, files = str(damage), None
        if files is not None:
            problem = self._confirmed.problem_of_newest(files.newest_sequence)
            self._damaged = files.damaged_families
        elif problem is None:
            problem = self._confirmed.problem_of_newest(0)
            if self._read_only:
                raise StorageFailure(f"{self._path} does not contain a store")
        if problem is None and self._damaged and not self._isolate_damage:
            family, damage_text = next(iter(self._damaged.items()))
            problem = f"{damage_text} (it belongs to {family})"
        if problem is None:
            self._drop_torn_writes(files)
            return
        if not self._read_only and is_open_elsewhere(self._path):  # files that another process writes are not checked
            problem = "lock hold by another process"
        raise StorageFailure(f"cannot open the store {self._path}: {problem}. {_advice(problem)}")

    def _drop_torn_writes(self, files: StoreFiles | None) -> None:
        """Removes unconfirmed, torn writes from the ends of logs, which RocksDB would take for damage."""
        if files is None or not files.torn_logs or is_open_elsewhere(self._path):
            return
        if self._read_only:
            path = next(iter(files.torn_logs))
            raise StorageFailure(
                f"cannot read the store {self._path}: {path.name} ends with a write that a power cut interrupted. "
                "Start the service that it belongs to once, which takes it away"
            )
        for path, end_bytes in files.torn_logs.items():
            without_torn_write(path, end_bytes)

    def _open_database(self) -> tuple[Rdict, dict[str, Rdict]]:
        path, options = str(self._path), self._options()
        present = Rdict.list_cf(path, options) if (self._path / "CURRENT").exists() else []
        names = sorted(name for name in present if name != _OWN_FAMILY)
        access = AccessType.read_only(False) if self._read_only else AccessType.read_write()
        database = Rdict(path, options, {name: self._options() for name in names}, access)
        return database, {name: database.get_column_family(name) for name in names}

    def _look_at(self, family: str) -> None:
        """Opens the family's first tables, to detect damage to their index early; keeps a damaged family as it is.

        RocksDB would try without end to merge tables that it cannot read.
        """
        if family not in self._damaged:
            with suppress(StorageFailure):
                next(iter(self.scan(family, b"")), None)
        if family in self._damaged and not self._read_only:
            self._families[family].set_options({"disable_auto_compactions": "true"})

    def _read_failure(self, family: str, error: Exception) -> StorageFailure:
        text = str(error)
        if self._isolate_damage and "Corruption" in text:
            self._damaged.setdefault(family, text)
            return DamagedFamily(family, self._failure("read", error).args[0])
        return self._failure("read", error)

    def _create(self, family: str) -> ColumnFamily:
        self._check_open()
        if not family or family == _OWN_FAMILY:
            raise ValueError(f"{family!r} is not a valid family name: it must not be empty or {_OWN_FAMILY!r}")
        try:
            self._families[family] = self._database.create_column_family(family, self._options())
        except Exception as error:
            raise self._write_failed(error) from error
        handle = self._handles[family] = self._database.get_column_family_handle(family)
        return handle

    def _family(self, family: str) -> Rdict | None:
        self._check_open()
        if family in self._damaged:
            raise DamagedFamily(family, f"cannot read {family} of the store {self._path}: {self._damaged[family]}")
        return self._families.get(family)

    def _check_open(self) -> None:
        if not self._open:
            text = "is closed" if self._is_closed else "could not be reopened after a failed write"
            raise StorageFailure(f"the store {self._path} {text}")
        if self._shows_failed_write:
            text = f"the store {self._path} cannot be read until it is reopened after a failed write"
            raise StorageFailure(f"{text} ({self._write_failure})")

    def _write_failed(self, error: Exception) -> StorageFailure:
        """The error of a failed write; notes that no other write is taken until `mend`."""
        self._write_failure = self._write_failure or str(error)
        return self._failure("write", error)

    def _failure(self, verb: str, error: Exception) -> StorageFailure:
        return StorageFailure(f"cannot {verb} the store {self._path}: {error}")

    def _options(self) -> Options:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(not self._isolate_damage)
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_write_buffer_size(min(WRITE_BUFFER_BYTES, self._memory.memtable_bytes // 2))
        options.set_db_write_buffer_size(self._memory.memtable_bytes)
        options.set_arena_block_size(ARENA_BLOCK_BYTES)
        options.set_max_total_wal_size(WRITE_AHEAD_LOG_BYTES)
        options.set_level_zero_file_num_compaction_trigger(MERGED_TABLES)
        options.set_level_zero_slowdown_writes_trigger(SLOWED_AT_TABLES)
        options.set_level_zero_stop_writes_trigger(STOPPED_AT_TABLES)
        options.set_max_open_files(OPEN_FILES_LIMIT)
        options.set_max_log_file_size(INFO_LOG_BYTES)
        options.set_keep_log_file_num(INFO_LOG_COUNT)
        # Record batches come compressed by their producer or not at all; state values are small.
        options.set_compression_type(DBCompressionType.none())
        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_bloom_filter(10, False)
        options.set_block_based_table_factory(tables)
        return options


class _Scan:
    """The pairs of a range, one at a time; a broken block raises StorageFailure instead of ending the range early.

    Goes down to the key `lowest` where that is given, otherwise up to the cursor's bound. The cursor stands on the pair
    that was returned last, because a move reads the next pair's block from the disk, and many callers end before that.
    """

    def __init__(
        self, store: RocksStore, family: str, cursor: RdictIter, options: ReadOptions, *, lowest: bytes | None
    ) -> None:
        self._store = store
        self._family = family
        self._cursor: RdictIter | None = cursor
        # The bound's bytes belong to the options; rocksdict 0.3.29 frees them with it although the cursor reads them.
        self._options = options
        self._lowest = lowest
        self._has_begun = False
        self._dropped = False

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        cursor = self._cursor
        if cursor is None:
            if self._dropped:
                raise StorageFailure("the store was closed while it was scanned")
            raise StopIteration
        try:
            pair = self._take(cursor)
        except Exception as error:
            self._end()
            raise self._store.read_failed(self._family, error) from error
        if pair is None:
            self._end()
            raise StopIteration
        return pair

    def _take(self, cursor: RdictIter) -> tuple[bytes, bytes] | None:
        if not self._has_begun:
            self._has_begun = True
        elif self._lowest is None:
            cursor.next()
        else:
            cursor.prev()
        if not cursor.valid():
            cursor.status()
            return None
        key = cursor.key()
        if self._lowest is not None and key < self._lowest:
            return None
        return key, cursor.value()

    def drop(self) -> None:
        """Releases the database, which is being closed."""
        self._dropped = True
        self._end()

    def _end(self) -> None:
        self._cursor = None
        self._store.scan_ended(self)


def _sum_of(parts: Iterable[Rdict], figure: str) -> int:
    """The sum of a RocksDB property over column families; unknown values count as nothing."""
    return sum(part.property_int_value(figure) or 0 for part in parts)


def is_open_elsewhere(path: Path) -> bool:
    """Whether another process has the store open."""
    try:
        with (path / "LOCK").open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _advice(error: str) -> str:
    """The operator's remedy for an error at open."""
    if "were confirmed up to" in error:
        return "Nothing was changed"
    if "Corruption" in error:
        return (
            "Its files are damaged; nothing was changed. Restore the directory from a copy, or move it away to start "
            "with an empty store (all that it held is then lost)"
        )
    if "lock hold" in error or "LOCK" in error:
        return "Another process has it open: stop that process, or use another data directory"
    if "No space" in error:
        return "Free some space on the disk and start again"
    return "Check that the directory exists on a healthy disk and that this user may write there"
