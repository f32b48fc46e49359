"""Rules of leases and of what is handed over: a node serves only what it may serve by what it knows itself.

- A node whose lease may have run out answers nothing: another one may serve in its place. The lease counts from when a
  call was sent that the coordinator answered, so each node knows its own end, whatever the coordinator believes.
- A share coordinator that sent rows of a state partition to its next owner confirms no later write to it, until a
  catalog with another owner epoch reaches it.
- A leader that sent the rest of a fenced log to its next leader acquires no record of it, until a catalog names it the
  leader in another epoch.

Only requests that arrived afterwards break a rule: one that was under way may be answered late.
"""

from __future__ import annotations

from collections.abc import Iterator

from kshare_core.leases import held_s
from support.simulation.evidence import Evidence, Violation
from support.simulation.history import (
    Acquired,
    Event,
    LeaderEpochSeen,
    LeaseRenewed,
    LogHandedOver,
    StateLoaded,
    StateOwnersSeen,
    StatesHandedOver,
    StateWritten,
    describe,
)

Served = Acquired | StateLoaded | StateWritten
ROUNDING_MS = 1


def nobody_serves_without_a_lease(evidence: Evidence) -> Iterator[Violation]:
    """Judges by each node's own clock, and by the part of a lease that a node may act on (`kshare_core.leases`).

    An answer that arrives while its node stands still is known to the rule before the node knows it.
    """
    shown_ms = evidence.expected.shown_ms
    leases: dict[str, LeaseRenewed] = {}
    for event in evidence.events:
        if isinstance(event, LeaseRenewed):
            before = leases.get(event.node)
            if before is None or event.sent_at > before.sent_at:
                leases[event.node] = event
        elif isinstance(event, Served):
            lease = leases.get(_server(event))
            if lease is None:
                continue
            age_ms = shown_ms(lease.node, event.arrived_at) - shown_ms(lease.node, lease.sent_at)
            if age_ms > held_s(lease.lease_ms) * 1000 + ROUNDING_MS:
                text = f"{lease.node}'s lease was {age_ms} ms old: {describe(event)}"
                yield Violation("served after its lease", text, [describe(lease)])


def _server(event: Served) -> str:
    return event.leader if isinstance(event, Acquired) else event.share_coordinator


def nothing_is_served_after_its_handover(evidence: Evidence) -> Iterator[Violation]:
    """Applies the second and the third rule of the module's text.

    A newer epoch may have reached a node that stands still, so that the rule knows it before the node hands over.
    """
    states, logs = _Handovers(), _Handovers()
    for event in evidence.events:
        if isinstance(event, StateWritten):
            sent = states.before((event.share_coordinator, event.state_partition), event.arrived_at)
            if sent is not None:
                yield Violation("written after its handover", describe(event), [describe(sent)])
        elif isinstance(event, Acquired):
            sent = logs.before((event.leader, event.partition), event.arrived_at)
            if sent is not None:
                yield Violation("acquired after its handover", describe(event), [describe(sent)])
        else:
            _learn(event, states, logs)


def _learn(event: Event, states: _Handovers, logs: _Handovers) -> None:
    if isinstance(event, StatesHandedOver):
        states.handed_over((event.share_coordinator, event.state_partition), event.owner_epoch, event)
    elif isinstance(event, StateOwnersSeen):
        for state_partition, owner_epoch in event.owner_epochs:
            states.seen((event.share_coordinator, state_partition), owner_epoch)
    elif isinstance(event, LogHandedOver):
        logs.handed_over((event.leader, event.partition), event.move_epoch, event)
    elif isinstance(event, LeaderEpochSeen):
        logs.seen((event.leader, event.partition), event.leader_epoch)


class _Handovers:
    """What nodes have handed over, by a life of a node and a partition, until a higher epoch is known there."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], StatesHandedOver | LogHandedOver] = {}
        self._epochs: dict[tuple[str, int], int] = {}

    def handed_over(self, place: tuple[str, int], epoch: int, event: StatesHandedOver | LogHandedOver) -> None:
        if self._epochs.get(place, -1) <= epoch:
            self._epochs[place] = epoch
            self._sent.setdefault(place, event)

    def seen(self, place: tuple[str, int], epoch: int) -> None:
        if epoch > self._epochs.get(place, -1):
            self._epochs[place] = epoch
            self._sent.pop(place, None)

    def before(self, place: tuple[str, int], time: float) -> StatesHandedOver | LogHandedOver | None:
        """The handover that happened before a request of this time arrived."""
        sent = self._sent.get(place)
        return sent if sent is not None and sent.time < time else None
