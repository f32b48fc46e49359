"""The states that a share coordinator has in memory, up to a limit.

A state of a few runs is kept packed, as one piece of bytes: of 100,000 states nearly all are far from the CPU's caches,
and a state in objects lies in a dozen places, each of which a write must fetch to read it and again to free it. Packing
and unpacking cost less than two of those.

The least recently used ones are dropped first. The order of use is tracked only while more than half of the
limit is in use: moving an entry in a large table costs as much as all the rest of a look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from struct import Struct

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.machine.state_batches import StateBatch

PACKED_STATE_BATCHES_LIMIT = 4
"""Of one state; a longer one shares its runs with the state that it becomes, which is quicker than packing them."""

_HEAD = Struct("7qq")
"""The numbers of a state, and the length of its leader epoch history, which follows."""
_STATE_BATCH = Struct("4q")

_Kept = bytes | ShareGroupOffset | None


class StateCache:
    """At most `states_limit` states with `state_batches_limit` runs in all, but for those that may not be dropped.

    A share-partition without state has a place too: None.
    """

    def __init__(self, *, states_limit: int, state_batches_limit: int) -> None:
        self._states_limit = states_limit
        self._state_batches_limit = state_batches_limit
        self._tracked_states = states_limit // 2
        self._states: OrderedDict[SharePartitionKey, _Kept] = OrderedDict()
        """Least recently used first, among those that were touched while more than half of the limit was in use."""
        self._state_batches = 0

    def find(self, key: SharePartitionKey) -> ShareGroupOffset | None:
        """The state, or None if none exists; KeyError if it is not in the cache."""
        kept = self._states[key]
        if len(self._states) > self._tracked_states:
            self._states.move_to_end(key)
        return _unpacked(kept) if isinstance(kept, bytes) else kept

    def keep(self, key: SharePartitionKey, state: ShareGroupOffset | None) -> None:
        """Sets the share-partition's state."""
        if len(self._states) > self._tracked_states:
            self.forget(key)
        elif former := self._states.get(key):
            self._state_batches -= _state_batch_count(former)
        if state is None:
            self._states[key] = None
            return
        count = len(state.state_batches)
        is_packed = count <= PACKED_STATE_BATCHES_LIMIT and state.truncation is None
        self._states[key] = _packed(state) if is_packed else state
        self._state_batches += count

    def forget(self, key: SharePartitionKey) -> None:
        """Whether it was here or not."""
        former = self._states.pop(key, None)
        if former:
            self._state_batches -= _state_batch_count(former)

    def forget_where(self, is_forgotten: Callable[[SharePartitionKey], bool]) -> None:
        """Forgets all whose key says so."""
        for key in [key for key in self._states if is_forgotten(key)]:
            self.forget(key)

    def drop_beyond_limit(self, needed: Container[SharePartitionKey]) -> None:
        """Drops the oldest ones until the rest is within the limits, or one of `needed` is the oldest."""
        while len(self._states) > self._states_limit or self._state_batches > self._state_batches_limit:
            oldest = next(iter(self._states))
            if oldest in needed:  # those that are newer can wait until it is not
                return
            self.forget(oldest)


def _packed(state: ShareGroupOffset) -> bytes:
    leader_epochs = state.leader_epochs
    head = _HEAD.pack(*state[:5], state.update_count, state.create_timestamp_ms, len(leader_epochs))
    return b"".join([head, leader_epochs, *[_STATE_BATCH.pack(*batch) for batch in state.state_batches]])


def _unpacked(kept: bytes) -> ShareGroupOffset:
    snapshot_epoch, state_epoch, leader_epoch, start_offset, complete_count, *rest = _HEAD.unpack_from(kept)
    update_count, create_timestamp_ms, length = rest
    end = _HEAD.size + length
    state_batches = list(map(StateBatch._make, _STATE_BATCH.iter_unpack(kept[end:])))
    return ShareGroupOffset(
        snapshot_epoch,
        state_epoch,
        leader_epoch,
        start_offset,
        complete_count,
        state_batches,
        update_count,
        create_timestamp_ms,
        kept[_HEAD.size : end],
    )


def _state_batch_count(kept: bytes | ShareGroupOffset) -> int:
    if isinstance(kept, bytes):
        length: int = _HEAD.unpack_from(kept)[-1]
        return (len(kept) - _HEAD.size - length) // _STATE_BATCH.size
    return len(kept.state_batches)
