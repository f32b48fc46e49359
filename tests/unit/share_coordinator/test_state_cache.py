"""The cache of states, against a list in the order of use."""

from __future__ import annotations

from collections.abc import Container

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch
from kshare_share_coordinator.machine.state_cache import PACKED_STATE_BATCHES_LIMIT, StateCache

STATES, STATE_BATCHES = 4, 12

KEYS = [SharePartitionKey("g", bytes(16), partition) for partition in range(7)]
keys = st.sampled_from(KEYS)
epochs = st.integers(0, (1 << 31) - 1)
offsets = st.integers(-1, (1 << 63) - 1)
state_batches = st.builds(StateBatch, offsets, offsets, st.sampled_from([0, 2, 3, 4]), st.integers(0, (1 << 15) - 1))
states = st.none() | st.builds(
    ShareGroupOffset,
    snapshot_epoch=epochs,
    state_epoch=epochs,
    leader_epoch=epochs,
    start_offset=offsets,
    delivery_complete_count=st.integers(-1, (1 << 31) - 1),
    state_batches=st.lists(state_batches, max_size=2 * PACKED_STATE_BATCHES_LIMIT),
    update_count=st.integers(0, 500),
    create_timestamp_ms=st.integers(0, 1 << 62),
)


class NaiveCache:
    """Least recently used first; what was used before half of the places were taken counts by when it was new."""

    def __init__(self) -> None:
        self.kept: list[tuple[SharePartitionKey, ShareGroupOffset | None]] = []

    def _at(self, key: SharePartitionKey) -> int | None:
        return next((index for index, (other, _) in enumerate(self.kept) if other == key), None)

    def find(self, key: SharePartitionKey) -> ShareGroupOffset | None:
        at = self._at(key)
        if at is None:
            raise KeyError(key)
        if len(self.kept) > STATES // 2:
            self.kept.append(self.kept.pop(at))
        return dict(self.kept)[key]

    def keep(self, key: SharePartitionKey, state: ShareGroupOffset | None) -> None:
        at = self._at(key)
        if at is None or len(self.kept) > STATES // 2:
            self.forget(key)
            self.kept.append((key, state))
        else:
            self.kept[at] = (key, state)

    def forget(self, key: SharePartitionKey) -> None:
        self.kept = [entry for entry in self.kept if entry[0] != key]

    def drop_beyond_limit(self, needed: Container[SharePartitionKey]) -> None:
        def runs() -> int:
            return sum(len(state.state_batches) for _, state in self.kept if state)

        while (len(self.kept) > STATES or runs() > STATE_BATCHES) and self.kept[0][0] not in needed:
            self.kept.pop(0)


steps = st.one_of(
    st.tuples(st.just("find"), keys),
    st.tuples(st.just("keep"), keys, states),
    st.tuples(st.just("forget"), keys),
    st.tuples(st.just("drop"), st.frozensets(keys, max_size=2)),
    st.tuples(st.just("forget where"), st.frozensets(keys, max_size=3)),
)


@given(st.lists(steps, max_size=60))
def test_the_cache_agrees_with_a_list(history: list[tuple]) -> None:  # type: ignore[type-arg]
    cache, naive = StateCache(states_limit=STATES, state_batches_limit=STATE_BATCHES), NaiveCache()
    for step, *given_to_it in history:
        if step == "find":
            assert found(cache, *given_to_it) == found(naive, *given_to_it)
        elif step == "keep":
            cache.keep(*given_to_it)
            naive.keep(*given_to_it)
        elif step == "forget":
            cache.forget(*given_to_it)
            naive.forget(*given_to_it)
        elif step == "drop":
            cache.drop_beyond_limit(*given_to_it)
            naive.drop_beyond_limit(*given_to_it)
        else:
            forgotten: frozenset[SharePartitionKey] = given_to_it[0]
            cache.forget_where(forgotten.__contains__)
            for key in forgotten:
                naive.forget(key)
    kept = dict(naive.kept)
    assert {key: found(cache, key) for key in KEYS} == {key: kept.get(key, "unknown") for key in KEYS}


def found(cache: StateCache | NaiveCache, key: SharePartitionKey) -> ShareGroupOffset | str | None:
    try:
        return cache.find(key)
    except KeyError:
        return "unknown"


@pytest.mark.parametrize("count", [0, 1, PACKED_STATE_BATCHES_LIMIT, PACKED_STATE_BATCHES_LIMIT + 1])
def test_a_state_comes_back_as_it_was(count: int) -> None:
    largest = (1 << 63) - 1
    batches = [StateBatch(largest - 2 * number, largest - 2 * number, 4, 32_767) for number in range(count)]
    state = ShareGroupOffset((1 << 31) - 1, 1, 2, -1, -1, batches, 500, largest)
    cache = StateCache(states_limit=1, state_batches_limit=100)
    cache.keep(KEYS[0], state)
    back = cache.find(KEYS[0])
    assert back == state
    assert back is not None and all(isinstance(batch, StateBatch) for batch in back.state_batches)
