"""The sender of a reassignment: it sends the rows of a state partition that moves away from this node.

It sends only if this node's own view of the catalog has the reassignment with exactly the epoch that the receiver
names. From that view on, no writes are accepted for the state partition (`Ownership`). Writes accepted before are
decided and written first: that is the barrier. Views only go forward, so the sent rows are final until the
reassignment is cancelled, which has an epoch of its own.

Before it sends a row it writes the moved mark, without which the rows are never removed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.reassignment.rows import Row, StatePartitionRows

PIECE_BYTES_LIMIT = 1024 * 1024
"""Limit of keys and values of one answer; a single row may be larger."""


class Piece(NamedTuple):
    """Some rows in the order of their keys, or an error."""

    rows: list[Row]
    is_last: bool
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


class StatePartitionSender:
    """The sender; see the module's text. `barrier` is the runner's.

    `begin_serving` removes stale rows, and returns why it cannot.
    """

    def __init__(
        self,
        *,
        ownership: Ownership,
        rows: StatePartitionRows,
        barrier: Callable[[], asyncio.Future[None]],
        metrics: MoveMetrics,
        begin_serving: Callable[[int], str | None] = lambda state_partition: None,
    ) -> None:
        self._begin_serving = begin_serving
        self._ownership = ownership
        self._rows = rows
        self._barrier = barrier
        self._metrics = metrics

    async def piece(self, state_partition: int, owner_epoch: int, after_key: bytes, max_bytes: int) -> Piece:
        """The rows after `after_key`. COORDINATOR_LOAD_IN_PROGRESS: this node's view lacks the reassignment (yet)."""
        refusal = self._refusal(state_partition, owner_epoch)
        if refusal is None:
            await self._barrier()
            refusal = self._refusal(state_partition, owner_epoch)
        if refusal is not None:
            return Piece([], False, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, refusal)
        problem = self._begin_serving(state_partition)
        if problem is not None:
            return Piece([], False, ErrorCode.KAFKA_STORAGE_ERROR, problem)
        try:
            if self._rows.moved_epoch(state_partition) != owner_epoch:
                self._rows.set_moved_epoch(state_partition, owner_epoch)
            limit = max(1, min(max_bytes, PIECE_BYTES_LIMIT))
            rows, is_last = self._rows.piece(state_partition, after_key, limit)
        except StorageFailure as failure:
            text = f"state partition {state_partition} cannot be read: {failure}"
            return Piece([], False, ErrorCode.KAFKA_STORAGE_ERROR, text)
        self._metrics.sent(sum(row.size for row in rows))
        return Piece(rows, is_last)

    def _refusal(self, state_partition: int, owner_epoch: int) -> str | None:
        problem = self._ownership.identity_problem()
        if problem:
            return problem
        move = self._ownership.view.state_partition_moves.get(state_partition)
        node_id = self._ownership.node_id
        if move is None or move.node_id != node_id or move.owner_epoch != owner_epoch:
            return (
                f"share coordinator {node_id} has no move of state partition {state_partition} away from it "
                f"with owner epoch {owner_epoch}"
            )
        return None
