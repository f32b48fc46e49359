"""Transactions of many producers against a naive model: any mix of requests, lost answers, timeouts and restarts.

The model knows which transaction of a transactional id is open, whose it is, and how it ends; of ids and epochs it
knows only to whom each was given. After each step: a machine loaded from the rows equals the live one; a producer id
with an epoch belongs to one producer; epochs never fall; and a transaction has one owner and one outcome, which is the
one that its owner was told, and the one that its offsets and its markers follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.records import write_of
from kshare_coordinator.machine.transactions.contents import check_ongoing, transaction_records
from kshare_coordinator.machine.transactions.ending import timed_out_transactions
from kshare_coordinator.machine.transactions.metadata import TransactionState as S
from kshare_core.errors import ErrorCode as E
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.transaction_driver import NOBODY, Producer, TransactionDriver

IDS = ("t", "u")
CLIENTS = st.integers(0, 3)
PARTITIONS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
TIMEOUT_MS = 1_000
EXPIRATION_MS = 5_000
REFUSALS = {
    E.INVALID_PRODUCER_ID_MAPPING,
    E.PRODUCER_FENCED,
    E.CONCURRENT_TRANSACTIONS,
    E.INVALID_TXN_STATE,
}


@dataclass
class Client:
    """A producer instance; two of them share each transactional id. `told` is what it last heard."""

    transactional_id: str
    told: Producer = NOBODY


@dataclass
class Transaction:
    owner: int
    partitions: set[int] = field(default_factory=set)
    offset: int | None = None
    outcome: bool | None = None


class TransactionsModel(RuleBasedStateMachine):
    @initialize(exhausted=st.booleans())
    def begin(self, exhausted: bool) -> None:
        self.driver = TransactionDriver({"transactional.id.expiration.ms": str(EXPIRATION_MS)}, partitions=4)
        self.clients = [Client(IDS[number % 2]) for number in range(4)]
        self.open: dict[str, Transaction] = {}
        self.last: dict[str, Transaction] = {}
        self.given: dict[Producer, int] = {}
        self.epochs: dict[int, tuple[str, int]] = {}
        self.committed: dict[str, int] = {}
        self.next_offset = 0
        if exhausted:
            for transactional_id in IDS:
                self.near_the_last_epoch(transactional_id)

    def near_the_last_epoch(self, transactional_id: str) -> None:
        self.driver.init(transactional_id=transactional_id)
        near = replace(self.driver.metadata(transactional_id), producer_epoch=32_764, previous_producer_epoch=-1)
        for record in transaction_records(near):
            write = write_of(record)
            assert write.value is not None
            self.driver.machine.replay(record)
            self.driver.rows[write.key] = write.value

    def give(self, client: int, producer: Producer, lost: bool) -> None:
        """The machine answered this client with this id and epoch."""
        assert self.given.setdefault(producer, client) == client, "it is another producer's"
        if not lost:
            self.clients[client].told = producer

    def close(self, transactional_id: str) -> None:
        transaction = self.last[transactional_id] = self.open.pop(transactional_id)
        assert transaction.outcome is not None

    @rule(client=CLIENTS, named=st.booleans(), lost=st.booleans())
    def init(self, client: int, named: bool, lost: bool) -> None:
        who = self.clients[client]
        code, producer = self.driver.init(
            who.told if named else NOBODY, transactional_id=who.transactional_id, timeout_ms=TIMEOUT_MS
        )
        transaction = self.open.get(who.transactional_id)
        if code is E.NONE:
            assert transaction is None
            if not named or who.told == NOBODY:
                assert producer not in self.given, "a new producer never gets what anybody had"
            self.give(client, producer, lost)
        elif code is E.CONCURRENT_TRANSACTIONS:
            assert transaction is not None
            if transaction.outcome is None:
                self.decide(who.transactional_id, False)
        else:
            assert code is E.PRODUCER_FENCED and named

    def decide(self, transactional_id: str, outcome: bool) -> None:
        """The outcome is decided, and the leaders of exactly its partitions will hear it."""
        transaction = self.open[transactional_id]
        assert transaction.outcome is None
        transaction.outcome = outcome
        if outcome and transaction.offset is not None:
            self.committed[transactional_id] = transaction.offset
        told = [effect for effect in self.driver.effects if isinstance(effect, commands.TransactionEnding)]
        if transaction.partitions:
            assert told == [commands.TransactionEnding(transactional_id=transactional_id)]
        else:
            assert told == []
            self.close(transactional_id)

    def of(self, client: int) -> Transaction:
        """The transaction that a client's addition was accepted in."""
        transaction = self.open.setdefault(self.clients[client].transactional_id, Transaction(client))
        assert transaction.owner == client and transaction.outcome is None
        assert self.given[self.clients[client].told] == client
        return transaction

    @rule(client=CLIENTS, partitions=PARTITIONS)
    def add(self, client: int, partitions: list[int]) -> None:
        who = self.clients[client]
        codes = set(self.driver.add(who.told, partitions, transactional_id=who.transactional_id))
        if codes == {E.NONE}:
            self.of(client).partitions.update(partitions)
        else:
            assert len(codes) == 1 and codes <= REFUSALS

    @rule(client=CLIENTS, partition=st.integers(0, 3))
    def verify(self, client: int, partition: int) -> None:
        """A leader may take records only for the open transaction's partitions, from its owner."""
        who = self.clients[client]
        (code,) = self.driver.verify(who.told, [partition], transactional_id=who.transactional_id)
        transaction = self.open.get(who.transactional_id)
        if code is E.NONE:
            assert transaction is not None and transaction.outcome is None
            assert transaction.owner == client and partition in transaction.partitions
        else:
            assert code in REFUSALS | {E.TRANSACTION_ABORTABLE}

    @rule(client=CLIENTS, add_to_transaction=st.booleans())
    def commit_offset(self, client: int, add_to_transaction: bool) -> None:
        who = self.clients[client]
        group_id = f"group-of-{who.transactional_id}"
        known = check_ongoing(self.driver.state, who.transactional_id, *who.told, group_id)
        request = pb.TxnOffsetCommitRequest(
            transactional_id=who.transactional_id,
            producer_id=who.told[0],
            producer_epoch=who.told[1],
            group_id=group_id,
            generation_id=-1,
            add_to_transaction=add_to_transaction,
            offsets=[pb.CommittedOffset(topic_name="orders", partition=0, committed_offset=self.next_offset)],
        )
        (result,) = self.driver.run(commands.TxnOffsetCommit(request=request)).results
        if result.error_code:
            assert known is not E.NONE
        else:
            assert known is E.NONE or add_to_transaction
            self.of(client).offset = self.next_offset
            self.next_offset += 1

    @rule(client=CLIENTS, committed=st.booleans(), bumps=st.booleans(), lost=st.booleans())
    def end(self, client: int, committed: bool, bumps: bool, lost: bool) -> None:
        who = self.clients[client]
        transactional_id = who.transactional_id
        code, producer = self.driver.end(who.told, committed=committed, bumps=bumps, transactional_id=transactional_id)
        if code is not E.NONE:
            assert code in REFUSALS
            return
        transaction = self.open.get(transactional_id)
        if transaction is not None and transaction.outcome is None:
            assert transaction.owner == client
            self.decide(transactional_id, committed)
        elif bumps and producer not in self.given:
            assert not committed, "there was nothing to commit"
            self.last[transactional_id] = Transaction(client, outcome=False)
        else:
            assert self.last[transactional_id].outcome is committed, "told again what was decided"
        if bumps:
            self.give(client, producer, lost)

    @rule(transactional_id=st.sampled_from(IDS))
    def markers_are_written(self, transactional_id: str) -> None:
        transaction = self.open.get(transactional_id)
        if transaction is not None and transaction.outcome is not None:
            self.driver.complete(transactional_id)
            self.close(transactional_id)

    @rule(elapsed_ms=st.integers(1, 2 * EXPIRATION_MS))
    def time_passes(self, elapsed_ms: int) -> None:
        self.driver.now_ms += elapsed_ms
        for transactional_id in timed_out_transactions(self.driver.state, self.driver.now_ms):
            assert self.driver.run(commands.AbortTimedOutTransaction(transactional_id=transactional_id))
            self.decide(transactional_id, False)

    @rule()
    def expire(self) -> None:
        self.driver.run(commands.ExpireTransactionalIds())
        for transactional_id in IDS:
            if transactional_id not in self.driver.state.transactions:
                assert transactional_id not in self.open

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @precondition(lambda self: self.driver.state.transactions)
    @rule(client=CLIENTS)
    def a_new_producer_gets_in(self, client: int) -> None:
        """Whatever state an id is in: as soon as the markers are written, a new producer can use it."""
        transactional_id = self.clients[client].transactional_id
        for _ in range(2):
            self.init(client, named=False, lost=False)
            self.markers_are_written(transactional_id)
        assert self.given.get(self.clients[client].told) == client
        assert self.driver.add(self.clients[client].told, [0], transactional_id=transactional_id) == [E.NONE]
        self.of(client).partitions.add(0)

    @invariant()
    def the_rows_are_the_state(self) -> None:
        assert self.driver.load().state == self.driver.state

    @invariant()
    def each_id_is_where_the_model_says(self) -> None:
        for transactional_id, metadata in self.driver.state.transactions.items():
            transaction = self.open.get(transactional_id)
            if transaction is None:
                assert metadata.state.has_no_transaction and not metadata.partitions and not metadata.group_ids
                continue
            expected = {None: S.ONGOING, True: S.PREPARE_COMMIT, False: S.PREPARE_ABORT}[transaction.outcome]
            partitions = {TopicPartition(self.driver.topic_id, partition) for partition in transaction.partitions}
            assert (metadata.state, set(metadata.partitions)) == (expected, partitions)

    @invariant()
    def epochs_never_fall(self) -> None:
        for transactional_id, metadata in self.driver.state.transactions.items():
            owner, epoch = self.epochs.get(metadata.producer_id, (transactional_id, 0))
            assert owner == transactional_id and epoch <= metadata.producer_epoch <= 32_767
            self.epochs[metadata.producer_id] = (transactional_id, metadata.producer_epoch)

    @invariant()
    def offsets_follow_the_outcomes(self) -> None:
        key = TopicPartition(self.driver.topic_id, 0)
        for transactional_id in IDS:
            found = self.driver.state.offsets.get(f"group-of-{transactional_id}", key)
            assert (found.offset if found else None) == self.committed.get(transactional_id)


TestTransactionsModel = TransactionsModel.TestCase
TestTransactionsModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
