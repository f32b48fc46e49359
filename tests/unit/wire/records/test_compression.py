"""Batches that are compressed anew: the same records and fields, whatever the codecs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_wire.compression import Codec, recompressed
from kshare_wire.decompression import DecompressesTooFar
from kshare_wire.record_batches import COMPRESSION_NAMES, check_crc, read_header
from kshare_wire.record_reading import open_records
from support.wire.record_building import build_batch

LIMIT_BYTES = 1 << 27
CODES = range(len(COMPRESSION_NAMES))
LEVELS: dict[int, st.SearchStrategy[int | None]] = {
    1: st.sampled_from([None, -1, 1, 9]),
    3: st.sampled_from([None, 1, 9, 17]),
    4: st.sampled_from([None, -131072, 1, 22]),
}


@settings(max_examples=60, deadline=None)
@given(
    source=st.sampled_from(CODES), values=st.lists(st.none() | st.binary(max_size=60_000), min_size=1), data=st.data()
)
@pytest.mark.parametrize("target", CODES)
def test_records_and_fields_stay(source: int, target: int, values: list[bytes | None], data: st.DataObject) -> None:
    level = data.draw(LEVELS.get(target, st.none()))
    batch = build_batch(
        values, compression=source, producer_id=7, producer_epoch=3, base_sequence=5, transactional=True
    )
    header = read_header(batch)
    changed, changed_header = recompressed(memoryview(batch), header, Codec(target, level), LIMIT_BYTES)
    assert changed_header == read_header(changed)
    assert changed_header.compression == target
    assert len(changed) == changed_header.size
    check_crc(changed, changed_header)
    assert list(open_records(changed)) == list(open_records(batch))
    varying = ("batch_length", "crc", "attributes")
    kept = [name for name in header._fields if name not in varying]
    assert [getattr(changed_header, name) for name in kept] == [getattr(header, name) for name in kept]
    assert changed_header.is_transactional


def test_no_more_is_decompressed_than_allowed() -> None:
    batch = build_batch([bytes(100_000)], compression=4)
    with pytest.raises(DecompressesTooFar):
        recompressed(memoryview(batch), read_header(batch), Codec(1), 50_000)
