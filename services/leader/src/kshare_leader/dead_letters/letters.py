"""Dead letters, and how a batch of them is built from Archiving records (KIP-1191).

A dead letter has headers with its record's position, as UTF-8 text, and null key and value. With
errors.deadletterqueue.copy.record.enable it has the record's key and value too, and the record's headers before these,
renamed where they could be taken for these (`dead_letter_headers`). Its timestamp is the time of the write, as in
Kafka: with the source's, retention of the dead-letter topic would remove dead letters of old records at once. A record
that cannot be copied (the log no longer has it, it cannot be opened, or its copy is larger than the dead-letter topic
allows) still gets a dead letter with its position. A read that fails is first repeated READ_ATTEMPTS times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kshare_core.dead_letter_headers import CONTEXT_PREFIX, copied_name
from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.dead_letters.limits import BATCH_LIMIT_RECORDS, OPENED_BATCH_LIMIT_BYTES
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.machine.transitions import ArchivingReason
from kshare_leader.ports import StoredBatch
from kshare_wire.record_reading import OpenedRecord, TooManyHeaders, open_window
from kshare_wire.record_writing import BatchWriter, Header

MESSAGE_OF_REASON = {
    ArchivingReason.REJECTED: "Offset rejected by client.",
    ArchivingReason.DELIVERY_COUNT_EXCEEDED: "Offset delivery count exceeded the threshold.",
}
"""Kafka's texts of `__dlq.errors.message` (ShareGroupDLQManager)."""

_NO_MORE_OFFSETS = 1 << 63


class OffsetRun(NamedTuple):
    """Offsets first..last."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of dead letters, as named in their headers."""

    group_id: str
    topic_name: str
    partition: int


class LetterBatch(NamedTuple):
    """A record batch whose records are the dead letters of `offsets`; `batch` is empty if there are none.

    `too_large` are offsets before the first of `offsets` whose dead letter is too large even without the copy.
    """

    batch: bytes
    offsets: list[OffsetRun]
    too_large: list[OffsetRun]


def context_headers(source: Source, run: ArchivingRun, offset: int) -> list[Header]:
    """The headers that every dead letter has, in Kafka's order."""
    texts = (
        ("topic", source.topic_name),
        ("partition", str(source.partition)),
        ("offset", str(offset)),
        ("group", source.group_id),
        ("delivery.count", str(run.delivery_count)),
        ("message", MESSAGE_OF_REASON[run.reason]),
    )
    return [(CONTEXT_PREFIX + name, text.encode()) for name, text in texts]


class ReadableLog(Protocol):
    """The part of a log (`ports.TopicLog`) that records are copied from."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    def read(self, fetch_offset: int, max_bytes: int) -> Sequence[StoredBatch]:
        """At least the batch with `fetch_offset`, or the next one after it; empty if there is none."""
        ...


class SourceRecords:
    """Single records of a log, by ascending offsets; a batch is opened once for BATCH_LIMIT_RECORDS of its records."""

    def __init__(self, log: ReadableLog, report: Callable[[str], None]) -> None:
        self._log = log
        self._report = report
        self._records: dict[int, OpenedRecord] = {}
        self._last_offset = -1
        self.failure: KafkaError | StorageFailure | None = None
        """Why the first record that could not be read was not; None where another read would not help."""
        self._has_reported = False

    def find(self, offset: int) -> OpenedRecord | None:
        """The record; None if the log does not have it or it cannot be read."""
        if offset > self._last_offset:
            self._open_next(offset)
        return self._records.get(offset)

    def _open_next(self, offset: int) -> None:
        self._records, self._last_offset = {}, offset
        try:
            batches = self._log.read(offset, 1)
            if not batches:
                self._last_offset = _NO_MORE_OFFSETS
                return
            batch = batches[0]
            self._last_offset = max(batch.last_offset, offset)
            self._records = self._opened(batch, offset)
            if self._records:  # the batch may have more
                self._last_offset = max(self._records)
        except (KafkaError, StorageFailure) as error:
            if self.failure is None:
                self.failure = error
            self._report_failure(offset, error)

    def _report_failure(self, offset: int, error: KafkaError | StorageFailure) -> None:
        """Logs only the first failure, because a failed disk fails for every offset."""
        if not self._has_reported:
            self._has_reported = True
            topic_id, partition = self._log.topic_partition
            place = f"offset {offset} of partition {topic_id_text(topic_id)}-{partition}"
            self._report(f"the record at {place} and possibly later records cannot be copied to dead letters: {error}")

    def _opened(self, batch: StoredBatch, offset: int) -> dict[int, OpenedRecord]:
        if batch.is_control:
            return {}
        try:
            opened = open_window(batch.data, offset, BATCH_LIMIT_RECORDS, limit_bytes=OPENED_BATCH_LIMIT_BYTES)
        except TooManyHeaders as error:  # later records of the batch can be opened
            self._last_offset = max(error.offset, offset)
            self._report_failure(offset, error)
            return {}
        except KafkaError as error:  # the log has checked the batch's bytes: they stay what they are
            self._report_failure(offset, error)
            return {}
        return {record.offset: record for record in opened}


def build_letters(
    source: Source,
    runs: Iterable[ArchivingRun],
    records: SourceRecords | None,
    *,
    now_ms: int,
    limit_bytes: int,
    limit_records: int = BATCH_LIMIT_RECORDS,
) -> LetterBatch:
    """As many dead letters of `runs` as fit into one batch, from the first on; without copies if `records` is None."""
    writer = BatchWriter(limit_bytes)
    offsets: list[OffsetRun] = []
    too_large: list[OffsetRun] = []
    for run in runs:
        for offset in range(run.first_offset, run.last_offset + 1):
            if writer.count == limit_records:
                return LetterBatch(writer.build(), offsets, too_large)
            headers = context_headers(source, run, offset)
            record = records.find(offset) if records is not None else None
            if not _append(writer, now_ms, headers, record):
                return LetterBatch(writer.build(), offsets, too_large)
            if writer.count == 1 and writer.size_bytes > limit_bytes:
                writer = BatchWriter(limit_bytes)
                _append(writer, now_ms, headers, None)
            if writer.count == 1 and writer.size_bytes > limit_bytes:
                writer = BatchWriter(limit_bytes)
                _add(too_large, offset)
            else:
                _add(offsets, offset)
    return LetterBatch(writer.build() if writer.count else b"", offsets, too_large)


def _append(writer: BatchWriter, now_ms: int, headers: list[Header], record: OpenedRecord | None) -> bool:
    if record is None:
        return writer.append(now_ms, None, None, headers)
    copied = [(copied_name(name), value) for name, value in record.headers]
    return writer.append(now_ms, record.key, record.value, [*copied, *headers])


def _add(runs: list[OffsetRun], offset: int) -> None:
    if runs and runs[-1].last_offset + 1 == offset:
        runs[-1] = OffsetRun(runs[-1].first_offset, offset)
    else:
        runs.append(OffsetRun(offset, offset))
