"""The history of a simulation, in order: the events that clients and the network tap saw, and notes for the reader.

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


class EndArrived(NamedTuple):
    """An EndTxn of a producer that keeps its epoch reaches the coordinator; `caller` is the gateway's life."""

    time: float
    sent_at: float
    caller: str
    producer: str
    commit: bool


class DeletionAsked(NamedTuple):
    """An administrator sends a DeleteRecords: from now on the log may start at `offset`."""

    sent_at: float
    partition: int
    offset: int

    @property
    def time(self) -> float:
        return self.sent_at


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


class FetchesFrom(NamedTuple):
    """The partitions that a member fetches from now on, as far as it knows, each with its gateway.

    They are those that are assigned to it; none while it stalls, and once it has died or left.
    """

    time: float
    group: str
    member: str
    places: tuple[tuple[int, str], ...]
    """Partition, and the gateway's host."""


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


class Assigned(NamedTuple):
    """A member of a share group heard of its assignment in the topic."""

    time: float
    group: str
    member: str
    epoch: int
    partitions: tuple[int, ...]


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

    The gateway sent its request at `sent_at`, and it reached the leader at `arrived_at`: the records were acquired
    between then and `time`. `member` is the member id; `leader` is one life of a leader.
    """

    time: float
    sent_at: float
    group: str
    member: str
    partition: int
    run: Run
    delivery_count: int
    leader: str = ""
    gateway: str = ""
    """Node id and incarnation of the gateway that asked."""
    fetch_number: int = 0
    arrived_at: float = -1.0
    """-1: as early as `sent_at`."""


class StateLoaded(NamedTuple):
    """A share coordinator answered a ReadShareGroupState: what the leader goes on with. It arrived at `arrived_at`."""

    time: float
    arrived_at: float
    sent_at: float
    group: str
    partition: int
    leader: str
    leader_epoch: int
    state_epoch: int
    start_offset: int
    batches: tuple[tuple[int, int, int, int], ...]
    """First offset, last offset, delivery state, delivery count."""
    share_coordinator: str = ""
    """The life of the share coordinator that answers it."""


class StateWriteArrived(NamedTuple):
    """A write of share-partition state reached a share coordinator: it may take effect from now on."""

    time: float
    call: int
    leader: str
    group: str
    partition: int
    state_epoch: int
    start_offset: int
    batches: tuple[tuple[int, int, int, int], ...]


class StateWriteUnconfirmed(NamedTuple):
    """A leader's write of share-partition state was refused, or the leader does not know what became of it.

    Not so a write that never reached a share coordinator: the leader knows that, and keeps its locks.
    """

    time: float
    leader: str
    group: str
    partition: int
    why: str


class AcknowledgeArrived(NamedTuple):
    """Acknowledgements of one partition reached its leader, in the call with this number."""

    time: float
    call: int
    leader: str
    group: str
    member: str
    gateway: str
    partition: int
    runs: tuple[Run, ...]
    types: tuple[int, ...]
    """The acknowledge type of each of `runs`."""
    delivered_fetch_number: int
    renewed: tuple[Run, ...] = ()
    """Offsets whose locks are to be renewed; they are not among `runs`."""


class AcknowledgeEnded(NamedTuple):
    """The leader's answer to an AcknowledgeArrived."""

    time: float
    call: int
    leader: str
    group: str
    partition: int
    error_code: int


class SessionReleased(NamedTuple):
    """A ReleaseShareSession reached a leader. `partitions` empty: all; `last_fetch_number` 0: not limited."""

    time: float
    leader: str
    group: str
    member: str
    gateway: str
    partitions: tuple[int, ...]
    last_fetch_number: int
    lost_fetch_numbers: tuple[int, ...]
    undelivered_fetch_numbers: tuple[int, ...] = ()


class GatewaysSeen(NamedTuple):
    """A catalog that reached a leader named these gateways: node id and incarnation."""

    time: float
    leader: str
    gateways: tuple[str, ...]


class PartitionTaken(NamedTuple):
    """A leader has to give a share-partition's state up; group "": that of every group. Why: a move, or a drop."""

    time: float
    leader: str
    """"": whoever leads it."""
    group: str
    partition: int
    why: str


class StateWritten(NamedTuple):
    """A share coordinator confirmed a WriteShareGroupState or InitializeShareGroupState (leader epoch -1).

    `call` is that of its StateWriteArrived; 0 for an initialization.
    """

    time: float
    sent_at: float
    group: str
    partition: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[tuple[int, int, int, int], ...]
    """First offset, last offset, delivery state, delivery count."""
    call: int = 0
    share_coordinator: str = ""
    """The life of the share coordinator that confirms it."""
    state_partition: int = -1
    """-1: not known."""
    arrived_at: float = -1.0


class LeaseRenewed(NamedTuple):
    """An answer of the coordinator reached a node. Its lease counts from `sent_at`, when the call was sent."""

    time: float
    node: str
    """One life of a node."""
    sent_at: float
    lease_ms: int


class StatesHandedOver(NamedTuple):
    """A share coordinator sent rows of a state partition to its new owner, so that it knows of the move."""

    time: float
    share_coordinator: str
    state_partition: int
    owner_epoch: int


class StateOwnersSeen(NamedTuple):
    """A catalog that reached a share coordinator has these owner epochs, by state partition."""

    time: float
    share_coordinator: str
    owner_epochs: tuple[tuple[int, int], ...]


class LogHandedOver(NamedTuple):
    """A leader sent rows of a fenced log to its next leader, so that it knows of the fence."""

    time: float
    leader: str
    partition: int
    move_epoch: int


class LeaderEpochSeen(NamedTuple):
    """A catalog that reached a leader names it the leader of the partition in another leader epoch than before."""

    time: float
    leader: str
    partition: int
    leader_epoch: int


class LeaderSeen(NamedTuple):
    """A catalog that reached some leader names this host the leader of the partition, in a newer leader epoch."""

    time: float
    partition: int
    leader: str


class ForgeryAnswered(NamedTuple):
    """An acknowledgement of records that its sender was never given was sent at `sent_at`, and answered so."""

    time: float
    sent_at: float
    group: str
    member: str
    partition: int
    run: Run
    error_code: int


class CommitSent(NamedTuple):
    """A member of a consumer group commits an offset, or asks for the end of the transaction in which it did.

    `is_forged`: by one that may not, with an offset of no one's. `is_aborted`: in a transaction whose commit is never
    asked for, with an offset of no one's.
    """

    time: float
    commit_id: int
    group: str
    member: str
    partition: int
    offset: int
    is_forged: bool = False
    is_aborted: bool = False


class CommitAnswered(NamedTuple):
    """The answer to a CommitSent; none ever comes where the connection was lost."""

    time: float
    commit_id: int
    error_code: int


class CommitTryLost(NamedTuple):
    """A gateway's OffsetCommit failed or ran out of time: it may still arrive, also after the next try."""

    time: float
    group: str
    partition: int
    offset: int


class LogRead(NamedTuple):
    """What a Fetch of an ordinary consumer returned: `run` is where it was, and the offset before where it goes on."""

    time: float
    reader: str
    is_committed: bool
    """Whether it reads committed records only."""
    partition: int
    run: Run
    records: tuple[tuple[int, str, bool], ...]
    """Offset, value, and whether it counts as committed."""
    markers: tuple[int, ...]
    """The offsets of control records."""


class LateHeartbeat(NamedTuple):
    """A ShareGroupHeartbeat reached a coordinator after its gateway had given it up, or had died."""

    time: float
    group: str
    member: str


class CommittedRead(NamedTuple):
    """An OffsetFetch with RequireStable, sent at `sent_at`, says what is committed; -1: nothing."""

    time: float
    sent_at: float
    group: str
    partition: int
    offset: int


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
    | EndArrived
    | DeletionAsked
    | RecordsDeleted
    | Delivered
    | FetchesFrom
    | AcknowledgeSent
    | AcknowledgeAnswered
    | Assigned
    | HoldsEnded
    | FaultEvent
    | Acquired
    | StateLoaded
    | StateWriteArrived
    | StateWriteUnconfirmed
    | AcknowledgeArrived
    | AcknowledgeEnded
    | SessionReleased
    | GatewaysSeen
    | PartitionTaken
    | StateWritten
    | LeaseRenewed
    | StatesHandedOver
    | StateOwnersSeen
    | LogHandedOver
    | LeaderEpochSeen
    | LeaderSeen
    | ForgeryAnswered
    | CommitSent
    | CommitAnswered
    | CommitTryLost
    | LogRead
    | LateHeartbeat
    | CommittedRead
    | Note
)


class History:
    """Events in the order in which they happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fault_names: dict[str, None] = {}
        """Of all FaultEvents so far."""

    def add(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, FaultEvent):
            self.fault_names[event.name] = None

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
