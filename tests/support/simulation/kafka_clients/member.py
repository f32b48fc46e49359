"""A member of a share group, as librdkafka's and Java's share consumers behave.

It heartbeats to one gateway, keeps a share session with each gateway that leads partitions assigned to it, takes
records, and acknowledges them: with the next ShareFetch or by ShareAcknowledge, at once or later, or (some) never. What
it does with a record is drawn by its `Behaviour`.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

from kio.schema.share_acknowledge.v1 import request as acknowledge_v1
from kio.schema.share_acknowledge.v1 import response as acknowledge_response_v1
from kio.schema.share_acknowledge.v2 import request as acknowledge_v2
from kio.schema.share_acknowledge.v2 import response as acknowledge_response_v2
from kio.schema.share_fetch.v1 import request as fetch_v1
from kio.schema.share_fetch.v1 import response as fetch_response_v1
from kio.schema.share_fetch.v2 import request as fetch_v2
from kio.schema.share_fetch.v2 import response as fetch_response_v2
from kio.schema.share_group_heartbeat.v1 import request as heartbeat_request
from kio.schema.share_group_heartbeat.v1 import response as heartbeat_response

from kshare_core.errors import ErrorCode
from kshare_core.states import AcknowledgeType
from support.simulation.connections import ConnectionLost
from support.simulation.history import (
    AcknowledgeAnswered,
    AcknowledgeSent,
    Assigned,
    Delivered,
    FetchesFrom,
    HoldsEnded,
    Run,
)
from support.simulation.kafka_clients.protocol import milliseconds, read_batches
from support.simulation.kafka_clients.session import ClusterClient, TopicMetadata

ShareGroupHeartbeatRequest: Any = heartbeat_request.ShareGroupHeartbeatRequest

RETRY_S = 0.3
METADATA_INTERVAL_S = 2.0

REJOIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
FATAL_HEARTBEAT = (
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)
"""Answers to a correct heartbeat that end a librdkafka consumer; a transient fault must never give them."""

RENEWAL = (AcknowledgeType.RENEW,)
EPOCHS_AHEAD = 5

DIED, VANISHED, LEAVES = "the member died", "the member vanished", "the member leaves"
SESSION_ENDED_WITH = "the session ended: "
"""Why holds end (HoldsEnded.why); the last one is followed by the error code."""

SESSION_ENDED = (
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
)


@dataclass(slots=True)
class Behaviour:
    """How the members of a group treat records; probabilities, and times in seconds. May change while they run."""

    release: float = 0.12
    reject: float = 0.06
    mixed: float = 0.05
    """One batch with an acknowledge type for each offset."""
    late: float = 0.03
    """Acknowledge only after the lock has gone."""
    never: float = 0.03
    deferred: float = 0.4
    """Acknowledge a while later and fetch on meanwhile."""
    separate: float = 0.3
    """By ShareAcknowledge instead of with the next ShareFetch."""
    renew: float = 0.05
    """Renew the lock in time, and acknowledge when the first lock would have gone (of members with version 2)."""
    wrong_epoch: float = 0.02
    """A request of its own session, in an epoch that has not come."""
    work_s: float = 0.2
    lock_duration_s: float = 15.0
    max_records: int = 50
    max_wait_ms: int = 500


@dataclass(slots=True)
class _Pending:
    """An acknowledgement to be sent at `due`."""

    due: float
    partition: int
    run: Run
    types: tuple[int, ...]
    """One for the whole run, or one for each offset."""


@dataclass(slots=True)
class _Session:
    """A share session at one gateway. Epoch 0: to be opened."""

    address: str
    epoch: int = 0
    partitions: set[int] = field(default_factory=set)
    pending: list[_Pending] = field(default_factory=list)

    @property
    def next_epoch(self) -> int:
        return 1 if self.epoch == 2**31 - 1 else self.epoch + 1


class ShareMember:
    """See the module's text. `version` is that of ShareFetch and ShareAcknowledge: 1 as librdkafka, 2 as Java."""

    def __init__(
        self, client: ClusterClient, *, group: str, topic: str, behaviour: Behaviour, version: int, counter: list[int]
    ) -> None:
        self._client = client
        self.group = group
        self._topic = topic
        self._behaviour = behaviour
        self._version = version
        self._counter = counter
        self._fetch: Any = fetch_v1 if version == 1 else fetch_v2
        self._fetch_response: Any = (fetch_response_v1 if version == 1 else fetch_response_v2).ShareFetchResponse
        self._acknowledge: Any = acknowledge_v1 if version == 1 else acknowledge_v2
        self._acknowledge_response: Any = (
            acknowledge_response_v1 if version == 1 else acknowledge_response_v2
        ).ShareAcknowledgeResponse
        raw = client.random.getrandbits(128).to_bytes(16, "big")
        self.member_id = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        self.name = client.host
        self._epoch = 0
        self._assigned: set[int] = set()
        self._metadata: TopicMetadata | None = None
        self._sessions: dict[str, _Session] = {}
        self._session_tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.running = False
        self._stalled_until = 0.0
        self._places: tuple[tuple[int, str], ...] = ()
        """The newest that the history knows."""

    def start(self) -> None:
        self.running = True
        loop = self._client.loop
        self._tasks = [
            loop.create_task(self._heartbeats(), name=f"{self.name}:heartbeats"),
            loop.create_task(self._metadata_refresh(), name=f"{self.name}:metadata"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_done)

    def crash(self) -> None:
        """kill -9 of the consumer, with whatever it holds."""
        self._stop_tasks()
        for address in self._sessions:
            self._end_holds(address, DIED)
        self._client.cut_all()

    def vanish(self) -> None:
        """Its machine is gone from the network: no connection is closed, and nobody is told."""
        self._stop_tasks()
        for address in self._sessions:
            self._end_holds(address, VANISHED)

    async def stall(self, seconds: float) -> None:
        """It neither fetches nor acknowledges nor heartbeats for so long, with all that it holds; then it goes on."""
        self._client.note(f"stalls for {seconds} s")
        self._stalled_until = self._client.now() + seconds
        self._note_places()
        await asyncio.sleep(seconds)

    async def _after_stall(self) -> None:
        while self._client.now() < self._stalled_until:
            await asyncio.sleep(self._stalled_until - self._client.now())
        self._note_places()

    def _note_places(self) -> None:
        """Tells the history where it fetches, when that has changed."""
        client = self._client
        works = self.running and client.now() >= self._stalled_until
        leaders = self._metadata.leaders if works and self._metadata is not None else {}
        places = tuple((index, leaders[index].partition(":")[0]) for index in sorted(self._assigned & leaders.keys()))
        if places != self._places:
            self._places = places
            client.history.add(FetchesFrom(client.now(), self.group, self.name, places))

    @property
    def epoch(self) -> int:
        return self._epoch

    def session_addresses(self) -> list[str]:
        """Gateways at which it has a share session."""
        return [address for address, session in self._sessions.items() if session.epoch > 0]

    async def leave(self) -> None:
        """Closes its sessions (which releases what it holds) and leaves the group."""
        self._stop_tasks()
        for session in self._sessions.values():
            self._end_holds(session.address, LEAVES)
            if session.epoch > 0:
                request = self._acknowledge_request(session, -1, [])
                await self._quietly(self._client.at(session.address).call(request, self._acknowledge_response))
        request = ShareGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=-1)
        await self._quietly(self._client.call_coordinator(request, heartbeat_response.ShareGroupHeartbeatResponse))
        self._client.close_all()

    async def _quietly(self, call: Any) -> None:
        try:
            await call
        except ConnectionLost as problem:
            self._client.note(f"leaving: {problem}")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._client.bug(f"{task.get_name()} ended with {error!r}")

    def _stop_tasks(self) -> None:
        self.running = False
        self._note_places()
        for task in [*self._tasks, *self._session_tasks.values()]:
            task.cancel()

    # The group

    async def _heartbeats(self) -> None:
        client = self._client
        interval_s = 1.0
        while self.running:  # a cancellation alone may be lost in wait_for
            await self._after_stall()
            joining = self._epoch == 0
            request = ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self._epoch,
                subscribed_topic_names=(self._topic,) if joining else None,
            )
            try:
                answer = await client.call_coordinator(request, heartbeat_response.ShareGroupHeartbeatResponse)
            except ConnectionLost as problem:
                client.note(f"heartbeat: {problem}")
                await asyncio.sleep(RETRY_S)
                continue
            code = answer.error_code
            if code == 0:
                interval_s = answer.heartbeat_interval.total_seconds()
                self._joined(answer)
                await asyncio.sleep(interval_s * (0.9 + 0.1 * client.random.random()) if self._assigned else RETRY_S)
                continue
            client.note(f"heartbeat: {code!r} {answer.error_message}")
            if code in REJOIN:
                self._epoch = 0
                self._assigned = set()
                self._note_places()
            elif code in FATAL_HEARTBEAT:
                client.bug(f"heartbeat answered with {code!r}: {answer.error_message}")
            await asyncio.sleep(RETRY_S)

    def _joined(self, answer: Any) -> None:
        if answer.member_epoch < self._epoch:
            self._client.bug(f"the member epoch went from {self._epoch} back to {answer.member_epoch}")
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assigned = {
                partition
                for topic in answer.assignment.topic_partitions
                if self._metadata is not None and topic.topic_id == self._metadata.topic_id
                for partition in topic.partitions
            }
            self._note_places()
            client, partitions = self._client, tuple(sorted(self._assigned))
            client.history.add(Assigned(client.now(), self.group, self.name, self._epoch, partitions))
            if answer.assignment.topic_partitions and self._metadata is None:
                self._epoch = 0  # the topic's id is not known yet: join again to get the assignment again

    async def _metadata_refresh(self) -> None:
        client = self._client
        while self.running:  # a cancellation alone may be lost in wait_for
            try:
                metadata = await client.metadata(self._topic)
            except ConnectionLost:
                metadata = None
            if metadata is not None:
                self._metadata = metadata
                self._note_places()
                for address in dict.fromkeys(metadata.leaders.values()):
                    if address not in self._session_tasks:
                        self._sessions[address] = _Session(address)
                        self._session_tasks[address] = client.loop.create_task(
                            self._session_loop(self._sessions[address]), name=f"{self.name}:session:{address}"
                        )
                        self._session_tasks[address].add_done_callback(self._task_done)
            await asyncio.sleep(METADATA_INTERVAL_S if metadata is not None else RETRY_S)

    # The sessions

    async def _session_loop(self, session: _Session) -> None:
        client = self._client
        while self.running:  # a cancellation alone may be lost in wait_for
            await self._after_stall()
            wanted = self._wanted(session)
            is_due = any(pending.due <= client.now() for pending in session.pending)
            if not wanted and not session.partitions and not is_due:  # a fetch of nothing is answered at once
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._turn(session, wanted)
            except ConnectionLost as problem:
                client.note(f"session at {session.address}: {problem}")
                self._reset(session, "the connection was lost")
                await asyncio.sleep(RETRY_S * client.random.random())

    def _wanted(self, session: _Session) -> set[int]:
        leaders = self._metadata.leaders if self._metadata else {}
        return {partition for partition in self._assigned if leaders.get(partition) == session.address}

    async def _turn(self, session: _Session, wanted: set[int]) -> None:
        """One ShareFetch, perhaps with a ShareAcknowledge before it."""
        client, behaviour = self._client, self._behaviour
        due = [pending for pending in session.pending if pending.due <= client.now()]
        session.pending = [pending for pending in session.pending if pending.due > client.now()]
        if session.epoch == 0:
            due = []
        elif behaviour.wrong_epoch and client.random.random() < behaviour.wrong_epoch:
            await self._use_wrong_epoch(session)
        renewals = [pending for pending in due if pending.types == RENEWAL]
        if renewals:
            if not await self._send_renewals(session, renewals):
                return
            due = [pending for pending in due if pending.types != RENEWAL]
        if due and client.random.random() < behaviour.separate:
            if not await self._send_acknowledgements(session, due):
                return
            due = []
        await self._send_fetch(session, wanted, due)

    def _reset(self, session: _Session, why: str) -> None:
        """The session is gone, and with it all that it held."""
        session.epoch = 0
        session.partitions = set()
        session.pending = []
        self._end_holds(session.address, why)

    def _end_holds(self, address: str, why: str) -> None:
        client = self._client
        client.history.add(HoldsEnded(client.now(), self.group, self.name, address, why))

    async def _send_acknowledgements(self, session: _Session, due: list[_Pending]) -> bool:
        client = self._client
        ids = self._note_sent(due)
        request = self._acknowledge_request(session, session.epoch, due)
        answer = await client.at(session.address).call(request, self._acknowledge_response)
        if not self._session_goes_on(session, answer):
            return False
        codes = {
            partition.partition_index: (partition.error_code, partition.error_message)
            for topic in answer.responses
            for partition in topic.partitions
        }
        self._note_answers(ids, codes)
        return True

    async def _use_wrong_epoch(self, session: _Session) -> None:
        """A ShareAcknowledge that must be refused, and changes nothing of the session."""
        request = self._acknowledge_request(session, session.epoch + EPOCHS_AHEAD, [])
        answer = await self._client.at(session.address).call(request, self._acknowledge_response)
        if answer.error_code == 0:
            text = f"a request with epoch {session.epoch + EPOCHS_AHEAD} was taken; the session is at {session.epoch}"
            self._client.bug(text)

    async def _send_renewals(self, session: _Session, due: list[_Pending]) -> bool:
        """Whether the session goes on. A renewal may be refused, as where its lock has gone; the tap sees which."""
        request = self._acknowledge_request(session, session.epoch, due, is_renewal=True)
        answer = await self._client.at(session.address).call(request, self._acknowledge_response)
        return self._session_goes_on(session, answer)

    async def _send_fetch(self, session: _Session, wanted: set[int], due: list[_Pending]) -> None:
        client = self._client
        ids = self._note_sent(due)
        sent_at = client.now()
        request = self._fetch_request(session, wanted, due)
        timeout_s = self._behaviour.max_wait_ms / 1000 + 12.0
        connection = await client.at(session.address).connect()
        answer = await client.at(session.address).send(connection, request, self._fetch_response, timeout_s=timeout_s)
        if not self._session_goes_on(session, answer):
            return
        codes = {}
        delivered = []
        for topic in answer.responses:
            for partition in topic.partitions:
                codes[partition.partition_index] = (
                    partition.acknowledge_error_code,
                    partition.acknowledge_error_message,
                )
                if partition.error_code != 0:
                    client.note(f"fetch of {partition.partition_index}: {partition.error_code!r}")
                delivered.extend(self._delivered(session, sent_at, partition))
        self._note_answers(ids, codes)
        if not delivered and any(partition.error_code for topic in answer.responses for partition in topic.partitions):
            await asyncio.sleep(RETRY_S * client.random.random())
        if delivered:
            await asyncio.sleep(client.random.random() * 2 * self._behaviour.work_s)
            for event in delivered:
                session.pending.extend(self._decide(event))

    def _session_goes_on(self, session: _Session, answer: Any) -> bool:
        """Whether the request was taken; sets the next epoch."""
        if answer.error_code == 0:
            session.epoch = session.next_epoch
            return True
        self._client.note(f"session at {session.address}: {answer.error_code!r} {answer.error_message}")
        if answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR or answer.error_code == ErrorCode.INVALID_REQUEST:
            self._client.bug(f"a correct share request was answered with {answer.error_code!r}: {answer.error_message}")
        self._reset(session, f"{SESSION_ENDED_WITH}{answer.error_code!r}")
        if answer.error_code not in SESSION_ENDED:
            connection = self._client.at(session.address).connection
            if connection is not None:
                connection.cut()
        return False

    # Records

    def _delivered(self, session: _Session, sent_at: float, partition: Any) -> list[Delivered]:
        client = self._client
        if not partition.acquired_records:
            return []
        values = {record.offset: record.value for record in read_batches(bytes(partition.records or b""))}
        events = []
        for acquired in partition.acquired_records:
            offsets = range(acquired.first_offset, acquired.last_offset + 1)
            missing = [offset for offset in offsets if offset not in values]
            if missing:
                client.bug(f"partition {partition.partition_index}: offsets {missing} are acquired, without records")
            event = Delivered(
                client.now(),
                sent_at,
                self.group,
                self.name,
                session.address,
                partition.partition_index,
                (acquired.first_offset, acquired.last_offset),
                acquired.delivery_count,
                tuple(values.get(offset, "") for offset in offsets),
            )
            client.history.add(event)
            events.append(event)
            # Whatever it still meant to say about an earlier delivery of these records is out of date.
            session.pending = [pending for pending in session.pending if not _overlap(pending, event)]
        return events

    def _decide(self, event: Delivered) -> list[_Pending]:
        """What to answer for the records of one run, in up to three parts, and when."""
        draw = self._client.random.random
        first, last = event.run
        cuts = sorted({first, *(first + int(draw() * (last - first + 1)) for _ in range(2))})
        parts = [(start, end - 1) for start, end in zip(cuts, [*cuts[1:], last + 1], strict=True)]
        return [pending for part in parts for pending in self._decide_part(event.partition, part)]

    def _decide_part(self, partition: int, run: Run) -> list[_Pending]:
        """One acknowledgement, or none; or a renewal, and an acknowledgement after the first lock and in the second."""
        behaviour, draw, now = self._behaviour, self._client.random.random, self._client.now()
        if self._version > 1 and behaviour.renew and draw() < behaviour.renew:
            renewal = _Pending(now + behaviour.lock_duration_s * (0.3 + 0.3 * draw()), partition, run, RENEWAL)
            end = _Pending(
                now + behaviour.lock_duration_s * (1.05 + 0.2 * draw()), partition, run, (self._draw_type(),)
            )
            return [renewal, end]
        chance = draw()
        if chance < behaviour.never:
            return []
        due = now
        if chance < behaviour.never + behaviour.late:
            due = now + behaviour.lock_duration_s * (1.0 + 0.2 * draw())
        elif draw() < behaviour.deferred:
            due = now + 3 * draw()
        if draw() < behaviour.mixed:
            types = tuple(self._draw_type() for _ in range(run[0], run[1] + 1))
            return [_Pending(due, partition, run, types)]
        return [_Pending(due, partition, run, (self._draw_type(),))]

    def _draw_type(self) -> int:
        chance = self._client.random.random()
        if chance < self._behaviour.release:
            return AcknowledgeType.RELEASE
        if chance < self._behaviour.release + self._behaviour.reject:
            return AcknowledgeType.REJECT
        return AcknowledgeType.ACCEPT

    # Acknowledgements

    def _note_sent(self, due: list[_Pending]) -> list[tuple[int, int]]:
        """The ids of the acknowledgements, with their partitions."""
        client = self._client
        ids = []
        for pending in due:
            first, last = pending.run
            runs = [(pending.run, pending.types[0])]
            if len(pending.types) > 1:
                offsets = range(first, last + 1)
                runs = [((offset, offset), kind) for offset, kind in zip(offsets, pending.types, strict=True)]
            for run, kind in runs:
                self._counter[0] += 1
                event = AcknowledgeSent(
                    client.now(), self._counter[0], self.group, self.name, pending.partition, run, int(kind)
                )
                client.history.add(event)
                ids.append((self._counter[0], pending.partition))
        return ids

    def _note_answers(self, ids: list[tuple[int, int]], codes: dict[int, tuple[int, str | None]]) -> None:
        client = self._client
        for acknowledge_id, partition in ids:
            if partition not in codes:
                client.bug(f"acknowledgements of partition {partition} were not echoed in the answer")
                continue
            code, message = codes[partition]
            client.history.add(AcknowledgeAnswered(client.now(), acknowledge_id, int(code)))
            if code != 0:
                client.note(f"acknowledge {acknowledge_id}: {ErrorCode(code).name} {message}")

    def _batches(self, module: Any, due: list[_Pending]) -> dict[int, Any]:
        """The AcknowledgementBatches of each partition, in order of offsets."""
        batches: dict[int, list[Any]] = {}
        for pending in sorted(due, key=lambda pending: (pending.partition, pending.run)):
            batch = module.AcknowledgementBatch(
                first_offset=pending.run[0],
                last_offset=pending.run[1],
                acknowledge_types=tuple(int(kind) for kind in pending.types),
            )
            batches.setdefault(pending.partition, []).append(batch)
        return {partition: tuple(found) for partition, found in batches.items()}

    def _acknowledge_request(
        self, session: _Session, epoch: int, due: list[_Pending], *, is_renewal: bool = False
    ) -> Any:
        module = self._acknowledge
        partitions = tuple(
            module.AcknowledgePartition(partition_index=partition, acknowledgement_batches=batches)
            for partition, batches in self._batches(module, due).items()
        )
        topics: tuple[Any, ...] = ()
        if partitions:
            assert self._metadata is not None
            topics = (module.AcknowledgeTopic(topic_id=self._metadata.topic_id, partitions=partitions),)
        further = {"is_renew_ack": is_renewal} if self._version == 2 else {}
        return module.ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=epoch, topics=topics, **further
        )

    def _fetch_request(self, session: _Session, wanted: set[int], due: list[_Pending]) -> Any:
        assert self._metadata is not None
        module, topic_id = self._fetch, self._metadata.topic_id
        batches = self._batches(module, due)
        # A partition that comes with acknowledgements does not join the session by that; it is added next time.
        added = wanted - session.partitions - set(batches)
        named = sorted(added | set(batches))
        partitions = tuple(
            module.FetchPartition(partition_index=partition, acknowledgement_batches=batches.get(partition, ()))
            for partition in named
        )
        forgotten = tuple(sorted(session.partitions - wanted))
        session.partitions = (session.partitions & wanted) | added
        further = {}
        if self._version == 2:
            further = {"share_acquire_mode": self._client.random.randrange(2), "is_renew_ack": False}
        return module.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=session.epoch,
            max_wait=milliseconds(self._behaviour.max_wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=self._behaviour.max_records,
            batch_size=self._behaviour.max_records,
            topics=(module.FetchTopic(topic_id=topic_id, partitions=partitions),) if partitions else (),
            forgotten_topics_data=(
                (module.ForgottenTopic(topic_id=topic_id, partitions=forgotten),) if forgotten else ()
            ),
            **further,
        )


def _overlap(pending: _Pending, event: Delivered) -> bool:
    return pending.partition == event.partition and pending.run[0] <= event.run[1] and event.run[0] <= pending.run[1]
