"""ListStateSummaries: summaries of the stored states of one leader's share-partitions.

They are for its lag metrics, and tell which share-partitions have dead letters to send.

Pages go through the state partitions that this node owns, in order of their numbers and of the stored keys. They are
read from the state log, which takes no room in the machine's memory. One page reads PAGE_ROWS rows, a few milliseconds.
State partitions that this node does not serve now, or cannot read, are left out.
"""

from __future__ import annotations

import struct

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import LIST_STATE_SUMMARIES
from kshare_rpc.serving import answers
from kshare_share_coordinator.machine.share_group_offset import UNINITIALIZED_START_OFFSET, apply
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.state_log.port import Found, StateLog

PAGE_ROWS = 300
LOADING = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Of a state partition in an existing cluster that this node owns: it will be served soon."""
ARCHIVING = 3
"""The delivery state of records whose dead letters are due (KIP-1191)."""
_STATE_PARTITION = struct.Struct(">i")

Response = messages.ListStateSummariesResponse


class StateSummaries:
    """Reads the pages; see the module's text."""

    def __init__(self, state_log: StateLog, ownership: Ownership) -> None:
        self._state_log = state_log
        self._ownership = ownership

    def page(self, leader_node_id: int, position: bytes, catalog_version: int) -> Response:
        """The page from `position` on, for a leader that has the catalog of this version."""
        refusal = self._refusal(position, catalog_version)
        if refusal is not None:
            return refusal
        first, start = 0, b""
        if position:
            (first,), start = _STATE_PARTITION.unpack_from(position), position[_STATE_PARTITION.size :]
        response = Response()
        left = PAGE_ROWS
        for number in self._ownership.owned_state_partitions():
            if number < first:
                continue
            unserved = self._ownership.state_partition_refusal(number)
            if unserved is not None:
                response.loading_state_partitions += unserved.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                continue
            if left <= 0:
                response.next_position = _STATE_PARTITION.pack(number)
                break
            start = start if number == first else b""
            try:
                found, following = self._state_log.share_partitions(number, start, left)
            except StorageFailure:  # the pass over all rows reports it, unless the state log is being claimed or read
                refused = self._state_log.refusal(number)
                response.loading_state_partitions += refused is not None and refused.error_code in LOADING
                continue
            for each in found:
                left -= max(1, len(each.records))
                self._add(response, each, leader_node_id)
            if following is not None:
                response.next_position = _STATE_PARTITION.pack(number) + following
                break
        return response

    def _refusal(self, position: bytes, catalog_version: int) -> Response | None:
        refusal = self._ownership.node_refusal()
        if refusal is not None:
            return Response(error_code=refusal.error_code, error_message=refusal.error_message)
        version = self._ownership.view.version
        if version < catalog_version:
            text = f"the catalog's version {catalog_version} has not been received yet; this node has version {version}"
            return Response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error_message=text)
        if position and len(position) < _STATE_PARTITION.size:
            return Response(error_code=ErrorCode.INVALID_REQUEST, error_message=f"{position!r} is no position")
        return None

    def _add(self, response: Response, found: Found, leader_node_id: int) -> None:
        if found.key is None or found.problem is not None:
            return
        partition = self._ownership.view.partition(found.key.topic_partition)
        if partition is None or partition.leader_node_id != leader_node_id:
            return
        state = None
        for record in found.records:
            state = apply(state, record)
        if state is not None and state.start_offset != UNINITIALIZED_START_OFFSET:
            response.results.add(
                group_id=found.key.group_id,
                topic_id=found.key.topic_id,
                partition=found.key.partition,
                start_offset=state.start_offset,
                delivery_complete_count=max(0, state.delivery_complete_count),
                has_archiving=any(batch.delivery_state == ARCHIVING for batch in state.state_batches),
            )


class ListStateSummariesHandler:
    """Answers `ShareCoordinator/ListStateSummaries`."""

    def __init__(self, summaries: StateSummaries) -> None:
        self._summaries = summaries

    @answers(LIST_STATE_SUMMARIES)
    async def __call__(self, request: messages.ListStateSummariesRequest, payload: memoryview) -> Response:
        return self._summaries.page(request.leader_node_id, request.position, request.catalog_version)
