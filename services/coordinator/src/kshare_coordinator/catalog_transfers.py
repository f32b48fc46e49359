"""WatchCatalog answers that are under way to nodes in pieces.

Each node has at most one transfer. Its rows are those of one version, whatever happens to the catalog meanwhile; a
transfer costs references to them. It is kept after its last piece until the node asks for something else, because the
answer may have been lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kshare_coordinator.machine.catalog_view import CatalogPieces
from kshare_coordinator.machine.state import CoordinatorState, NodeId
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

PIECE_BYTES = 512 * 1024
"""About; one topic, or the configs of one group or broker, are never cut. Made in some 20 ms."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    transfer_id: int
    incarnation: str
    pieces: CatalogPieces


class CatalogTransfers:
    """See the module's text. `source` makes transfer ids, which must not repeat after a restart."""

    def __init__(self, source: random.Random, piece_bytes: int = PIECE_BYTES) -> None:
        self._source = source
        self._piece_bytes = piece_bytes
        self._transfers: dict[NodeId, _Transfer] = {}

    def next_piece(self, request: pb.WatchCatalogRequest) -> pb.WatchCatalogResponse | None:
        """The piece that is asked for; None where the transfer is not known, so that it has to begin anew."""
        known = self._transfers.get((request.role, request.node_id))
        if known is None or known.transfer_id != request.transfer_id or not known.pieces.has(request.piece):
            return None
        answer = known.pieces.piece(request.piece)
        answer.transfer_id = known.transfer_id
        return answer

    def answer(self, request: pb.WatchCatalogRequest, state: CoordinatorState) -> pb.WatchCatalogResponse:
        """A new answer, or the first piece of one; it takes the place of the node's former transfer."""
        self._forget_gone(state)
        self._transfers.pop((request.role, request.node_id), None)
        pieces = CatalogPieces(state, request.after_version, self._piece_bytes if request.takes_pieces else None)
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
