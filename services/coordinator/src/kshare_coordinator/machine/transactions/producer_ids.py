"""Blocks of producer ids, which gateways hand out one by one."""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import AllocateProducerIds, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_runtime.machine import Decision

PRODUCER_ID_BLOCK_SIZE = 1_000
"""As ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""


@decides(AllocateProducerIds)
def decide_allocate_producer_ids(
    state: CoordinatorState, command: AllocateProducerIds
) -> Decision[Record, range, Effect]:
    """Allocates the next block of producer ids."""
    first = state.numbers.get(records.NEXT_PRODUCER_ID, 0)
    end = first + PRODUCER_ID_BLOCK_SIZE
    return Decision((records.cluster_number(records.NEXT_PRODUCER_ID, end),), range(first, end))
