"""What others than faults did in a history, counted from its events: activities, members, sessions, leases and moves.

Each name says what happened, and not what was asked for: a partition that was moved, a commit that was confirmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from support.simulation.cluster import EMBEDDED, ENGINES
from support.simulation.history import (
    Assigned,
    CommitAnswered,
    CommitSent,
    Event,
    FaultEvent,
    ForgeryAnswered,
    History,
    HoldsEnded,
    LeaderEpochSeen,
    LeaseRenewed,
    LogHandedOver,
    Note,
    RecordsDeleted,
    SessionReleased,
    StateLoaded,
    StatesHandedOver,
)
from support.simulation.kafka_clients.member import DIED, LEAVES, SESSION_ENDED_WITH, VANISHED

ADMINISTERED = "an administered group comes to its planned end"
REASSIGNED = "a member of a share group gets another assignment"
LEASE_RAN_OUT = "a node's lease had run out when it was renewed"
OTHER_LEADER = "a share-partition is loaded in a higher leader epoch"
FORGED_COMMIT = "a forged commit is refused"

_OF_EVENTS: Mapping[str, Callable[[Event], bool]] = {
    "a log is handed over to its next leader": lambda event: isinstance(event, LogHandedOver),
    "a leader gets another leader epoch": lambda event: isinstance(event, LeaderEpochSeen),
    "a state partition is handed over": lambda event: isinstance(event, StatesHandedOver),
    "a node joins": lambda event: isinstance(event, FaultEvent) and event.name == "join",
    "a node is drained and leaves": lambda event: isinstance(event, FaultEvent) and event.name == "left",
    "a node is upgraded": lambda event: isinstance(event, FaultEvent) and event.name == "upgrade",
    "a forged acknowledgement is answered": lambda event: isinstance(event, ForgeryAnswered),
    "a commit of a consumer group is confirmed": lambda event: (
        isinstance(event, CommitAnswered) and not event.error_code
    ),
    "records are deleted": lambda event: isinstance(event, RecordsDeleted),
    "a member of a share group dies": lambda event: isinstance(event, HoldsEnded) and event.why == DIED,
    "a member of a share group leaves": lambda event: isinstance(event, HoldsEnded) and event.why == LEAVES,
    "a member of a share group vanishes": lambda event: isinstance(event, HoldsEnded) and event.why == VANISHED,
    "a share session ends with an error": lambda event: (
        isinstance(event, HoldsEnded) and event.why.startswith(SESSION_ENDED_WITH)
    ),
    "a leader releases a share session": lambda event: (
        isinstance(event, SessionReleased) and not event.lost_fetch_numbers
    ),
    "a leader hears that an answer was lost": lambda event: (
        isinstance(event, SessionReleased) and bool(event.lost_fetch_numbers)
    ),
}

OF_EMBEDDED = (
    "a log is handed over to its next leader",
    "a leader gets another leader epoch",
    "a state partition is handed over",
    "a commit of a consumer group is confirmed",
    FORGED_COMMIT,
)
"""What only plans of the embedded engine have."""

ENGINES_OF: Mapping[str, Sequence[str]] = {
    name: (EMBEDDED,) if name in OF_EMBEDDED else ENGINES
    for name in (*_OF_EVENTS, FORGED_COMMIT, ADMINISTERED, REASSIGNED, LEASE_RAN_OUT, OTHER_LEADER)
}
"""Every name of this module, with the engines whose seeds meet it."""


def activities_met(history: History, administered_groups: int) -> Counter[str]:
    """How often each happened. `administered_groups`: those that came to their planned end."""
    found = Counter({ADMINISTERED: administered_groups})
    forged: dict[int, None] = {}
    assigned: dict[str, tuple[int, ...]] = {}
    leases: dict[str, LeaseRenewed] = {}
    epochs: dict[tuple[str, int], int] = {}
    for event in history.events:
        if isinstance(event, Note):  # most events are notes
            continue
        if isinstance(event, CommitSent) and event.is_forged:
            forged[event.commit_id] = None
        elif isinstance(event, CommitAnswered) and event.commit_id in forged:
            found[FORGED_COMMIT] += bool(event.error_code)
        elif isinstance(event, Assigned):
            found[REASSIGNED] += event.partitions != assigned.get(event.member, event.partitions)
            assigned[event.member] = event.partitions
        elif isinstance(event, LeaseRenewed):
            before = leases.get(event.node)
            found[LEASE_RAN_OUT] += before is not None and event.time > before.sent_at + before.lease_ms / 1000
            leases[event.node] = event
        elif isinstance(event, StateLoaded):
            place = (event.group, event.partition)
            found[OTHER_LEADER] += event.leader_epoch > epochs.get(place, event.leader_epoch)
            epochs[place] = max(event.leader_epoch, epochs.get(place, -1))
        for name, is_met in _OF_EVENTS.items():
            found[name] += is_met(event)
    return found
