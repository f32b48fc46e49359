"""How many groups of all types there are, and whether a further one may be made."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.machine.groups.consumer.values import ConsumerGroup
from kshare_coordinator.machine.groups.namespace import group_count, group_ids, is_full
from kshare_coordinator.machine.offsets.table import PendingKey
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1.coordinator_records_pb2 import OffsetCommitValue

PARTITION = TopicPartition(b"topic-0000000001", 0)
names = st.frozensets(st.sampled_from([f"group {number}" for number in range(8)]))


class CountedId(str):
    """A group id that counts how often groups are looked up and compared by order."""

    looked_up = ordered = 0

    def __hash__(self) -> int:
        CountedId.looked_up += 1
        return super().__hash__()

    def __lt__(self, other: str) -> bool:
        CountedId.ordered += 1
        return super().__lt__(other)


def state_of(tables: dict[str, str], committed: Any, in_transactions: Any = ()) -> CoordinatorState:
    state = CoordinatorState()
    for group_id, table in tables.items():
        getattr(state, table)[group_id] = ConsumerGroup(group_id=group_id)
    for group_id in committed:
        state.offsets.put_committed(group_id, PARTITION, OffsetCommitValue())
    for group_id in in_transactions:
        state.offsets.put_pending(1, PendingKey(group_id, PARTITION), OffsetCommitValue())
    return state


@given(
    tables=st.dictionaries(
        st.sampled_from([f"group {number}" for number in range(8)]),
        st.sampled_from(["share_groups", "consumer_groups", "classic_groups"]),
    ),
    committed=names,
    in_transactions=names,
    limit=st.integers(1, 10),
)
def test_each_group_counts_once(
    tables: dict[str, str], committed: frozenset[str], in_transactions: frozenset[str], limit: int
) -> None:
    state = state_of(tables, committed, in_transactions)
    count = len(group_ids(state))
    assert group_count(state) == count
    assert is_full(state, limit) == (count >= limit)


def test_beyond_half_the_limit_a_further_group_takes_one_look_at_each_and_at_the_limit_none() -> None:
    """An ordinary group is in a table and has committed offsets."""
    ids = [CountedId(f"group {number}") for number in range(100)]
    state = state_of(dict.fromkeys(ids, "consumer_groups"), ids)
    CountedId.looked_up = CountedId.ordered = 0
    assert not is_full(state, 2 * len(ids) + 1) and CountedId.looked_up == 0
    assert not is_full(state, len(ids) + 1) and CountedId.looked_up == len(ids)
    CountedId.looked_up = 0
    assert is_full(state, len(ids)) and CountedId.looked_up == 0
    assert CountedId.ordered == 0
