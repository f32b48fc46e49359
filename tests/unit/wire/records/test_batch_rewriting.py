"""A batch that is reduced to some of its records: unchanged and changed fields; every reader accepts it."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kshare_wire.batch_rewriting import batch_with_records, delete_horizon_ms
from kshare_wire.record_batches import check_crc, patch, patch_times, read_header
from kshare_wire.record_reading import open_records
from kshare_wire.record_walks import open_batch
from support.wire.record_building import build_batch

VALUES: list[bytes | None] = [b"first" * 200, None, b"third" * 100, b""]
KEYS: list[bytes | None] = [b"k0", b"k1", None, b"k3"]
TIMES = [5_000, 4_000, 9_000, 7_000]


def appended(compression: int) -> bytes:
    batch = build_batch(
        VALUES,
        keys=KEYS,
        timestamps_ms=TIMES,
        compression=compression,
        producer_id=77,
        producer_epoch=5,
        base_sequence=31,
        transactional=True,
    )
    return patch(batch, 1 << 40, 9)


def kept_of(data: bytes, kept: Collection[int], horizon_ms: int | None) -> bytes:
    opened = open_batch(data, 1 << 20)
    flags = bytes(index in kept for index in range(opened.header.record_count))
    return batch_with_records(opened, flags, horizon_ms)


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize("horizon_ms", [None, 1_700_000_000_000])
@pytest.mark.parametrize("kept", [(0, 1, 2, 3), (0,), (1,), (3,), (1, 2), (0, 3)])
def test_kept_records_and_the_batchs_place_stay(
    compression: int, horizon_ms: int | None, kept: tuple[int, ...]
) -> None:
    data = appended(compression)
    header, records = read_header(data), list(open_records(data))
    rewritten = kept_of(data, kept, horizon_ms)
    now = read_header(rewritten)
    check_crc(rewritten, now)
    assert now.size == len(rewritten)
    assert list(open_records(rewritten)) == [records[index] for index in kept]
    assert now.max_timestamp_ms == max(TIMES[index] for index in kept)
    assert now.record_count == len(kept)
    assert delete_horizon_ms(now) == horizon_ms
    if horizon_ms is None:
        assert now.first_timestamp_ms == TIMES[kept[0]]
    assert now.attributes & 0x3F == header.attributes
    for name in ("base_offset", "last_offset_delta", "partition_leader_epoch", "magic", "producer_id"):
        assert getattr(now, name) == getattr(header, name), name
    assert (now.producer_epoch, now.base_sequence) == (header.producer_epoch, header.base_sequence)


def test_a_horizon_is_kept_moved_or_taken_away() -> None:
    data = appended(0)
    first = kept_of(data, range(4), 100)
    assert delete_horizon_ms(read_header(data)) is None
    second = kept_of(first, range(1, 4), 100)
    assert delete_horizon_ms(read_header(second)) == 100
    assert list(open_records(second)) == list(open_records(data))[1:]


def test_the_time_of_the_append_stays_that_of_all_records() -> None:
    data = patch_times(appended(4), 50, 9, 123_456, log_append_time=True)
    rewritten = kept_of(data, [2], 999_999)
    now = read_header(rewritten)
    check_crc(rewritten, now)
    assert now.is_log_append_time
    assert now.max_timestamp_ms == 123_456
    assert [record.timestamp_ms for record in open_records(rewritten)] == [123_456]
