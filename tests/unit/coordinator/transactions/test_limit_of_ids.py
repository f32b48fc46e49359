"""kshare.max.transactional.ids: which ids make room for new ones, and what happens to their producers."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine.transactions.metadata import TransactionState as S
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode as E
from support.coordinator.transaction_driver import NOBODY, Producer, TransactionDriver

MIN_IDLE_MS = 60_000
LIMITS = {"kshare.max.transactional.ids": "3", "kshare.transactional.id.min.idle.ms": str(MIN_IDLE_MS)}
REFUSED = (E.POLICY_VIOLATION, NOBODY)


@pytest.fixture
def driver() -> TransactionDriver:
    """Three ids are allowed; "c" was used first, then "b", then "a"."""
    made = TransactionDriver(LIMITS)
    made.now_ms = 1_000_000
    for name in "cba":
        made.init(transactional_id=name)
        made.now_ms += 1
    return made


def idle(driver: TransactionDriver, for_ms: int = MIN_IDLE_MS) -> None:
    """Lets time pass without use since the last request."""
    driver.now_ms += for_ms - 1


def producer_of(driver: TransactionDriver, transactional_id: str) -> Producer:
    metadata = driver.metadata(transactional_id)
    return metadata.producer_id, metadata.producer_epoch


@pytest.mark.parametrize("restarts", [False, True])
def test_the_id_unused_longest_makes_room(driver: TransactionDriver, restarts: bool) -> None:
    driver.init(transactional_id="c")
    idle(driver)
    if restarts:
        driver.restart()
    assert driver.init(transactional_id="new")[0] is E.NONE
    assert sorted(driver.state.transactions) == ["a", "c", "new"]
    assert driver.load().state == driver.state


def test_ids_used_lately_make_no_room(driver: TransactionDriver) -> None:
    idle(driver, MIN_IDLE_MS - 3)
    assert driver.init(transactional_id="new") == REFUSED
    assert sorted(driver.state.transactions) == ["a", "b", "c"]
    assert driver.init(transactional_id="a")[0] is E.NONE, "known ones go on"
    driver.now_ms += 1
    assert driver.init(transactional_id="new")[0] is E.NONE
    assert sorted(driver.state.transactions) == ["a", "b", "new"]


@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_ids_with_an_open_transaction_make_no_room(driver: TransactionDriver, state: S) -> None:
    for name in "cba":
        producer = driver.begin(transactional_id=name)
        if state is not S.ONGOING:
            driver.end(producer, committed=state is S.PREPARE_COMMIT, transactional_id=name)
        assert driver.metadata(name).state is state
    idle(driver, 100 * MIN_IDLE_MS)
    assert driver.init(transactional_id="new") == REFUSED
    assert sorted(driver.state.transactions) == ["a", "b", "c"]


def test_the_oldest_without_an_open_transaction_is_found_behind_others(driver: TransactionDriver) -> None:
    driver.begin(transactional_id="c")
    driver.init(transactional_id="a")
    driver.init(transactional_id="b")
    idle(driver, MIN_IDLE_MS + 1)
    assert driver.init(transactional_id="new")[0] is E.NONE
    assert sorted(driver.state.transactions) == ["b", "c", "new"]


def test_a_limit_lowered_at_a_restart_lets_no_more_in(driver: TransactionDriver) -> None:
    idle(driver)
    driver.configs = Configs(PROCESS_CONFIGS, {**LIMITS, "kshare.max.transactional.ids": "1"})
    driver.restart()
    assert driver.init(transactional_id="new")[0] is E.NONE
    assert sorted(driver.state.transactions) == ["a", "b", "new"]


@pytest.mark.parametrize("is_back", [False, True])
def test_a_producer_whose_id_was_forgotten_commits_nothing(driver: TransactionDriver, is_back: bool) -> None:
    """Neither where a newer producer has the id again. It gets a new producer id if it begins anew."""
    old = producer_of(driver, "c")
    idle(driver)
    driver.init(transactional_id="new")
    idle(driver, MIN_IDLE_MS + 1)
    if is_back:
        newer = driver.begin(transactional_id="c")
        assert newer[0] > old[0]
    assert driver.add(old, [0], transactional_id="c") == [E.INVALID_PRODUCER_ID_MAPPING]
    assert driver.verify(old, [0], transactional_id="c") == [E.INVALID_PRODUCER_ID_MAPPING]
    assert driver.add_offsets(old, transactional_id="c") is E.INVALID_PRODUCER_ID_MAPPING
    for bumps in (False, True):
        assert driver.end(old, bumps=bumps, transactional_id="c")[0] is E.INVALID_PRODUCER_ID_MAPPING
    if is_back:
        assert driver.init(old, transactional_id="c")[0] is E.PRODUCER_FENCED
        assert driver.end(newer, transactional_id="c")[0] is E.NONE
    else:
        code, (producer_id, epoch) = driver.init(old, transactional_id="c")
        assert (code, epoch) == (E.NONE, 0) and producer_id > old[0]
