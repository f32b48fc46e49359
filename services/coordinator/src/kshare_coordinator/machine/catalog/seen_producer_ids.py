"""Producer ids that the logs of leaders may have seen, and that an older copy of the coordinator's store does not know.

A leader reports at registration which producer ids its logs have seen. Where this store is an older copy, its counter
is behind and moves there. Ids that were given out before a leader registered may be ids that it has seen.
"""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.errors import ErrorCode, KafkaError

MAX_REPORTED_END = 1 << 53
"""Leaders do not count the higher ids, which only clients that make them up can use."""


def seen_producer_ids_records(state: CoordinatorState, end: int) -> list[Record]:
    """Moves the counter to `end`, which a leader reported, if it is behind; KafkaError where it cannot be an end."""
    if not 0 <= end <= MAX_REPORTED_END:
        text = f"the end of the seen producer ids is {end}; 0 to {MAX_REPORTED_END} is allowed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if end <= state.numbers.get(records.NEXT_PRODUCER_ID, 0):
        return []
    return [records.cluster_number(records.NEXT_PRODUCER_ID, end)]
