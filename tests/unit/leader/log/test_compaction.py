"""Compaction by Kafka's rules: which logs are due, which records, batches and markers stay, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import KafkaError
from kshare_leader.log import compaction, keys, partition_log
from kshare_leader.log.compaction import LogCompaction, Step, plan_compaction
from kshare_leader.log.producers import pending_appends
from kshare_leader.log.topic_settings import TopicSettings
from kshare_leader.ports import AbortedTransaction
from kshare_runtime.ports import Write
from kshare_wire.batch_rewriting import delete_horizon_ms
from kshare_wire.record_batches import read_header
from kshare_wire.record_reading import open_records
from support.leader.log.housekept_log import HousekeptLog
from support.leader.log.leader_logs import KEY
from support.wire.record_building import damage

RETENTION_MS = 10_000
A, B, C = b"a", b"b", b"c"


def compacted(**settings: float) -> HousekeptLog:
    """A log where each batch that comes 2 ms or more after the segment's first one begins a segment."""
    defaults: dict[str, float] = {
        "segment_ms": 1,
        "delete_retention_ms": RETENTION_MS,
        "min_cleanable_dirty_ratio": 0.5,
    }
    return HousekeptLog(TopicSettings(compacts=True, deletes=False, **{**defaults, **settings}))  # type: ignore[arg-type]


def put(log: HousekeptLog, *records: tuple[bytes, bytes | None], producer_id: int = -1, compression: int = 0) -> None:
    """A batch in a segment of its own."""
    log.now_ms += 2
    log.append(
        [value for _, value in records],
        keys=[key for key, _ in records],
        producer_id=producer_id,
        compression=compression,
    )


def roll(log: HousekeptLog) -> None:
    """All that was appended before lies in closed segments."""
    put(log, (b"the active segment's", b"x"))


def content(log: HousekeptLog) -> list[list[tuple[int, bytes | None, bytes | None]]]:
    """Offset, key and value of the records of each batch but the last; markers are empty batches."""
    return [
        [] if batch.is_control else [(record.offset, record.key, record.value) for record in open_records(batch.data)]
        for batch in log.batches()[:-1]
    ]


@pytest.mark.parametrize("compression", range(5))
def test_the_newest_value_of_each_key_stays_where_it_was(compression: int) -> None:
    log = compacted()
    put(log, (A, b"1"), (B, b"1"), (A, b"2"), compression=compression)
    put(log, (C, b"1"), (C, b"2"), compression=compression)
    put(log, (C, b"3"), (B, b"2"), compression=compression)
    put(log, (C, b"4"), compression=compression)
    roll(log)
    limits = [(batch.base_offset, batch.last_offset) for batch in log.batches()]
    log.compact()
    assert content(log) == [[(2, A, b"2")], [(6, B, b"2")], [(7, C, b"4")]]
    assert [(batch.base_offset, batch.last_offset) for batch in log.batches()] == [limits[0], *limits[2:]]
    assert {read_header(batch.data).compression for batch in log.batches()[:-1]} == {compression}
    assert log.log.first_dirty_offset == 8
    log.restart()
    assert content(log) == [[(2, A, b"2")], [(6, B, b"2")], [(7, C, b"4")]]
    assert log.log.first_dirty_offset == 8


def test_a_look_up_by_time_finds_the_first_record_that_stayed_in_a_batch_with_append_times() -> None:
    log = compacted(log_append_time=True)
    put(log, (A, b"1"), (A, b"2"), (B, b"1"), (C, b"1"), (B, b"2"))
    appended_ms = log.now_ms
    roll(log)
    log.compact()
    assert content(log) == [[(1, A, b"2"), (3, C, b"1"), (4, B, b"2")]]
    for start_offset, expected in ((0, 1), (1, 1), (2, 3), (4, 4)):
        log.move_start(start_offset)
        assert asyncio.run(log.log.offset_for_timestamp(appended_ms - 1)) == (appended_ms, expected)
        assert asyncio.run(log.log.offset_for_timestamp(appended_ms)) == (appended_ms, expected)


def test_the_active_segment_and_young_segments_stay() -> None:
    log = compacted(min_compaction_lag_ms=100)
    put(log, (A, b"1"), (A, b"2"))
    log.now_ms += 100
    put(log, (B, b"1"), (B, b"2"))
    put(log, (C, b"1"), (C, b"2"))
    log.compact()
    assert content(log) == [[(1, A, b"2")], [(2, B, b"1"), (3, B, b"2")]]
    assert len(list(open_records(log.batches()[-1].data))) == 2
    log.now_ms += 97
    log.compact()
    assert content(log)[1] == [(2, B, b"1"), (3, B, b"2")]
    log.now_ms += 1
    log.compact()
    assert content(log)[1] == [(3, B, b"2")]


def test_a_tombstone_outlives_the_values_by_delete_retention_ms() -> None:
    log = compacted()
    put(log, (A, b"1"), (B, b"1"))
    put(log, (A, None), (C, b"1"))
    roll(log)
    log.compact()
    horizon_ms = log.now_ms + RETENTION_MS
    assert content(log) == [[(1, B, b"1")], [(2, A, None), (3, C, b"1")]]
    assert [delete_horizon_ms(read_header(batch.data)) for batch in log.batches()] == [None, horizon_ms, None]
    log.now_ms = horizon_ms - 1
    log.compact()
    assert content(log)[1] == [(2, A, None), (3, C, b"1")]
    log.now_ms = horizon_ms
    log.compact()
    assert content(log) == [[(1, B, b"1")], [(3, C, b"1")]]
    assert log.log.first_dirty_offset == 4


def test_a_value_after_a_tombstone_brings_the_key_back() -> None:
    log = compacted()
    put(log, (A, b"1"))
    put(log, (A, None))
    put(log, (A, b"2"))
    roll(log)
    log.compact()
    assert content(log) == [[(2, A, b"2")]]


def test_only_committed_records_count() -> None:
    log = compacted()
    put(log, (A, b"old"), (B, b"old"))
    put(log, (A, b"aborted"), producer_id=7)
    log.end_transaction(7, committed=False)
    put(log, (B, b"committed"), producer_id=7)
    log.end_transaction(7, committed=True)
    put(log, (C, b"open"), producer_id=7)
    roll(log)
    log.compact()
    assert content(log) == [[(0, A, b"old")], [], [(4, B, b"committed")], [], [(6, C, b"open")]]
    assert log.log.first_dirty_offset == 6


def test_a_marker_stays_while_its_records_do_then_until_its_horizon() -> None:
    log = compacted()
    put(log, (A, b"1"), producer_id=7)
    log.end_transaction(7, committed=True)
    put(log, (B, b"1"), producer_id=8)
    log.end_transaction(8, committed=False)
    put(log, (A, b"2"))
    roll(log)

    def markers() -> list[int | None]:
        return [delete_horizon_ms(read_header(batch.data)) for batch in log.batches() if batch.is_control]

    log.compact()
    assert content(log) == [[], [], [(4, A, b"2")]]
    assert markers() == [None, None]  # the records were there when this run met the markers
    log.compact()
    first_horizon_ms = log.now_ms + RETENTION_MS
    assert markers() == [first_horizon_ms, first_horizon_ms]
    log.now_ms = first_horizon_ms - 1
    log.compact()
    assert markers() == [first_horizon_ms, first_horizon_ms]
    log.now_ms = first_horizon_ms
    log.compact()
    assert content(log) == [[(4, A, b"2")]]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_aborted_transaction_leaves_the_index_with_its_marker(is_restarted: bool) -> None:
    """A client would skip the producer's committed records, because no marker says where the aborted ones end."""
    log = compacted()
    put(log, (A, b"aborted"), producer_id=7)
    log.end_transaction(7, committed=False)
    put(log, (A, b"aborted"), producer_id=8)
    log.end_transaction(8, committed=False)
    put(log, (B, b"committed"), producer_id=7)
    log.end_transaction(7, committed=True)
    roll(log)
    log.compact()
    assert len(log.log.aborted_transactions(0, 10)) == 2, "their markers are there"
    log.compact()
    log.now_ms += RETENTION_MS
    put(log, (C, b"aborted"), producer_id=8)
    log.end_transaction(8, committed=False)
    roll(log)
    log.compact()
    if is_restarted:
        log.restart()
    assert [batch.base_offset for batch in log.batches() if batch.is_control] == [5, 8]
    assert log.log.aborted_transactions(0, 10) == [AbortedTransaction(8, 7, 8)]


def test_the_marker_of_an_emptied_transaction_goes_though_an_older_one_has_records() -> None:
    log = compacted()
    put(log, (A, b"1"), producer_id=7)
    log.end_transaction(7, committed=True)
    put(log, (B, b"1"), producer_id=7)
    log.end_transaction(7, committed=True)
    put(log, (B, b"2"))
    roll(log)
    log.compact()
    log.compact()
    log.now_ms += RETENTION_MS
    log.compact()
    assert [(batch.base_offset, batch.is_control) for batch in log.batches()[:-1]] == [
        (0, False),
        (1, True),
        (4, False),
    ]


def test_a_later_transaction_of_a_producer_that_aborted_is_its_own() -> None:
    log = compacted()
    put(log, (A, b"aborted"), producer_id=7)
    log.end_transaction(7, committed=False)
    roll(log)
    for _ in range(3):  # the aborted records go, then their marker
        log.compact()
        log.now_ms += RETENTION_MS
    put(log, (A, b"committed"), producer_id=7)
    log.end_transaction(7, committed=True)
    roll(log)
    log.compact()
    assert [record[1:] for batch in content(log) for record in batch if record[1] == A] == [(A, b"committed")]


def test_an_open_transaction_is_not_looked_at() -> None:
    log = compacted()
    put(log, (A, b"old"))
    put(log, (A, b"open"), producer_id=7)
    roll(log)
    log.compact()
    assert content(log) == [[(0, A, b"old")], [(1, A, b"open")]]
    log.end_transaction(7, committed=False)
    roll(log)
    log.compact()
    assert content(log)[0] == [(0, A, b"old")]


@pytest.mark.parametrize(
    ("settings", "waited_ms", "due"),
    [
        pytest.param({"min_cleanable_dirty_ratio": 0.55}, 0, True, id="dirty enough"),
        pytest.param({"min_cleanable_dirty_ratio": 0.56}, 0, False, id="too clean"),
        pytest.param({"min_cleanable_dirty_ratio": 89 / 159}, 0, False, id="exactly as dirty as allowed"),
        pytest.param({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}, 501, True, id="waited long"),
        pytest.param({"min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 500}, 490, False, id="waits still"),
    ],
)
def test_which_logs_are_due(settings: dict[str, float], waited_ms: int, due: bool) -> None:
    log = compacted(**settings)
    put(log, (A, b"1"))
    roll(log)
    log.compact()
    roll(log)  # one clean segment of 70 bytes, a dirty one of 89
    assert plan_compaction(log.log, log.now_ms - 2 + waited_ms).is_due == due


def test_nothing_is_due_without_a_closed_dirty_segment() -> None:
    log = compacted(min_cleanable_dirty_ratio=0.0, max_compaction_lag_ms=1)
    put(log, (A, b"1"))
    assert not plan_compaction(log.log, log.now_ms + 10**6).is_due
    roll(log)
    assert plan_compaction(log.log, log.now_ms).is_due
    log.compact()
    assert not plan_compaction(log.log, log.now_ms + 10**6).is_due


def test_small_neighbours_become_one_segment() -> None:
    log = compacted(segment_bytes=400)
    for _ in range(8):
        put(log, (A, b"1"))
    sizes = [row.size_bytes for row in log.log.segments]
    assert len(sizes) == 8
    log.compact()
    rows = list(log.log.segments)
    in_each = 400 // sizes[0]
    expected = [0, in_each, 7] if in_each < 7 else [0, 7]
    assert [row.base_offset for row in rows] == expected
    assert [row.size_bytes > 0 for row in rows] == [False, True, True]
    log.restart()
    assert [row[:6] for row in log.log.segments] == [row[:6] for row in rows]


def test_more_keys_than_fit_take_several_runs() -> None:
    log = compacted()
    for index in range(6):
        put(log, (b"key %d" % (index % 3), b"%d" % index))
    roll(log)
    cleaned_to = []
    for _ in range(4):
        log.compact(keys_limit=2)
        cleaned_to.append(log.log.first_dirty_offset)
    assert cleaned_to == [2, 4, 6, 6]
    assert content(log) == [[(3, b"key 0", b"3")], [(4, b"key 1", b"4")], [(5, b"key 2", b"5")]]


def test_each_slice_is_one_write_and_a_crash_between_any_two_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", 150)

    def filled() -> HousekeptLog:
        log = compacted(segment_bytes=300)
        for index in range(12):
            put(log, (b"key %d" % (index % 4), None if index == 9 else b"%d" % index), (b"other %d" % index, b"x"))
        roll(log)
        return log

    slices = sum(1 for _ in filled().compaction())
    assert slices > 10
    expected: dict[bytes | None, bytes | None] = {}
    for batch in filled().batches():
        expected.update({record.key: record.value for record in open_records(batch.data)})
    for cut_off_after in range(1, slices + 1):
        log = filled()
        log.compact(slices=cut_off_after)
        log.restart()
        for _ in range(2):
            found: dict[bytes | None, bytes | None] = {}
            for batch in log.batches():
                found.update({record.key: record.value for record in open_records(batch.data)})
            assert found == expected
            log.compact()


def test_a_disk_that_fails_in_the_middle_changes_nothing_then() -> None:
    log = compacted()
    put(log, (A, b"1"), (A, b"2"))
    roll(log)
    before = log.batches()
    slices = log.compaction()
    next(slices)  # the keys
    log.disk.fail_next_writes(1)
    with pytest.raises(Exception, match="No space left"):
        next(slices)
    assert log.batches() == before == log.stored()
    log.compact()
    assert content(log) == [[(1, A, b"2")]]


@pytest.mark.parametrize("change", ["start", "close", "policy"])
def test_a_run_ends_when_the_log_becomes_another_one(change: str) -> None:
    log = compacted()
    for _ in range(4):
        put(log, (A, b"1"))
    roll(log)
    slices = log.compaction()
    next(slices)
    if change == "start":
        log.move_start(2)
    elif change == "close":
        log.log.close()
    else:
        log.log.settings = TopicSettings()
    assert list(slices) == []
    assert log.log.first_dirty_offset == (2 if change == "start" else 0)
    if change == "start":
        log.compact()
        assert content(log) == [[(3, A, b"1")]]


def test_what_is_appended_meanwhile_is_the_next_runs() -> None:
    log = compacted()
    put(log, (A, b"1"), (A, b"2"))
    roll(log)
    for count, _ in enumerate(log.compaction()):
        put(log, (A, b"later %d" % count))
    assert content(log)[0] == [(1, A, b"2")]
    assert log.log.first_dirty_offset == 2
    log.compact()
    assert all(record[:2] != (1, A) for batch in content(log) for record in batch)


def test_a_batch_that_cannot_be_opened_stops_the_run() -> None:
    log = compacted()
    put(log, (A, b"1"), compression=4)
    put(log, (A, b"2"))
    roll(log)
    prefix = keys.partition_prefix(KEY)
    found = log.store.get(keys.LOG, keys.long_key(prefix, 0))
    assert found is not None
    log.store.write([Write(keys.LOG, keys.long_key(prefix, 0), damage(found, 63, ">H", 0xFFFF))])
    before = log.stored()
    with pytest.raises(KafkaError, match="cannot be read"):
        log.compact()
    assert log.stored() == before


def test_a_tombstone_may_be_kept_for_as_long_as_a_config_can_say() -> None:
    """delete.retention.ms is any long, and the time at which it has passed must be one, too."""
    log = compacted(delete_retention_ms=(1 << 63) - 1)
    put(log, (A, b"1"))
    put(log, (A, None))
    roll(log)
    log.compact()
    assert content(log) == [[(1, A, None)]]
    assert delete_horizon_ms(read_header(log.batches()[0].data)) == (1 << 63) - 1
    put(log, (B, b"1"))
    roll(log)
    log.compact()
    assert (1, A, None) in [record for batch in content(log) for record in batch]


@pytest.mark.parametrize(("size", "is_aside"), [(100, False), (20_000, True)])
def test_records_are_compressed_again_beside_the_event_loop(size: int, is_aside: bool) -> None:
    """20 KB take gzip some milliseconds, of which a slice has many."""
    log = compacted()
    put(log, (A, b"1"), (B, b"v" * size), compression=1)
    put(log, (A, b"2"))
    roll(log)
    steps = steps_of(log, keys_limit=1_000)
    assert any(not isinstance(step, int) for step in steps) is is_aside
    assert content(log)[0] == [(1, B, b"v" * size)]


def large(log: HousekeptLog, count: int, key: str) -> None:
    """A batch of `count` records in a segment of its own, with 1 MiB and more after decompression."""
    log.now_ms += 2
    keys = [(key % index).encode() for index in range(count)]
    log.append([b"value"] * count, keys=keys, compression=4)


def steps_of(log: HousekeptLog, keys_limit: int) -> list[Step]:
    """All steps of a run, whose work is done here."""
    run = LogCompaction(log.log, plan_compaction(log.log, log.now_ms), now_ms=log.now_ms, keys_limit=keys_limit)
    steps, result, found = run.steps(), None, []
    while True:
        try:
            found.append(steps.send(result))
        except StopIteration:
            return found
        step = found[-1]
        result = None if isinstance(step, int) else step()


def test_a_batch_of_very_many_records_is_read_in_pieces_and_opened_beside_the_event_loop() -> None:
    log = compacted()
    large(log, 150_000, "key-%d")
    put(log, (b"key-7", b"newer"))
    roll(log)
    steps = steps_of(log, keys_limit=1_000_000)
    # For each of the two passes: it is opened aside, then read in 30 pieces; in the second it is also written anew.
    # One more step thins out the index of timestamps.
    assert sum(1 for step in steps if not isinstance(step, int)) == 3 + 2 * 30
    assert steps.count(0) == 2 * (150_000 // 5_000 - 1) + 1
    batches = log.batches()
    assert read_header(batches[0].data).record_count == 149_999
    assert [record.key for record in open_records(batches[1].data)] == [b"key-7"]


def test_one_batch_may_have_more_keys_than_a_run_remembers() -> None:
    log = compacted()
    large(log, 3_000, "key-%d")
    large(log, 3_000, "key-%d")
    roll(log)
    runs = 0
    while log.log.first_dirty_offset < 6_000:
        before = log.log.first_dirty_offset
        steps_of(log, keys_limit=2_000)
        assert before < log.log.first_dirty_offset <= before + 2_000
        runs += 1
    assert runs == 3
    assert [read_header(batch.data).record_count for batch in log.batches()[:-1]] == [3_000]


@pytest.mark.parametrize("index_slice", [1, 2, 5_000])
def test_the_index_of_timestamps_grows_with_the_batches_that_stay(
    monkeypatch: pytest.MonkeyPatch, index_slice: int
) -> None:
    """Not with all that was ever appended; and whatever is left of it, each record is found by its time."""
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 200)
    monkeypatch.setattr(compaction, "INDEX_INTERVAL_BYTES", 400)
    monkeypatch.setattr(partition_log, "INDEX_SLICE", index_slice)
    log = compacted(segment_bytes=1_000)

    def entries() -> list[tuple[int, int]]:
        rows = log.store.scan(keys.TIMESTAMPS, keys.partition_prefix(KEY))
        return [(keys.timestamp_of(key), keys.parse_timestamp_value(value)) for key, value in rows]

    counts = []
    for turn in range(5):
        for index in range(30):
            put(log, (b"key %d" % (index % 2), b"v" * 150), *[(b"once %d" % turn, b"v")] * (index == 0))
        newest = entries()[-1]
        before = len(entries())
        log.compact()
        counts.append(len(entries()))
        assert entries()[-1] == newest, "an opened log is read from the end of the index"
        assert counts[-1] < before - 20
        log.restart()
        for batch in log.batches():
            for record in open_records(batch.data):
                found = asyncio.run(log.log.offset_for_timestamp(record.timestamp_ms))
                assert found is not None and found.timestamp_ms == record.timestamp_ms
                assert found.offset <= record.offset <= batch.last_offset
    assert counts[-1] <= counts[0] + 5


def test_the_index_of_timestamps_keeps_an_entry_for_each_interval_of_batches_that_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up by time would read a whole segment otherwise."""
    monkeypatch.setattr(pending_appends, "INDEX_INTERVAL_BYTES", 200)
    monkeypatch.setattr(compaction, "INDEX_INTERVAL_BYTES", 200)
    log = compacted(segment_bytes=1 << 20)
    for index in range(20):
        put(log, (b"key %d" % index, b"v" * 150))
    before = list(log.store.scan(keys.TIMESTAMPS, keys.partition_prefix(KEY)))
    roll(log)
    log.compact()
    assert len(before) > 5
    after = list(log.store.scan(keys.TIMESTAMPS, keys.partition_prefix(KEY)))
    assert after[: len(before)] == before
