"""The receiver of one reassignment: copies a partition to this leader and reports its steps to the coordinator.

1. Where the mark of this reassignment is here, continue after the last copied batch. Otherwise remove rows of older
   reassignments and write the mark.
2. Fetch record batches from the leader, page by page, each written with one fsync, until it has no more.
3. FENCE: the leader stops serving the partition. Fetch the rest: the newest batches, then all other rows.
4. Check that a log opens on the copy, with the leader's start and end offsets.
5. COMPLETE, in a retry loop. The task ends when the view of the catalog shows the switch or the cancelled reassignment,
   which cancels the task. The answer alone decides nothing, because it may be late.

Every failure is retried with a back-off. This node gives the reassignment up when a disk fails on either side, when the
copy differs from the leader's log, or when the fenced rest cannot be fetched for FENCED_LIMIT_S. The partition is then
served by its former leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from zlib import crc32

from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import TopicPartition, topic_id_text
from kshare_leader.reassignment.rows import FAMILIES, LogExtent, Page, PartitionRows, Place, Row
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import ADVANCE_PARTITION_MOVE, TRANSFER_PARTITION
from kshare_rpc.network import CallFailed, Channel
from kshare_rpc.reassignment.copy_loop import CALL_TIMEOUT_MS, CopyLoop, MoveProblem, StepFailure
from kshare_rpc.reassignment.rows import rows_of

FIRST_RETRY_MS = 10
DISK_FAILURES_BEFORE_GIVING_UP = 3
FENCED_LIMIT_S = 15.0
"""The longest time that the partition may be fenced because its former leader does not send the rest."""

log = logging.getLogger(__name__)

Step = coordinator_pb2.AdvancePartitionMoveRequest


class _Stage(Enum):
    BEGINNING = auto()
    LOG = auto()
    """The former leader serves the partition, and its record batches are copied."""
    FENCED = auto()
    COPIED = auto()


class PartitionReceiver:
    """The receiver of one reassignment; `run` ends only by cancellation.

    `copies` returns the number of copies that share this node's rate limit.
    """

    def __init__(
        self,
        key: TopicPartition,
        move: coordinator_pb2.Topic.Partition,
        *,
        node_id: int,
        rows: PartitionRows,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        copies: Callable[[], int],
        page_bytes: int,
    ) -> None:
        self._key = key
        self._move_epoch = move.move_epoch
        self.from_node_id = move.leader_node_id
        self._node_id = node_id
        self._rows = rows
        self._view = view
        self._channel = channel
        self._coordinator = coordinator
        self._page_bytes = page_bytes
        self._stage = _Stage.BEGINNING
        self._after: Place | None = None
        self._end_at_begin: int | None = None
        """The log's end when the copy began."""
        self._fenced_at = 0.0
        self._disk_failures = 0
        self._is_hopeless = False
        """The copy is wrong, and another copy would not be better."""
        self._loop = CopyLoop(
            f"{self.name} cannot be copied from leader {self.from_node_id}",
            first_retry_ms=FIRST_RETRY_MS,
            copies=copies,
        )

    @property
    def name(self) -> str:
        return f"partition {topic_id_text(self._key.topic_id)}-{self._key.partition}"

    @property
    def is_copying(self) -> bool:
        return self._stage is not _Stage.COPIED

    @property
    def problem(self) -> str | None:
        """The newest failure of a reassignment that is stalled for some seconds; None otherwise."""
        return self._loop.problem

    async def run(self) -> None:
        await self._loop.run(self._go_on, self._before_retry)

    async def _before_retry(self, failure: StepFailure | None) -> None:
        if failure is not None:
            self._disk_failures += isinstance(failure, StorageFailure)
            self._loop.note(str(failure))
        await self._give_up_if_hopeless()

    async def _go_on(self) -> bool:
        """Does one step; True where the next may follow at once. MoveProblem, CallFailed, StorageFailure."""
        if self._stage is _Stage.BEGINNING:
            self._begin()
        elif self._stage is _Stage.LOG:
            await self._copy_log()
        elif self._stage is _Stage.FENCED:
            await self._copy_rest()
        else:
            await self._advance(Step.COMPLETE)
            return False  # until the catalog shows it
        return True

    def _begin(self) -> None:
        mark = self._rows.mark(self._key)
        if mark is not None and mark > self._move_epoch:
            text = f"the copy here is of move epoch {mark}, newer than {self._move_epoch} of the catalog"
            raise MoveProblem(text)
        if mark != self._move_epoch:
            self._rows.remove(self._key)
            self._rows.set_mark(self._key, self._move_epoch)
        self._after = self._rows.last_batch(self._key)
        self._stage = _Stage.LOG

    async def _copy_log(self) -> None:
        answer, size_bytes = await self._copy_page(is_fenced=False)
        self._disk_failures = 0
        if self._end_at_begin is None:
            self._end_at_begin = answer.log_end_offset
        if answer.is_last:
            await self._advance(Step.FENCE)
            self._stage = _Stage.FENCED
            self._fenced_at = asyncio.get_running_loop().time()
        elif self._after is None or int.from_bytes(self._after.key, "big") < self._end_at_begin:
            await self._loop.pace(size_bytes)  # until the log's end at the beginning; then it has to catch up

    async def _copy_rest(self) -> None:
        answer, _ = await self._copy_page(is_fenced=True)
        if not answer.is_last:
            return
        theirs = LogExtent(answer.log_start_offset, answer.log_end_offset)
        mine = self._rows.extent(self._key)
        if mine != theirs:
            self._is_hopeless = True
            raise MoveProblem(f"the copy has {mine}, but the leader had {theirs}")
        self._stage = _Stage.COPIED
        log.info("%s is copied from leader %d: offsets %s", self.name, self.from_node_id, mine)

    async def _copy_page(self, *, is_fenced: bool) -> tuple[leader_pb2.TransferPartitionResponse, int]:
        """Fetches and durably writes one page; returns the answer and the bytes of its rows."""
        sender = self._view().node(coordinator_pb2.ROLE_LEADER, self.from_node_id)
        if sender is None:
            raise MoveProblem("it is not live")
        request = leader_pb2.TransferPartitionRequest(
            topic_id=self._key.topic_id,
            partition=self._key.partition,
            move_epoch=self._move_epoch,
            is_fenced=is_fenced,
            max_bytes=self._page_bytes,
        )
        if self._after is not None:
            request.after_family, request.after_key = self._after
        channel = self._channel(sender.rpc_address)
        answer, payload = await channel.call(TRANSFER_PARTITION, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            raise StorageFailure(answer.error_message)
        if answer.error_code != ErrorCode.NONE:
            raise MoveProblem(answer.error_message or f"it answered with error {answer.error_code}")
        page = _page_of(answer, payload, self._after)
        self._rows.write_page(self._key, page.family, page.rows)
        if page.rows:
            self._after = Place(page.family, page.rows[-1].key)
        return answer, page.size_bytes

    async def _advance(self, step: coordinator_pb2.AdvancePartitionMoveRequest.Step.ValueType) -> None:
        request = coordinator_pb2.AdvancePartitionMoveRequest(
            topic_id=self._key.topic_id,
            partition=self._key.partition,
            node_id=self._node_id,
            move_epoch=self._move_epoch,
            step=step,
        )
        answer, _ = await self._coordinator().call(ADVANCE_PARTITION_MOVE, request, timeout_ms=CALL_TIMEOUT_MS)
        if answer.error_code != ErrorCode.NONE:
            raise MoveProblem(f"the coordinator: {answer.error_message}")

    async def _give_up_if_hopeless(self) -> None:
        is_late = self._stage is _Stage.FENCED and asyncio.get_running_loop().time() - self._fenced_at >= FENCED_LIMIT_S
        if not (is_late or self._is_hopeless) and self._disk_failures < DISK_FAILURES_BEFORE_GIVING_UP:
            return
        log.error("%s; asking the coordinator to cancel the move", self._loop.newest_failure)
        try:
            await self._advance(Step.GIVE_UP)
        except (MoveProblem, CallFailed) as failure:
            self._loop.note(f"the move cannot be cancelled: {failure}")


def _page_of(answer: leader_pb2.TransferPartitionResponse, payload: memoryview, after: Place | None) -> Page:
    """The page of an answer; MoveProblem where the answer is damaged or inconsistent."""
    data = bytes(payload)
    if crc32(data) != answer.checksum:
        raise MoveProblem(f"it sent {len(data)} bytes that do not match their checksum")
    if answer.family not in FAMILIES or (
        after is not None and FAMILIES.index(answer.family) < FAMILIES.index(after.family)
    ):
        raise MoveProblem(f"it sent rows of family {answer.family!r}")
    after_key = after.key if after is not None and answer.family == after.family else None
    rows = rows_of(answer.rows, data, is_last=answer.is_last, after_key=after_key, key_may_be_empty=True)
    return Page(answer.family, [Row(key, value) for key, value in rows], answer.is_last)
