"""Batches that an older version stored without validation: finds out which of them consumers can read.

A share consumer that finds one malformed batch drops the whole range that it acquired, with the good batches of
other producers. So share groups never get a malformed batch: it is archived like offsets that compaction removed, and
reported.

Batches from `validated_from` on were validated when they were appended. That offset is the end of the log when this
version first opened it; it becomes durable with the next append. A batch below is checked when a share group first
reads it, large ones on a thread.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Sequence

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import KafkaError
from kshare_leader.log import keys
from kshare_leader.log.record_reader import RecordReader
from kshare_leader.ports import ReadableBatches, StoredBatch
from kshare_runtime.ports import KeyValueStore, Write
from kshare_wire.record_walks import OpenedBatch, check_structure

MARK = b"validated-from"
"""The suffix of the mark's key after the partition, in the family `positions`."""
CHECKED_BYTES = 1024 * 1024
"""Decompressed bytes that one read checks; the next read checks the rest."""
VERDICTS_LIMIT = 100_000
"""Batches of one log whose verdict is cached; the oldest verdict is evicted and computed again when needed."""

_OFFSET = struct.Struct(">q")


class OldBatches:
    """The unvalidated batches of one log. `on_found` is called when a batch was checked on the thread."""

    def __init__(
        self,
        store: KeyValueStore,
        prefix: bytes,
        end_offset: int,
        reader: RecordReader,
        *,
        on_found: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        """StorageFailure where the disk fails, struct.error where the mark is damaged."""
        self._key = prefix + MARK
        self._reader = reader
        self._on_found = on_found
        self._report = report
        value = store.get(keys.POSITIONS, self._key)
        self.validated_from: int = end_offset if value is None else _OFFSET.unpack(value)[0]
        self._is_marked = value is not None
        self._verdicts: dict[int, bool] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def writes(self) -> Iterator[Write]:
        """The write of `validated_from`, where it is not durable yet."""
        if not self._is_marked:
            yield Write(keys.POSITIONS, self._key, _OFFSET.pack(self.validated_from))

    def committed(self) -> None:
        self._is_marked = True

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        """See TopicLog."""
        found: list[StoredBatch] = []
        left_bytes = CHECKED_BYTES
        for batch in batches:
            verdict = True if batch.base_offset >= self.validated_from else self._verdicts.get(batch.base_offset)
            if verdict is None:
                if left_bytes <= 0:
                    return ReadableBatches(found, batch.base_offset)
                verdict, checked_bytes = self._check(batch)
                left_bytes -= checked_bytes
            if verdict is None:
                return ReadableBatches(found, batch.base_offset)
            if verdict:
                found.append(batch)
        return ReadableBatches(found, None)

    def _check(self, batch: StoredBatch) -> tuple[bool | None, int]:
        """Whether the batch can be read, None while the thread checks it; and the bytes that were checked here."""
        if batch.base_offset in self._tasks:
            return None, 0
        try:
            opened = self._reader.try_open(batch)
            if opened is not None:
                self._note(batch, _problem_of(opened))
                return self._verdicts[batch.base_offset], len(opened.records)
        except KafkaError as error:
            self._note(batch, error.message)
            return False, batch.length
        task = asyncio.get_running_loop().create_task(self._check_aside(batch), name="old-batch")
        self._tasks[batch.base_offset] = task
        return None, 0

    async def _check_aside(self, batch: StoredBatch) -> None:
        try:
            problem = await self._reader.aside.run(lambda: _problem_of(self._reader.open(batch)))
        except KafkaError as error:
            problem = error.message
        except Exception as bug:  # the next read has it checked again
            report_contained_bug(f"the check of the batch at offset {batch.base_offset} failed unexpectedly", bug)
            return
        finally:
            self._tasks.pop(batch.base_offset, None)
        self._note(batch, problem)
        self._on_found()

    def _note(self, batch: StoredBatch, problem: str) -> None:
        if len(self._verdicts) >= VERDICTS_LIMIT:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[batch.base_offset] = not problem
        if problem:
            self._report(
                f"offsets {batch.base_offset} to {batch.last_offset} are archived for share groups, because no "
                f"consumer can read their batch, which an older version stored: {problem}"
            )


def _problem_of(opened: OpenedBatch) -> str:
    """The reason why the batch cannot be read; empty where it can."""
    try:
        check_structure(opened)
    except KafkaError as error:
        return error.message
    return ""
