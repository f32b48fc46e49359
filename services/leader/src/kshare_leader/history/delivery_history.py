"""The delivery history of a node, which creates the `PartitionHistory` of each served share-partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kshare_core.delivery_history import HISTORY_TOPIC, HISTORY_VERSION, share_partition_key
from kshare_core.identifiers import SharePartitionKey, topic_id_text
from kshare_leader.history.buffer import EventStream, HistoryBuffer
from kshare_leader.history.event_text import as_json
from kshare_leader.history.limits import NUMBERS_LIMIT
from kshare_leader.history.numbers import Numbers
from kshare_leader.history.partition_history import SILENT, PartitionHistory
from kshare_rpc.catalog import CatalogView


class DeliveryHistory:
    """See the module docstring. `node_epoch` is that of the newest registration; `wall_now_ms` is the wall clock."""

    def __init__(
        self,
        *,
        buffer: HistoryBuffer,
        view: Callable[[], CatalogView],
        node_id: int,
        node_epoch: Callable[[], int],
        wall_now_ms: Callable[[], int],
    ) -> None:
        self._buffer = buffer
        self._view = view
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._wall_now_ms = wall_now_ms
        self._numbers = Numbers(NUMBERS_LIMIT)
        self._incarnation = -1
        """The node epoch when the first share-partition was loaded; numbers continue across later registrations."""

    def begin(
        self, key: SharePartitionKey, leader_epoch: int, delivery_count_limit: Callable[[], int]
    ) -> PartitionHistory:
        """The history of a newly served share-partition; SILENT if it has none."""
        topic = self._view().topics_by_id.get(key.topic_id)
        if topic is None or topic.name == HISTORY_TOPIC:
            return SILENT
        return PartitionHistory(
            open_stream=partial(self._open, key, topic.name, leader_epoch),
            wall_now_ms=self._wall_now_ms,
            delivery_count_limit=delivery_count_limit,
        )

    def _open(self, key: SharePartitionKey, topic: str, leader_epoch: int, state_epoch: int) -> EventStream:
        if self._incarnation < 0:
            self._incarnation = self._node_epoch()
        before = f'{{"version":{HISTORY_VERSION},"leader":{self._node_id},"incarnation":{self._incarnation},"sequence":'
        after = (
            f',"group":{as_json(key.group_id)},"topic":{as_json(topic)},"topic_id":"{topic_id_text(key.topic_id)}",'
            f'"partition":{key.partition},"state_epoch":{state_epoch},"leader_epoch":{leader_epoch},"events":['
        )
        record_key = share_partition_key(key.group_id, topic, key.partition)
        return EventStream(self._buffer, self._numbers.of(key), record_key, before, after)
