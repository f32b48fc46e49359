"""Planted bugs of idempotent producers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kshare_leader.log.producers import state
from kshare_leader.log.producers.entries import ProducerEntry, SentBatch
from kshare_leader.log.producers.pending_appends import PendingAppends
from kshare_leader.log.producers.state import ProducerState
from kshare_leader.log.producers.verifications import Verification
from kshare_runtime.ports import Write
from kshare_wire.record_batches import BatchHeader
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, batches_apart, fewest_nodes, only_faults

FindDuplicate = Callable[[ProducerEntry | None, BatchHeader], SentBatch | None]
CheckProducer = Callable[[ProducerEntry | None, BatchHeader, Verification | None], None]
Writes = Callable[[ProducerState, PendingAppends], Iterator[Write]]


def _find_none(find_duplicate: FindDuplicate) -> FindDuplicate:
    """A batch that is sent again is no duplicate."""

    def changed(entry: ProducerEntry | None, header: BatchHeader) -> SentBatch | None:
        return None

    return changed


def _any_sequence(check_producer: CheckProducer) -> CheckProducer:
    """Any sequence may follow another."""

    def changed(entry: ProducerEntry | None, header: BatchHeader, verification: Verification | None = None) -> None:
        return None

    return changed


def _in_memory(writes: Writes) -> Writes:
    """What a leader knows of producers is only in memory."""

    def changed(producers: ProducerState, pending: PendingAppends) -> Iterator[Write]:
        if pending.transactions is not None:
            yield from writes(producers, pending)

    return changed


PLANTED = (
    PlantedBug(
        name="a batch that is sent again is appended again",
        mutation=planted(Patch(state, "find_duplicate", _find_none), Patch(state, "check_producer", _any_sequence)),
        rules=("twice in the log",),
        seed=11,
    ),
    PlantedBug(
        name="batches of a producer are appended in any order",
        mutation=planted(Patch(state, "check_producer", _any_sequence)),
        rules=("out of order in the log", "twice in the log"),
        focus=Focus(
            "one node of each role, batches one after the other, many full disks and slow links",
            (batches_apart, fewest_nodes, only_faults("full-disk", "slow-host", "slow-link", count=40)),
        ),
        seed=18,
    ),
    PlantedBug(
        name="what a leader knows of producers does not survive a crash",
        mutation=planted(Patch(ProducerState, "writes", _in_memory)),
        rules=("twice in the log",),
        seed=11,
    ),
)
