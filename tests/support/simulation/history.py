"""What happened in a simulation, in order: the events that clients and the network tap saw, and notes for the reader.

Offsets are inclusive; times are virtual seconds. `History.digest` is a hash over all events: two runs of one seed give
the same one.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

Run = tuple[int, int]
"""First and last offset."""


class ProduceSent(NamedTuple):
    time: float
    producer: str
    partition: int
    values: tuple[str, ...]


class ProduceConfirmed(NamedTuple):
    time: float
    producer: str
    partition: int
    base_offset: int
    """-1: the leader only said that it had the batch already."""
    values: tuple[str, ...]


class TransactionBegun(NamedTuple):
    """A producer begins a transaction; `number` is its own count, `values` all that it means to produce in it."""

    time: float
    producer: str
    number: int
    values: tuple[str, ...]


class TransactionEndSent(NamedTuple):
    """The producer asks to end its transaction; to commit it only once every record was confirmed."""

    time: float
    producer: str
    number: int
    commit: bool


class TransactionEndConfirmed(NamedTuple):
    """The transaction coordinator took it."""

    time: float
    producer: str
    number: int
    commit: bool


class RecordsDeleted(NamedTuple):
    """A DeleteRecords was confirmed: the log starts at `low_watermark` or later."""

    time: float
    partition: int
    low_watermark: int


class Delivered(NamedTuple):
    """A member got acquired records. They were acquired between `sent_at` and `time`."""

    time: float
    sent_at: float
    group: str
    member: str
    gateway: str
    partition: int
    run: Run
    delivery_count: int
    values: tuple[str, ...]


class AcknowledgeSent(NamedTuple):
    time: float
    acknowledge_id: int
    group: str
    member: str
    partition: int
    run: Run
    type: int


class AcknowledgeAnswered(NamedTuple):
    """The answer to an AcknowledgeSent; none ever comes where the connection was lost."""

    time: float
    acknowledge_id: int
    error_code: int


class HoldsEnded(NamedTuple):
    """All that the member held through this gateway may be given to others from now on."""

    time: float
    group: str
    member: str
    gateway: str
    why: str


class FaultEvent(NamedTuple):
    """A fault begins or ends, or a node sees one: it registers, or the catalog shows it other nodes than before."""

    time: float
    name: str
    hosts: tuple[str, ...]
    text: str


class Acquired(NamedTuple):
    """A leader answered a ShareFetch with acquired records (seen on the network, whether or not it arrived).

    The gateway sent its request at `sent_at`.
    """

    time: float
    sent_at: float
    group: str
    member: str
    partition: int
    run: Run
    delivery_count: int


class StateWritten(NamedTuple):
    """A share coordinator confirmed a WriteShareGroupState or InitializeShareGroupState (leader epoch -1)."""

    time: float
    sent_at: float
    group: str
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[tuple[int, int, int, int], ...]
    """First offset, last offset, delivery state, delivery count."""


class Note(NamedTuple):
    """For the reader of a trace, and for the digest; no rule looks at it."""

    time: float
    text: str


Event = (
    ProduceSent
    | ProduceConfirmed
    | TransactionBegun
    | TransactionEndSent
    | TransactionEndConfirmed
    | RecordsDeleted
    | Delivered
    | AcknowledgeSent
    | AcknowledgeAnswered
    | HoldsEnded
    | FaultEvent
    | Acquired
    | StateWritten
    | Note
)


class History:
    """Events in the order in which they happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for event in self.events:
            digest.update(repr(event).encode())
        return digest.hexdigest()

    def lines(self, *, with_notes: bool = True) -> list[str]:
        return [describe(event) for event in self.events if with_notes or not isinstance(event, Note)]


def describe(event: Event) -> str:
    """One line for one event."""
    if isinstance(event, Note):
        return f"{event.time:10.4f}  {event.text}"
    name = type(event).__name__
    fields = ", ".join(
        f"{field}={value!r}" for field, value in event._asdict().items() if field not in ("time", "values")
    )
    return f"{event.time:10.4f}  {name}({fields})"
