"""Which records the account of a worker pool calls lost or wrong."""

from __future__ import annotations

import pytest

from support.clients.workload import Account, PolledBatch


def batch(
    worker: int, polled_at: float, count: int, *, accepted: bool = True, confirmed: bool = True, offset: int = 3
) -> PolledBatch:
    """Record 7 of partition 0 came with this delivery count; one second later its acknowledgement was confirmed."""
    return PolledBatch(
        worker=worker,
        polled_at=polled_at,
        numbers=[7],
        partitions=[0],
        delivery_counts=[count],
        accepted=[accepted],
        confirmed_at=polled_at + 1,
        confirmed_partitions=frozenset({0}) if confirmed else frozenset(),
        offsets=[offset],
    )


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([batch(0, 10, 1)], []),
        ([batch(0, 10, 1, accepted=False), batch(1, 12, 2)], []),
        ([batch(0, 10, 1, confirmed=False), batch(1, 12, 2)], []),
        ([batch(0, 10, 1), batch(1, 10.5, 2, accepted=False)], []),
        ([batch(0, 10, 2), batch(1, 12, 1, confirmed=False)], []),
        ([batch(0, 10, 1), batch(1, 12, 2, confirmed=False)], ["as delivery 2 although delivery 1"]),
        ([batch(0, 10, 1), batch(1, 12, 1, confirmed=False)], ["as delivery 1 although delivery 1"]),
        ([batch(0, 10, 1), batch(1, 10.5, 2)], ["accepted twice, both confirmed"]),
        ([batch(0, 10, 2), batch(1, 12, 1)], ["accepted twice, both confirmed"]),
    ],
)
def test_what_is_wrong(batches: list[PolledBatch], wrong: list[str]) -> None:
    account = Account()
    for each in batches:
        account.add(each)
    account.is_drained = True
    found = account.finish([7])
    assert len(found) == len(wrong)
    assert all(text in problem for text, problem in zip(wrong, found, strict=True))
    assert list(account.accepted) == [7]


@pytest.mark.parametrize(
    ("batches", "is_drained", "wrong"),
    [
        ([batch(0, 10, 1)], True, []),
        ([batch(0, 10, 1)], False, ["nobody waited until the group was drained"]),
        ([], True, ["record 7 was never accepted"]),
        ([batch(0, 10, 1, accepted=False)], True, ["record 7 was never accepted"]),
        ([batch(0, 10, 1), batch(1, 12, 2, accepted=False, confirmed=False)], True, ["as delivery 2"]),
        ([batch(0, 10, 1, confirmed=False), batch(1, 12, 2, accepted=False)], True, ["record 7 was never accepted"]),
        ([batch(0, 10, 4, confirmed=False)], True, []),
        ([batch(0, 10, 5, confirmed=False)], True, ["record 7 may have been archived"]),
    ],
)
def test_every_record_is_checked(batches: list[PolledBatch], is_drained: bool, wrong: list[str]) -> None:
    account = Account()
    for each in batches:
        account.add(each)
    account.is_drained = is_drained
    found = account.finish([7])
    assert len(found) == len(wrong)
    assert all(text in problem for text, problem in zip(wrong, found, strict=True))


def test_a_record_that_was_not_produced_is_reported() -> None:
    account = Account()
    account.add(batch(0, 10, 1))
    account.is_drained = True
    assert account.finish([]) == ["record 7 was accepted, and never confirmed"]


@pytest.mark.parametrize(
    ("batches", "is_allowed", "wrong"),
    [
        ([batch(0, 10, 1), batch(1, 12, 1, offset=4)], True, []),
        ([batch(0, 10, 1, confirmed=False), batch(1, 12, 1, offset=4), batch(1, 14, 2)], True, []),
        ([batch(0, 10, 1), batch(1, 12, 1, offset=4), batch(1, 14, 2)], True, ["accepted twice", "as delivery 2"]),
        ([batch(0, 10, 1), *[batch(1, 12, 1, offset=4)] * 2], True, ["at offset 4 was accepted twice"]),
        ([batch(0, 10, 1), batch(1, 12, 1, offset=4)], False, ["accepted twice", "at offsets [3, 4]", "as delivery 1"]),
    ],
)
def test_a_record_that_is_in_the_log_twice(batches: list[PolledBatch], is_allowed: bool, wrong: list[str]) -> None:
    account = Account()
    account.may_be_stored_twice = is_allowed
    for each in batches:
        account.add(each)
    account.is_drained = True
    found = account.finish([7])
    assert len(found) == len(wrong), found
    assert all(text in problem for text, problem in zip(wrong, found, strict=True)), found
