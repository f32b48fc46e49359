"""Members of consumer groups: of the classic protocol, and of KIP-848's.

A member reads what is committed of the partitions that it is given, goes on from there, and commits where it is. What
it would do with the records does not matter here, so it fetches none. It commits only what it owns: before it gives a
partition back, or joins again, it commits a last time. Like Java's consumer it asks again after an answer that says
that the coordinator moves or is not ready, and joins again when it was fenced. Some commits are transactions
(`offset_transactions`). Fetch is what `log_reader` does.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kio.schema.consumer_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.consumer_group_heartbeat.v1 import response as heartbeat_response
from kio.schema.heartbeat.v4 import request as classic_heartbeat_request
from kio.schema.heartbeat.v4 import response as classic_heartbeat_response
from kio.schema.join_group.v9 import request as join_request
from kio.schema.join_group.v9 import response as join_response
from kio.schema.leave_group.v5 import request as leave_request
from kio.schema.leave_group.v5 import response as leave_response
from kio.schema.offset_commit.v9 import request as commit_request
from kio.schema.offset_commit.v9 import response as commit_response
from kio.schema.offset_fetch.v9 import request as fetch_request
from kio.schema.offset_fetch.v9 import response as fetch_response
from kio.schema.sync_group.v5 import request as sync_request
from kio.schema.sync_group.v5 import response as sync_response

from kshare_core.errors import ErrorCode
from support.groups.classic_driver import subscription
from support.simulation.connections import ConnectionLost
from support.simulation.history import CommitAnswered, CommitSent, CommittedRead
from support.simulation.kafka_clients.protocol import milliseconds
from support.simulation.kafka_clients.session import ClusterClient

if TYPE_CHECKING:
    from support.simulation.kafka_clients.offset_transactions import OffsetTransactions

RETRY_S = 0.3
SESSION_MS, REBALANCE_MS = 6_000, 5_000
LARGEST_STEP = 20
TRANSIENT = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""The same request is sent again."""
FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class CommittedOffsets:
    """OffsetCommit and OffsetFetch of one group, with what the checker needs to know of them."""

    def __init__(self, client: ClusterClient, group: str, topic: str, counter: list[int]) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._counter = counter

    async def commit(
        self, member_id: str, epoch: int, positions: dict[int, int], *, is_forged: bool = False
    ) -> dict[int, int | None]:
        """Error codes by partition; None where there was no answer."""
        client, module = self._client, commit_request
        partition_type: Any = module.OffsetCommitRequestPartition
        topic_type: Any = module.OffsetCommitRequestTopic
        request_type: Any = module.OffsetCommitRequest
        parts = tuple(
            partition_type(partition_index=partition, committed_offset=offset, committed_metadata="")
            for partition, offset in positions.items()
        )
        request = request_type(
            group_id=self._group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=(topic_type(name=self._topic, partitions=parts),),
        )
        ids = {}
        for partition, offset in positions.items():
            self._counter[0] += 1
            ids[partition] = self._counter[0]
            client.history.add(
                CommitSent(client.now(), ids[partition], self._group, client.host, partition, offset, is_forged)
            )
        try:
            answer = await client.call_any(request, commit_response.OffsetCommitResponse)
        except ConnectionLost:
            return dict.fromkeys(positions)
        codes: dict[int, int | None] = {}
        for result in answer.topics[0].partitions:
            codes[result.partition_index] = int(result.error_code)
            client.history.add(CommitAnswered(client.now(), ids[result.partition_index], int(result.error_code)))
        return codes

    async def read(
        self, partitions: Iterable[int], *, member_id: str | None = None, epoch: int = -1
    ) -> dict[int, int] | int | None:
        """Committed offsets, -1 for none; an error code, or None where there was no answer."""
        client = self._client
        group_type: Any = fetch_request.OffsetFetchRequestGroup
        topic_type: Any = fetch_request.OffsetFetchRequestTopics
        request_type: Any = fetch_request.OffsetFetchRequest
        topics = (topic_type(name=self._topic, partition_indexes=tuple(partitions)),)
        of_group = group_type(group_id=self._group, member_id=member_id, member_epoch=epoch, topics=topics)
        sent_at = client.now()
        try:
            answer = await client.call_any(
                request_type(groups=(of_group,), require_stable=True), fetch_response.OffsetFetchResponse
            )
        except ConnectionLost:
            return None
        found = answer.groups[0]
        codes = [found.error_code, *(part.error_code for topic in found.topics for part in topic.partitions)]
        if any(codes):
            return int(next(code for code in codes if code))
        offsets = {part.partition_index: part.committed_offset for topic in found.topics for part in topic.partitions}
        for partition, offset in offsets.items():
            client.history.add(CommittedRead(client.now(), sent_at, self._group, partition, offset))
        return offsets


class ConsumerMember:
    """What both protocols have in common; see the module's text."""

    def __init__(
        self, client: ClusterClient, *, group: str, topic: str, partitions: int, topic_id: Any, counter: list[int]
    ) -> None:
        self._client = client
        self.group = group
        self._topic = topic
        self._partitions = partitions
        self._topic_id = topic_id
        self._offsets = CommittedOffsets(client, group, topic, counter)
        self.member_id = ""
        self._epoch = -1
        self._positions: dict[int, int] = {}
        """Where it is in the partitions that it owns."""
        self.confirmed_at: dict[int, float] = {}
        """When its newest confirmed commit of each partition was sent."""
        self.transactions: OffsetTransactions | None = None
        """Those in which some of its commits are."""
        self._task: asyncio.Task[None] | None = None
        self._is_running = True

    def start(self) -> None:
        self._task = self._client.loop.create_task(self._run(), name=f"{self._client.host}:consumer")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._client.bug(f"{task.get_name()} ended with {error!r}")

    def _stop(self) -> None:
        assert self._task is not None
        self._is_running = False
        self._task.cancel()

    def crash(self) -> None:
        """kill -9."""
        self._stop()
        self._client.cut_all()

    def vanish(self) -> None:
        """Its machine is gone from the network: no connection is closed, and no packet says so."""
        self._stop()

    async def leave(self) -> None:
        self._stop()
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._leave()
        except ConnectionLost:
            return

    def check_running(self) -> None:
        """Before each request: a cancellation alone may be lost in wait_for."""
        if not self._is_running:
            raise asyncio.CancelledError

    async def _run(self) -> None:
        raise NotImplementedError

    async def _leave(self) -> None:
        raise NotImplementedError

    async def _call(self, request: Any, response_type: Any, *, timeout_s: float = 10.0) -> Any:
        """Asks again while there is no answer, or one that says to ask again."""
        while True:
            self.check_running()
            try:
                answer = await self._client.call_any(request, response_type, timeout_s=timeout_s)
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
                continue
            if answer.error_code not in TRANSIENT:
                return answer
            await asyncio.sleep(RETRY_S)

    async def _begin_with(self, partitions: Iterable[int]) -> bool:
        """Reads where to begin; False: it was fenced."""
        wanted = sorted(set(partitions) - self._positions.keys())
        while wanted:
            self.check_running()
            found = await self._offsets.read(wanted, **self._as_reader())
            if isinstance(found, dict):
                self._positions.update({partition: max(0, offset) for partition, offset in found.items()})
                return True
            if found is not None and self._is_fenced("OffsetFetch", found):
                return False
            await asyncio.sleep(RETRY_S)
        return True

    def _as_reader(self) -> dict[str, Any]:
        return {}

    async def _commit(self) -> bool:
        """Goes on in each partition, and commits where it is; False: it was fenced."""
        self.check_running()
        if not self._positions:
            return True
        client = self._client
        self._positions = {
            partition: offset + 1 + client.random.randrange(LARGEST_STEP)
            for partition, offset in self._positions.items()
        }
        sent_at = client.now()
        if self.transactions is not None and self.transactions.is_next():
            codes = await self.transactions.commit(self.member_id, self._epoch, self._positions)
        else:
            codes = await self._offsets.commit(self.member_id, self._epoch, self._positions)
        self.confirmed_at.update({partition: sent_at for partition, code in codes.items() if code == 0})
        return not any([code is not None and self._is_fenced("OffsetCommit", code) for code in codes.values()])

    def _is_fenced(self, what: str, code: int) -> bool:
        if code == 0 or code in TRANSIENT:
            return False
        if code not in FENCED:
            self._client.bug(f"a correct {what} of group {self.group} was answered with {code!r}")
        return True


class ClassicMember(ConsumerMember):
    """JoinGroup, SyncGroup, Heartbeat. The group's leader deals the partitions out."""

    async def _run(self) -> None:
        while True:
            self._positions = {}
            assigned = await self._join()
            if assigned is None or not await self._begin_with(assigned):
                continue
            self._client.note(f"{self.group}: {sorted(assigned)} in generation {self._epoch}")
            await self._work()

    async def _work(self) -> None:
        """Until it has to join again."""
        request_type: Any = classic_heartbeat_request.HeartbeatRequest
        while True:
            await asyncio.sleep(0.5 + self._client.random.random())
            if not await self._commit():
                return
            request = request_type(group_id=self.group, generation_id=self._epoch, member_id=self.member_id)
            answer = await self._call(request, classic_heartbeat_response.HeartbeatResponse)
            if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                await self._commit()
                return
            if self._is_fenced("Heartbeat", answer.error_code):
                self._forget(answer.error_code)
                return

    def _forget(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    async def _join(self) -> list[int] | None:
        """The partitions; None: it has to join again."""
        protocol_type: Any = join_request.JoinGroupRequestProtocol
        request_type: Any = join_request.JoinGroupRequest
        request = request_type(
            group_id=self.group,
            session_timeout=milliseconds(SESSION_MS),
            rebalance_timeout=milliseconds(REBALANCE_MS),
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=(protocol_type(name="range", metadata=subscription(self._topic)),),
        )
        answer = await self._call(request, join_response.JoinGroupResponse, timeout_s=REBALANCE_MS / 1000 + 5)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return None
        if self._is_fenced("JoinGroup", answer.error_code):
            self._forget(answer.error_code)
            return None
        self.member_id, self._epoch = answer.member_id, answer.generation_id
        members = sorted(member.member_id for member in answer.members)
        part_type: Any = sync_request.SyncGroupRequestAssignment
        dealt = tuple(
            part_type(member_id=name, assignment=bytes(range(number, self._partitions, len(members))))
            for number, name in enumerate(members)
        )
        sync_type: Any = sync_request.SyncGroupRequest
        request = sync_type(
            group_id=self.group,
            generation_id=self._epoch,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=dealt,
        )
        answer = await self._call(request, sync_response.SyncGroupResponse)
        if self._is_fenced("SyncGroup", answer.error_code):
            self._forget(answer.error_code)
            return None
        return list(answer.assignment)

    async def _leave(self) -> None:
        member_type: Any = leave_request.MemberIdentity
        request_type: Any = leave_request.LeaveGroupRequest
        request = request_type(group_id=self.group, members=(member_type(member_id=self.member_id),))
        await self._client.call_any(request, leave_response.LeaveGroupResponse)


class NewMember(ConsumerMember):
    """KIP-848: the coordinator says in each heartbeat's answer what the member shall own."""

    def __init__(self, client: ClusterClient, **others: Any) -> None:
        super().__init__(client, **others)
        raw = client.random.getrandbits(128).to_bytes(16, "big")
        self.member_id = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        self._epoch = 0
        self._assigned: list[int] = []
        self._told: tuple[int, ...] | None = None
        """The partitions that the last heartbeat without a failure said it owns; None: the next one says everything."""

    def _as_reader(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "epoch": self._epoch}

    async def _run(self) -> None:
        next_heartbeat = 0.0
        while True:
            if self._client.now() >= next_heartbeat:
                answer = await self._heartbeat()
                if answer is None:
                    continue
                next_heartbeat = self._client.now() + answer.heartbeat_interval.total_seconds() / 2
                if await self._assign(answer):
                    next_heartbeat = 0.0
                    continue
            if not await self._begin_with(self._assigned) or not await self._commit():
                next_heartbeat = 0.0  # which says whether it is fenced or only has a newer epoch
            await asyncio.sleep(0.5 + self._client.random.random())

    async def _heartbeat(self) -> Any:
        """None where it has to join again."""
        answer = await self._answered()
        if self._is_fenced("ConsumerGroupHeartbeat", answer.error_code):
            self._epoch, self._positions, self._assigned = 0, {}, []
            return None
        if answer.member_epoch < self._epoch:
            self._client.bug(f"the member epoch went from {self._epoch} back to {answer.member_epoch}")
        return answer

    async def _answered(self) -> Any:
        """The answer to a heartbeat that says what has changed; everything after a failure, as Java's clients do."""
        while True:
            self.check_running()
            owned = tuple(sorted(self._positions))
            request = self._request(owned)
            self._told = None
            try:
                answer = await self._client.call_any(request, heartbeat_response.ConsumerGroupHeartbeatResponse)
            except ConnectionLost:
                await asyncio.sleep(RETRY_S)
                continue
            if answer.error_code not in TRANSIENT:
                self._told = None if answer.error_code else owned
                return answer
            await asyncio.sleep(RETRY_S)

    def _request(self, owned: tuple[int, ...]) -> Any:
        part_type: Any = heartbeat_request.TopicPartitions
        parts = (part_type(topic_id=self._topic_id, partitions=owned),) if owned else ()
        is_full = self._told is None or self._epoch == 0
        request_type: Any = heartbeat_request.ConsumerGroupHeartbeatRequest
        return request_type(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            rebalance_timeout=milliseconds(REBALANCE_MS if is_full else -1),
            subscribed_topic_names=(self._topic,) if is_full else None,
            topic_partitions=parts if is_full or owned != self._told else None,
        )

    async def _assign(self, answer: Any) -> bool:
        """Whether it gave something back, and has to say so at once."""
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        self._assigned = [number for topic in answer.assignment.topic_partitions for number in topic.partitions]
        self._client.note(f"{self.group}: {sorted(self._assigned)} at epoch {self._epoch}")
        lost = self._positions.keys() - set(self._assigned)
        if lost:
            await self._commit()
            self._positions = {number: at for number, at in self._positions.items() if number not in lost}
        return bool(lost)

    async def _leave(self) -> None:
        request_type: Any = heartbeat_request.ConsumerGroupHeartbeatRequest
        request = request_type(group_id=self.group, member_id=self.member_id, member_epoch=-1, topic_partitions=None)
        await self._client.call_any(request, heartbeat_response.ConsumerGroupHeartbeatResponse)


MakeMember = Callable[..., ConsumerMember]
PROTOCOLS: dict[str, MakeMember] = {"classic": ClassicMember, "new": NewMember}
