"""Moves candidates of one partition: records and notes in one Kafka transaction after another.

The transactional id belongs to the partition that is emptied. A run that begins aborts the open transaction of another
run with this id and fences it. Only then it reads the notes, so they have everything that was ever moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kshare_kafka_client.properties import open_producer, producer_properties
from kshare_kafka_client.redrive.candidates import Candidate, headers_of_moved, summary
from kshare_kafka_client.redrive.ledger import note_key, note_value, read_ledger
from kshare_kafka_client.redrive.pace import Pace
from kshare_kafka_client.redrive.request import FIRST_ONES, LEDGER_TOPIC, Account, RedriveFailed, RedriveRequest
from kshare_kafka_client.topics import Partition

TRANSACTION_LIMIT_RECORDS = 1_000
COMMIT_TRIES = 3
CLOSING_ABORT_TIMEOUT_S = 5.0
"""How long a run that stops for another reason than Kafka waits for the abort of its open transaction."""
MOVER_DEFAULTS = {"message.max.bytes": 1_000_000_000}
"""librdkafka compares it with the record before compression; the topic's max.message.bytes applies to the batch after
it. So the default is librdkafka's upper limit, and the broker decides. `batch.size` still limits batches of several."""
_CONSEQUENCES = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE)
"""Errors of records that follow from an earlier error of the same transaction."""


def transactional_id(place: Partition) -> str:
    return f"kshare-redrive-{place.topic}-{place.partition}"


class PartitionMover:
    """The mover of one partition of a dead-letter topic, or of a topic with archived records; a context manager.

    In a dry run it has no producer: it only counts. RedriveFailed, KafkaUnavailable from every method.
    """

    def __init__(
        self,
        place: Partition,
        topic_id: str,
        request: RedriveRequest,
        account: Account,
        pace: Pace,
    ) -> None:
        self._place = place
        self._topic_id = topic_id
        self._account = account
        self._pace = pace
        self._timeout_s = request.timeout_s
        self._failures: list[tuple[str, KafkaError]] = []
        """Topics and errors of the records that the current transaction could not store."""
        self._was_rejected = False
        """Whether the last transaction was aborted because of a size."""
        self._producer = None if request.dry_run else self._begin(request.properties)
        self._moved = read_ledger(
            request.properties,
            topic_id,
            place.partition,
            timeout_s=request.timeout_s,
            must_exist=self._producer is not None,
        )

    def __enter__(self) -> PartitionMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None and kind is not None:
            self._abort(self._producer, CLOSING_ABORT_TIMEOUT_S)
            self._producer.purge()

    def _begin(self, properties: Mapping[str, str]) -> Producer:
        rules = {"transactional.id": transactional_id(self._place), "delivery.report.only.error": True}
        producer = open_producer({**MOVER_DEFAULTS, **producer_properties(properties), **rules})
        try:
            producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            raise RedriveFailed(f"redrive of {self._place} cannot begin: {_sentence(error.args[0])}") from None
        return producer

    def unmoved(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that no run has moved; the others are counted."""
        found = [candidate for candidate in candidates if candidate.from_offset not in self._moved]
        self._account.already_moved += len(candidates) - len(found)
        return found

    def move(self, candidates: Sequence[Candidate]) -> None:
        """Moves candidates without a problem that were not moved yet, at the rate; returns when they are durable."""
        ready: dict[int, Candidate] = {}
        for candidate in self.unmoved(candidates):
            if candidate.problem:
                self._account.add_problem(candidate.problem)
            else:
                ready.setdefault(candidate.from_offset, candidate)
        found = list(ready.values())
        limit = self._pace.batch_limit(TRANSACTION_LIMIT_RECORDS)
        for begin in range(0, len(found), limit):
            batch = found[begin : begin + limit]
            if self._producer is not None:
                self._pace.wait(len(batch))
                self._move_batch(self._producer, batch)
            else:
                self._count(batch)

    def _move_batch(self, producer: Producer, batch: Sequence[Candidate]) -> None:
        """Moves a batch. Halves of a batch that is rejected as too large are moved one after the other.

        So the order stays, and one record that is too large is a problem only of itself.
        """
        if self._transact(producer, batch):
            self._count(batch)
        elif len(batch) == 1:
            limits = f"max.message.bytes of topic {batch[0].topic}, or the client's message.max.bytes"
            self._account.add_problem(f"with the headers of a redrive it is larger than {limits}")
        else:
            middle = len(batch) // 2
            self._move_batch(producer, batch[:middle])
            self._move_batch(producer, batch[middle:])

    def _count(self, batch: Sequence[Candidate]) -> None:
        for candidate in batch:
            self._account.add_moved(candidate.topic, candidate.reason)
        missing = max(0, FIRST_ONES - len(self._account.first_ones))
        self._account.first_ones.extend(summary(candidate) for candidate in batch[:missing])

    def _transact(self, producer: Producer, batch: Sequence[Candidate]) -> bool:
        """Moves a batch in one transaction; False when nothing was moved because a record or batch is too large.

        The transaction after such a one is tried twice: librdkafka skips the sequence numbers of rejected records, and
        bumps the producer's epoch when the broker has refused the gap.
        """
        self._failures.clear()
        may_have_gap, self._was_rejected = self._was_rejected, False
        changed = self._moved.with_offsets(candidate.from_offset for candidate in batch)
        try:
            producer.begin_transaction()
            for candidate in batch:
                self._produce(
                    producer,
                    topic=candidate.topic,
                    partition=candidate.partition,
                    key=candidate.key,
                    value=candidate.value,
                    headers=headers_of_moved(candidate),
                )
            for segment, runs in changed.items():
                key = note_key(self._topic_id, self._place.partition, segment)
                self._produce(
                    producer, topic=LEDGER_TOPIC, partition=0, key=key, value=note_value(self._place.topic, runs)
                )
            self._commit(producer)
        except KafkaException as error:
            is_aborted = self._abort(producer, self._timeout_s)  # it also waits for the errors of all records
            self._was_rejected = is_aborted and self._is_too_large()
            if self._was_rejected:
                return False
            if is_aborted and may_have_gap:
                return self._transact(producer, batch)
            self._give_up(error.args[0])
        self._moved.note(changed)
        return True

    def _produce(self, producer: Producer, **record: Any) -> None:
        while True:
            try:
                producer.produce(**record, on_delivery=self._delivered)
                return
            except BufferError:  # the queue is full
                producer.poll(0.5)
            except KafkaException as error:
                self._failures.append((record["topic"], error.args[0]))
                raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append((message.topic() or "", error))

    def _is_too_large(self) -> bool:
        """Whether a record was rejected for its size; a note that is rejected is another failure."""
        return any(
            topic != LEDGER_TOPIC and error.code() == KafkaError.MSG_SIZE_TOO_LARGE for topic, error in self._failures
        )

    def _commit(self, producer: Producer) -> None:
        for attempt in range(COMMIT_TRIES):
            try:
                producer.commit_transaction(self._timeout_s)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or attempt == COMMIT_TRIES - 1:
                    raise

    def _abort(self, producer: Producer, timeout_s: float) -> bool:
        """Aborts the open transaction: it has moved nothing and has no notes. False where none is open, or it failed.

        After a failure it is aborted at transaction.timeout.ms, or when the next run begins.
        """
        try:
            producer.abort_transaction(timeout_s)
        except KafkaException:
            return False
        return True

    def _give_up(self, error: KafkaError) -> NoReturn:
        causes = [cause for _, cause in self._failures if cause.code() not in _CONSEQUENCES]
        cause = causes[0] if causes else error
        moved = f"{self._account.moved_count} records were moved before"
        if error.fatal() and error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise RedriveFailed(f"another redrive of {self._place} has begun and goes on with the rest; {moved}")
        raise RedriveFailed(
            f"redrive of {self._place} broke off: {_sentence(cause)}; {moved}. Run it again for the rest"
        )


def _sentence(error: KafkaError) -> str:
    return f"{error.name().lstrip('_')}: {error.str()}"
