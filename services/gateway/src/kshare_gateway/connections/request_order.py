"""The requests of one connection that wait until earlier requests of it have ended.

Kafka carries out one request of a connection at a time. The gateway runs them concurrently, so a client that pipelines
must not see the difference. A request that reads state waits for the earlier requests that change it. A request that
changes state waits for those that change it through another API: their calls might overtake each other. Calls of one
API begin in their order, and their leader or coordinator decides in that order. Behind a long request that is carried
out in parts (`request_parts`) the next one of its API waits: it would come between two of them.

No request waits for a Fetch or ShareFetch, which may be under way for as long as there are no records. Metadata,
DescribeConfigs, DescribeAcls and their like wait for nothing: a broker of Kafka, too, learns of changes after they were
answered.
"""

from __future__ import annotations

from collections.abc import Iterable

from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.connections.request_parts import is_splittable
from kshare_gateway.connections.slot import Slot
from kshare_wire.generated.api_keys import ApiKey

_LOG_CHANGES = frozenset({ApiKey.PRODUCE, ApiKey.DELETE_RECORDS, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS})
_OFFSET_CHANGES = frozenset(
    {ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS}
)
_GROUP_CHANGES = frozenset(
    {
        *(ApiKey.LEAVE_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.DELETE_GROUPS),
        *(ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE),  # the first offset makes a group, the last one's end ends it
    }
)
_SHARE_OFFSET_CHANGES = frozenset({ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS})
_IN_TRANSACTION = frozenset(
    {ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN}
)
_TRANSACTION_CHANGES = frozenset(
    {ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN}
)
_TOPIC_CHANGES = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
_SHARE_STATE_CHANGES = frozenset(
    {ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_STATE}
)

_ROWS: tuple[tuple[tuple[ApiKey, ...], frozenset[ApiKey]], ...] = (
    # Records, ends and sizes of logs show what was produced or deleted before.
    ((ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH), _LOG_CHANGES),
    ((ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_LOG_DIRS), _LOG_CHANGES),
    # Its offset may be the log's end, and is refused beyond it.
    ((ApiKey.DELETE_RECORDS,), _LOG_CHANGES),
    # Its batches come after the end at which records are deleted, and are in the transaction that it was added to.
    ((ApiKey.PRODUCE,), _LOG_CHANGES - {ApiKey.PRODUCE} | {ApiKey.ADD_PARTITIONS_TO_TXN}),
    # Records that were released before can be acquired again.
    ((ApiKey.SHARE_FETCH,), _LOG_CHANGES | {ApiKey.SHARE_ACKNOWLEDGE}),
    # Start offsets change with acknowledgements, lags with the logs.
    ((ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,), _SHARE_OFFSET_CHANGES | _LOG_CHANGES | {ApiKey.SHARE_ACKNOWLEDGE}),
    ((ApiKey.ALTER_SHARE_GROUP_OFFSETS,), frozenset({ApiKey.DELETE_SHARE_GROUP_OFFSETS})),
    ((ApiKey.DELETE_SHARE_GROUP_OFFSETS,), frozenset({ApiKey.ALTER_SHARE_GROUP_OFFSETS})),
    # Committed offsets are those of the last change.
    ((ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE), _OFFSET_CHANGES),
    ((ApiKey.OFFSET_COMMIT,), _OFFSET_CHANGES - {ApiKey.OFFSET_COMMIT}),
    # A member commits before it leaves or joins the next generation: later its commit is refused.
    ((ApiKey.JOIN_GROUP, ApiKey.LEAVE_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT), frozenset({ApiKey.OFFSET_COMMIT})),
    # Only a group without members is deleted, with all that it committed.
    ((ApiKey.DELETE_GROUPS,), _OFFSET_CHANGES | _GROUP_CHANGES),
    # Members that left are not described, deleted groups are not listed.
    ((ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS), _GROUP_CHANGES),
    ((ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_DESCRIBE), _GROUP_CHANGES),
    # A transaction ends with all that was written in it before, and not with what comes later.
    ((ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID), _IN_TRANSACTION),
    ((ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN), frozenset({ApiKey.END_TXN})),
    ((ApiKey.TXN_OFFSET_COMMIT,), frozenset({ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})),
    ((ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS), _TRANSACTION_CHANGES),
    # Kafka's controller decides these in their order.
    *[((api_key,), _TOPIC_CHANGES - {api_key}) for api_key in sorted(_TOPIC_CHANGES)],
    ((ApiKey.LIST_PARTITION_REASSIGNMENTS,), frozenset({ApiKey.ALTER_PARTITION_REASSIGNMENTS})),
    # The stored state is that of the last change.
    ((ApiKey.READ_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY), _SHARE_STATE_CHANGES),
    *[((api_key,), _SHARE_STATE_CHANGES - {api_key}) for api_key in sorted(_SHARE_STATE_CHANGES)],
)

WAITS_FOR: dict[int, frozenset[ApiKey]] = {api_key: earlier for row, earlier in _ROWS for api_key in row}
"""The APIs for whose requests under way a later request of an API waits."""


def must_wait(api_key: int, slots: Iterable[Slot]) -> bool:
    """Whether a request waits for one of the requests of its connection that began before it."""
    earlier = WAITS_FOR.get(api_key, _NOTHING)
    return any(
        [
            not slot.is_done
            and (slot.api_key in earlier or (slot.elements > SLICE_ELEMENTS and _is_of_same_parts(slot, api_key)))
            for slot in slots
        ]
    )


def _is_of_same_parts(slot: Slot, api_key: int) -> bool:
    return slot.api_key == api_key and is_splittable(api_key)


_NOTHING: frozenset[ApiKey] = frozenset()
