"""WatchCatalog answers that are being sent to nodes in pieces.

Each node has at most one transfer. All its rows are of one version, even if the catalog changes meanwhile; a transfer
costs only references to them. It is kept after its last piece until the node's next other request, because the answer
may have been lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kshare_coordinator.machine.catalog.view import CatalogPieces, known_version
from kshare_coordinator.machine.state import CoordinatorState, NodeId
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

PIECE_BYTES = 512 * 1024
"""Approximate size of a piece, made in some 20 ms. A topic, or the configs of one group or broker, are never split."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    transfer_id: int
    incarnation: str
    pieces: CatalogPieces


class CatalogTransfers:
    """The transfers of all nodes; `source` makes transfer ids, which must not repeat after a restart."""

    def __init__(self, source: random.Random, piece_bytes: int = PIECE_BYTES) -> None:
        self._source = source
        self._piece_bytes = piece_bytes
        self._transfers: dict[NodeId, _Transfer] = {}

    def next_piece(self, request: pb.WatchCatalogRequest) -> pb.WatchCatalogResponse | None:
        """The requested piece; None if the transfer is unknown and must restart."""
        known = self._transfers.get((request.role, request.node_id))
        if known is None or known.transfer_id != request.transfer_id or not known.pieces.has(request.piece):
            return None
        answer = known.pieces.piece(request.piece)
        answer.transfer_id = known.transfer_id
        return answer

    def answer(self, request: pb.WatchCatalogRequest, state: CoordinatorState) -> pb.WatchCatalogResponse:
        """A new answer, or its first piece; it replaces the node's former transfer."""
        self._forget_gone(state)
        self._transfers.pop((request.role, request.node_id), None)
        pieces = CatalogPieces(
            state,
            known_version(state, request),
            self._piece_bytes if request.takes_pieces else None,
            with_security=request.role == pb.ROLE_GATEWAY,
        )
        answer = pieces.piece(0)
        if answer.more:
            answer.transfer_id = self._source.getrandbits(62) + 1
            transfer = _Transfer(answer.transfer_id, request.incarnation, pieces)
            self._transfers[request.role, request.node_id] = transfer
        return answer

    def _forget_gone(self, state: CoordinatorState) -> None:
        for node_id, transfer in list(self._transfers.items()):
            node = state.nodes.get(node_id)
            if node is None or node.incarnation != transfer.incarnation:
                del self._transfers[node_id]
