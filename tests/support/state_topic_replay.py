"""What a reader of `__share_group_state` makes of its records: the last snapshot of each key, and updates on it."""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.identifiers import SharePartitionKey
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset, apply
from kshare_share_coordinator.records import SHARE_SNAPSHOT, decode_key, decode_snapshot, decode_update


def replayed(records: Iterable[tuple[bytes, bytes | None]]) -> dict[SharePartitionKey, ShareGroupOffset]:
    """The states after keys and values in the order in which they were read."""
    states: dict[SharePartitionKey, ShareGroupOffset] = {}
    for record_key, value in records:
        record_type, key = decode_key(record_key)
        if value is None:
            assert record_type == SHARE_SNAPSHOT
            states.pop(key, None)
            continue
        if record_type == SHARE_SNAPSHOT:
            state = apply(None, decode_snapshot(key, value))
        else:
            before = states[key]
            state = apply(before, decode_update(key, before.update_count + 1, value))
        assert state is not None
        states[key] = state
    return states
