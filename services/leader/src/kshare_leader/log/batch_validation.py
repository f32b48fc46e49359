"""The validation of produced batches before they are appended: small ones at once, large ones on a thread, in order.

A batch of up to `inline_bytes` after decompression is validated on the event loop, which takes at most a few
milliseconds. A larger one goes to the thread, as does one of which more than a COMPRESSION_COST-th of that is to be
compressed anew, because the topic's compression.type is not its codec. Later batches of its partition, and markers of
transactions, wait behind it: batches of one partition are appended in order of arrival, as idempotent producers need.
Partitions take turns at the thread, so a partition with many large batches delays others by one batch at a time.

At most `queued_bytes_limit` of batches wait; more get KAFKA_STORAGE_ERROR, which producers retry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.aside import Aside
from kshare_leader.log.topic_settings import MAX_LONG, TopicSettings
from kshare_wire.compression import Codec, recompressed
from kshare_wire.decompression import DecompressesTooFar
from kshare_wire.record_batches import COMPRESSION_NAMES, BatchHeader, read_produced_batch
from kshare_wire.record_checks import RecordRules, check_records

DEFAULT_DECOMPRESSED_BYTES = 128 * 1024 * 1024
COMPRESSION_COST = 64
"""By how much fewer bytes are compressed on the event loop than are checked there: gzip takes 0.2 ms per KB at most."""
QUEUED_BYTES_LIMIT = 64 * 1024 * 1024


class CheckedBatch(NamedTuple):
    """A batch whose own bytes are valid. `newest_ms`: -1 where no record has a timestamp."""

    records: memoryview
    header: BatchHeader
    newest_ms: int


Outcome = CheckedBatch | Exception | None
"""None: there was no batch to validate."""


class ProducedBatch(NamedTuple):
    """A batch as a producer sent it, and the rules of its topic; `codec` is None where that keeps the producers'."""

    records: memoryview
    rules: RecordRules
    max_message_bytes: int
    codec: Codec | None = None

    def check(self, limit_bytes: int | None = None) -> CheckedBatch:
        """The batch as it is to be stored; KafkaError where it must not be.

        With a `limit_bytes` that the records exceed after decompression, DecompressesTooFar: nothing was decided.
        """
        header = read_produced_batch(self.records, self.max_message_bytes)
        records = self.records if len(self.records) == header.size else self.records[: header.size]
        is_recompressed = self.codec is not None and self.codec.compression != header.compression
        if is_recompressed and limit_bytes is not None:
            limit_bytes //= COMPRESSION_COST
            if len(records) > limit_bytes:
                raise DecompressesTooFar(f"{len(records)} bytes are too many to be compressed here")
        newest_ms = check_records(records, header, self.rules, limit_bytes)
        if is_recompressed:
            records, header = self._recompressed(records, header, cast(Codec, self.codec))
        return CheckedBatch(records, header, newest_ms)

    def _recompressed(self, batch: memoryview, header: BatchHeader, codec: Codec) -> tuple[memoryview, BatchHeader]:
        """After its records were checked; KafkaError where it becomes too large (as UnifiedLog.append)."""
        data, header = recompressed(batch, header, codec, self.rules.limit_bytes)
        if header.size > self.max_message_bytes:
            name = COMPRESSION_NAMES[codec.compression]
            text = (
                f"the record batch has {header.size} bytes with the topic's compression.type ({name}); "
                f"max.message.bytes allows {self.max_message_bytes}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return memoryview(data), header


def rules_of(
    settings: TopicSettings, partition: str, now_ms: int, limit_bytes: int = DEFAULT_DECOMPRESSED_BYTES
) -> RecordRules:
    """The rules that a topic with these settings has for records that are produced now."""
    return RecordRules(
        partition,
        settings.compacts,
        settings.log_append_time,
        now_ms - settings.timestamp_before_max_ms,
        min(now_ms + settings.timestamp_after_max_ms, MAX_LONG),
        limit_bytes,
    )


class _Waiting(NamedTuple):
    batch: ProducedBatch | None
    done: Callable[[Outcome], None]
    is_large: bool
    """The batch was found too large for the event loop; False also means not checked yet."""


class BatchValidation:
    """The queue of all batches of a node that wait for their validation."""

    def __init__(self, aside: Aside, *, inline_bytes: int, queued_bytes_limit: int = QUEUED_BYTES_LIMIT) -> None:
        self._aside = aside
        self._inline_bytes = inline_bytes
        self._queued_bytes_limit = queued_bytes_limit
        self._queued_bytes = 0
        self._lanes: dict[TopicPartition, deque[_Waiting]] = {}
        self._ready: deque[TopicPartition] = deque()
        """The partitions of `_lanes` in the order of their turns; the current one is first."""
        self._task: asyncio.Task[None] | None = None
        self.count = 0
        """The number of waiting batches and markers."""

    def submit(self, key: TopicPartition, batch: ProducedBatch | None, done: Callable[[Outcome], None]) -> None:
        """Calls `done` with the outcome, at once where the partition's queue is empty and the batch is small.

        A marker passes None as its batch and only keeps its place in the order.
        """
        lane = self._lanes.get(key)
        is_first = lane is None
        if is_first:
            finished, outcome = self._try_inline(batch)
            if finished:
                done(outcome)
                return
        size_bytes = 0 if batch is None else len(batch.records)
        if self._queued_bytes + size_bytes > self._queued_bytes_limit and self._queued_bytes:
            text = f"more than {self._queued_bytes_limit} bytes of batches are waiting to be validated"
            done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text))
            return
        self._queued_bytes += size_bytes
        self.count += 1
        if lane is None:
            lane = self._lanes[key] = deque()
            self._ready.append(key)
        lane.append(_Waiting(batch, done, is_first))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="batch-validation")

    def close(self, error: Exception) -> None:
        """Fails all waiting batches with `error`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        lanes, self._lanes = self._lanes, {}
        self._ready.clear()
        self._queued_bytes = self.count = 0
        for lane in lanes.values():
            for waiting in lane:
                waiting.done(error)
        self._aside.close()

    def _try_inline(self, batch: ProducedBatch | None) -> tuple[bool, Outcome]:
        """Whether the outcome is known already, and the outcome."""
        if batch is None:
            return True, None
        if len(batch.records) > self._inline_bytes:
            return False, None
        try:
            return True, batch.check(min(self._inline_bytes, batch.rules.limit_bytes))
        except DecompressesTooFar:
            return False, None
        except KafkaError as refusal:
            # Its traceback holds the caller's frame, and that one the Future which gets the refusal.
            return True, refusal.with_traceback(None)
        except Exception as error:  # bad input or a bug ends this append only
            return True, error

    async def _run(self) -> None:
        try:
            while self._ready:
                key = self._ready[0]
                await self._take_one(self._lanes[key])
                self._ready.popleft()
                if self._lanes[key]:
                    self._ready.append(key)
                else:
                    del self._lanes[key]
        finally:
            self._task = None

    async def _take_one(self, lane: deque[_Waiting]) -> None:
        waiting = lane[0]
        finished, outcome = (False, None) if waiting.is_large else self._try_inline(waiting.batch)
        if finished:
            await asyncio.sleep(0)
        else:
            assert waiting.batch is not None
            try:
                outcome = await self._aside.run(waiting.batch.check)
            except Exception as error:
                outcome = error
        lane.popleft()
        self.count -= 1
        self._queued_bytes -= 0 if waiting.batch is None else len(waiting.batch.records)
        waiting.done(outcome)
