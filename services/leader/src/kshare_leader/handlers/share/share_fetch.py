"""ShareFetch (key 78, versions 1-2): applies acknowledgements, then acquires records for a member.

The partitions are tried in the order of the request (the gateway rotates it). `max_bytes` is divided evenly between
those with deliverable records, as by Kafka's PartitionMaxBytesStrategy; the bytes that one does not use go to the
others. The answer's first batch may be larger, so that there is always progress. `max_records` goes to the first
partition that can use it.

Where less than `min_bytes` could be acquired and the request may wait, it waits until its share-partitions have as much
(an append, a committed transaction, a release, a lock timeout, a moved start offset, the end of loading). When
`max_wait_ms` is over, it acquires the records that are available. The fetches that have waited longest are served
first, before a new fetch. The answer also waits for the acknowledgements to be durable, as Kafka's does.

Errors of a partition are returned at once, with the records that others have at that time; a wait ends with them. The
gateway holds errors that repeat. A share-partition whose state is not available (still loading, share coordinator
unreachable) is no error: the client gets no records and asks again, because Java's client treats unknown fetch errors
as fatal.

With IsRenewAck nothing is acquired. If the call is cancelled, or its gateway leaves the cluster before the answer, the
records that it acquired are released, and their deliveries do not count. If its answer is lost on the way, the gateway
reports that with ReleaseShareSession (`lost_fetch_numbers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.handlers.share.share_acknowledge import Acknowledged, begin_acknowledgement, end_of, owner_of
from kshare_leader.machine.acquisition import FetchLimits
from kshare_leader.ports import StoredBatch
from kshare_leader.share.acquiring import Taken
from kshare_leader.share.directory import NoRoom, SharePartitionDirectory
from kshare_leader.share.fetch_sessions import FetchSession
from kshare_leader.share.limits import WAITING_PAUSE_MS
from kshare_leader.share.served_partition import ServedPartition
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import Payload
from kshare_wire.record_batches import leader_epoch_of

RECORD_LIMIT = 1
"""ShareAcquireMode of KIP-1206."""

_FETCH_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""The fetch error codes that clients handle; other errors are left out, and the partition has no records."""


class PartitionFetch:
    """One partition of the request and its result."""

    __slots__ = ("acknowledged", "error", "key", "request", "served", "taken")

    def __init__(self, request: leader_pb2.ShareFetchRequest.Partition, key: SharePartitionKey) -> None:
        self.request = request
        self.key = key
        self.acknowledged: Acknowledged = None
        self.served: ServedPartition | None = None
        self.taken = Taken([], [])
        self.error: KafkaError | None = None

    @property
    def has_error(self) -> bool:
        """Whether the answer has its error."""
        return self.error is not None and self.error.code in _FETCH_ERRORS


class ShareFetchCall:
    """One ShareFetch in progress; a Waiter of its share-partitions."""

    def __init__(self, directory: SharePartitionDirectory, request: leader_pb2.ShareFetchRequest) -> None:
        self._directory = directory
        self._request = request
        self.owner = owner_of(request.owner)
        self.fetch_number = request.fetch_number
        group_id = request.owner.group_id
        self._partitions = [
            PartitionFetch(partition, SharePartitionKey(group_id, partition.topic_id, partition.partition))
            for partition in request.partitions
        ]
        self._settings = directory.settings(group_id)
        self._taking: FetchLimits | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._remembered: FetchSession | None = None
        """The session that begins with this fetch, which names the partitions."""
        self._is_given_back = False
        self.wait_number = 0
        self.session: FetchSession | None = None

    async def run(self) -> tuple[leader_pb2.ShareFetchResponse, Payload]:
        self._acknowledge()
        self._directory.add_unanswered(self)
        try:
            if self._may_acquire():
                self._look_up()
                self._remembered = self._remember()
                may_wait = self._may_wait()
                if not self._attempt(may_wait=may_wait) and may_wait:
                    await self._wait()
            return await self._answer()
        except BaseException:
            self._undo()
            raise
        finally:
            self._directory.remove_unanswered(self)

    def _acknowledge(self) -> None:
        for fetch in self._partitions:
            if fetch.request.acknowledgement_batches:
                fetch.acknowledged = begin_acknowledgement(
                    self._directory,
                    fetch.key,
                    self.owner,
                    fetch.request.acknowledgement_batches,
                    is_renew_ack=self._request.is_renew_ack,
                    delivered_fetch_number=self._request.delivered_fetch_number,
                )

    # Acquiring

    def _may_acquire(self) -> bool:
        request = self._request
        return not request.is_renew_ack and request.max_records > 0 and request.max_bytes > 0

    def _may_wait(self) -> bool:
        if self._request.min_bytes <= 0 or self._request.max_wait_ms <= 0:
            return False
        if any(fetch.has_error for fetch in self._partitions):
            return False
        return any(fetch.served is not None for fetch in self._partitions)

    def _look_up(self) -> None:
        for fetch in self._partitions:
            if fetch.request.fetch:
                try:
                    fetch.served = self._directory.find_or_load(fetch.key)
                except KafkaError as error:
                    fetch.error = error
                    continue
                fetch.served.add_member(self.owner)
                fetch.served.serve_waiting()

    def _remember(self) -> FetchSession | None:
        """The session, if its next fetches need not name its partitions."""
        request = self._request
        if not (request.remember and self._may_acquire()):
            return None
        served = {fetch.key: fetch.served for fetch in self._partitions if fetch.request.fetch}
        return self._directory.fetch_sessions.remember(
            request.owner.group_id, self.owner, request.fetch_number, served, now_ms()
        )

    def _attempt(self, *, may_wait: bool) -> bool:
        """Acquires the records that are available now; returns whether the fetch is to be answered."""
        something = self._note_dropped()
        self._read_settings()
        if may_wait and not something and not self._has_min_bytes():
            return False
        deliverable = [
            (fetch, served)
            for fetch in self._partitions
            if (served := fetch.served) is not None and served.has_deliverable()
        ]
        records_left, bytes_left = self._request.max_records, self._request.max_bytes
        has_records = False
        for index, (fetch, served) in enumerate(deliverable):
            if records_left <= 0 or (something and bytes_left <= 0):
                break
            share = max(1, bytes_left // (len(deliverable) - index))
            something |= self._take(fetch, served, records_left, share, at_least_one_batch=not has_records)
            if fetch.taken.records:
                has_records = True
                if self._remembered is not None:
                    self._remembered.had_records()
            records_left -= sum(last - first + 1 for first, last, _ in fetch.taken.records)
            bytes_left -= sum(batch.length for batch in fetch.taken.batches)
        return something

    def _take(
        self,
        fetch: PartitionFetch,
        served: ServedPartition,
        max_records: int,
        max_bytes: int,
        *,
        at_least_one_batch: bool,
    ) -> bool:
        """Acquires records of one share-partition; whether it has records or an error for the answer.

        Without a lease it acquires none, also for a fetch that waits or whose session is remembered from before. It
        acquires none either when the fetch's gateway is gone.
        """
        if self._is_given_back or not self._directory.has_lease():
            return False
        if self._taking is None or self._taking.max_records != max_records:
            self._taking = replace(self._taking or self._limits(), max_records=max_records)
        try:
            fetch.taken = served.take(self._taking, max_bytes, at_least_one_batch=at_least_one_batch)
        except StorageFailure as failure:
            fetch.error, fetch.served = KafkaError(failure.code, str(failure)), None
            return True
        return bool(fetch.taken.records)

    def _read_settings(self) -> None:
        """Before each attempt, as the group's configs may have changed."""
        self._settings = self._directory.settings(self._request.owner.group_id)
        self._taking = None

    def _note_dropped(self) -> bool:
        """Takes over the errors of share-partitions that were dropped since; returns whether any was."""
        found = False
        for fetch in self._partitions:
            if fetch.served is not None and fetch.served.error is not None:
                fetch.error, fetch.served = fetch.served.error, None
                found = True
        return found

    def _has_min_bytes(self) -> bool:
        """Whether `min_bytes` could be acquired; for one byte the attempt itself decides."""
        wanted = min(self._request.min_bytes, self._request.max_bytes)
        if wanted <= 1:
            return True
        found = 0
        for fetch in self._partitions:
            if fetch.served is None:
                continue
            try:
                found += fetch.served.readable_bytes(wanted - found)
            except StorageFailure:  # ends the wait: the attempt finds it too, or records before it
                return True
            if found >= wanted:
                return True
        return False

    def _limits(self) -> FetchLimits:
        settings, request = self._settings, self._request
        return FetchLimits(
            owner=self.owner,
            max_records=request.max_records,
            batch_size=max(1, request.batch_size),
            record_limit=request.share_acquire_mode == RECORD_LIMIT,
            group=settings.limits,
            fetch_number=request.fetch_number,
            client_id=request.client_id,
        )

    def _undo(self) -> None:
        for fetch in self._partitions:
            if fetch.served is not None:
                fetch.served.undo(self.owner, fetch.taken.records)
            fetch.taken = Taken([], [])

    def give_back(self) -> None:
        """Releases what it acquired, as its gateway is gone; the answer, if it is sent at all, has no records."""
        self._is_given_back = True
        self._undo()
        self.end()

    # Waiting

    async def _wait(self) -> None:
        wait_number = self._directory.add_waiting(self)
        if wait_number is None:
            await self._pause()
            return
        session = self.session or self._remembered
        self.wait_number = wait_number if session is None else session.wait_from(wait_number)
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(self._request.max_wait_ms / 1000, self._time_is_over)
        try:
            await self._wait_at_partitions(self._waiting)
        finally:
            timer.cancel()
            self._directory.remove_waiting(self)

    async def _pause(self) -> None:
        """Too many fetches wait: acquires fewer than `min_bytes`, if there are any, and else delays the answer.

        It acquires nothing after the pause, as nothing would end the pause of a fetch whose session ended meanwhile.
        """
        if self._request.min_bytes <= 1 or not self._attempt(may_wait=False):
            await asyncio.sleep(min(self._request.max_wait_ms, WAITING_PAUSE_MS) / 1000)

    async def _wait_at_partitions(self, waiting: asyncio.Future[None]) -> None:
        waited_at = [fetch.served for fetch in self._partitions if fetch.served is not None]
        for served in waited_at:
            served.add_waiter(self)
        try:
            await waiting
        finally:
            for served in waited_at:
                served.remove_waiter(self)

    def wake(self) -> None:
        """Called by a share-partition that may have deliverable records."""
        if self._waiting is not None and not self._waiting.done() and self._attempt(may_wait=True):
            self.end()

    @property
    def has_waited(self) -> bool:
        """Whether the first attempt did not acquire enough."""
        return self._waiting is not None

    def _time_is_over(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            if self._request.min_bytes > 1:
                self._attempt(may_wait=False)
            self.end()

    def end(self) -> None:
        """Ends the wait; the answer has the records acquired so far."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # Answering

    def _is_named(self, fetch: PartitionFetch) -> bool:
        """Whether the answer has the partition."""
        return True

    async def _answer(self) -> tuple[leader_pb2.ShareFetchResponse, Payload]:
        acknowledge_errors = [await end_of(fetch.acknowledged) for fetch in self._partitions]
        response = leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=self._settings.limits.lock_duration_ms)
        response.is_remembered = self._remembered is not None
        payload: list[bytes] = []
        for fetch, acknowledge_error in zip(self._partitions, acknowledge_errors, strict=True):
            if not self._is_named(fetch):
                continue
            answer = response.partitions.add(topic_id=fetch.key.topic_id, partition=fetch.key.partition)
            if acknowledge_error is not None:
                answer.acknowledge_error_code = acknowledge_error.code
                answer.acknowledge_error_message = acknowledge_error.message
            if fetch.error is not None and fetch.has_error:
                answer.error_code = fetch.error.code
                answer.error_message = fetch.error.message
                response.has_no_room |= isinstance(fetch.error, NoRoom)
            if ErrorCode.NOT_LEADER_OR_FOLLOWER in (answer.error_code, answer.acknowledge_error_code):
                leader = self._directory.current_leader(fetch.key.topic_partition)
                if leader is not None:
                    answer.current_leader.CopyFrom(leader)
            _add_records(answer, fetch, payload)
        return response, payload


def now_ms() -> int:
    """The event loop's steady time."""
    return int(asyncio.get_running_loop().time() * 1000)


def _add_records(answer: leader_pb2.ShareFetchResponse.Partition, fetch: PartitionFetch, payload: list[bytes]) -> None:
    served = fetch.served
    if served is None or served.machine is None:  # loading, or dropped since: no record is acquired
        return
    answer.next_fetch_offset = served.machine.end_offset
    answer.high_watermark = served.log.high_watermark
    answer.is_acquirable = bool(fetch.taken.records) or served.is_acquirable
    for first, last, delivery_count in fetch.taken.records:
        answer.acquired_records.add(first_offset=first, last_offset=last, delivery_count=delivery_count)
    cached = fetch.request.cached
    sent_bytes = 0
    for batch in fetch.taken.batches:
        leader_epoch = leader_epoch_of(batch.data)
        inline = not (cached and _is_cached(batch, leader_epoch, cached))
        answer.batches.add(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            length=batch.length,
            inline=inline,
            leader_epoch=leader_epoch,
        )
        if inline:
            payload.append(batch.data)
            sent_bytes += batch.length
    served.counts.topic.share_fetch_bytes_out += sent_bytes


def _is_cached(batch: StoredBatch, leader_epoch: int, cached: Sequence[leader_pb2.ShareFetchRequest.CachedRun]) -> bool:
    return any(
        run.leader_epoch == leader_epoch
        and run.first_offset <= batch.base_offset
        and batch.last_offset <= run.last_offset
        for run in cached
    )
