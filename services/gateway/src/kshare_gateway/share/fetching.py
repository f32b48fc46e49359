"""ShareFetch and ShareAcknowledge calls to the leaders, for the share sessions of one gateway.

With one leader, the request waits at that leader. With several, only records that will be delivered may be acquired,
because every acquisition counts as a delivery. So the gateway first asks the leaders one after the other without
waiting, until one returns records. If none does, all leaders are asked to wait, and the first response with records is
delivered. Each of them gets an equal part of the request's bytes, and of its records where their number is exact. Later
responses of the other leaders are kept for the session's next ShareFetch that acquires records; until then these
leaders are not asked again. The acquisition locks of kept records are already running: the client is told the remaining
lock time, and records with too little of it are taken back. Kept records count in the memory of their connection
(`request_memory`), and those beyond its limit are taken back at once.

Errors without records are returned after a pause (`error_back_off`), or after the request's wait if that is shorter. In
the pause the leaders without errors are asked to wait, and their records end it.

Acknowledgements are sent first, to all leaders at once, and their results are in the response whatever the fetch
returns. An acknowledgement may arrive after its record's lock expired. It must not apply to a newer acquisition that
the member has not seen: it would succeed, and the record would be delivered afterwards. So fetches are numbered, and
each acknowledgement carries the number up to which responses of its leader were delivered. The leader rejects it for
records that were acquired later. Of each leader, at most one response of a session is undelivered: in flight, waiting
at the leader, or kept.

The end of a session (final epoch, lost connection, replacement by another connection) releases the member's records at
every leader that the session used. Calls in flight are not cancelled then, as the leader could not be told.

Records that no client gets are taken back, by the number of their fetch, so that a newer session of the same member
loses nothing, and their delivery does not count. These are the records of a call whose response was lost or came after
the end of its session, of kept responses that are too old, and of partitions that the session forgot or that have moved
since. `releases` does both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_gateway.connections.request_memory import MemoryAccount
from kshare_gateway.gateway import Gateway, bounded_wait_ms, log
from kshare_gateway.records.batch_cache import CachedBatch, Pin
from kshare_gateway.records.read_ahead import ReadAhead
from kshare_gateway.share.answers import Keeping, LeaderAnswer, PartitionAnswer
from kshare_gateway.share.error_back_off import LONGEST_PAUSE_MS, ErrorBackOff
from kshare_gateway.share.releases import SessionReleases
from kshare_gateway.share.remembered_partitions import Fetched, Remembered, RememberedPartitions
from kshare_gateway.share.sessions import ShareSession
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kshare_rpc.network import CallFailed

Acknowledgements = Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]]

RECORD_LIMIT = 1
"""The ShareAcquireMode in which `max_records` is exact (KIP-1206)."""
LAST_WORDS_MS = 500
"""How long, after the request's wait, a session's first response is held for leaders whose wait is over as well."""
KEPT_LOCK_SHARE_MIN = 0.5
"""Kept records are delivered only while at least this fraction of their lock is left; others are taken back."""
CACHED_NAMED = 8
"""Partitions whose cached batches are named in a fetch that does not name all of its partitions."""


@dataclass(slots=True, kw_only=True)
class FetchTerms:
    """The parameters of a ShareFetch request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    client_id: str = ""
    names_all: bool = False
    """Leaders are to answer for each partition, also for those without records."""
    is_whole: bool = True
    """All partitions of the session are fetched."""


@dataclass(slots=True)
class _SessionCalls:
    """The leaders that a session has used, its kept responses, and its calls that still wait at leaders.

    `undelivered`: for each leader address, the number of the fetch whose response is in flight or kept.
    """

    session: ShareSession
    account: MemoryAccount | None = None
    """Of the session's connection; None: no limit."""
    fetches: int = 0
    """ShareFetch requests of the session in progress; no response counts as kept before they end."""
    addresses: dict[str, None] = field(default_factory=dict)
    kept: deque[LeaderAnswer] = field(default_factory=deque)
    waiting: dict[str, asyncio.Task[LeaderAnswer]] = field(default_factory=dict)
    undelivered: dict[str, int] = field(default_factory=dict)
    last_fetch_number: int = 0
    remembered: RememberedPartitions = field(default_factory=RememberedPartitions)
    back_off: ErrorBackOff = field(default_factory=ErrorBackOff)

    def settled(self, answer: LeaderAnswer) -> None:
        """Notes that the response is delivered before any later acknowledgement, or never."""
        if answer.fetch_number and self.undelivered.get(answer.address) == answer.fetch_number:
            del self.undelivered[answer.address]


@dataclass(slots=True)
class _Plan:
    """Partitions by the address of their leader, and the responses of partitions without a leader."""

    fetch: Mapping[str, Fetched] = field(default_factory=dict)
    acknowledge: dict[str, dict[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]]] = field(
        default_factory=dict
    )
    failed: list[PartitionAnswer] = field(default_factory=list)


class ShareFetcher:
    """Share fetches and acknowledgements of all sessions of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._read_ahead = ReadAhead(gateway)
        self._releases = SessionReleases(gateway)
        self._calls: dict[ShareSession, _SessionCalls] = {}
        self._last_fetch_number = 0

    async def fetch(
        self,
        session: ShareSession,
        terms: FetchTerms,
        fetched: Sequence[TopicPartition],
        acknowledgements: Acknowledgements,
        *,
        account: MemoryAccount | None = None,
        is_first: bool = False,
        is_whole: bool = True,
    ) -> list[LeaderAnswer]:
        """The responses of all leaders involved; a partition may be in two, once acknowledged, once fetched.

        `is_first`: the response opens the session, so it has the final state of each partition at its leader.
        `is_whole`: all partitions of the session are `fetched`; those that are not have an error in the response.
        """
        if not self._gateway.reassignments.is_calm:
            await self._gateway.reassignments.begin().until_served((*fetched, *acknowledgements))
        if not self._gateway.sessions.is_current(session):
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session ended before its fetch began")
        calls = self._calls.get(session)
        if calls is None:
            calls = self._calls[session] = _SessionCalls(session)
        calls.account = account
        terms.names_all = is_first or bool(session.unnamed) or not is_whole
        terms.is_whole = is_whole
        calls.fetches += 1
        try:
            answers = await self._fetch(session, calls, terms, fetched, acknowledgements, is_first=is_first)
        except GeneratorExit:  # the event loop has ended: nothing is kept any more, and no timer can be set
            raise
        except BaseException:
            self._fetch_ended(calls)
            raise
        self._fetch_ended(calls)
        return answers

    def _fetch_ended(self, calls: _SessionCalls) -> None:
        calls.fetches -= 1
        self._count_kept(calls)

    async def _fetch(
        self,
        session: ShareSession,
        calls: _SessionCalls,
        terms: FetchTerms,
        fetched: Sequence[TopicPartition],
        acknowledgements: Acknowledgements,
        *,
        is_first: bool,
    ) -> list[LeaderAnswer]:
        plan = self._plan_of(session, calls, fetched, acknowledgements, terms)
        terms.max_wait_ms = bounded_wait_ms(terms.max_wait_ms)
        began = asyncio.get_running_loop().time()
        addresses = {**dict.fromkeys(plan.fetch), **dict.fromkeys(plan.acknowledge)}
        calls.addresses.update(addresses)
        answers: list[LeaderAnswer] = []
        if plan.failed:
            answers.append(LeaderAnswer("", plan.failed))
        if len(addresses) == 1 and not calls.kept and not calls.waiting:
            (address,) = addresses
            wait_ms = _pause_ms(calls, answers, terms) if plan.failed else terms.max_wait_ms
            acknowledged = plan.acknowledge.get(address, {})
            answers.append(
                await self._call(session, address, plan.fetch.get(address, ()), acknowledged, terms, wait_ms)
            )
        elif addresses or calls.kept or calls.waiting:
            answers.extend(await self._fetch_at_several(session, calls, plan, terms, is_first=is_first))
        await self._pause_on_errors(calls, answers, terms, began)
        for answer in answers:
            calls.settled(answer)
        if not self._gateway.sessions.is_current(session):
            self._give_back(session, answers, lambda key: True)
        else:
            self._give_back(session, answers, lambda key: key not in session.partitions)
            self._give_back_moved(session, answers)
        return answers

    async def acknowledge(
        self, session: ShareSession, acknowledgements: Acknowledgements, *, is_renew_ack: bool
    ) -> list[LeaderAnswer]:
        """The results of acknowledgements alone, from all leaders involved."""
        if not self._gateway.reassignments.is_calm:
            await self._gateway.reassignments.begin().until_served(acknowledgements)
        plan = self._plan((), acknowledgements)
        works = [
            self._acknowledge(session, address, partitions, is_renew_ack=is_renew_ack)
            for address, partitions in plan.acknowledge.items()
        ]
        answers = [await works[0]] if len(works) == 1 else list(await asyncio.gather(*works))
        if plan.failed:
            answers.append(LeaderAnswer("", plan.failed))
        return answers

    async def release(self, session: ShareSession) -> None:
        """Ends a session at its leaders; the session was already removed from the table."""
        calls = self._calls.pop(session, None)
        if calls is None:
            return
        for answer in calls.kept:
            _end_keeping(answer)
        for task in calls.waiting.values():
            task.add_done_callback(lambda done: self._give_back_late(session, done))
        last, undelivered = calls.last_fetch_number, calls.undelivered
        ends = [
            self._releases.end_session(session.key, address, last, undelivered.get(address))
            for address in calls.addresses
        ]
        await asyncio.gather(*ends)

    def inherit(self, old: ShareSession, new: ShareSession) -> None:
        """Passes the replaced session's leader state to the new session of the same member and connection."""
        calls = self._calls.pop(old, None)
        if calls is not None:
            self._calls[new] = calls
            calls.session = new

    def _plan_of(
        self,
        session: ShareSession,
        calls: _SessionCalls,
        fetched: Sequence[TopicPartition],
        acknowledgements: Acknowledgements,
        terms: FetchTerms,
    ) -> _Plan:
        """The plan of a fetch; where leaders remember all that is fetched, it is known already.

        A fetch that names all partitions follows the order of `fetched`, in which they take turns.
        """
        view, is_whole = self._gateway.view, terms.is_whole
        known = calls.remembered.plan(session, view) if fetched and is_whole and not terms.names_all else None
        if known is not None:
            plan = self._plan((), acknowledgements)
            plan.fetch = known
            return plan
        plan = self._plan(fetched, acknowledgements)
        if fetched and is_whole and not plan.failed:
            calls.remembered.planned(session, view, plan.fetch)
        return plan

    def _plan(self, fetched: Sequence[TopicPartition], acknowledgements: Acknowledgements) -> _Plan:
        plan = _Plan()
        leader_of = self._gateway.leader_of
        fetch: dict[str, list[TopicPartition]] = {}
        failed: dict[TopicPartition, PartitionAnswer] = {}
        for key in fetched:
            address, code = leader_of(key)
            if code:
                failed[key] = PartitionAnswer(key, error_code=code)
            else:
                fetch.setdefault(address, []).append(key)
        plan.fetch = dict(fetch)
        for key, batches in acknowledgements.items():
            address, code = leader_of(key)
            if code:
                answer = failed.setdefault(key, PartitionAnswer(key))
                answer.acknowledge_error_code, answer.is_acknowledged = code, True
            else:
                plan.acknowledge.setdefault(address, {})[key] = batches
        plan.failed = list(failed.values())
        return plan

    # Several leaders

    async def _fetch_at_several(
        self,
        session: ShareSession,
        calls: _SessionCalls,
        plan: _Plan,
        terms: FetchTerms,
        *,
        is_first: bool,
    ) -> list[LeaderAnswer]:
        acknowledging = [
            asyncio.ensure_future(self._acknowledge(session, address, batches, is_renew_ack=terms.is_renew_ack))
            for address, batches in plan.acknowledge.items()
        ]
        # Acknowledgements go first on each leader's stream: a late ACCEPT must not meet the record's next acquisition.
        await asyncio.sleep(0)
        answers: list[LeaderAnswer] = []
        if not terms.is_renew_ack:
            answers = await self._first_records(session, calls, plan, terms, is_first=is_first)
        return [*answers, *(await asyncio.gather(*acknowledging))]

    async def _first_records(
        self, session: ShareSession, calls: _SessionCalls, plan: _Plan, terms: FetchTerms, *, is_first: bool
    ) -> list[LeaderAnswer]:
        acquires = min(terms.max_bytes, terms.max_records) > 0
        answers = self._next_kept(session, calls, terms) if acquires else []
        if any(answer.has_records for answer in answers):
            return answers
        undelivered = {*calls.waiting, *(answer.address for answer in [*answers, *calls.kept])}
        began = asyncio.get_running_loop().time()
        for address, keys in plan.fetch.items():
            if address in undelivered:
                continue
            answer = await self._call(session, address, keys, {}, terms, 0)
            answers.append(answer)
            if answer.has_records:
                return answers
        if not (acquires and terms.min_bytes > 0):  # a leader would answer at once
            return answers
        await self._wait_for_records(session, calls, plan, terms, answers, began)
        has_errors = bool(plan.failed) or any(answer.has_errors for answer in answers)
        if is_first and not has_errors and calls.waiting and not any(answer.has_records for answer in answers):
            answers.extend(await self._last_words(session, calls, terms))
        return answers

    async def _last_words(self, session: ShareSession, calls: _SessionCalls, terms: FetchTerms) -> list[LeaderAnswer]:
        """Responses of leaders whose wait is over as well: a share-partition that was loading before may be ready."""
        tasks = list(calls.waiting.values())
        await asyncio.wait(tasks, timeout=LAST_WORDS_MS / 1000)
        quiet = [
            answer for task in tasks if task.done() and not ((answer := task.result()).has_records or answer.has_errors)
        ]
        return [*quiet, *self._next_kept(session, calls, terms)]

    async def _wait_for_records(
        self,
        session: ShareSession,
        calls: _SessionCalls,
        plan: _Plan,
        terms: FetchTerms,
        answers: list[LeaderAnswer],
        began: float,
    ) -> None:
        """Waits at the leaders until one returns records, and adds the responses with records or errors to `answers`.

        Leaders with an error are not waited at. With the first error, the wait becomes the pause of a response with
        errors, counted from when the request `began`.
        """
        loop = asyncio.get_running_loop()
        failed = _failed(answers)
        parts = max(1, len(plan.fetch.keys() - failed))
        of_each = replace(terms, max_bytes=-(-terms.max_bytes // parts))
        if terms.share_acquire_mode == RECORD_LIMIT:
            of_each.max_records = -(-terms.max_records // parts)
        while self._gateway.sessions.is_current(session):
            wait_ms = _pause_ms(calls, answers, terms) if failed or plan.failed else terms.max_wait_ms
            remaining_ms = round((began + wait_ms / 1000 - loop.time()) * 1000)
            if remaining_ms <= 0:
                break
            for address, keys in plan.fetch.items():
                if address not in calls.waiting and address not in failed:
                    work = self._call(session, address, keys, {}, of_each, remaining_ms)
                    task = calls.waiting[address] = self._gateway.spawn(work, "share-fetch")
                    task.add_done_callback(lambda _: self._count_kept(calls))
            if not calls.waiting:
                break
            await asyncio.wait(calls.waiting.values(), timeout=remaining_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            answers.extend(self._next_kept(session, calls, terms))
            if any(answer.has_records for answer in answers):
                break
            failed = _failed(answers)

    def _next_kept(self, session: ShareSession, calls: _SessionCalls, terms: FetchTerms) -> list[LeaderAnswer]:
        """The first kept response with enough lock time left, and with no more records than an exact limit allows.

        The records of those before it are taken back. The responses without records are returned before it, all of them
        if no response has records. (`merged` prefers the last entry of a partition, which has the records.)
        """
        _harvest(calls)
        found = [answer for answer in calls.kept if not answer.has_records]
        calls.kept = deque(answer for answer in calls.kept if answer.has_records)
        while calls.kept:
            answer = calls.kept.popleft()
            _end_keeping(answer)
            lock_left_ms = _lock_left_ms(answer)
            is_too_much = terms.share_acquire_mode == RECORD_LIMIT and answer.record_count > terms.max_records
            if lock_left_ms >= answer.lock_timeout_ms * KEPT_LOCK_SHARE_MIN and not is_too_much:
                answer.lock_timeout_ms = lock_left_ms
                return [*found, answer]
            self._drop(session, calls, answer)
        return found

    def _drop(self, session: ShareSession, calls: _SessionCalls, answer: LeaderAnswer) -> None:
        """Takes back the records of a response that is not kept any more."""
        calls.settled(answer)
        self._give_back(session, [answer], lambda key: True)

    def _count_kept(self, calls: _SessionCalls) -> None:
        """Counts responses that no request in progress delivers as kept; those beyond the limit are taken back."""
        if calls.fetches or not self._is_alive(calls):
            return
        for address, task in list(calls.waiting.items()):
            if task.done() and not task.cancelled() and task.exception() is None:
                _collect(calls, address)
        loop = asyncio.get_running_loop()
        for answer in list(calls.kept):
            if answer.kept is not None or not answer.has_records:
                continue
            size_bytes = answer.records_bytes
            if calls.account is not None and not calls.account.keep(size_bytes):
                calls.kept.remove(answer)
                self._drop(calls.session, calls, answer)
                continue
            lasts_ms = answer.lock_timeout_ms * (1 - KEPT_LOCK_SHARE_MIN)
            timer = loop.call_at(answer.arrived_at + lasts_ms / 1000, self._kept_too_long, calls, answer)
            answer.kept = Keeping(calls.account, size_bytes, timer)

    def _kept_too_long(self, calls: _SessionCalls, answer: LeaderAnswer) -> None:
        _end_keeping(answer)
        if self._is_alive(calls):
            calls.kept.remove(answer)
            self._drop(calls.session, calls, answer)

    def _is_alive(self, calls: _SessionCalls) -> bool:
        session = calls.session
        return self._calls.get(session) is calls and self._gateway.sessions.is_current(session)

    # One leader

    async def _call(
        self,
        session: ShareSession,
        address: str,
        fetched: Fetched,
        acknowledged: Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]],
        terms: FetchTerms,
        wait_ms: int,
    ) -> LeaderAnswer:
        gateway = self._gateway
        delivered_fetch_number = self._delivered_fetch_number(session, address)
        calls = self._calls.get(session)
        remembered = calls.remembered.at(address) if calls is not None and fetched and not terms.names_all else None
        request = leader_pb2.ShareFetchRequest(
            owner=gateway.session_owner(session.key),
            max_wait_ms=wait_ms,
            min_bytes=terms.min_bytes,
            max_bytes=terms.max_bytes,
            max_records=terms.max_records,
            batch_size=terms.batch_size,
            share_acquire_mode=terms.share_acquire_mode,
            is_renew_ack=terms.is_renew_ack,
            fetch_number=self._number_fetch(session, address),
            delivered_fetch_number=delivered_fetch_number,
            client_id=terms.client_id,
        )
        if remembered is None:
            request.remember = bool(fetched) and terms.is_whole and calls is not None
        else:
            request.remembered_fetch_number = remembered.fetch_number
        plan_number = 0 if calls is None else calls.remembered.plan_number
        view = gateway.view
        pins = self._name_partitions(request, fetched, acknowledged, remembered)
        try:
            answer, payload = await gateway.call_leader(address, SHARE_FETCH, request, wait_ms=wait_ms)
            if not answer.is_forgotten:
                if answer.is_remembered and calls is not None:
                    calls.remembered.remember(address, request.fetch_number, fetched, plan_number)
                found = self._read(session, address, request.fetch_number, answer, payload, acknowledged, remembered)
                found.view = view
                return found
        except CallFailed as failure:
            self._gateway.call_failed("ShareFetch", f"leader {address}", failure)
            self._releases.take_back(session.key, address, request.fetch_number)
            only_acknowledged = [key for key in acknowledged if key not in fetched]
            return LeaderAnswer(
                address,
                _unavailable([*fetched, *only_acknowledged], fetched, acknowledged),
                unavailable=True,
                fetch_number=request.fetch_number,
            )
        finally:
            for pin in pins:
                gateway.cache.unpin(pin)
        assert calls is not None and remembered is not None, "a leader forgot what it was not asked to remember"
        calls.remembered.forget(address)
        return await self._call(session, address, list(fetched), acknowledged, terms, wait_ms)

    def _name_partitions(
        self,
        request: leader_pb2.ShareFetchRequest,
        fetched: Fetched,
        acknowledged: Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]],
        remembered: Remembered | None,
    ) -> Sequence[Pin]:
        """Adds the partitions to a request; returns the pins in the cache, for its end."""
        cache = self._gateway.cache
        listed = list(fetched) if remembered is None else cache.first_cached(remembered.partitions, CACHED_NAMED)
        pins = [cache.pin(key) for key in listed]
        for pin in pins:
            key = pin.key
            partition = request.partitions.add(topic_id=key.topic_id, partition=key.partition, fetch=remembered is None)
            for run in pin.runs:
                partition.cached.add(
                    first_offset=run.first_offset, last_offset=run.last_offset, leader_epoch=run.leader_epoch
                )
            if key in acknowledged:
                partition.acknowledgement_batches.extend(acknowledged[key])
        if acknowledged:
            named = dict.fromkeys(listed)
            for key, batches in acknowledged.items():
                if key not in named:
                    request.partitions.add(
                        topic_id=key.topic_id, partition=key.partition, acknowledgement_batches=batches
                    )
        return pins

    def _number_fetch(self, session: ShareSession, address: str) -> int:
        self._last_fetch_number += 1
        if (calls := self._calls.get(session)) is not None:
            calls.undelivered[address] = calls.last_fetch_number = self._last_fetch_number
        return self._last_fetch_number

    def _delivered_fetch_number(self, session: ShareSession, address: str) -> int:
        """The highest fetch number that acknowledgements to a leader may refer to; later responses are undelivered."""
        calls = self._calls.get(session)
        undelivered = None if calls is None else calls.undelivered.get(address)
        return self._last_fetch_number if undelivered is None else undelivered - 1

    def _read(
        self,
        session: ShareSession,
        address: str,
        fetch_number: int,
        answer: leader_pb2.ShareFetchResponse,
        payload: memoryview,
        acknowledged: Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]],
        remembered: Remembered | None,
    ) -> LeaderAnswer:
        partitions: list[PartitionAnswer] = []
        position = 0
        for entry in answer.partitions:
            key = TopicPartition(entry.topic_id, entry.partition)
            result = PartitionAnswer(
                key,
                entry.error_code,
                entry.error_message or None,
                entry.acknowledge_error_code,
                entry.acknowledge_error_message or None,
                entry.acquired_records,
                is_acknowledged=key in acknowledged,
                is_acquirable=entry.is_acquirable,
            )
            partitions.append(result)
            if remembered is not None and entry.acquired_records:
                remembered.had_records(key)
            position = self._read_batches(result, entry, payload, position)
            if len(result.records) != len(entry.batches):
                log.error(
                    "partition %d: leader %s left out a batch that is not cached, taking the records back",
                    key.partition,
                    address,
                )
                self._releases.take_back(session.key, address, fetch_number, [key])
                result.error_code, result.acquired, result.records = ErrorCode.UNKNOWN_SERVER_ERROR, (), []
                continue
            self._read_ahead.after_answer(key, address, entry, sum(map(len, result.records)))
        now = asyncio.get_running_loop().time()
        return LeaderAnswer(
            address,
            partitions,
            answer.acquisition_lock_timeout_ms,
            fetch_number=fetch_number,
            arrived_at=now,
            has_no_room=answer.has_no_room,
        )

    def _read_batches(
        self,
        result: PartitionAnswer,
        entry: leader_pb2.ShareFetchResponse.Partition,
        payload: memoryview,
        position: int,
    ) -> int:
        """Collects the partition's batches from payload and cache; returns where the next one's payload begins."""
        cache, metrics, records = self._gateway.cache, self._gateway.metrics, result.records
        start = position
        for batch in entry.batches:
            if batch.inline:
                stop = position + batch.length
                data = payload[position:stop]
                position = stop
                if cache.limit_bytes:
                    cache.put(result.key, CachedBatch(batch.base_offset, batch.last_offset, data))
                records.append(data)
            elif (cached := cache.get(result.key, batch.base_offset, batch.leader_epoch)) is not None:
                records.append(cached.data)
                metrics.cache_hit_bytes += len(cached.data)
        metrics.cache_miss_bytes += position - start
        return position

    async def _acknowledge(
        self,
        session: ShareSession,
        address: str,
        partitions: Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]],
        *,
        is_renew_ack: bool,
    ) -> LeaderAnswer:
        request = leader_pb2.ShareAcknowledgeRequest(
            owner=self._gateway.session_owner(session.key),
            is_renew_ack=is_renew_ack,
            delivered_fetch_number=self._delivered_fetch_number(session, address),
        )
        for key, batches in partitions.items():
            request.partitions.add(topic_id=key.topic_id, partition=key.partition, acknowledgement_batches=batches)
        try:
            answer, _ = await self._gateway.call_leader(address, SHARE_ACKNOWLEDGE, request)
        except CallFailed as failure:
            self._gateway.call_failed("ShareAcknowledge", f"leader {address}", failure)
            return LeaderAnswer(address, _unavailable(list(partitions), (), partitions), unavailable=True)
        results = [
            PartitionAnswer(
                TopicPartition(entry.topic_id, entry.partition),
                acknowledge_error_code=entry.error_code,
                acknowledge_error_message=entry.error_message or None,
                is_acknowledged=True,
            )
            for entry in answer.partitions
        ]
        return LeaderAnswer(address, results, answer.acquisition_lock_timeout_ms)

    # Undeliverable records

    def _give_back(
        self, session: ShareSession, answers: Sequence[LeaderAnswer], unwanted: Callable[[TopicPartition], bool]
    ) -> None:
        """Removes records of unwanted partitions from the responses and takes them back."""
        for answer in answers:
            dropped = [part for part in answer.partitions if part.acquired and unwanted(part.key)]
            if dropped:
                keys = [part.key for part in dropped]
                self._releases.take_back(session.key, answer.address, answer.fetch_number, keys)
                for partition in dropped:
                    partition.acquired, partition.records = (), []

    def _give_back_moved(self, session: ShareSession, answers: Sequence[LeaderAnswer]) -> None:
        """Removes records of partitions that have another leader or leader epoch than when they were asked for.

        What a former leader acquired is nobody's any more: another member may have had the records since, and accepted
        them. A kept response, and one of a leader that stood still, may be as old as that.
        """
        view = self._gateway.view
        for answer in answers:
            asked = answer.view
            if asked is not None and asked is not view and answer.has_records:
                self._give_back(session, [answer], partial(_has_moved, asked, view))

    def _give_back_late(self, session: ShareSession, task: asyncio.Task[LeaderAnswer]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._give_back(session, [task.result()], lambda key: True)

    async def _pause_on_errors(
        self, calls: _SessionCalls, answers: Sequence[LeaderAnswer], terms: FetchTerms, began: float
    ) -> None:
        """Delays a response with errors and without records; `began` is when its request began."""
        has_errors = not terms.is_whole or any(answer.has_errors or answer.unavailable for answer in answers)
        if not has_errors:
            calls.back_off.succeeded()
        elif not any(answer.has_records for answer in answers):
            pause_ms = _pause_ms(calls, answers, terms)
            calls.back_off.failed()
            await asyncio.sleep(max(0.0, began + pause_ms / 1000 - asyncio.get_running_loop().time()))


def _pause_ms(calls: _SessionCalls, answers: Sequence[LeaderAnswer], terms: FetchTerms) -> int:
    """How long a response with errors is delayed for records; a leader that is unavailable is so for a while."""
    is_away = any(answer.unavailable for answer in answers)
    return min(LONGEST_PAUSE_MS if is_away else calls.back_off.pause_ms, terms.max_wait_ms)


def _failed(answers: Sequence[LeaderAnswer]) -> set[str]:
    """The addresses of the leaders that returned errors."""
    return {answer.address for answer in answers if answer.has_errors}


def _has_moved(before: CatalogView, now: CatalogView, key: TopicPartition) -> bool:
    old, new = before.partition(key), now.partition(key)
    if old is None or new is None:
        return True
    return (old.leader_node_id, old.leader_epoch) != (new.leader_node_id, new.leader_epoch)


def _harvest(calls: _SessionCalls) -> None:
    """Collects the responses of all finished waiting calls."""
    for address in [address for address, task in calls.waiting.items() if task.done()]:
        _collect(calls, address)


def _collect(calls: _SessionCalls, address: str) -> None:
    """Keeps the response of a finished waiting call if it has records or errors, and drops it otherwise."""
    answer = calls.waiting.pop(address).result()
    if answer.has_records or answer.has_errors:
        calls.kept.append(answer)
    else:
        calls.settled(answer)


def _end_keeping(answer: LeaderAnswer) -> None:
    """Counts the response as kept no longer."""
    if answer.kept is not None:
        account, size_bytes, timer = answer.kept
        timer.cancel()
        answer.kept = None
        if account is not None:
            account.end_keeping(size_bytes)


def _lock_left_ms(answer: LeaderAnswer) -> int:
    now = asyncio.get_running_loop().time()
    return answer.lock_timeout_ms - round((now - answer.arrived_at) * 1000)


def _unavailable(
    keys: Sequence[TopicPartition],
    fetched: Fetched,
    acknowledged: Mapping[TopicPartition, Sequence[leader_pb2.AcknowledgementBatch]],
) -> list[PartitionAnswer]:
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    wanted = dict.fromkeys(fetched)
    return [
        PartitionAnswer(
            key,
            error_code=code if key in wanted else ErrorCode.NONE,
            acknowledge_error_code=code if key in acknowledged else ErrorCode.NONE,
            is_acknowledged=key in acknowledged,
        )
        for key in keys
    ]
