"""The sender of a reassignment: gives the rows of a partition to the leader that takes it over.

It sends rows only when this node's own view of the catalog has the reassignment with exactly the receiver's epoch.
While the partition is served, only its record batches are sent. Stored batches do not change then, because the log of a
partition under reassignment is not compacted (`PartitionLog.is_moving`). The rest is sent when this node's view says
that the partition is fenced. By that view the log is closed, and no write is under way (`PartitionLogs.settle`). So the
rows sent are final until the reassignment is cancelled, which ends its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.log import keys
from kshare_leader.reassignment.rows import FAMILIES, LogExtent, Page, PartitionRows, Place
from kshare_rpc.catalog import CatalogView

PAGE_LIMIT_BYTES = 1024 * 1024
"""Bytes of keys and values in one answer; a single row may be larger."""
NO_EXTENT = LogExtent(-1, -1)


class Sent(NamedTuple):
    """The sender's result: a page, or the error. `extent` is complete with the last page of a fenced partition."""

    page: Page
    extent: LogExtent = NO_EXTENT
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""


def _refused(code: ErrorCode, text: str) -> Sent:
    return Sent(Page(keys.LOG, [], False), NO_EXTENT, code, text)


class PartitionSender:
    """The sender of a node; `view` is the newest view that the logs have followed.

    `end_offset` returns the end offset of a log, -1 where it is closed.
    """

    def __init__(
        self,
        *,
        rows: PartitionRows,
        view: Callable[[], CatalogView],
        end_offset: Callable[[TopicPartition], int],
        node_id: int,
    ) -> None:
        self._rows = rows
        self._view = view
        self._end_offset = end_offset
        self._node_id = node_id

    def page(
        self, key: TopicPartition, move_epoch: int, after: Place | None, max_bytes: int, *, is_fenced: bool
    ) -> Sent:
        """The rows after a place.

        UNKNOWN_LEADER_EPOCH: this node does not know (yet) of the reassignment, or of the fence.
        """
        families = FAMILIES if is_fenced else (keys.LOG,)
        if after is not None and after.family not in families:
            return _refused(
                ErrorCode.INVALID_REQUEST, f"family {after.family!r} is unknown; known are {', '.join(families)}"
            )
        refusal = self._refusal(key, move_epoch, is_fenced=is_fenced)
        if refusal is not None:
            return _refused(ErrorCode.UNKNOWN_LEADER_EPOCH, refusal)
        try:
            if is_fenced:
                self._rows.set_mark(key, move_epoch)
            page = self._rows.page(key, families, after, max(1, min(max_bytes, PAGE_LIMIT_BYTES)))
            extent = self._rows.extent(key) if is_fenced and page.is_last else LogExtent(-1, self._end_offset(key))
        except StorageFailure as failure:
            return _refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the rows of {_name(key)} cannot be read: {failure}")
        return Sent(page, extent)

    def _refusal(self, key: TopicPartition, move_epoch: int, *, is_fenced: bool) -> str | None:
        partition = self._view().partition(key)
        if (
            partition is None
            or partition.leader_node_id != self._node_id
            or not partition.is_moving
            or partition.move_epoch != move_epoch
        ):
            return f"leader {self._node_id} has no move of {_name(key)} with move epoch {move_epoch} in its catalog"
        if is_fenced and not partition.is_fenced:
            return f"leader {self._node_id} still serves {_name(key)}"
        return None


def _name(key: TopicPartition) -> str:
    return f"partition {topic_id_text(key.topic_id)}-{key.partition}"
