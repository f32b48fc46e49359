"""The receiver of a reassignment: it copies one state partition to this node and completes the switch.

1. If the store has the mark of this very reassignment, all rows are here; continue with 4.
2. Fetch the rows from its owner, piece by piece. Each piece is written with one fsync, the last one with the mark.
3. With the first piece: wait until all earlier accepted writes to the state partition are done, write the moved mark,
   and clear the family. An owner that does not answer costs no rows here.
4. Call CompleteStatePartitionMove in a retry loop. The task is cancelled when the view of the catalog shows the switch
   or the end of the reassignment. An answer alone decides nothing: it may be late.

Failures are retried with exponential back-off. If this node's own disk refuses the rows, the node asks to be drained.
The catalog then cancels the reassignment, and the former owner serves the state partition again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import (
    COMPLETE_STATE_PARTITION_MOVE,
    DRAIN_SHARE_COORDINATOR,
    TRANSFER_STATE_PARTITION,
)
from kshare_rpc.network import CallFailed, Channel
from kshare_rpc.reassignment.copy_loop import CALL_TIMEOUT_MS, CopyLoop, MoveProblem, StepFailure
from kshare_rpc.reassignment.rows import rows_of
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.reassignment.rows import Row, StatePartitionRows

FIRST_RETRY_MS = 20
DISK_FAILURES_BEFORE_DRAIN = 3

log = logging.getLogger(__name__)


class StatePartitionReceiver:
    """One reassignment; `run` ends only when cancelled. `copies` gives the number of copies that share the rate."""

    def __init__(
        self,
        move: coordinator_pb2.StatePartitionOwner,
        *,
        ownership: Ownership,
        rows: StatePartitionRows,
        barrier: Callable[[], asyncio.Future[None]],
        channel: Callable[[str], Channel],
        coordinator: Channel,
        copies: Callable[[], int],
        piece_bytes: int,
        metrics: MoveMetrics,
    ) -> None:
        self._state_partition = move.state_partition
        self._owner_epoch = move.owner_epoch
        self._from_node_id = move.node_id
        self._ownership = ownership
        self._rows = rows
        self._barrier = barrier
        self._channel = channel
        self._coordinator = coordinator
        self._piece_bytes = piece_bytes
        self._metrics = metrics
        self._is_begun = False
        self._is_cleared = False
        self._after_key = b""
        self._disk_failures = 0
        self._corrupt_rows: dict[Row, str | None] = {}
        self._loop = CopyLoop(
            f"state partition {self._state_partition} cannot be copied from node {self._from_node_id}",
            first_retry_ms=FIRST_RETRY_MS,
            copies=copies,
        )
        self.is_copied = False

    @property
    def problem(self) -> str | None:
        """The problem that has stopped the reassignment for some seconds; None while it makes progress."""
        return self._loop.problem

    async def run(self) -> None:
        await self._loop.run(self._go_on, self._before_retry)

    async def _before_retry(self, failure: StepFailure | None) -> None:
        if isinstance(failure, StorageFailure):
            self._loop.note(f"the disk of this node: {failure}")
            await self._ask_to_be_drained()
        elif failure is not None:
            self._loop.note(str(failure))

    async def _go_on(self) -> bool:
        """Does one step; True where the next may follow at once. MoveProblem, CallFailed, StorageFailure."""
        if self.is_copied:
            await self._complete()
            return False  # until the catalog shows it
        await self._copy_more()
        return True

    async def _copy_more(self) -> None:
        """Runs one step of the copy; raises MoveProblem, CallFailed or StorageFailure."""
        if not self._is_begun:
            self._begin()
            return
        piece = await self._next_piece()
        rows = self._rows_of(piece)
        byte_count = sum(row.size for row in rows)
        self._check_checksums(rows)
        if not self._is_cleared:
            await self._barrier()
            self._rows.begin_copy(self._state_partition, self._owner_epoch)
            self._is_cleared = True
        self._rows.write_piece(self._state_partition, rows, self._owner_epoch if piece.message.is_last else None)
        self._disk_failures = 0
        self._metrics.received(byte_count)
        if rows:
            self._after_key = rows[-1].key
        self.is_copied = piece.message.is_last
        if not self.is_copied:
            await self._loop.pace(byte_count)  # writes of other state partitions run meanwhile

    def _rows_of(self, piece: _Piece) -> list[Row]:
        """The rows of a piece, in order; MoveProblem if lengths or order are wrong."""
        answer, data = piece.message, bytes(piece.payload)
        after_key = self._after_key
        rows = rows_of(answer.rows, data, is_last=answer.is_last, after_key=after_key, key_may_be_empty=False)
        return [Row(key, value) for key, value in rows]

    def _check_checksums(self, rows: Sequence[Row]) -> None:
        """MoveProblem for corrupt rows, so that they are fetched again, unless they equal those fetched before.

        The same corrupt bytes twice are corrupt in the sender's store, not in transit. They are copied as they are, and
        the share-partition stays refused at this node as at the other.
        """
        corrupt = {row: row.corruption(self._state_partition) for row in rows}
        corrupt = {row: problem for row, problem in corrupt.items() if problem is not None}
        if corrupt and corrupt != self._corrupt_rows:
            self._corrupt_rows = corrupt
            raise MoveProblem(f"it sent corrupt rows: {next(iter(corrupt.values()))}")
        for problem in corrupt.values():
            log.error("copied from node %d although it is damaged: %s", self._from_node_id, problem)
        self._corrupt_rows = {}

    def _begin(self) -> None:
        problem = self._ownership.identity_problem()
        if problem:
            is_local = self._ownership.is_disk_refusing or self._ownership.is_anothers_store
            raise StorageFailure(problem) if is_local else MoveProblem(problem)
        copied_epoch = self._rows.copied_epoch(self._state_partition)
        newest_epoch = max(copied_epoch or 0, self._rows.moved_epoch(self._state_partition) or 0)
        if newest_epoch > self._owner_epoch:
            raise MoveProblem(
                f"the rows here are of owner epoch {newest_epoch} but the catalog has {self._owner_epoch}: "
                "it is older than what this node has seen, so nothing here is replaced"
            )
        self.is_copied = copied_epoch == self._owner_epoch
        self._is_begun = True

    async def _next_piece(self) -> _Piece:
        sender = self._view.node(coordinator_pb2.ROLE_SHARE_COORDINATOR, self._from_node_id)
        if sender is None:
            raise MoveProblem("it is not live")
        request = messages.TransferStatePartitionRequest(
            state_partition=self._state_partition,
            owner_epoch=self._owner_epoch,
            after_key=self._after_key,
            max_bytes=self._piece_bytes,
        )
        channel = self._channel(sender.rpc_address)
        answer, payload = await channel.call(TRANSFER_STATE_PARTITION, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code != ErrorCode.NONE:
            raise MoveProblem(answer.error_message or f"it answered with error {answer.error_code}")
        return _Piece(answer, payload)

    async def _complete(self) -> None:
        request = coordinator_pb2.CompleteStatePartitionMoveRequest(
            state_partition=self._state_partition, node_id=self._ownership.node_id, owner_epoch=self._owner_epoch
        )
        answer, _ = await self._coordinator.call(COMPLETE_STATE_PARTITION_MOVE, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code != ErrorCode.NONE:
            raise MoveProblem(f"the coordinator: {answer.error_message}")

    async def _ask_to_be_drained(self) -> None:
        self._disk_failures += 1
        if self._disk_failures < DISK_FAILURES_BEFORE_DRAIN:
            return
        log.error("%s; requesting a drain of this node, in effect until its restart", self._loop.newest_failure)
        request = coordinator_pb2.DrainShareCoordinatorRequest(node_id=self._ownership.node_id)
        try:
            answer, _ = await self._coordinator.call(DRAIN_SHARE_COORDINATOR, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed as failure:
            self._loop.note(f"the request to drain this node failed: {failure}")
            return
        if answer.error_code != ErrorCode.NONE:
            self._loop.note(answer.error_message)

    @property
    def _view(self) -> CatalogView:
        return self._ownership.view


class _Piece:
    """An answer of the sender with its payload."""

    __slots__ = ("message", "payload")

    def __init__(self, message: messages.TransferStatePartitionResponse, payload: memoryview) -> None:
        self.message = message
        self.payload = payload
