"""The format of a dead letter: its headers, copied fields, how many fit into a batch, and records without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kshare_core.dead_letter_headers import source_name
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_core.leader_epochs import EpochEntry
from kshare_leader.dead_letters.letters import LetterBatch, OffsetRun, Source, SourceRecords, build_letters
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.machine.transitions import ArchivingReason
from kshare_leader.ports import AbortedTransaction, ReadableBatches, StoredBatch, TimestampOffset
from kshare_wire.record_batches import patch, read_produced_batch
from kshare_wire.record_reading import HEADERS_LIMIT, OpenedRecord, open_records
from kshare_wire.record_writing import BatchWriter, Header
from support.wire.record_building import build_batch

SOURCE = Source(group_id="gruppe-ä", topic_name="orders", partition=3)
NOW_MS = 1_700_000_000_000
LARGE = 1 << 20
REJECTED, EXCEEDED = ArchivingReason.REJECTED, ArchivingReason.DELIVERY_COUNT_EXCEEDED
Record = tuple[bytes | None, bytes | None, list[Header]]


class LogOfBatches:
    """A TopicLog of the batches that a test gives it."""

    topic_partition = TopicPartition(bytes(16), 3)
    log_start_offset = 0
    validated_from = 0
    leader_epochs: Sequence[EpochEntry] = ()

    def encoded_leader_epochs(self) -> bytes:
        raise AssertionError("dead letters do not ask for leader epochs")

    def __init__(self, *batches: StoredBatch) -> None:
        self.batches = batches
        self.reads = 0
        self.fails = False

    @property
    def high_watermark(self) -> int:
        return self.batches[-1].last_offset + 1

    last_stable_offset = high_watermark

    def read(self, fetch_offset: int, max_bytes: int, *, read_committed: bool = False) -> list[StoredBatch]:
        if self.fails:
            raise StorageFailure("the disk is gone")
        self.reads += 1
        return [batch for batch in self.batches if batch.last_offset >= fetch_offset][:1]

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        raise AssertionError("dead letters are of records that were delivered")

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        raise AssertionError("dead letters do not ask for transactions")

    has_brokers_epochs = False

    async def diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        raise AssertionError("dead letters are of records that the log has")

    async def refresh(self) -> None:
        raise AssertionError("dead letters are of records that the log has")

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        raise AssertionError("dead letters do not look up times")

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        raise AssertionError("dead letters do not wait for appends")


def stored(base_offset: int, *records: Record, is_control: bool = False) -> StoredBatch:
    writer = BatchWriter(LARGE)
    for index, (key, value, headers) in enumerate(records):
        assert writer.append(1000 + index, key, value, headers)
    return StoredBatch(base_offset, base_offset + len(records) - 1, patch(writer.build(), base_offset, 7), is_control)


def build(
    runs: Sequence[ArchivingRun],
    log: LogOfBatches | None = None,
    *,
    limit_bytes: int = LARGE,
    limit_records: int = 1000,
) -> tuple[LetterBatch, list[OpenedRecord], list[str]]:
    reports: list[str] = []
    records = None if log is None else SourceRecords(log, reports.append)
    batch = build_letters(SOURCE, runs, records, now_ms=NOW_MS, limit_bytes=limit_bytes, limit_records=limit_records)
    if not batch.batch:
        return batch, [], reports
    header = read_produced_batch(memoryview(batch.batch))
    assert header.record_count == sum(last - first + 1 for first, last in batch.offsets)
    return batch, list(open_records(batch.batch)), reports


def header_values(record: OpenedRecord) -> list[tuple[str, str]]:
    return [(name, (value or b"").decode()) for name, value in record.headers]


def test_without_copy_a_dead_letter_says_only_where_the_record_lies() -> None:
    batch, letters, _ = build([ArchivingRun(41, 42, 1, REJECTED), ArchivingRun(50, 50, 5, EXCEEDED)])
    assert batch.offsets == [OffsetRun(41, 42), OffsetRun(50, 50)]
    assert batch.too_large == []
    assert [(letter.key, letter.value, letter.timestamp_ms) for letter in letters] == [(None, None, NOW_MS)] * 3
    assert header_values(letters[1]) == [
        ("__dlq.errors.topic", "orders"),
        ("__dlq.errors.partition", "3"),
        ("__dlq.errors.offset", "42"),
        ("__dlq.errors.group", "gruppe-ä"),
        ("__dlq.errors.delivery.count", "1"),
        ("__dlq.errors.message", "Offset rejected by client."),
    ]
    assert header_values(letters[2])[2:] == [
        ("__dlq.errors.offset", "50"),
        ("__dlq.errors.group", "gruppe-ä"),
        ("__dlq.errors.delivery.count", "5"),
        ("__dlq.errors.message", "Offset delivery count exceeded the threshold."),
    ]


def test_with_copy_it_has_key_value_and_headers_of_the_record() -> None:
    own = [("trace", b"\x00\xff"), ("null", None)]
    log = LogOfBatches(
        stored(10, (b"k10", b"v10", own), (None, b"", []), (b"", None, [])), stored(13, (b"k13", b"v13", []))
    )
    batch, letters, reports = build([ArchivingRun(10, 11, 1, REJECTED), ArchivingRun(13, 13, 2, REJECTED)], log)
    assert batch.offsets == [OffsetRun(10, 11), OffsetRun(13, 13)]
    assert [(letter.key, letter.value) for letter in letters] == [(b"k10", b"v10"), (None, b""), (b"k13", b"v13")]
    assert letters[0].headers[:2] == own
    assert [name for name, _ in letters[0].headers[2:]] == [name for name, _ in letters[1].headers]
    assert {letter.timestamp_ms for letter in letters} == {NOW_MS}, "else retention removes letters of old records"
    assert reports == []


def test_a_record_cannot_pretend_to_be_from_elsewhere() -> None:
    """A reader that takes the first header of a name would believe the producer of the record."""
    forged: list[Header] = [("__dlq.errors.topic", b"another"), ("own", b"1"), ("__dlq.errors.", None)]
    log = LogOfBatches(stored(10, (None, b"v10", forged)))
    _, (letter,), _ = build([ArchivingRun(10, 10, 1, REJECTED)], log)
    assert [value for name, value in letter.headers if name == "__dlq.errors.topic"] == [b"orders"]
    renamed = [("__dlq.source.__dlq.errors.topic", b"another"), ("own", b"1"), ("__dlq.source.__dlq.errors.", None)]
    assert letter.headers[:3] == renamed
    log = LogOfBatches(stored(10, (None, b"v10", letter.headers)))
    _, (outer,), _ = build([ArchivingRun(10, 10, 1, REJECTED)], log)
    assert [(source_name(name), value) for name, value in outer.headers[:-6]] == letter.headers, "a redrive restores it"


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_every_compression_can_be_copied_and_a_batch_is_opened_once(compression: int) -> None:
    data = build_batch([b"a" * 500, b"b", b"c"], compression=compression)
    log = LogOfBatches(StoredBatch(5, 7, patch(data, 5, 1)))
    runs = [ArchivingRun(5, 5, 1, REJECTED), ArchivingRun(7, 7, 3, EXCEEDED)]
    _, letters, _ = build(runs, log)
    assert [letter.value for letter in letters] == [b"a" * 500, b"c"]
    assert log.reads == 1


def test_what_the_log_does_not_have_any_more_has_a_dead_letter_without_content() -> None:
    log = LogOfBatches(stored(10, (b"k10", b"v10", [])), stored(12, (b"m", b"m", []), is_control=True))
    batch, letters, reports = build([ArchivingRun(8, 15, 1, REJECTED)], log)
    assert batch.offsets == [OffsetRun(8, 15)]
    assert [letter.value for letter in letters] == [None, None, b"v10", None, None, None, None, None]
    assert [dict(header_values(letter))["__dlq.errors.offset"] for letter in letters] == [str(n) for n in range(8, 16)]
    assert reports == []


def test_what_cannot_be_read_is_reported_and_has_a_dead_letter_without_content() -> None:
    whole = build_batch([b"value"] * 3, compression=1)
    torn = patch(whole[:-10] + bytes(10), 5, 1)
    _, letters, reports = build([ArchivingRun(5, 7, 1, REJECTED)], LogOfBatches(StoredBatch(5, 7, torn)))
    assert [letter.value for letter in letters] == [None] * 3
    assert len(reports) == 1 and "offset 5" in reports[0], reports
    records = SourceRecords(LogOfBatches(StoredBatch(5, 7, torn)), reports.append)
    assert records.find(5) is None and records.failure is None, "another read would bring the same bytes"

    failing = LogOfBatches(stored(5, (None, b"v", [])))
    failing.fails = True
    _, letters, reports = build([ArchivingRun(5, 9, 1, REJECTED)], failing)
    assert [letter.value for letter in letters] == [None] * 5
    assert len(reports) == 1 and "the disk is gone" in reports[0], reports


def test_a_batch_ends_where_the_next_letter_would_exceed_the_limits() -> None:
    log = LogOfBatches(stored(0, *((None, bytes(1000), []) for _ in range(5))))
    runs = [ArchivingRun(0, 4, 1, REJECTED)]
    batch, letters, _ = build(runs, log, limit_bytes=2600)
    assert batch.offsets == [OffsetRun(0, 1)] and len(batch.batch) <= 2600
    assert [len(letter.value or b"") for letter in letters] == [1000, 1000]
    batch, _, _ = build(runs, log, limit_records=3)
    assert batch.offsets == [OffsetRun(0, 2)]


def test_a_copy_above_the_topics_limit_becomes_a_letter_without_content() -> None:
    log = LogOfBatches(stored(0, (None, bytes(5000), []), (None, b"small", [])))
    batch, letters, _ = build([ArchivingRun(0, 1, 1, REJECTED)], log, limit_bytes=2000)
    assert batch.offsets == [OffsetRun(0, 1)]
    assert [letter.value for letter in letters] == [None, b"small"]
    assert len(batch.batch) <= 2000


def test_offsets_of_which_not_even_the_place_fits_are_named() -> None:
    batch, letters, _ = build([ArchivingRun(0, 1, 1, REJECTED), ArchivingRun(5, 5, 1, REJECTED)], limit_bytes=100)
    assert (batch.batch, batch.offsets, letters) == (b"", [], [])
    assert batch.too_large == [OffsetRun(0, 1), OffsetRun(5, 5)]


def test_of_a_large_batch_a_thousand_records_are_opened_at_a_time() -> None:
    """It may hold millions, each of which would be a Python object."""
    log = LogOfBatches(stored(10, *((b"key-%d" % number, b"value", []) for number in range(2_500))))
    records = SourceRecords(log, lambda text: None)
    found = [records.find(offset) for offset in range(11, 2_510)]
    assert [one.key for one in found if one is not None] == [b"key-%d" % number for number in range(1, 2_500)]
    assert log.reads == 3
    assert records.find(2_510) is None


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_with_too_many_headers_costs_no_other_its_copy(place: int) -> None:
    """Its own would be millions of Python objects."""
    headers: list[list[tuple[str, bytes | None]]] = [[], [], []]
    headers[place] = [("", None)] * (HEADERS_LIMIT + 1)
    log = LogOfBatches(stored(10, *((b"key", b"value-%d" % index, each) for index, each in enumerate(headers))))
    _, letters, reports = build([ArchivingRun(10, 12, 1, REJECTED)], log)
    expected = [b"value-%d" % index if index != place else None for index in range(3)]
    assert [letter.value for letter in letters] == expected
    assert len(reports) == 1 and f"offset {10 + place}" in reports[0]


def test_records_with_many_headers_are_opened_in_several_parts() -> None:
    many: list[tuple[str, bytes | None]] = [("h", b"v")] * (HEADERS_LIMIT // 3)
    log = LogOfBatches(stored(0, *((None, b"value-%d" % index, many) for index in range(5))))
    records = SourceRecords(log, lambda text: None)
    assert [record.value for offset in range(5) if (record := records.find(offset)) is not None] == [
        b"value-%d" % index for index in range(5)
    ]
