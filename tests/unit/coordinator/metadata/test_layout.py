"""The keys in etcd and the bytes below them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.metadata.coordination import Coordination, Owner
from kshare_coordinator.metadata.etcd.port import KeyValue, Removal, end_of_prefix
from kshare_coordinator.metadata.layout import (
    Layout,
    member_bytes,
    member_of,
    owner_bytes,
    owner_of,
    piece,
    pieces_of,
    sequence_of,
    snapshot_pieces,
    writes_bytes,
    writes_of,
)
from kshare_coordinator.metadata.port import CATALOG, CoordinatorMember
from kshare_core.errors import StorageFailure
from kshare_runtime.ports import Write

LAYOUT = Layout("/kshare/")
MEMBER = CoordinatorMember(3, "life", "host:1")

WRITES = st.lists(
    st.builds(Write, st.sampled_from(["coordinator", "x"]), st.binary(max_size=20), st.none() | st.binary(max_size=99)),
    max_size=30,
)


def test_the_keys() -> None:
    """What stands in etcd stays there over an upgrade, so these are not to change."""
    assert LAYOUT.member(3) == b"/kshare/coordinators/3"
    assert LAYOUT.owner(CATALOG) == b"/kshare/owners/-1"
    assert LAYOUT.head(7) == b"/kshare/rows/7/head"
    assert LAYOUT.journal(CATALOG, 12) == b"/kshare/rows/-1/journal/00000000000000000012"
    assert LAYOUT.large(7, "ab-1") == b"/kshare/rows/7/large/ab-1/"
    assert piece(LAYOUT.snapshot(7, 2), 3) == b"/kshare/rows/7/snapshot/00000000000000000002/00000003"
    assert sequence_of(LAYOUT.journal(7, 12)) == 12


@pytest.mark.parametrize(
    ("key", "partition"),
    [(b"owners/-1", -1), (b"owners/49", 49), (b"owners/", None), (b"owners/x", None), (b"coordinators/1", None)],
)
def test_the_partition_of_an_owners_key(key: bytes, partition: int | None) -> None:
    assert LAYOUT.partition_of_owner(b"/kshare/" + key) == partition


def test_ranges_hold_what_they_say_and_nothing_of_another_partition() -> None:
    keys = sorted(
        key
        for p in (CATALOG, 1, 11)
        for key in (
            LAYOUT.head(p),
            *(LAYOUT.journal(p, sequence) for sequence in (0, 9, 10, 10**12)),
            piece(LAYOUT.large(p, "a-1"), 0),
            *(piece(LAYOUT.snapshot(p, generation), 0) for generation in (1, 2, 10)),
            LAYOUT.owner(p),
            LAYOUT.member(p),
        )
    )

    def within(start: bytes, end: bytes) -> list[bytes]:
        return [key.removeprefix(b"/kshare/") for key in keys if start <= key < end]

    journal = [b"rows/1/journal/%020d" % sequence for sequence in (0, 9, 10, 10**12)]
    assert within(*LAYOUT.journal_range(1)) == journal
    assert within(*LAYOUT.journal_range(1, 9, 11)) == journal[1:3]
    assert within(*LAYOUT.head_to_large(1)) == [b"rows/1/head", *journal, b"rows/1/large/a-1/00000000"]
    assert len(within(*LAYOUT.former_snapshots(1, 10))) == 2
    assert within(*LAYOUT.coordination()) == [
        *(b"coordinators/%d" % p for p in (-1, 1, 11)),
        *(b"owners/%d" % p for p in (-1, 1, 11)),
    ]


@given(prefix=st.binary(min_size=1, max_size=5), rest=st.binary(max_size=5))
def test_the_end_of_a_prefix(prefix: bytes, rest: bytes) -> None:
    if not prefix.rstrip(b"\xff"):
        with pytest.raises(ValueError, match="below 255"):
            end_of_prefix(prefix)
        return
    assert prefix <= prefix + rest < end_of_prefix(prefix)
    assert not end_of_prefix(prefix).startswith(prefix)


def test_members_and_owners() -> None:
    assert member_of(member_bytes(MEMBER)) == MEMBER
    assert owner_of(owner_bytes(MEMBER)) == 3
    for read in (member_of, owner_of, writes_of):
        with pytest.raises(StorageFailure, match="etcd cannot be read"):
            read(b"\xff\xff")


@given(writes=WRITES, limit=st.integers(1, 60))
def test_writes_are_read_as_they_were_written(writes: list[Write], limit: int) -> None:
    data = writes_bytes(writes)
    assert writes_of(data) == writes
    pieces = pieces_of(data, limit)
    assert b"".join(pieces) == data
    assert all(0 < len(one) <= limit for one in pieces)
    snapshot = list(snapshot_pieces(writes, limit))
    assert writes_of(b"".join(snapshot)) == writes
    assert all(0 < len(one) <= limit for one in snapshot)


def test_a_snapshot_of_more_rows_than_are_made_at_once() -> None:
    rows = [Write("coordinator", b"%d" % number, b"v" * 50) for number in range(2_500)]
    pieces = list(snapshot_pieces(rows, 10_000))
    assert writes_of(b"".join(pieces)) == rows
    assert {len(one) for one in pieces[:-1]} == {10_000}


def pair(key: bytes, value: bytes, revision: int, lease: int = 1) -> KeyValue:
    return KeyValue(key, value, revision, revision, 1, lease)


def test_live_coordinators_and_owners() -> None:
    view = Coordination(LAYOUT)
    other = CoordinatorMember(1, "other", "host:2")
    view.replace(
        [
            pair(LAYOUT.member(3), member_bytes(MEMBER), 2),
            pair(LAYOUT.member(1), member_bytes(other), 3),
            pair(LAYOUT.owner(CATALOG), owner_bytes(MEMBER), 4, lease=9),
            pair(LAYOUT.owner(7), owner_bytes(other), 5),
            pair(b"/kshare/owners/what", b"", 5),
        ],
        6,
    )
    assert view.live() == [other, MEMBER]
    assert view.owner_nodes() == {CATALOG: 3, 7: 1}
    assert view.owners[CATALOG] == Owner(3, 4, 9)
    view.apply([Removal(LAYOUT.owner(7), 7), Removal(LAYOUT.member(1), 7), Removal(LAYOUT.owner(5), 7)], 7)
    assert (view.live(), view.owner_nodes(), view.revision) == ([MEMBER], {CATALOG: 3}, 7)
    view.apply([pair(LAYOUT.owner(7), b"\xff\xff", 8), pair(LAYOUT.member(1), b"\xff\xff", 8)], 8)
    assert view.owner_nodes() == {CATALOG: 3, 7: -1}, "somebody has it, whoever that is"
    assert view.live() == [MEMBER]
    view.replace([], 9)
    assert (view.live(), view.owner_nodes(), view.revision) == ([], {}, 9)
