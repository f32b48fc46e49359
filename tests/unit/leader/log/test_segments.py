"""Segments: when they are rolled, which are deleted by size and time, and what a restart restores."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_leader.log import keys, partition_log
from kshare_leader.log.producers import pending_appends
from kshare_leader.log.retention import retained_from
from kshare_leader.log.segments import (
    UNKNOWN_TIME,
    PendingSegments,
    Positions,
    Segment,
    SegmentTable,
    decode_positions,
    decode_segment,
    encode_positions,
    encode_segment,
)
from kshare_leader.log.topic_settings import TopicSettings, topic_settings
from kshare_runtime.ports import Write
from kshare_wire.record_batches import NO_TIMESTAMP
from support.leader.log.housekept_log import HousekeptLog
from support.leader.log.leader_logs import BROKER, KEY
from support.wire.record_building import build_batch, damage

WEEK_MS = 604_800_000
PREFIX = keys.partition_prefix(KEY)


def rolls(
    active: Segment, settings: TopicSettings, *, next_offset: int, size: int, newest_ms: int, now_ms: int
) -> bool:
    pending = PendingSegments(active, settings, now_ms, b"seed")
    pending.add(active.end_offset, next_offset, size, newest_ms)
    return bool(pending.closed)


FULL = Segment(0, 10, 900, 5_000, 0, 1_000, 70, 80)


@pytest.mark.parametrize(
    ("active", "settings", "size", "newest_ms", "now_ms", "expected"),
    [
        pytest.param(FULL, {"segment_bytes": 1000}, 100, 1_000, 0, False, id="exactly full"),
        pytest.param(FULL, {"segment_bytes": 1000}, 101, 1_000, 0, True, id="too large"),
        pytest.param(Segment(10, 10), {"segment_bytes": 100}, 101, 1_000, 0, False, id="an empty one takes anything"),
        pytest.param(FULL, {"segment_ms": 500}, 1, 1_500, 0, False, id="not yet older"),
        pytest.param(FULL, {"segment_ms": 500}, 1, 1_501, 0, True, id="older by the records' times"),
        pytest.param(FULL, {"segment_ms": 500}, 1, 900, 10**9, False, id="not by the clock"),
        pytest.param(
            FULL._replace(first_timestamp_ms=-1), {"segment_ms": 500}, 1, -1, 570, False, id="no times, not yet older"
        ),
        pytest.param(
            FULL._replace(first_timestamp_ms=-1), {"segment_ms": 500}, 1, -1, 571, True, id="no times, by the clock"
        ),
        pytest.param(FULL, {"max_compaction_lag_ms": 500}, 1, 1_501, 0, False, id="the lag means nothing"),
        pytest.param(FULL, {"max_compaction_lag_ms": 500, "compacts": True}, 1, 1_501, 0, True, id="compacted: by lag"),
    ],
)
def test_when_a_segment_is_rolled(
    active: Segment, settings: dict[str, int], size: int, newest_ms: int, now_ms: int, expected: bool
) -> None:
    wanted = TopicSettings(**settings)  # type: ignore[arg-type]
    next_offset = active.end_offset + 1
    assert rolls(active, wanted, next_offset=next_offset, size=size, newest_ms=newest_ms, now_ms=now_ms) == expected


def test_a_segment_spans_no_more_offsets_than_kafkas_index_can_say() -> None:
    for last_offset, expected in ((2**31 - 1, False), (2**31, True)):
        settings = TopicSettings()
        assert rolls(FULL, settings, next_offset=last_offset + 1, size=1, newest_ms=1_000, now_ms=0) == expected


def test_jitter_spreads_rolls_and_is_the_same_each_time() -> None:
    settings = TopicSettings(segment_ms=1_000, segment_jitter_ms=400)

    def waits(base_offset: int) -> int:
        active = FULL._replace(base_offset=base_offset, end_offset=base_offset + 1)
        for waited_ms in range(2_000):
            at_ms = active.first_timestamp_ms + waited_ms
            if rolls(active, settings, next_offset=base_offset + 2, size=1, newest_ms=at_ms, now_ms=0):
                return waited_ms
        raise AssertionError("never rolled")

    found = [waits(base_offset) for base_offset in range(30)]
    assert found == [waits(base_offset) for base_offset in range(30)]
    assert all(600 < waited_ms <= 1_001 for waited_ms in found)
    assert len(set(found)) > 20


def segments(*rows: tuple[int, int]) -> SegmentTable:
    """Segments of ten offsets each, with (bytes, newest timestamp); the last one is active."""
    return SegmentTable(
        [
            Segment(10 * index, 10 * index + 10, size, newest_ms, 10 * index, newest_ms, 1, 7_777)
            for index, (size, newest_ms) in enumerate(rows)
        ],
        0,
    )


THREE = [(100, 1_000), (200, 2_000), (300, 3_000)]


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        pytest.param(THREE, {"retention_ms": -1}, 0, id="no limits"),
        pytest.param(THREE, {"retention_ms": -1, "retention_bytes": 600}, 0, id="as large as allowed"),
        pytest.param(THREE, {"retention_ms": -1, "retention_bytes": 501}, 0, id="would be too small without it"),
        pytest.param(THREE, {"retention_ms": -1, "retention_bytes": 500}, 10, id="large enough without it"),
        pytest.param(THREE, {"retention_ms": -1, "retention_bytes": 299}, 20, id="never below the limit"),
        pytest.param(THREE, {"retention_ms": -1, "retention_bytes": 0}, 30, id="the active one too"),
        pytest.param(THREE, {"retention_ms": 9_000}, 0, id="exactly as old as allowed"),
        pytest.param(THREE, {"retention_ms": 8_999}, 10, id="older"),
        pytest.param(THREE, {"retention_ms": 6_999}, 30, id="all are older: the active one is rolled and goes"),
        pytest.param(THREE, {"retention_ms": 7_500, "retention_bytes": 500}, 20, id="by size, then by time"),
        pytest.param([(9, 20_000), (9, 1_000)], {"retention_ms": 5}, 0, id="a time in the future keeps the rest too"),
        pytest.param([(9, -1), (9, 9_999)], {"retention_ms": 2_222}, 10, id="no times: by the last append"),
        pytest.param([(9, 1_000), (0, -1)], {"retention_ms": 5, "retention_bytes": 0}, 10, id="an empty one stays"),
        pytest.param(
            THREE, {"retention_ms": 1, "retention_bytes": 1, "deletes": False}, 0, id="no delete in the policy"
        ),
    ],
)
def test_which_segments_go(rows: list[tuple[int, int]], settings: dict[str, int], expected: int) -> None:
    table = segments(*rows)
    assert retained_from(table, TopicSettings(**settings), 10_000, 10 * len(rows)) == expected  # type: ignore[arg-type]


def test_a_segment_of_unknown_age_stays_until_it_was_seen_for_that_long() -> None:
    table = SegmentTable([Segment(0, 5, 100, -1, 0, -1, UNKNOWN_TIME, UNKNOWN_TIME)], 0)
    settings = TopicSettings(retention_ms=1_000)
    assert retained_from(table, settings, 10_000, 5) == 0
    table.note_time(10_000)
    assert retained_from(table, settings, 11_000, 5) == 0
    assert retained_from(table, settings, 11_001, 5) == 5


def test_rows_are_read_as_they_were_written() -> None:
    segment = Segment(1, 2, 3, 4, 5, 6, 7, 8)
    assert decode_segment(1, encode_segment(segment)) == segment
    positions = Positions(1 << 40, 1 << 41)
    assert decode_positions(encode_positions(positions)) == positions


@pytest.mark.parametrize("interval_bytes", [1, 200, 1 << 20])
def test_a_restart_finds_the_segments_again(interval_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", interval_bytes)
    log = HousekeptLog(TopicSettings(segment_bytes=200))
    for index in range(7):
        log.now_ms += 10
        log.append([b"value %d" % index], keys=[b"key"])
    before = list(log.log.segments)
    assert [row.base_offset for row in before] == [0, 2, 4, 6]
    log.restart()
    now = list(log.log.segments)
    assert now[:-1] == before[:-1]
    assert now[-1][:6] == before[-1][:6]
    log.append([b"one more"], keys=[b"key"])
    assert log.log.segments.active.last_append_ms == log.now_ms
    assert log.log.segments.active.size_bytes == before[-1].size_bytes + log.batches()[-1].length


def test_offsets_are_not_used_again_after_everything_was_deleted() -> None:
    log = HousekeptLog(TopicSettings())
    for _ in range(3):
        log.append([b"a", b"b"])
    log.move_start(6)
    for _ in range(3):
        log.restart()
        assert (log.log.log_start_offset, log.log.high_watermark, log.batches()) == (6, 6, [])
        log.log.remove_unreachable()
    assert list(log.store.scan(keys.LOG, PREFIX)) == []
    assert log.append([b"next"]) == 6
    log.restart()
    assert [batch.base_offset for batch in log.batches()] == [6]


def test_a_log_that_lost_records_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 1)
    log = HousekeptLog(TopicSettings())
    for _ in range(3):
        log.append([b"a", b"b"])
    log.store.delete_range(keys.LOG, keys.long_key(PREFIX, 4), keys.long_key(PREFIX, 5))
    with pytest.raises(StorageFailure, match="has lost the records at offsets 4 to 5"):
        log.restart()


def test_what_lies_below_the_start_is_gone_at_once_and_freed_later() -> None:
    log = HousekeptLog(TopicSettings(), tail_bytes=0)
    for index in range(4):
        log.append([b"a", b"b", b"c"], timestamps_ms=[100 * index + step for step in range(3)])
    log.move_start(7)
    assert [batch.base_offset for batch in log.log.read(0, 1 << 20)] == [6, 9]
    assert len(list(log.store.scan(keys.LOG, PREFIX))) == 4
    log.restart()  # a crash before the disk was freed
    assert log.log.log_start_offset == 7
    log.log.remove_unreachable()
    assert [keys.number_of(key) for key, _ in log.store.scan(keys.LOG, PREFIX)] == [6, 9]
    assert asyncio.run(log.log.offset_for_timestamp(0)) == (201, 7)
    assert asyncio.run(log.log.offset_for_timestamp(203)) == (300, 9)


@pytest.mark.parametrize(
    ("start_offset", "left"), [(2, [0, 3, 6, 9]), (3, [3, 6, 9]), (4, [3, 6, 9]), (7, [6, 9]), (11, [9]), (12, [])]
)
@pytest.mark.parametrize("damaged", [0, 3, 6])
def test_what_lies_below_the_start_is_freed_whichever_batch_is_damaged(
    start_offset: int, left: list[int], damaged: int
) -> None:
    log = HousekeptLog(TopicSettings(), tail_bytes=0)
    for _ in range(4):
        log.append([b"a", b"b", b"c"])
    log.store.write([Write(keys.LOG, keys.long_key(PREFIX, damaged), b"damaged")])
    log.move_start(start_offset)
    assert log.log.remove_unreachable() == (len(left) < 4)
    assert [keys.number_of(key) for key, _ in log.store.scan(keys.LOG, PREFIX)] == left
    assert not log.log.remove_unreachable()


@pytest.mark.parametrize("segment_bytes", [1 << 30, 1_000], ids=["one segment", "many segments"])
def test_older_records_are_found_by_time_after_a_newer_one_before_them_was_removed(
    monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr(partition_log, "LOOKUP_LIMIT_BYTES", 1_000)
    log = HousekeptLog(TopicSettings(segment_bytes=segment_bytes), tail_bytes=0)
    log.append([b"newest"], timestamps_ms=[1_000_000])
    for time_ms in range(40):
        log.append([b"v" * 50], timestamps_ms=[time_ms])
    log.move_start(1)
    for _ in range(2):
        for time_ms in (0, 20, 35, 39):
            assert asyncio.run(log.log.offset_for_timestamp(time_ms)) == (time_ms, time_ms + 1)
        assert asyncio.run(log.log.offset_for_timestamp(40)) is None
        log.restart()


@pytest.mark.parametrize("is_of_an_older_version", [False, True])
def test_a_log_opens_from_the_end_of_its_index_after_its_newest_timestamp_was_removed(
    monkeypatch: pytest.MonkeyPatch, is_of_an_older_version: bool
) -> None:
    """One damaged batch far below would otherwise keep the partition from opening, and every open would read it all."""
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 300)
    log = HousekeptLog(TopicSettings(segment_bytes=600), tail_bytes=0)
    for time_ms in (1_000_000, *range(40)):
        log.append([b"v" * 50], timestamps_ms=[time_ms])
    log.move_start(1)
    log.move_start(8)
    log.log.remove_unreachable()
    assert len(log.log.segments) > 3
    if is_of_an_older_version:  # it left entries that were made of removed records
        stale = Write(keys.TIMESTAMPS, keys.timestamp_key(PREFIX, 1_000_000), keys.timestamp_value(9))
        log.store.write([stale])
    else:
        entries = [keys.timestamp_of(key) for key, _ in log.store.scan(keys.TIMESTAMPS, PREFIX)]
        assert entries and max(entries) <= 39
    for time_ms in range(40, 50):
        log.append([b"v" * 50], timestamps_ms=[time_ms])
    log.store.write([Write(keys.LOG, keys.long_key(PREFIX, 20), b"damaged")])
    log.restart()
    assert [batch.base_offset for batch in log.log.read(49, 1 << 20)] == [49, 50]
    assert asyncio.run(log.log.offset_for_timestamp(45)) == (45, 46)


@pytest.mark.parametrize("start_offset", [1, 5, 6, 37, 77, 79, 80])
def test_a_new_start_costs_the_same_however_long_the_index_of_timestamps_is(
    monkeypatch: pytest.MonkeyPatch, start_offset: int
) -> None:
    """Its useless entries are removed later, as ranges. Until then they mislead no look-up, and no opening."""
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 1)
    log = HousekeptLog(TopicSettings(segment_bytes=600), tail_bytes=0)
    for time_ms in range(0, 800, 10):
        log.append([b"v" * 50], timestamps_ms=[time_ms])
    change = log.log.plan_start(start_offset)
    assert change is not None
    assert not [write for write in change.writes if write.family == keys.TIMESTAMPS]
    log.move_start(start_offset)
    for is_removed in (False, False, True, True):
        if is_removed:
            log.log.remove_unreachable()
        left = range(start_offset, 80) if is_removed else range(80)
        entries = {
            keys.timestamp_of(key): keys.parse_timestamp_value(value)
            for key, value in log.store.scan(keys.TIMESTAMPS, PREFIX)
        }
        assert entries == ({10 * offset: offset + 1 for offset in left} or {NO_TIMESTAMP: 80})
        for time_ms in (0, 55, 400, 790):
            offset = max(start_offset, (time_ms + 9) // 10)
            expected = (10 * offset, offset) if offset < 80 else None
            assert asyncio.run(log.log.offset_for_timestamp(time_ms)) == expected
        log.restart()


def test_a_look_up_by_time_reads_no_segment_whose_records_are_older() -> None:
    log = HousekeptLog(TopicSettings(segment_bytes=300), tail_bytes=0)
    for time_ms in (1_000_000, *range(8), 500, 501):
        log.append([b"v" * 50], timestamps_ms=[time_ms])
    log.move_start(1)
    older = [segment for segment in log.log.segments if segment.largest_timestamp_ms < 500]
    assert older
    for segment in older:  # a read of them fails
        log.store.write([Write(keys.LOG, keys.long_key(PREFIX, segment.base_offset), b"damaged")])
    assert asyncio.run(log.log.offset_for_timestamp(400)) == (500, 9)


def test_a_look_up_by_time_ends_at_headers_that_contradict_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of an older version, whose headers were not corrected, may be like that."""
    monkeypatch.setattr(partition_log, "LOOKUP_LIMIT_BYTES", 1_000)
    log = HousekeptLog(TopicSettings(), tail_bytes=0)
    for offset in range(40):
        log.append([b"v" * 50], timestamps_ms=[1_000])
        batch = damage(build_batch([b"v" * 50], timestamps_ms=[1]), 0, ">q", offset)
        contradicting = damage(batch, 35, ">q", 1_000)  # its newest timestamp
        log.store.write([Write(keys.LOG, keys.long_key(PREFIX, offset), contradicting)])
    with pytest.raises(KafkaError, match="timestamps that contradict their headers") as caught:
        asyncio.run(log.log.offset_for_timestamp(900))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_the_newest_record_is_looked_for_among_those_that_are_left() -> None:
    log = HousekeptLog(TopicSettings(segment_bytes=200))
    log.append([b"a", b"b", b"c"], timestamps_ms=[900, 500, 700])
    for timestamp_ms in (300, 600, 600):
        log.append([b"d"], timestamps_ms=[timestamp_ms])
    for start_offset, expected in ((0, (900, 0)), (1, (700, 2)), (3, (600, 4)), (5, (600, 5)), (6, None)):
        log.move_start(start_offset)
        assert asyncio.run(log.log.offset_of_max_timestamp()) == expected
        log.restart()
        assert asyncio.run(log.log.offset_of_max_timestamp()) == expected


def test_a_start_that_was_not_written_or_lies_outside_changes_nothing() -> None:
    log = HousekeptLog(TopicSettings())
    log.append([b"a", b"b"])
    log.disk.fail_next_writes(1)
    with pytest.raises(StorageFailure):
        log.move_start(1)
    assert log.log.log_start_offset == 0
    with pytest.raises(KafkaError) as caught:
        log.log.plan_start(3)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.move_start(2)
    assert log.log.plan_start(1) is None


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    log = HousekeptLog(TopicSettings(compacts=True))
    with pytest.raises(KafkaError, match="Compacted topic cannot accept message without key") as caught:
        log.append([b"a", b"b"], keys=[b"key", None])
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert log.append([b"a"], keys=[b""]) == 0


def test_a_batch_must_fit_into_a_segment() -> None:
    log = HousekeptLog(TopicSettings(segment_bytes=100))
    with pytest.raises(KafkaError, match=r"segment\.bytes allows 100") as caught:
        log.append([b"a" * 50])
    assert caught.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_settings_come_from_the_topic_then_the_broker() -> None:
    assert topic_settings({}, BROKER) == TopicSettings()
    own = topic_settings(
        {
            "cleanup.policy": "compact,delete",
            "retention.ms": "1",
            "retention.bytes": "2",
            "segment.bytes": "1048577",
            "segment.ms": "4",
            "segment.jitter.ms": "5",
            "delete.retention.ms": "6",
            "min.cleanable.dirty.ratio": "0.7",
            "min.compaction.lag.ms": "8",
            "max.compaction.lag.ms": "9",
        },
        BROKER,
    )
    assert own == TopicSettings(
        deletes=True,
        compacts=True,
        retention_ms=1,
        retention_bytes=2,
        segment_bytes=1048577,
        segment_ms=4,
        segment_jitter_ms=5,
        delete_retention_ms=6,
        min_cleanable_dirty_ratio=0.7,
        min_compaction_lag_ms=8,
        max_compaction_lag_ms=9,
    )
    assert topic_settings({"internal.segment.bytes": "200"}, BROKER).segment_bytes == 200
    assert topic_settings({"segment.bytes": "1_048_577"}, BROKER).segment_bytes == 1048577, "of an older version"
    broker = type(BROKER)(
        BROKER.table, {"log.retention.hours": "2", "log.cleanup.policy": "compact", "log.roll.ms": "3"}
    )
    found = topic_settings({}, broker)
    assert (found.retention_ms, found.compacts, found.deletes, found.segment_ms) == (7_200_000, True, False, 3)
    assert found.roll_ms == 3
