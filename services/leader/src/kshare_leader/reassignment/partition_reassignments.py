"""The reassignments from and to this leader: starts and ends receivers and removals with each view of the catalog.

- A reassignment to this node starts a receiver, up to COPIES_AT_ONCE for each sending leader. The receiver ends with
  the reassignment, whatever its outcome.
- Rows of marked partitions (see `rows`) that the catalog places on another node, with no reassignment to this node, are
  removed: after a switch, after a cancelled reassignment, and at the start, where a crash left rows. A catalog that is
  older than the mark, or of another cluster, removes nothing.
- The mark of a partition that this node leads, and that is not reassigned, is removed.
- `on_rows` is called when a partition's rows were added or removed, for users that cache something about them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.reassignment.receiver import PartitionReceiver
from kshare_leader.reassignment.rows import PartitionRows
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.network import Channel

COPIES_AT_ONCE = 4
"""Concurrent copies from one leader; further reassignments from it wait."""
REMOVAL_RETRY_MS = 5_000
REMOVAL_PAUSE_MS = 5
"""The pause between removals of two partitions, to leave time for clients."""

log = logging.getLogger(__name__)

Partition = coordinator_pb2.Topic.Partition
_MoveKey = tuple[TopicPartition, int]
"""The partition and the epoch of its reassignment."""


class PartitionReassignments:
    """The reassignments of a node. `is_foreign` says whether the store is another cluster's or another leader's."""

    def __init__(
        self,
        *,
        rows: PartitionRows,
        view: Callable[[], CatalogView],
        is_foreign: Callable[[], bool],
        on_rows: Callable[[TopicPartition], None],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        node_id: int,
        page_bytes: int,
    ) -> None:
        self._rows = rows
        self._view = view
        self._is_foreign = is_foreign
        self._on_rows = on_rows
        self._channel = channel
        self._coordinator = coordinator
        self._node_id = node_id
        self._page_bytes = page_bytes
        self._moves: dict[bytes, dict[_MoveKey, Partition]] = {}
        """Reassignments to this node, by topic."""
        self._receivers: dict[_MoveKey, tuple[PartitionReceiver, asyncio.Task[None]]] = {}
        self._ended: dict[asyncio.Task[None], None] = {}
        self._removal: asyncio.Task[None] | None = None
        self._removal_is_due = False
        self._was_foreign = False

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Called with each view after the logs have followed it; tasks started here run once the node has the view."""
        was_foreign, self._was_foreign = self._was_foreign, self._is_foreign()
        if self._was_foreign:
            self._moves = {}
        else:
            self._note_changes(old, new, all_are_new=was_foreign)
        wanted = {key: move for moves in self._moves.values() for key, move in moves.items()}
        for key in [key for key in self._receivers if key not in wanted]:
            self._end(self._receivers.pop(key)[1])
        for key, move in wanted.items():
            if key not in self._receivers and self._has_room(move.leader_node_id):
                self._receivers[key] = self._begin(key[0], move)
        self._removal_is_due = bool(self._rows.marked())
        if self._removal_is_due and (self._removal is None or self._removal.done()):
            self._removal = asyncio.get_running_loop().create_task(self._remove_foreign(), name="remove-moved-rows")

    def retry_if_not_foreign(self) -> None:
        """Begins what has waited for the store's identity, which is known now; the next view may come in days."""
        if self._was_foreign and not self._is_foreign():
            view = self._view()
            self.on_view(view, view)

    def _note_changes(self, old: CatalogView, new: CatalogView, *, all_are_new: bool) -> None:
        for topic_id in [topic_id for topic_id in self._moves if topic_id not in new.topics_by_id]:
            del self._moves[topic_id]
        for topic_id, topic in new.topics_by_id.items():
            if topic is old.topics_by_id.get(topic_id) and not all_are_new:
                continue
            moves = {
                (TopicPartition(topic_id, partition.partition), partition.move_epoch): partition
                for partition in topic.partitions
                if partition.is_moving and partition.moving_to_node_id == self._node_id
            }
            for key, _ in self._moves.pop(topic_id, {}):
                if self._leads(new.partition(key)):
                    self._on_rows(key)  # the switch: the copied rows are this node's now
            if moves:
                self._moves[topic_id] = moves

    def _leads(self, partition: Partition | None) -> bool:
        return partition is not None and partition.leader_node_id == self._node_id

    def _has_room(self, from_node_id: int) -> bool:
        return sum(receiver.from_node_id == from_node_id for receiver, _ in self._receivers.values()) < COPIES_AT_ONCE

    def _begin(self, key: TopicPartition, move: Partition) -> tuple[PartitionReceiver, asyncio.Task[None]]:
        receiver = PartitionReceiver(
            key,
            move,
            node_id=self._node_id,
            rows=self._rows,
            view=self._view,
            channel=self._channel,
            coordinator=self._coordinator,
            copies=lambda: sum(other.is_copying for other, _ in self._receivers.values()),
            page_bytes=self._page_bytes,
        )
        return receiver, asyncio.get_running_loop().create_task(receiver.run(), name=f"receive {receiver.name}")

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ended[task] = None
        task.add_done_callback(lambda done: self._ended.pop(done, None))
        task.cancel()

    async def stop(self) -> None:
        """Ends all receivers and removals; they continue after the next start."""
        if self._removal is not None:
            self._end(self._removal)
        for _, task in self._receivers.values():
            self._end(task)
        await asyncio.gather(*self._ended, return_exceptions=True)
        self._receivers.clear()

    def problems(self) -> list[str]:
        """The failures of stalled reassignments to this node."""
        return [receiver.problem for receiver, _ in self._receivers.values() if receiver.problem is not None]

    # Removing

    async def _remove_foreign(self) -> None:
        await asyncio.sleep(0)  # so that the view that began this is the node's
        while self._removal_is_due:
            self._removal_is_due = False
            for key in self._rows.marked():
                try:
                    if not self._settle(key):
                        continue
                except Exception as failure:
                    if not isinstance(failure, StorageFailure):
                        report_contained_bug(
                            f"the removal of rows of partition {_name(key)} failed unexpectedly", failure
                        )
                    log.warning("the rows of partition %s cannot be removed, retrying later: %s", _name(key), failure)
                    self._removal_is_due = True
                    await asyncio.sleep(REMOVAL_RETRY_MS / 1000)
                    break
                await asyncio.sleep(REMOVAL_PAUSE_MS / 1000)

    def _settle(self, key: TopicPartition) -> bool:
        """Removes the rows, or only the mark, of a partition where that is due; StorageFailure."""
        mark = self._rows.mark(key)
        view = self._view()
        if mark is None or self._is_foreign() or not view.version:
            return False
        partition = view.partition(key)
        if self._leads(partition):
            assert partition is not None
            if not partition.is_moving and partition.placement_epoch > mark:
                self._rows.set_mark(key, None)
                return True
            return False
        if not self._rows.may_be_removed(key) if partition is None else not self._is_anothers(partition, mark):
            return False
        self._rows.remove(key)
        self._rows.set_mark(key, None)
        self._on_rows(key)
        log.info("removed the rows of partition %s, which this leader does not lead", _name(key))
        return True

    def _is_anothers(self, partition: Partition, mark: int) -> bool:
        """Whether another node certainly leads the partition, and no reassignment to this node is in progress."""
        if partition.is_moving and partition.moving_to_node_id == self._node_id:
            return False
        return partition.leader_node_id >= 0 and partition.placement_epoch > mark


def _name(key: TopicPartition) -> str:
    return f"{topic_id_text(key.topic_id)}-{key.partition}"
