"""The time of a batch's first record, read without its header's other fields."""

from __future__ import annotations

from kshare_wire.record_batches import NO_TIMESTAMP, first_record_time_ms, patch_times, read_header
from support.wire.record_building import build_batch


def test_by_either_timestamp_type() -> None:
    batch = build_batch([b"a", b"b"], timestamps_ms=[70, 50])
    assert first_record_time_ms(batch) == read_header(batch).first_timestamp_ms == 70
    stamped = patch_times(batch, 5, 1, 900, log_append_time=True)
    assert first_record_time_ms(stamped) == read_header(stamped).max_timestamp_ms == 900
    assert first_record_time_ms(memoryview(stamped)) == 900


def test_a_record_without_a_time() -> None:
    assert first_record_time_ms(build_batch([b"a"], timestamps_ms=[NO_TIMESTAMP])) == NO_TIMESTAMP
