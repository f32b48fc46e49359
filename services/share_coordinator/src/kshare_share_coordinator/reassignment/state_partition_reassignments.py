"""Effects of each view of the catalog on this node's state partitions.

- A reassignment to this node starts a receiver; its switch or cancellation ends the receiver.
- The machine drops the states of all state partitions that this node gains or loses: other nodes may have written
  since, or will.
- Rows with the moved mark (see `rows`) of state partitions that another node owns, without a reassignment to this node,
  are removed: after a switch, after a cancelled reassignment, and at the start if a crash left some. A catalog that is
  older than the marks removes nothing, nor does one of another cluster, nor one that names no owner. Rows without the
  mark are kept, and logged: those of finished reassignments of older versions, or those of another node's disk.
- Rows here are stale if an owner of the state partition was given up after they moved; this node then begins without
  state. They are removed before it serves or sends the state partition (`begin_serving`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.network import Channel
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import IN, OUT, MoveMetrics
from kshare_share_coordinator.reassignment.receiver import StatePartitionReceiver
from kshare_share_coordinator.reassignment.rows import StatePartitionRows

REMOVAL_RETRY_MS = 5_000
REMOVAL_PAUSE_MS = 5
"""Pause between two state partitions, in which writes of others run."""

log = logging.getLogger(__name__)

Move = coordinator_pb2.StatePartitionOwner


class StatePartitionReassignments:
    """Applies views; see the module's text.

    `forget` drops the machine's states of share-partitions for which a function is true.
    """

    def __init__(
        self,
        *,
        ownership: Ownership,
        rows: StatePartitionRows,
        barrier: Callable[[], asyncio.Future[None]],
        forget: Callable[[Callable[[SharePartitionKey], bool]], None],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        piece_bytes: int,
        metrics: MoveMetrics,
    ) -> None:
        self._ownership = ownership
        self._rows = rows
        self._barrier = barrier
        self._forget = forget
        self._channel = channel
        self._coordinator = coordinator
        self._piece_bytes = piece_bytes
        self._metrics = metrics
        self._receivers: dict[tuple[int, int], tuple[StatePartitionReceiver, asyncio.Task[None]]] = {}
        """Receivers by state partition and owner epoch."""
        self._removal: asyncio.Task[None] | None = None
        self._removal_is_due = False
        self._unchecked: dict[int, None] = {}
        """Owned state partitions whose rows may be stale."""
        self._begun_anew: dict[int, None] = {}
        """Of these, those that other nodes owned until they were given up."""
        self._kept: dict[int, None] = {}
        """Logged state partitions of other nodes whose rows are kept."""
        self._ended: dict[asyncio.Task[None], None] = {}
        self._seen_at: dict[tuple[str, int, int], float] = {}

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Applies a view; called before the view is the node's. The tasks that it starts run after that."""
        owners = (new.cluster_id, new.state_partition_owner_epochs)
        if old.version and owners == (old.cluster_id, old.state_partition_owner_epochs):
            return
        self._forget_changed(old, new)
        self._note_gained(old, new)
        self._measure(old, new)
        moves = {
            (move.state_partition, move.owner_epoch): move
            for move in new.state_partition_moves.values()
            if move.moving_to_node_id == self._ownership.node_id
        }
        for key in [key for key in self._receivers if key not in moves]:
            self._end(self._receivers.pop(key)[1])
        for key, move in sorted(moves.items()):
            if key not in self._receivers:
                self._receivers[key] = self._begin(move)
        self._removal_is_due = True
        if self._removal is None or self._removal.done():
            self._removal = asyncio.get_running_loop().create_task(self._remove_foreign(), name="remove-foreign-rows")

    async def stop(self) -> None:
        """Ends all copies and removals, which continue after the next start."""
        if self._removal is not None:
            self._end(self._removal)
        for _, task in self._receivers.values():
            self._end(task)
        await asyncio.gather(*self._ended, return_exceptions=True)
        self._receivers.clear()

    def problems(self) -> list[str]:
        """Problems of reassignments to this node."""
        return [receiver.problem for receiver, _ in self._receivers.values() if receiver.problem is not None]

    def _begin(self, move: Move) -> tuple[StatePartitionReceiver, asyncio.Task[None]]:
        receiver = StatePartitionReceiver(
            move,
            ownership=self._ownership,
            rows=self._rows,
            barrier=self._barrier,
            channel=self._channel,
            coordinator=self._coordinator(),
            copies=lambda: sum(not other.is_copied for other, _ in self._receivers.values()),
            piece_bytes=self._piece_bytes,
            metrics=self._metrics,
        )
        name = f"receive-state-partition-{move.state_partition}"
        return receiver, asyncio.get_running_loop().create_task(receiver.run(), name=name)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ended[task] = None
        task.add_done_callback(lambda done: self._ended.pop(done, None))
        task.cancel()

    def _forget_changed(self, old: CatalogView, new: CatalogView) -> None:
        changed = {
            state_partition: None
            for state_partition, epoch in new.state_partition_owner_epochs.items()
            if epoch != old.state_partition_owner_epochs.get(state_partition)
        }
        self._forget(lambda key: self._ownership.state_partition_of(key) in changed)

    # What this node owns

    @property
    def has_unchecked(self) -> bool:
        """Whether `begin_serving` has to be called."""
        return bool(self._unchecked)

    def begin_serving(self, state_partition: int) -> str | None:
        """Removes stale rows of an owned state partition; why that is impossible, None once it is done."""
        if state_partition not in self._unchecked:
            return None
        try:
            moved_epoch = self._rows.moved_epoch(state_partition)
            given_up_epoch = self._ownership.view.state_partition_given_up_epochs.get(state_partition, 0)
            if state_partition in self._begun_anew or (moved_epoch is not None and moved_epoch < given_up_epoch):
                self._rows.remove(state_partition)
                self._forget(lambda key: self._ownership.state_partition_of(key) == state_partition)
                log.warning("state partition %d was given up and begins without state here", state_partition)
        except StorageFailure as failure:
            return f"old rows of state partition {state_partition} cannot be removed: {failure}"
        del self._unchecked[state_partition]
        self._begun_anew.pop(state_partition, None)
        return None

    def _note_gained(self, old: CatalogView, new: CatalogView) -> None:
        node_id = self._ownership.node_id
        for number, owner in new.state_partition_owners.items():
            if owner != node_id:
                self._unchecked.pop(number, None)
                self._begun_anew.pop(number, None)
                continue
            newest, known = (view.state_partition_given_up_epochs.get(number, 0) for view in (new, old))
            if old.state_partition_owners.get(number) == node_id and newest == known:
                continue
            self._unchecked[number] = None
            if number in old.state_partition_owners and newest > known:  # also if this node did not see that owner
                self._begun_anew[number] = None

    # Metrics

    def _measure(self, old: CatalogView, new: CatalogView) -> None:
        now = asyncio.get_running_loop().time()
        for direction, old_moves, new_moves in (
            (OUT, _moves_from(old, self._ownership.node_id), _moves_from(new, self._ownership.node_id)),
            (IN, _moves_to(old, self._ownership.node_id), _moves_to(new, self._ownership.node_id)),
        ):
            for key, move in old_moves.items():
                if key in new_moves:
                    continue
                seconds = now - self._seen_at.pop((direction, *key), now)
                if new.state_partition_owners.get(move.state_partition) == move.moving_to_node_id:
                    self._metrics.completed(direction, seconds)
                else:
                    self._metrics.taken_back(direction)
            for key in new_moves:
                if key not in old_moves:
                    self._seen_at[direction, *key] = now
                    self._metrics.started(direction)

    # Removing

    async def _remove_foreign(self) -> None:
        while self._removal_is_due:
            self._removal_is_due = False
            if self._ownership.identity_problem():  # another cluster's catalog, or a disk that fails at the moment
                refused = self._ownership.is_disk_refusing
            else:
                refused = not await self._remove_all_foreign()
            if refused:
                self._removal_is_due = True
                await asyncio.sleep(REMOVAL_RETRY_MS / 1000)

    async def _remove_all_foreign(self) -> bool:
        try:
            done = [self._settle_owned(number) for number in list(self._unchecked)]
            found = self._rows.state_partitions()
            done += [self._settle_owned(number) for number in found if self._is_settled_here(number)]
            done += [await self._remove(number) for number in found if self._is_foreign(number)]
        except Exception as failure:
            if not isinstance(failure, StorageFailure):
                report_contained_bug(
                    "the removal of rows of other nodes' state partitions failed unexpectedly", failure
                )
            log.warning("the search for rows of other nodes' state partitions failed, retrying later: %s", failure)
            return False
        return all(done)

    def _settle_owned(self, state_partition: int) -> bool:
        """Removes stale rows, then the mark of a reassignment that is over; False if the disk failed."""
        problem = self.begin_serving(state_partition)
        if problem is not None:
            log.warning("%s; retrying later", problem)
            return False
        moved_epoch = self._rows.moved_epoch(state_partition)
        if (
            moved_epoch is not None
            and self._is_settled_here(state_partition)
            and moved_epoch < self._ownership.view.state_partition_owner_epochs[state_partition]
        ):
            self._rows.set_moved_epoch(state_partition, None)
        return True

    def _is_settled_here(self, state_partition: int) -> bool:
        view = self._ownership.view
        is_owned = view.state_partition_owners.get(state_partition) == self._ownership.node_id
        return is_owned and state_partition not in view.state_partition_moves

    async def _remove(self, state_partition: int) -> bool:
        """Removes the rows; False if the disk failed."""
        try:
            self._rows.remove(state_partition)
        except StorageFailure as failure:
            log.warning(
                "the rows of state partition %d cannot be removed, retrying later: %s", state_partition, failure
            )
            return False
        log.info("removed the rows of state partition %d, which belongs to another node", state_partition)
        await asyncio.sleep(REMOVAL_PAUSE_MS / 1000)
        return True

    def _is_foreign(self, state_partition: int) -> bool:
        """Whether the rows moved, another node certainly owns the state partition, and it does not move here."""
        view, node_id = self._ownership.view, self._ownership.node_id
        if not view.cluster_id or self._ownership.identity_problem():
            return False
        owner = view.state_partition_owners.get(state_partition)
        move = view.state_partition_moves.get(state_partition)
        if owner is None or owner == node_id or (move is not None and move.moving_to_node_id == node_id):
            return False
        moved_epoch = self._rows.moved_epoch(state_partition)
        if moved_epoch is None:
            self._log_kept(state_partition, owner)
            return False
        newest_epoch = max(moved_epoch, self._rows.copied_epoch(state_partition) or 0)
        return newest_epoch < view.state_partition_owner_epochs[state_partition]

    def _log_kept(self, state_partition: int, owner: int) -> None:
        if state_partition not in self._kept:
            self._kept[state_partition] = None
            log.warning(
                "this node has rows of state partition %d, which belongs to node %d, without a mark that they moved: "
                "they are kept, and not served",
                state_partition,
                owner,
            )


def _moves_from(view: CatalogView, node_id: int) -> dict[tuple[int, int], Move]:
    return {
        (move.state_partition, move.owner_epoch): move
        for move in view.state_partition_moves.values()
        if move.node_id == node_id
    }


def _moves_to(view: CatalogView, node_id: int) -> dict[tuple[int, int], Move]:
    return {
        (move.state_partition, move.owner_epoch): move
        for move in view.state_partition_moves.values()
        if move.moving_to_node_id == node_id
    }
