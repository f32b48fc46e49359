"""Bytes of ShareSnapshot and ShareUpdate; the golden ones were printed by Kafka 4.3.1's generated classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.identifiers import SharePartitionKey
from kshare_core.leader_epochs import EpochEntry, encode_leader_epochs
from kshare_share_coordinator.machine.share_group_offset import CorruptRecord, LogTruncation, ShareSnapshot, ShareUpdate
from kshare_share_coordinator.machine.state_batches import StateBatch, combine_state_batches
from kshare_share_coordinator.records import (
    SHARE_SNAPSHOT,
    SHARE_UPDATE,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_key,
    encode_snapshot,
    encode_update,
)
from support.share_coordinator.shell import batches

TOPIC_ID = bytes(range(1, 17))
KEY = SharePartitionKey("orders", TOPIC_ID, 3)


def snapshot(**changes: object) -> ShareSnapshot:
    plain = ShareSnapshot(
        key=KEY,
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=3,
        start_offset=100,
        delivery_complete_count=7,
        create_timestamp_ms=1_700_000_000_000,
        write_timestamp_ms=1_700_000_000_001,
        state_batches=batches((100, 109, 2, 1), (110, 1 << 40, 4, 5)),
    )
    return plain._replace(**changes)  # type: ignore[arg-type]


SNAPSHOT_HEX = (
    "000000000001000000020000000300000000000000640000018bcfe568000000018bcfe568010300000000000000640000000000"
    "00006d02000100000000000000006e00000100000000000400050001000400000007"
)
UNINITIALIZED = snapshot(
    snapshot_epoch=0,
    state_epoch=1,
    leader_epoch=0,
    start_offset=-1,
    delivery_complete_count=-1,
    create_timestamp_ms=0,
    write_timestamp_ms=0,
    state_batches=[],
)
UNINITIALIZED_HEX = "0000000000000000000100000000ffffffffffffffff000000000000000000000000000000000100"
UPDATE = ShareUpdate(
    key=KEY,
    update_number=1,
    snapshot_epoch=1,
    leader_epoch=3,
    start_offset=-1,
    delivery_complete_count=0,
    state_batches=batches((5, 6, 0, 32767)),
)
UPDATE_HEX = "00000000000100000003ffffffffffffffff0200000000000000050000000000000006007fff0001000400000000"
START_OFFSET_ONLY = UPDATE._replace(
    update_number=2, snapshot_epoch=2, leader_epoch=0, start_offset=42, delivery_complete_count=-1, state_batches=[]
)
START_OFFSET_ONLY_HEX = "00000000000200000000000000000000002a0100"


@pytest.mark.parametrize(
    ("record_type", "key", "golden"),
    [
        (SHARE_SNAPSHOT, KEY, "000000066f72646572730102030405060708090a0b0c0d0e0f1000000003"),
        (
            SHARE_UPDATE,
            SharePartitionKey("grün", TOPIC_ID, 70000),
            "000100056772c3bc6e0102030405060708090a0b0c0d0e0f1000011170",
        ),
    ],
)
def test_keys_are_kafkas(record_type: int, key: SharePartitionKey, golden: str) -> None:
    assert encode_key(record_type, key).hex() == golden
    assert decode_key(bytes.fromhex(golden)) == (record_type, key)


@pytest.mark.parametrize(("record", "golden"), [(snapshot(), SNAPSHOT_HEX), (UNINITIALIZED, UNINITIALIZED_HEX)])
def test_snapshots_are_kafkas(record: ShareSnapshot, golden: str) -> None:
    assert encode_snapshot(record).hex() == golden
    assert decode_snapshot(KEY, bytes.fromhex(golden)) == record


@pytest.mark.parametrize(("record", "golden"), [(UPDATE, UPDATE_HEX), (START_OFFSET_ONLY, START_OFFSET_ONLY_HEX)])
def test_updates_are_kafkas(record: ShareUpdate, golden: str) -> None:
    assert encode_update(record).hex() == golden
    assert decode_update(KEY, record.update_number, bytes.fromhex(golden)) == record


def test_a_list_of_more_than_126_batches_has_a_long_length() -> None:
    many = batches(*[(10 * i, 10 * i, 2, 1) for i in range(300)])
    encoded = encode_snapshot(snapshot(state_batches=many))
    assert encoded[38:40] == bytes((301 & 0x7F | 0x80, 301 >> 7))
    assert decode_snapshot(KEY, encoded).state_batches == many


def test_what_a_leader_knows_of_its_log_is_in_tagged_fields_behind_kafkas() -> None:
    """Kafka's readers pass over tags that they do not know (10000 and 10001)."""
    leader_epochs = encode_leader_epochs([EpochEntry(3, 0), EpochEntry(7, 90)])
    truncation = LogTruncation(7, 90, 100, 140, 1_700_000_000_000)
    plain = encode_snapshot(snapshot())
    cases: list[dict[str, object]] = [
        {"leader_epochs": leader_epochs},
        {"truncation": truncation},
        {"leader_epochs": leader_epochs, "truncation": truncation},
        {"leader_epochs": leader_epochs, "truncation": truncation, "delivery_complete_count": -1},
    ]
    for changes in cases:
        record = snapshot(**changes)
        value = encode_snapshot(record)
        assert decode_snapshot(KEY, value) == record
        assert len(value) > len(plain)
    bad = encode_snapshot(snapshot(leader_epochs=leader_epochs[4:]))
    with pytest.raises(CorruptRecord, match="a leader epoch history of 20 bytes"):
        decode_snapshot(KEY, bad)


def test_unknown_tagged_fields_are_skipped() -> None:
    batch_with_tag = "0000000000000005000000000000000600000101" + "05" + "02" + "aabb"
    tail = "02" + "0004" + "00000009" + "0701ff"
    value = bytes.fromhex("0000" + "00000001" + "00000003" + "ffffffffffffffff" + "02" + batch_with_tag + tail)
    decoded = decode_update(KEY, 1, value)
    assert decoded.state_batches == batches((5, 6, 0, 1))
    assert decoded.delivery_complete_count == 9


HEAD = "0000" + "00000001" + "00000003" + "ffffffffffffffff"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "ends within its fields"),
        ("0001" + HEAD[4:] + "0100", "has version 1"),
        ("0000" + "ffffffff" + HEAD[12:] + "0100", "negative epoch"),
        (HEAD[:-16] + "fffffffffffffffe" + "0100", "start offset -2"),
        (HEAD, "ends within a number"),
        (HEAD + "00" + "00", "declares -1 state batches"),
        (HEAD + "ffffffff0f" + "00", "declares 4294967294 state batches in 1 bytes"),
        (HEAD + "ffffffffff0f", "number of more than 5 bytes"),
        (HEAD + "01" + "00" + "00", "bytes after its end"),
        (HEAD + "01" + "01" + "0002" + "0000", "DeliveryCompleteCount of 2 bytes"),
        (HEAD + "01" + "01" + "0004" + "fffffffe", "delivery complete count -2"),
        (HEAD + "01" + "01" + "0009" + "00", "cut off"),
        (HEAD + "01" + "02" + "0100" + "0100", "has the tag 1 after 1"),
        (HEAD + "02" + "0000000000000006" + "0000000000000005" + "000001" + "00" + "00", "is not a run of offsets"),
        (HEAD + "02" + "0000000000000005" + "0000000000000005" + "010001" + "00" + "00", "has the state 1"),
        (HEAD + "02" + "0000000000000005" + "0000000000000005" + "02ffff" + "00" + "00", "delivery count -1"),
        (
            HEAD + "03" + ("0000000000000005" + "0000000000000005" + "020001" + "00") * 2 + "00",
            "out of order or overlap",
        ),
    ],
)
def test_values_that_cannot_be_read_say_what_is_wrong(value: str, problem: str) -> None:
    with pytest.raises(CorruptRecord, match=problem) as raised:
        decode_update(KEY, 4, bytes.fromhex(value))
    assert f"ShareUpdate 4 of share-partition {KEY}" in str(raised.value)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("0000", "cannot be read"),
        ("0000ffff" + "00" * 20, "group id of -1"),
        ("00000001" + "61" + "00" * 19, "group id of 1"),
        ("00000001" + "ff" + "00" * 20, "cannot be read"),
        ("00020001" + "61" + "00" * 20, "record type 2"),
    ],
)
def test_keys_that_cannot_be_read_say_what_is_wrong(key: str, problem: str) -> None:
    with pytest.raises(CorruptRecord, match=problem):
        decode_key(bytes.fromhex(key))


epochs = st.integers(0, 2**31 - 1)
offsets = st.integers(-1, 2**63 - 2)
batch_lists = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 2**62),
        st.integers(0, 1000),
        st.sampled_from([0, 2, 3, 4]),
        st.integers(0, 32767),
    ),
    max_size=200,
).map(lambda found: combine_state_batches((), found, -1))


@given(epochs, epochs, epochs, offsets, st.integers(-1, 2**31 - 1), batch_lists)
def test_what_is_written_is_read(
    snapshot_epoch: int, state_epoch: int, leader_epoch: int, start_offset: int, count: int, found: list[StateBatch]
) -> None:
    record = snapshot(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        state_batches=found,
    )
    assert decode_snapshot(KEY, encode_snapshot(record)) == record
    update = ShareUpdate(KEY, 9, snapshot_epoch, leader_epoch, start_offset, count, found)
    assert decode_update(KEY, 9, encode_update(update)) == update


@given(st.sampled_from([SNAPSHOT_HEX, UNINITIALIZED_HEX]), st.data())
def test_a_damaged_snapshot_is_read_or_refused_but_nothing_else(golden: str, data: st.DataObject) -> None:
    damaged = bytearray.fromhex(golden)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        record = decode_snapshot(KEY, cut)
    except CorruptRecord:
        return
    assert decode_snapshot(KEY, encode_snapshot(record)) == record
