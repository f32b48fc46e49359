"""Append, delete, retain, compact and crash in any order: a log holds the records that a naive log holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare_leader.log import compaction
from kshare_leader.log.compaction import plan_compaction
from kshare_leader.log.producers import pending_appends
from kshare_leader.log.topic_settings import TopicSettings
from support.leader.log.housekept_log import HousekeptLog, NaiveLog, NaiveRecord, committed_view, readable_records

KEYS = [b"a", b"b", b"a longer key than a digest has bytes"]


@dataclass(frozen=True)
class Append:
    """`producer_id` -1: no transaction."""

    records: tuple[tuple[bytes, bytes | None, int], ...]
    """Key, value, and how far the time is from the clock."""
    compression: int
    producer_id: int


@dataclass(frozen=True)
class End:
    producer_id: int
    committed: bool


@dataclass(frozen=True)
class Wait:
    duration_ms: int


@dataclass(frozen=True)
class DeleteRecords:
    share: float


@dataclass(frozen=True)
class Compact:
    """`slices`: the run is cut off after so many; None: it ends. After each slice one of `between` happens."""

    slices: int | None
    keys_limit: int
    between: tuple[Append | End | DeleteRecords, ...]


RETAIN, FREE, RESTART = "retain", "remove what is unreachable", "restart"

RECORDS = st.tuples(
    st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=40), st.binary(max_size=40)), st.integers(-3000, 0)
)
APPENDS = st.builds(
    Append,
    st.lists(RECORDS, min_size=1, max_size=5).map(tuple),
    st.sampled_from([0, 0, 1, 2, 3, 4]),
    st.sampled_from([-1, -1, 7, 8]),
)
ENDS = st.builds(End, st.sampled_from([7, 8]), st.booleans())
BETWEEN = st.one_of(APPENDS, APPENDS, ENDS, st.builds(DeleteRecords, st.floats(0, 1)))
COMPACTIONS = st.builds(
    Compact,
    st.sampled_from([None, None, None, 1, 2, 3, 5, 8]),
    st.sampled_from([1, 3, 1000]),
    st.one_of(st.just(()), st.just(()), st.lists(BETWEEN, max_size=3).map(tuple)),
)
COMMON_STEPS = [
    APPENDS,
    APPENDS,
    APPENDS,
    ENDS,
    ENDS,
    st.builds(Wait, st.sampled_from([2, 50, 500, 5_000])),
    COMPACTIONS,
    COMPACTIONS,
    st.just(RESTART),
]
DELETING_STEPS = [st.builds(DeleteRecords, st.floats(0, 1)), st.sampled_from([RETAIN, FREE])]
STEPS = st.one_of(
    st.lists(st.one_of(*COMMON_STEPS), min_size=10, max_size=50),
    st.lists(st.one_of(*COMMON_STEPS, *DELETING_STEPS), min_size=10, max_size=50),
)
POLICIES = st.builds(
    TopicSettings,
    compacts=st.sampled_from([True, True, True, True, False]),
    deletes=st.booleans(),
    retention_ms=st.sampled_from([-1, 4_000, 20_000]),
    retention_bytes=st.sampled_from([-1, 0, 600]),
    segment_bytes=st.sampled_from([300, 600, 600, 1 << 20]),
    segment_ms=st.sampled_from([1, 1, 2_000, 604_800_000]),
    segment_jitter_ms=st.sampled_from([0, 1_000]),
    delete_retention_ms=st.sampled_from([0, 600, 6_000]),
    min_cleanable_dirty_ratio=st.just(0.0),
    min_compaction_lag_ms=st.sampled_from([0, 0, 1_000]),
)
Step = Append | End | Wait | DeleteRecords | Compact | str


class Run:
    """The log and the naive log, step by step."""

    def __init__(self, policy: TopicSettings, tail_bytes: int) -> None:
        self.log = HousekeptLog(policy, tail_bytes=tail_bytes)
        self.naive = NaiveLog()
        self.untouched: dict[int, bytes] = {}

    def take(self, step: Step) -> None:
        match step:
            case Append():
                self._append(step)
            case End(producer_id, committed):
                if producer_id in self.naive.open:
                    self.naive.end(producer_id, committed=committed)
                    self.log.end_transaction(producer_id, committed=committed)
            case Wait(duration_ms):
                self.log.now_ms += duration_ms
            case DeleteRecords(share):
                offset = int(share * self.naive.end_offset)
                self.log.move_start(offset)
                self.naive.start_offset = max(self.naive.start_offset, offset)
            case Compact():
                self._compact(step)
            case "retain":
                self._retain()
            case "restart":
                self.log.restart()
            case _:
                self.log.log.remove_unreachable()
        self.check()

    def _append(self, step: Append) -> None:
        records = [
            NaiveRecord(key, value, self.log.now_ms + late_ms, step.producer_id) for key, value, late_ms in step.records
        ]
        self.naive.append(records)
        self.log.append(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps_ms=[record.timestamp_ms for record in records],
            compression=step.compression,
            producer_id=step.producer_id,
        )

    def _compact(self, step: Compact) -> None:
        if not self.log.settings.compacts:
            return
        before = {batch.base_offset: batch.data for batch in self.log.stored()}
        end_offset = plan_compaction(self.log.log, self.log.now_ms).end_offset
        between = iter(step.between)
        for count, _ in enumerate(self.log.compaction(keys_limit=step.keys_limit)):
            self.check()
            if count + 1 == step.slices:
                break
            happens = next(between, None)
            if happens is not None:
                self.take(happens)
        after = {batch.base_offset: batch.data for batch in self.log.stored()}
        for base_offset, data in before.items():
            if base_offset >= max(end_offset, self.log.log.log_start_offset):
                assert after[base_offset] == data, "nothing above the clean point is touched"
        self._check_clean()

    def _check_clean(self) -> None:
        """Below the clean point no record has a newer committed one with its key that is below it too."""
        clean = self.log.log.first_dirty_offset
        newest = {
            record.key: offset for offset, record in self.naive.committed(clean).items() if record.key is not None
        }
        for offset, record in readable_records(self.log, self.naive).items():
            if offset < clean and record.key is not None:
                assert offset not in self.naive.aborted
                assert newest[record.key] == offset

    def _retain(self) -> None:
        self.log.retain()
        start_offset = self.log.log.log_start_offset
        assert start_offset >= self.naive.start_offset
        if not self.log.settings.deletes:
            assert start_offset == self.naive.start_offset
        self.naive.start_offset = start_offset

    def check(self) -> None:
        log, naive = self.log.log, self.naive
        assert (log.log_start_offset, log.high_watermark) == (naive.start_offset, naive.end_offset)
        assert log.last_stable_offset == naive.last_stable_offset()
        assert [batch.data for batch in self.log.batches()] == [batch.data for batch in self.log.stored()]
        found = readable_records(self.log, naive)
        if not self.log.settings.compacts:
            assert list(found) == [offset for offset in naive.records if offset >= naive.start_offset]
        newest = naive.newest(log.last_stable_offset)
        assert committed_view(self.log, found) == {key: value for key, value in newest.items() if value is not None}
        self._check_times(found)
        self._check_segments()

    def _check_times(self, found: dict[int, NaiveRecord]) -> None:
        times = [(offset, record.timestamp_ms) for offset, record in found.items()]
        markers = [
            batch.base_offset
            for batch in self.log.batches()
            if batch.is_control and batch.base_offset >= self.naive.start_offset
        ]
        for timestamp_ms in (0, self.log.now_ms - 2_500, self.log.now_ms - 100):
            expected = next((offset for offset, time in sorted(times) if time >= timestamp_ms), None)
            got = asyncio.run(self.log.log.offset_for_timestamp(timestamp_ms))
            if got is None or got.offset not in markers:
                assert (None if got is None else got.offset) == expected
        newest = asyncio.run(self.log.log.offset_of_max_timestamp())
        if times and (newest is None or newest.offset not in markers):
            assert newest is not None
            greatest = max(time for _, time in times)
            assert newest == (greatest, min(offset for offset, time in times if time == greatest))

    def _check_segments(self) -> None:
        rows = list(self.log.log.segments)
        assert [row.end_offset for row in rows[:-1]] == [row.base_offset for row in rows[1:]]
        assert rows[-1].end_offset == self.naive.end_offset
        assert rows[0].base_offset <= self.naive.start_offset or self.naive.start_offset == 0
        for row in rows:
            batches = [batch for batch in self.log.stored() if row.base_offset <= batch.base_offset < row.end_offset]
            size_bytes = sum(batch.length for batch in batches)
            if row.base_offset >= self.naive.start_offset:
                assert row.size_bytes == size_bytes
            assert row.size_bytes >= size_bytes


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
@given(POLICIES, STEPS, st.sampled_from([0, 400, 1 << 20]), st.sampled_from([1, 300, 1 << 20]))
def test_a_log_holds_what_it_must(
    policy: TopicSettings, steps: list[Step], tail_bytes: int, interval_bytes: int
) -> None:
    usual = pending_appends.INDEX_INTERVAL_BYTES, compaction.SLICE_BYTES
    pending_appends.INDEX_INTERVAL_BYTES, compaction.SLICE_BYTES = interval_bytes, 100
    try:
        run = Run(policy, tail_bytes)
        for step in steps:
            run.take(step)
    finally:
        pending_appends.INDEX_INTERVAL_BYTES, compaction.SLICE_BYTES = usual
