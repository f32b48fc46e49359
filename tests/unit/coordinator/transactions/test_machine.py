"""The transaction machine: the error code of each request in each state, producer ids and epochs.

The table is Kafka 4.3.1's (TransactionCoordinator), cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.transactions.contents import (
    TRANSACTION_GROUP_LIMIT,
    TRANSACTION_PARTITION_LIMIT,
    check_ongoing,
)
from kshare_coordinator.machine.transactions.ending import timed_out_transactions
from kshare_coordinator.machine.transactions.metadata import TransactionState as S
from kshare_coordinator.machine.transactions.queries import describe_transactions, list_transactions
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.transaction_driver import NOBODY, Producer, TransactionDriver

STATES = (S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
WRONG, BUSY, FENCED, OK = E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED, E.NONE
MAPPING, ABORTABLE = E.INVALID_PRODUCER_ID_MAPPING, E.TRANSACTION_ABORTABLE

Ask = Callable[[TransactionDriver, Producer], E]


def ending(committed: bool, bumps: bool) -> Ask:
    return lambda driver, producer: driver.end(producer, committed=committed, bumps=bumps)[0]


def init_named(driver: TransactionDriver, producer: Producer) -> E:
    return driver.init(producer)[0]


def init_unnamed(driver: TransactionDriver, producer: Producer) -> E:
    return driver.init()[0]


def add(driver: TransactionDriver, producer: Producer) -> E:
    (code,) = driver.add(producer, [1])
    return code


def verify(driver: TransactionDriver, producer: Producer) -> E:
    (code,) = driver.verify(producer, [0])
    return code


def add_offsets(driver: TransactionDriver, producer: Producer) -> E:
    return driver.add_offsets(producer)


def look_for_offsets(driver: TransactionDriver, producer: Producer) -> E:
    return check_ongoing(driver.state, "t", *producer, "g")


ALL_FENCED = (FENCED,) * 6
FENCED_UNLESS_ENDING = (FENCED, FENCED, BUSY, BUSY, FENCED, FENCED)
TABLE: list[tuple[str, Ask, bool, int, tuple[E, ...]]] = [
    # what, the request, whether it names the producer's current epoch or the one before, ended with which version,
    # then the codes for Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort
    # While markers are written Kafka has a pending transition, which comes first: the producer may know its next epoch.
    ("EndTxn 4 commit", ending(True, False), True, 0, (WRONG, OK, BUSY, BUSY, OK, WRONG)),
    ("EndTxn 4 abort", ending(False, False), True, 0, (WRONG, OK, BUSY, BUSY, WRONG, OK)),
    ("EndTxn 4 commit", ending(True, False), False, 0, ALL_FENCED),
    ("EndTxn 4 abort", ending(False, False), False, 0, ALL_FENCED),
    ("EndTxn 4 commit", ending(True, False), True, 2, (WRONG, OK, BUSY, BUSY, OK, WRONG)),
    ("EndTxn 4 abort", ending(False, False), True, 2, (WRONG, OK, BUSY, BUSY, WRONG, OK)),
    ("EndTxn 5 commit", ending(True, True), True, 2, (WRONG, OK, BUSY, BUSY, WRONG, WRONG)),
    ("EndTxn 5 abort", ending(False, True), True, 2, (OK, OK, BUSY, BUSY, OK, OK)),
    ("EndTxn 5 commit again", ending(True, True), False, 2, (FENCED, FENCED, BUSY, BUSY, OK, WRONG)),
    ("EndTxn 5 abort again", ending(False, True), False, 2, (FENCED, FENCED, BUSY, BUSY, WRONG, OK)),
    ("AddPartitionsToTxn", add, True, 2, (OK, OK, BUSY, BUSY, OK, OK)),
    ("AddPartitionsToTxn", add, False, 2, FENCED_UNLESS_ENDING),
    ("AddPartitionsToTxn verify", verify, True, 2, (ABORTABLE, OK, BUSY, BUSY, ABORTABLE, ABORTABLE)),
    ("AddPartitionsToTxn verify", verify, False, 2, ALL_FENCED),
    ("AddOffsetsToTxn", add_offsets, True, 2, (OK, OK, BUSY, BUSY, OK, OK)),
    ("AddOffsetsToTxn", add_offsets, False, 2, FENCED_UNLESS_ENDING),
    ("TxnOffsetCommit", look_for_offsets, True, 2, (ABORTABLE, ABORTABLE, BUSY, BUSY, ABORTABLE, ABORTABLE)),
    ("TxnOffsetCommit", look_for_offsets, False, 2, (E.INVALID_PRODUCER_EPOCH,) * 6),
    ("InitProducerId", init_unnamed, True, 0, (OK, BUSY, BUSY, BUSY, OK, OK)),
    ("InitProducerId", init_unnamed, True, 2, (OK, BUSY, BUSY, BUSY, OK, OK)),
    ("InitProducerId named", init_named, True, 2, (OK, BUSY, BUSY, BUSY, OK, OK)),
    # In Empty the producer before was another one; after an end it is the one that ended.
    ("InitProducerId named", init_named, False, 2, (FENCED, BUSY, BUSY, BUSY, OK, OK)),
]
CELLS = [
    pytest.param(
        ask, current, version, state, code, id=f"{what}-{'now' if current else 'before'}-TV{version}-{state.kafka_name}"
    )
    for what, ask, current, version, codes in TABLE
    for state, code in zip(STATES, codes, strict=True)
]


@pytest.mark.parametrize(("ask", "current", "version", "state", "code"), CELLS)
def test_a_request_in_a_state(ask: Ask, current: bool, version: int, state: S, code: E) -> None:
    driver = TransactionDriver()
    driver.reach(state, bumps=version == 2)
    metadata = driver.metadata()
    before = dict(driver.rows)
    assert ask(driver, (metadata.producer_id, metadata.producer_epoch - (0 if current else 1))) is code
    if code not in (OK, BUSY):
        assert driver.rows == before, "what is refused changes nothing"
    assert driver.load().state == driver.state


end_5 = ending(False, True)
PENDING_FIRST = (end_5, add, add_offsets)
"""What has to wait while a transaction is ending, whichever producer asks."""


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("ask", [ending(True, False), end_5, add, verify, add_offsets, look_for_offsets])
def test_another_producer_id_is_not_the_transactional_ids(ask: Ask, state: S) -> None:
    driver = TransactionDriver()
    driver.reach(state)
    before = dict(driver.rows)
    another = (driver.metadata().producer_id + 1, driver.metadata().producer_epoch)
    must_wait = state.is_ending and ask in PENDING_FIRST
    assert ask(driver, another) is (BUSY if must_wait else MAPPING)
    assert ask(TransactionDriver(), (0, 0)) is MAPPING, "nor has an unknown transactional id one"
    assert init_named(driver, another) is (BUSY if state.is_ending else FENCED)
    assert driver.rows == before


@pytest.mark.parametrize("ask", ["init", "end", "add", "verify", "offsets"])
def test_an_empty_transactional_id_is_an_invalid_request(ask: str) -> None:
    driver = TransactionDriver()
    asked: dict[str, Callable[[], E]] = {
        "init": lambda: driver.init(transactional_id="")[0],
        "end": lambda: driver.end((0, 0), transactional_id="")[0],
        "add": lambda: driver.add((0, 0), [0], transactional_id="")[0],
        "verify": lambda: driver.verify((0, 0), [0], transactional_id="")[0],
        "offsets": lambda: driver.add_offsets((0, 0), transactional_id=""),
    }
    assert asked[ask]() is E.INVALID_REQUEST
    assert driver.state.transactions == {}


# Ids and epochs


def test_each_new_producer_gets_an_id_of_its_own_and_raises_the_epoch() -> None:
    driver = TransactionDriver()
    assert driver.run(commands.AllocateProducerIds()) == range(1000)
    assert driver.init() == (OK, (1000, 0))
    assert driver.init() == (OK, (1000, 1))
    assert driver.init(transactional_id="u") == (OK, (1001, 0))
    assert driver.run(commands.AllocateProducerIds()) == range(1002, 2002)


def test_a_producer_that_names_its_epoch_gets_the_next_one_however_often_it_asks() -> None:
    """KIP-360."""
    driver = TransactionDriver()
    _, (producer_id, _) = driver.init()
    assert driver.init((producer_id, 0)) == (OK, (producer_id, 1))
    assert driver.init((producer_id, 0)) == (OK, (producer_id, 1)), "the first answer may have been lost"
    assert driver.init((producer_id, 1)) == (OK, (producer_id, 2))
    assert driver.init((producer_id, 0)) == (FENCED, NOBODY)
    assert driver.init() == (OK, (producer_id, 3))
    assert driver.init((producer_id, 2)) == (FENCED, NOBODY), "another producer took over"


def test_an_unknown_transactional_id_is_made_even_for_a_producer_that_names_an_id() -> None:
    driver = TransactionDriver()
    assert driver.init((77, 3)) == (OK, (0, 0))


def test_used_up_epochs_go_on_with_a_new_producer_id() -> None:
    driver = TransactionDriver()
    old = driver.use_up_epochs()
    before = dict(driver.rows)
    assert driver.init((old[0], old[1] - 1)) == (OK, old), "the newest request again"
    assert driver.init((old[0], 5)) == (FENCED, NOBODY)
    driver.rows = before
    driver.restart()
    assert driver.init(old) == (OK, (1, 0))
    assert driver.init(old) == (OK, (1, 0)), "it names the id before, which is used up"
    assert driver.init((old[0], 7)) == (FENCED, NOBODY)
    assert driver.init() == (OK, (1, 1))
    assert driver.init(old) == (FENCED, NOBODY)


def test_a_new_producer_of_used_up_epochs() -> None:
    driver = TransactionDriver()
    old = driver.use_up_epochs()
    assert driver.init() == (OK, (1, 0))
    assert driver.init(old) == (FENCED, NOBODY), "a new producer took over"


def test_the_end_of_the_last_transaction_of_a_producer_id() -> None:
    """The markers carry the last epoch of an int16; then the producer goes on with a new id (KIP-890)."""
    driver = TransactionDriver()
    old = driver.use_up_epochs()
    driver.add(old, [0])
    assert driver.end(old, bumps=True) == (OK, (1, 0))
    assert (driver.metadata().producer_id, driver.metadata().producer_epoch) == (old[0], 32_767)
    assert driver.end(old, bumps=True)[0] is BUSY
    for ask in (end_5, add, add_offsets, init_named):
        assert ask(driver, (1, 0)) is BUSY, "the producer knows its next id before the markers are written"
    driver.complete()
    assert driver.end(old, bumps=True) == (OK, (1, 0)), "the answer may have been lost"
    assert driver.end(old, bumps=True, committed=False)[0] is WRONG
    assert driver.add((1, 0), [0]) == [OK]
    assert driver.end(old, bumps=True)[0] is MAPPING


def test_the_last_transaction_of_a_producer_id_is_aborted_by_a_new_producer() -> None:
    driver = TransactionDriver()
    old = driver.use_up_epochs()
    driver.add(old, [0])
    assert driver.init() == (BUSY, NOBODY)
    assert (driver.metadata().producer_epoch, driver.metadata().next_producer_id) == (32_767, 1)
    driver.complete()
    assert driver.init() == (OK, (1, 1))


@pytest.mark.parametrize("ask", [ending(False, True), ending(True, True), add, add_offsets, init_named])
def test_a_producer_that_goes_on_before_the_markers_are_written_has_to_wait(ask: Ask) -> None:
    """It is not fenced by the end of its own transaction (KAFKA-18464): it knows its next epoch from EndTxn."""
    driver = TransactionDriver()
    old = driver.begin()
    code, following = driver.end(old, bumps=True)
    assert (code, following) == (OK, (old[0], old[1] + 1))
    assert ask(driver, following) is BUSY
    driver.complete()
    assert driver.add(following, [0]) == [OK]


def test_each_end_raises_the_epoch_from_version_5_on() -> None:
    driver = TransactionDriver()
    _, first = driver.init()
    driver.add(first, [0, 1])
    assert driver.end(first, bumps=True) == (OK, (first[0], 1))
    driver.complete()
    second = (first[0], 1)
    driver.add(second, [0])
    assert driver.end(second, committed=False, bumps=True) == (OK, (first[0], 2))
    driver.complete()
    assert driver.metadata().state is S.COMPLETE_ABORT


def test_the_epoch_stays_below_version_5() -> None:
    driver = TransactionDriver()
    _, producer = driver.init()
    for committed in (True, False, True):
        assert driver.add(producer, [0]) == [OK]
        assert driver.end(producer, committed=committed) == (OK, NOBODY)
        driver.complete()
    assert (driver.metadata().producer_id, driver.metadata().producer_epoch) == producer


def test_a_new_producer_aborts_the_open_transaction_first() -> None:
    driver = TransactionDriver()
    old = driver.begin()
    assert driver.init() == (BUSY, NOBODY)
    assert driver.metadata().state is S.PREPARE_ABORT
    assert driver.effects == [commands.TransactionEnding(transactional_id="t")]
    assert driver.add(old, [1]) == [BUSY] and driver.end(old)[0] is FENCED
    assert driver.init() == (BUSY, NOBODY)
    assert driver.metadata().producer_epoch == old[1] + 1, "asking again changes nothing"
    driver.complete()
    assert driver.init() == (OK, (old[0], old[1] + 2))


def test_an_abort_without_a_transaction_raises_the_epoch_and_is_done_at_once() -> None:
    """The client may not know that its first records never came to be in a transaction (KIP-890)."""
    driver = TransactionDriver()
    driver.now_ms = 5
    _, producer = driver.init()
    assert driver.end(producer, committed=False, bumps=True) == (OK, (producer[0], 1))
    metadata = driver.metadata()
    assert (metadata.state, metadata.start_timestamp_ms, driver.effects) == (S.COMPLETE_ABORT, 5, [])
    assert driver.end(producer, committed=False, bumps=True) == (OK, (producer[0], 1)), "again"
    assert driver.metadata() == metadata


def test_only_the_markers_that_are_waited_for_complete_a_transaction() -> None:
    driver = TransactionDriver()
    producer = driver.begin()
    driver.end(producer, bumps=True)
    for named in [(producer[0], producer[1]), (producer[0] + 1, producer[1] + 1)]:
        late = commands.CompleteTransaction(transactional_id="t", producer_id=named[0], producer_epoch=named[1])
        assert not driver.run(late)
    unknown = commands.CompleteTransaction(transactional_id="u", producer_id=producer[0], producer_epoch=0)
    assert not driver.run(unknown)
    assert driver.metadata().state is S.PREPARE_COMMIT
    driver.complete()
    done = commands.CompleteTransaction(transactional_id="t", producer_id=producer[0], producer_epoch=1)
    assert not driver.run(done), "it is complete"


# Partitions and groups


def test_partitions_that_are_not_in_the_catalog() -> None:
    driver = TransactionDriver(partitions=2)
    _, producer = driver.init()
    unknown, not_tried = E.UNKNOWN_TOPIC_OR_PARTITION, E.OPERATION_NOT_ATTEMPTED
    for ask in (driver.add, driver.verify):
        assert ask(producer, [0, 2, 1, -1]) == [not_tried, unknown, not_tried, unknown]
        assert ask(producer, [0], topic="missing") == [unknown]
        assert ask((99, 9), [7]) == [unknown], "the catalog is looked at first"
    assert driver.metadata().state is S.EMPTY
    assert driver.add(producer, [0, 1]) == [OK, OK]
    assert driver.verify(producer, [1, 0]) == [OK, OK]


def test_partitions_are_added_once() -> None:
    driver = TransactionDriver()
    producer = driver.begin()
    assert driver.add(producer, [0]) == [OK] and driver.record_count == 0
    assert driver.add(producer, [2, 0]) == [OK, OK] and driver.record_count == 1
    assert driver.verify(producer, [0, 1, 2]) == [OK, ABORTABLE, OK]
    partitions = [TopicPartition(driver.topic_id, partition) for partition in (0, 2)]
    assert list(driver.metadata().partitions) == partitions


def test_a_transaction_has_a_limit_of_partitions() -> None:
    driver = TransactionDriver({"kshare.max.partitions": "20000"}, partitions=TRANSACTION_PARTITION_LIMIT + 1)
    _, producer = driver.init()
    everything = range(TRANSACTION_PARTITION_LIMIT + 1)
    assert set(driver.add(producer, everything)) == {E.POLICY_VIOLATION}
    assert set(driver.add(producer, everything[1:])) == {OK}
    assert driver.add(producer, [0]) == [E.POLICY_VIOLATION]
    assert driver.add(producer, [5]) == [OK], "it is there already"


def test_a_transaction_has_a_limit_of_groups() -> None:
    driver = TransactionDriver()
    _, producer = driver.init()
    codes = [driver.add_offsets(producer, f"group-{number}") for number in range(TRANSACTION_GROUP_LIMIT)]
    assert set(codes) == {OK}
    assert driver.add_offsets(producer, "one more") is E.POLICY_VIOLATION


def commit_offset(driver: CoordinatorDriver, producer: Producer, offset: int) -> E:
    request = pb.TxnOffsetCommitRequest(
        transactional_id="t",
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id="g",
        generation_id=-1,
        offsets=[pb.CommittedOffset(topic_name="orders", partition=0, committed_offset=offset)],
    )
    (result,) = driver.run(commands.TxnOffsetCommit(request=request)).results
    return E(result.error_code)


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("with_partitions", [True, False])
def test_offsets_take_effect_when_the_outcome_of_their_transaction_is_decided(
    bumps: bool, committed: bool, with_partitions: bool
) -> None:
    """A partition whose leader is away delays the markers, and not whoever takes the group's partitions over."""
    driver = TransactionDriver()
    _, producer = driver.init()
    assert commit_offset(driver, producer, 42) is ABORTABLE, "the group was not added"
    assert driver.add_offsets(producer) is OK
    if with_partitions:
        driver.add(producer, [0])
    assert look_for_offsets(driver, producer) is OK
    assert commit_offset(driver, producer, 42) is OK
    key = TopicPartition(driver.topic_id, 0)
    assert driver.end(producer, committed=committed, bumps=bumps)[0] is OK
    found = driver.state.offsets.get("g", key)
    assert (found.offset if found else None) == (42 if committed else None)
    assert not driver.state.offsets.pending
    if with_partitions:
        assert driver.metadata().state.is_ending
        driver.complete()
    assert driver.state.offsets.get("g", key) == found
    assert driver.metadata().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert driver.load().state == driver.state


def test_offsets_in_the_last_transaction_of_a_producer_id() -> None:
    driver = TransactionDriver()
    old = driver.use_up_epochs()
    assert driver.add(old, [0]) == [OK] and driver.add_offsets(old) is OK
    assert commit_offset(driver, old, 42) is OK
    assert driver.end(old, bumps=True)[0] is OK
    driver.complete()
    found = driver.state.offsets.get("g", TopicPartition(driver.topic_id, 0))
    assert found is not None and found.offset == 42 and not driver.state.offsets.pending


# Times


@pytest.mark.parametrize(
    ("timeout_ms", "code"), [(0, False), (-1, False), (1, True), (900_000, True), (900_001, False)]
)
def test_timeouts_that_a_producer_may_ask_for(timeout_ms: int, code: bool) -> None:
    driver = TransactionDriver()
    assert driver.init(timeout_ms=timeout_ms)[0] is (OK if code else E.INVALID_TRANSACTION_TIMEOUT)


def abort_timed_out(driver: TransactionDriver) -> list[str]:
    found = timed_out_transactions(driver.state, driver.now_ms)
    return [each for each in found if driver.run(commands.AbortTimedOutTransaction(transactional_id=each))]


def test_a_transaction_that_is_open_too_long_is_aborted_and_its_producer_fenced() -> None:
    driver = TransactionDriver()
    driver.now_ms = 1_000
    producer = driver.begin()
    driver.now_ms = 31_000
    assert driver.add(producer, [1]) == [OK], "the time runs from the beginning of the transaction"
    driver.now_ms = 61_000
    assert abort_timed_out(driver) == []
    assert not driver.run(commands.AbortTimedOutTransaction(transactional_id="t"))
    driver.now_ms = 61_001
    assert abort_timed_out(driver) == ["t"]
    assert driver.effects == [commands.TransactionEnding(transactional_id="t")]
    assert driver.metadata().state is S.PREPARE_ABORT
    assert driver.end(producer)[0] is FENCED
    driver.complete()
    assert driver.end(producer)[0] is FENCED
    assert driver.end(producer, bumps=True)[0] is WRONG, "it was aborted, not committed"
    assert driver.end(producer, bumps=True, committed=False) == (OK, (producer[0], producer[1] + 1))
    assert abort_timed_out(driver) == []
    assert not driver.run(commands.AbortTimedOutTransaction(transactional_id="gone"))


def test_transactional_ids_without_an_open_transaction_expire() -> None:
    driver = TransactionDriver({"transactional.id.expiration.ms": "1000"})
    for name in ("open", "empty", "ending", "complete", "used"):
        driver.init(transactional_id=name)
        if name not in ("empty", "used"):
            producer = (driver.metadata(name).producer_id, 0)
            driver.add(producer, [0], transactional_id=name)
            if name != "open":
                driver.end(producer, transactional_id=name)
        if name == "complete":
            driver.complete(name)
    driver.now_ms = 1
    driver.init(transactional_id="used")
    driver.now_ms = 1_000
    assert driver.run(commands.ExpireTransactionalIds()) == 2
    assert sorted(driver.state.transactions) == ["ending", "open", "used"]
    assert driver.load().state == driver.state
    assert driver.init((driver.metadata("used").producer_id, 1), transactional_id="used")[0] is OK
    assert driver.init(transactional_id="empty") == (OK, (5, 0)), "with a new producer id"


def test_coordinator_epochs_only_grow() -> None:
    driver = TransactionDriver()
    epochs = [driver.state.epoch_counter]
    for _ in range(3):
        epochs.append(driver.run(commands.NextCoordinatorEpoch()))
        driver.restart()
        driver.register(pb.ROLE_LEADER, 7, f"another-{len(epochs)}")
    assert epochs == sorted(set(epochs))


# Looking at transactions


def test_describe_transactions() -> None:
    driver = TransactionDriver()
    driver.now_ms = 123
    producer = driver.begin()
    driver.add(producer, [2])
    gone = driver.create_topic("gone", 1)
    driver.add(producer, [0], topic="gone")
    driver.delete(gone)
    request = pb.DescribeTransactionsRequest(transactional_ids=["t", "", "unknown"])
    found, empty, unknown = describe_transactions(driver.state, request).transaction_states
    assert (found.error_code, found.transactional_id, found.transaction_state) == (0, "t", "Ongoing")
    assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (*producer, 60_000)
    assert found.transaction_start_time_ms == 123
    assert [(topic.topic_name, list(topic.partitions)) for topic in found.topics] == [("orders", [0, 2])]
    assert (E(empty.error_code), E(unknown.error_code)) == (E.INVALID_REQUEST, E.TRANSACTIONAL_ID_NOT_FOUND)


Listed = pb.ListTransactionsResponse | None
LISTED = [
    ({}, ["a-open", "b-empty", "c-ending"]),
    ({"state_filters": ["Ongoing", "Empty"]}, ["a-open", "b-empty"]),
    ({"state_filters": ["Dead"]}, []),
    ({"producer_id_filters": [0, 2, 99]}, ["a-open", "c-ending"]),
    ({"duration_filter_ms": 100}, ["b-empty"]),
    ({"duration_filter_ms": 99}, ["a-open", "b-empty", "c-ending"]),
    ({"transactional_id_pattern": "[ab]-.*"}, ["a-open", "b-empty"]),
    ({"transactional_id_pattern": "a"}, []),
    ({"state_filters": ["Ongoing"], "transactional_id_pattern": ".*-e.*"}, []),
]


def slices(driver: TransactionDriver, request: pb.ListTransactionsRequest, now_ms: int = 0) -> list[Listed]:
    """None for each slice but the last one, and then the answer."""
    steps = list_transactions(driver.state, request, now_ms)
    found: list[Listed] = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return [*found, end.value]


def listed(
    driver: TransactionDriver, request: pb.ListTransactionsRequest, now_ms: int = 0
) -> pb.ListTransactionsResponse:
    answer = slices(driver, request, now_ms)[-1]
    assert answer is not None
    return answer


@pytest.mark.parametrize(("filters", "expected"), LISTED)
def test_list_transactions(filters: dict[str, object], expected: list[str]) -> None:
    driver = TransactionDriver()
    driver.begin(transactional_id="a-open")
    driver.init(transactional_id="b-empty")
    driver.end(driver.begin(transactional_id="c-ending"), transactional_id="c-ending")
    request = pb.ListTransactionsRequest(duration_filter_ms=-1)
    request.MergeFrom(pb.ListTransactionsRequest(**filters))  # type: ignore[arg-type]
    answer = listed(driver, request, now_ms=100)
    assert sorted(state.transactional_id for state in answer.transaction_states) == expected
    names = {state.transactional_id: state.transaction_state for state in answer.transaction_states}
    assert names.items() <= {"a-open": "Ongoing", "b-empty": "Empty", "c-ending": "PrepareCommit"}.items()


def test_list_transactions_names_states_that_it_does_not_know() -> None:
    driver = TransactionDriver()
    driver.init()
    request = pb.ListTransactionsRequest(state_filters=["Gone", "Empty", "PrepareEpochFence"], duration_filter_ms=-1)
    answer = listed(driver, request)
    assert list(answer.unknown_state_filters) == ["Gone"] and len(answer.transaction_states) == 1
    request = pb.ListTransactionsRequest(state_filters=["Gone"], duration_filter_ms=-1)
    assert not listed(driver, request).transaction_states


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[z-a]", r"\1", "(?:.?a?){2000}", "a" * 20_000])
def test_list_transactions_refuses_what_is_no_pattern_of_re2(pattern: str) -> None:
    request = pb.ListTransactionsRequest(transactional_id_pattern=pattern)
    with pytest.raises(KafkaError) as refused:
        listed(TransactionDriver(), request)
    assert refused.value.code is E.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(("pattern", "several"), [("order-.*", False), (".?a?" * 700, True)])
def test_ids_are_compared_with_a_large_pattern_in_slices(pattern: str, several: bool) -> None:
    driver = TransactionDriver()
    for number in range(20):
        driver.init(transactional_id=f"order-{number:0100}")
    request = pb.ListTransactionsRequest(transactional_id_pattern=pattern, duration_filter_ms=-1)
    found = slices(driver, request)
    assert (len(found) > 1) is several
    answer = found[-1]
    assert answer is not None and len(answer.transaction_states) == 20


def test_a_pattern_that_would_take_forever_elsewhere() -> None:
    driver = TransactionDriver()
    name = "a" * 200 + "b"
    driver.init(transactional_id=name)
    request = pb.ListTransactionsRequest(transactional_id_pattern="(a+)+", duration_filter_ms=-1)
    assert not listed(driver, request).transaction_states
