"""The live coordinators: each says in partition 1 of the metadata's topic that it lives, and reads what others say.

A member lives for one lease after its last record was read, or until it says that it stops. Nothing is decided by
that: it tells clients where to ask, and the log says who owns the metadata.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kshare_coordinator.metadata.port import CoordinatorMember
from kshare_coordinator.metadata.problems import Problems
from kshare_coordinator.metadata.upstream.failures import RETRY_INTERVAL_MS, UPSTREAM_FAILURES
from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_metadata_pb2 as pb
from kshare_upstream.fenced_log.claim import INCARNATION_LENGTH
from kshare_upstream.fenced_log.fold import whole_batches
from kshare_upstream.partition_log import LATEST_TIMESTAMP, PartitionLog, Refused
from kshare_wire.record_reading import open_records
from kshare_wire.record_writing import BatchWriter

HEARTBEATS_PER_LEASE = 3
READ_WAIT_MS = 500
RECORD_BYTES_LIMIT = 4_096
PRUNE_INTERVAL_S = 60.0
AREA, OTHERS_AREA, TWIN_AREA = "members", "other coordinators", "node id"


@dataclass(slots=True)
class _Heard:
    member: CoordinatorMember
    until: float


class Members:
    """The live coordinators, this one among them. `changed` is called when it may be worth looking."""

    def __init__(
        self,
        log: PartitionLog,
        member: CoordinatorMember,
        *,
        lease_ms: int,
        now_ms: Callable[[], int],
        problems: Problems,
        changed: Callable[[], None],
    ) -> None:
        self._log = log
        self._member = member
        self._lease_s = lease_ms / 1000
        self._now_ms = now_ms
        self._problems = problems
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._heard: dict[int, _Heard] = {}
        self._twin_until: float | None = None
        """Until when another coordinator with this node id lives; None: there is none."""
        self.prunes = False
        """Whether this coordinator removes old records: the active one does."""

    def live(self) -> list[CoordinatorMember]:
        """In order of node ids."""
        now = self._loop.time()
        found = {node_id: heard.member for node_id, heard in self._heard.items() if heard.until > now}
        found[self._member.node_id] = self._member
        return [found[node_id] for node_id in sorted(found)]

    async def say(self) -> None:
        """Says that it lives, until cancelled."""
        while True:
            try:
                await self._append(stops=False)
            except UPSTREAM_FAILURES as error:
                self._problems.note(AREA, f"this coordinator's address cannot be written: {error}")
            else:
                self._problems.clear(AREA)
            await asyncio.sleep(self._lease_s / HEARTBEATS_PER_LEASE)

    async def stop(self) -> None:
        """Says that it stops; Refused, OutcomeUnknown."""
        await self._append(stops=True)

    async def listen(self) -> None:
        """Reads what others say, from now on, until cancelled."""
        position, prune_at, prune_before = -1, self._loop.time() + PRUNE_INTERVAL_S, -1
        while True:
            try:
                if position < 0:
                    position = await self._log.offset_at(LATEST_TIMESTAMP)
                position = await self._read(position)
                if self._loop.time() >= prune_at:
                    if self.prunes and prune_before > 0:
                        await self._log.delete_before(prune_before)
                    prune_at, prune_before = self._loop.time() + PRUNE_INTERVAL_S, position
            except UPSTREAM_FAILURES as error:
                position = -1 if isinstance(error, Refused) else position
                if position >= 0 or getattr(error, "code", 0) != ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._problems.note(OTHERS_AREA, f"the other coordinators are unknown: {error}")
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            else:
                self._problems.clear(OTHERS_AREA)
            if self._twin_until is not None and (self.prunes or self._loop.time() >= self._twin_until):
                self._twin_until = None
                self._problems.clear(TWIN_AREA)
            self._changed()

    async def _append(self, *, stops: bool) -> None:
        member = self._member
        text = pb.MetadataMember(node_id=member.node_id, incarnation=member.incarnation, rpc_address=member.rpc_address)
        writer = BatchWriter(RECORD_BYTES_LIMIT)
        value = pb.MetadataLogMember(member=text, stops=stops).SerializeToString()
        writer.append(self._now_ms(), b"%d" % member.node_id, value, ())
        await self._log.append(writer.build())

    async def _read(self, position: int) -> int:
        records = await self._log.read(position, wait_ms=READ_WAIT_MS)
        for batch in whole_batches(records.data):
            for record in open_records(batch.data):
                if record.offset >= position:
                    self._take(record.value or b"")
            position = max(position, batch.header.base_offset + batch.header.last_offset_delta + 1)
        return position

    def _take(self, value: bytes) -> None:
        try:
            said = pb.MetadataLogMember.FromString(value)
        except DecodeError:
            return  # it names no coordinator, and nothing is decided by it
        member = CoordinatorMember(said.member.node_id, said.member.incarnation, said.member.rpc_address)
        heard = self._heard.get(member.node_id)
        if member.node_id == self._member.node_id and member.incarnation != self._member.incarnation:
            self._note_twin(member, lives=not said.stops)
        if not said.stops:
            self._heard[member.node_id] = _Heard(member, self._loop.time() + self._lease_s)
        elif heard is not None and heard.member.incarnation == member.incarnation:
            del self._heard[member.node_id]
        now = self._loop.time()
        self._heard = {node_id: one for node_id, one in self._heard.items() if one.until > now}

    def _note_twin(self, twin: CoordinatorMember, *, lives: bool) -> None:
        """Without a word the one that is not active would wait forever."""
        self._twin_until = self._loop.time() + (self._lease_s if lives else 0)
        if lives and not self.prunes:
            self._problems.note(
                TWIN_AREA,
                f"another coordinator with node id {twin.node_id} runs, at {twin.rpc_address}, and only one of them "
                "can serve: stop one, give it another node id, or set another kshare.upstream.topic.prefix for a "
                "kshare of its own",
            )


def incarnation_bytes(member: CoordinatorMember) -> bytes:
    """The member's incarnation as claims have it."""
    return hashlib.blake2b(member.incarnation.encode(), digest_size=INCARNATION_LENGTH).digest()
