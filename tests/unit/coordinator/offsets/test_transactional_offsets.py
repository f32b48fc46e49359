"""Offsets in transactions: the errors of TxnOffsetCommit, and the fate of its offsets."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.offsets import view as offsets_view
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.committed_offsets import TransactionalProducer, commit, fetched, offset_of
from support.coordinator.driver import CoordinatorDriver

UNSTABLE = -E.UNSTABLE_OFFSET_COMMIT


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"kshare.max.committed.offsets": "5", "offsets.retention.minutes": "1"})
    made.create_topic("t", 2)
    made.create_topic("u", 3)
    return made


@pytest.mark.parametrize("restarts", [False, True])
def test_offsets_of_a_transaction_take_effect_when_it_is_committed(driver: CoordinatorDriver, restarts: bool) -> None:
    commit(driver, {("t", 0): 1})
    producer = TransactionalProducer(driver)
    assert producer.commit({("t", 0): 5, ("t", 1): 6}) == [0, 0]
    assert fetched(driver.state) == {("t", 0): 1}
    assert fetched(driver.state, require_stable=True) == {("t", 0): UNSTABLE}
    if restarts:
        driver.restart()
    producer.end(committed=True)
    assert fetched(driver.state, require_stable=True) == {("t", 0): 5, ("t", 1): 6}
    assert driver.state.offsets.pending == {} and driver.state.offsets.open_producers == {}
    driver.restart()
    assert fetched(driver.state, require_stable=True) == {("t", 0): 5, ("t", 1): 6}


def test_offsets_of_an_aborted_transaction_are_forgotten(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 1})
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 5, ("t", 1): 6})
    producer.end(committed=False)
    assert fetched(driver.state, require_stable=True) == {("t", 0): 1}
    assert driver.state.offsets.row_count == 1


def test_a_fetch_says_which_partitions_asked_for_are_unstable(driver: CoordinatorDriver) -> None:
    """Also those that have no committed offset yet; and only to those who require stable offsets."""
    TransactionalProducer(driver).commit({("t", 1): 6})
    asked = [pb.TopicPartitions(topic_name="t", partitions=[0, 1])]
    for require_stable, code in ((True, E.UNSTABLE_OFFSET_COMMIT), (False, E.NONE)):
        request = pb.OffsetFetchRequest(group_id="group", topics=asked, require_stable=require_stable)
        results = offsets_view.fetch(driver.state, request).results
        assert [result.error_code for result in results] == [E.NONE, code]
        assert [result.offset.committed_offset for result in results] == [-1, -1]


def test_several_commits_of_one_transaction(driver: CoordinatorDriver) -> None:
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 5, ("t", 1): 6})
    producer.commit({("t", 0): 3})
    producer.commit({("u", 0): 4}, group_id="other")
    producer.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 3, ("t", 1): 6}
    assert fetched(driver.state, "other") == {("u", 0): 4}


def test_what_was_committed_later_stays(driver: CoordinatorDriver) -> None:
    """The order of commits decides, not that of the ends."""
    early, late = TransactionalProducer(driver, "early"), TransactionalProducer(driver, "late")
    early.commit({("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    late.commit({("t", 1): 2})
    commit(driver, {("u", 0): 3})
    late.end(committed=True)
    early.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 1, ("t", 1): 2, ("u", 0): 3}


def test_an_early_plain_commit_gives_way(driver: CoordinatorDriver) -> None:
    commit(driver, {("t", 0): 3})
    driver.restart()
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 1})
    producer.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 1}


def test_older_clients_add_the_group_first(driver: CoordinatorDriver) -> None:
    """Versions 0 to 4: TRANSACTION_ABORTABLE while AddOffsetsToTxn is missing."""
    producer = TransactionalProducer(driver)
    refused = producer.commit({("t", 0): 5}, add_to_transaction=False)
    assert refused == [E.TRANSACTION_ABORTABLE]
    assert producer.add_offsets("other") == E.NONE
    assert producer.commit({("t", 0): 5}, add_to_transaction=False) == [E.TRANSACTION_ABORTABLE]
    assert producer.add_offsets() == E.NONE
    assert producer.commit({("t", 0): 5}, add_to_transaction=False) == [E.NONE]
    producer.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 5}
    assert producer.commit({("t", 0): 6}, add_to_transaction=False) == [E.TRANSACTION_ABORTABLE]


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": 999}, E.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": "nobody"}, E.INVALID_PRODUCER_ID_MAPPING),
        ({"transactional_id": ""}, E.INVALID_REQUEST),
        ({"producer_epoch": 7}, E.INVALID_PRODUCER_EPOCH),
        ({"group_id": ""}, E.INVALID_GROUP_ID),
    ],
)
def test_refused_producers(driver: CoordinatorDriver, adds: bool, fields: dict[str, object], code: E) -> None:
    """A refusal is that of all partitions but those that do not exist."""
    producer = TransactionalProducer(driver)
    producer.add_offsets()
    offsets = {("t", 0): 5, ("missing", 0): 1}
    assert producer.commit(offsets, add_to_transaction=adds, **fields) == [code, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert driver.state.offsets.pending == {}


def test_a_fenced_producer_commits_nothing(driver: CoordinatorDriver) -> None:
    old = TransactionalProducer(driver)
    old.commit({("t", 0): 5})
    new = TransactionalProducer(driver)
    assert fetched(driver.state, require_stable=True) == {}, "the newer producer's start aborts the transaction"
    assert old.commit({("t", 0): 6}) == [E.INVALID_PRODUCER_EPOCH]
    assert new.commit({("t", 0): 7}) == [0]
    new.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 7}


@pytest.mark.parametrize(
    ("exists", "generation_id", "member_id", "code"),
    [
        (False, -1, "", E.NONE),
        (False, -1, "somebody", E.NONE),
        (False, 0, "somebody", E.ILLEGAL_GENERATION),
        (True, -1, "", E.NONE),
        (True, -1, "somebody", E.NONE),
        (True, 4, "", E.UNKNOWN_MEMBER_ID),
        (True, 4, "somebody", E.UNKNOWN_MEMBER_ID),
    ],
)
def test_generations(driver: CoordinatorDriver, exists: bool, generation_id: int, member_id: str, code: E) -> None:
    if exists:
        commit(driver, {("t", 1): 1})
    producer = TransactionalProducer(driver)
    codes = producer.commit({("t", 0): 5}, generation_id=generation_id, member_id=member_id)
    assert codes == [code]
    assert bool(driver.state.offsets.pending) == (code == E.NONE)
    if code != E.NONE:
        assert driver.record_count == 0, "nothing was committed, so the transaction was not begun"


def test_a_share_group(driver: CoordinatorDriver) -> None:
    driver.heartbeat("m", 0, ["t"])
    assert TransactionalProducer(driver).commit({("t", 0): 5}) == [E.GROUP_ID_NOT_FOUND]


def test_a_group_of_nothing_but_pending_offsets_exists(driver: CoordinatorDriver) -> None:
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 5})
    assert commit(driver, {("t", 0): 1}, generation_id_or_member_epoch=3) == [E.UNKNOWN_MEMBER_ID]
    producer.end(committed=False)
    assert commit(driver, {("t", 0): 1}, generation_id_or_member_epoch=3) == [E.GROUP_ID_NOT_FOUND]


def test_long_metadata_and_too_many_offsets(driver: CoordinatorDriver) -> None:
    producer = TransactionalProducer(driver)
    offsets = [offset_of(("t", 0), 1, "x" * 4097), offset_of(("t", 1), 2, "x" * 4096)]
    assert producer.commit(offsets) == [E.OFFSET_METADATA_TOO_LARGE, E.NONE]
    commit(driver, {("t", 0): 1, ("u", 0): 1})
    commit(driver, {("t", 0): 1}, group_id="other")
    more = {("u", 0): 1, ("u", 1): 1, ("u", 2): 1}
    assert producer.commit(more) == [0, E.POLICY_VIOLATION, E.POLICY_VIOLATION]
    producer.end(committed=True)
    assert fetched(driver.state) == {("t", 0): 1, ("t", 1): 2, ("u", 0): 1}


def test_transactions_replace_offsets_at_the_limit(driver: CoordinatorDriver) -> None:
    """Those of the same transaction, and committed ones that no other open transaction is to replace."""
    offsets = {("t", 0): 1, ("t", 1): 1, ("u", 0): 1, ("u", 1): 1, ("u", 2): 1}
    producer, other = TransactionalProducer(driver), TransactionalProducer(driver, "other")
    for value in (1, 2):
        assert producer.commit(dict.fromkeys(offsets, value)) == [0] * 5
    producer.end(committed=True)
    for value in (3, 4):
        assert producer.commit(dict.fromkeys(offsets, value)) == [0] * 5
        assert driver.state.offsets.row_count == 10
    assert other.commit({("t", 0): 5}) == [E.POLICY_VIOLATION]
    assert other.commit({("t", 0): 5}, group_id="other") == [E.POLICY_VIOLATION]
    producer.end(committed=True)
    assert fetched(driver.state) == dict.fromkeys(offsets, 4)
    assert driver.state.offsets.row_count == 5
    assert other.commit({("t", 0): 5}) == [0]


def test_a_topic_that_goes_takes_pending_offsets_along(driver: CoordinatorDriver) -> None:
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 5, ("u", 0): 6})
    driver.delete("t")
    driver.create_topic("t", 2)
    producer.end(committed=True)
    assert fetched(driver.state) == {("u", 0): 6}


def test_an_offset_with_an_open_transaction_does_not_expire(driver: CoordinatorDriver) -> None:
    """Its time begins anew when the transaction is committed."""

    def expire() -> int:
        return driver.run(commands.ExpireOffsets(group_ids=("group", "nobody")))

    commit(driver, {("t", 0): 1, ("t", 1): 1})
    driver.now_ms = 30_000
    producer = TransactionalProducer(driver)
    producer.commit({("t", 0): 5})
    driver.now_ms = 60_000
    assert expire() == 1
    assert fetched(driver.state) == {("t", 0): 1}
    producer.end(committed=True)
    driver.now_ms = 119_999
    assert expire() == 0
    driver.now_ms = 120_000
    assert expire() == 1
    assert fetched(driver.state) == {}
