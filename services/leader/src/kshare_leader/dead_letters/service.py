"""The dead-letter service: sends the dead letters of the share-partitions that this leader serves (KIP-1191).

**Rounds.** A share-partition with Archiving records is queued. A round finds the destination, builds one batch and
hands it to the engine's `target`, which appends it exactly once: by AppendDeadLetters to the destination's leader
(`leader_target`), or in a transaction of the existing cluster (`cluster_target`). The offsets that it returns become
Archived. A share-partition has one round at a time, and the node has at most ROUNDS_LIMIT.

**Failures.** Kafka gives up after five attempts and archives the records without dead letters. This service never gives
up a dead letter that could still be stored. While the destination is not reachable, its disk fails or its topic cannot
be created, the round is retried, with a back-off up to RETRY_INTERVAL_MAX_MS, and soon after a catalog change. The log
reports the failure, and the health check does after STALLED_AFTER_MS. The share-partition continues until its window is
full. An administrator must then repair the topic, or configure another topic or none.
Records whose dead letters configs forbid (`destination.Refused`) are archived at once without one, as in Kafka, and the
log names their offsets. The same holds for a record whose dead letter exceeds the topic's max.message.bytes even
without the copy.

**After a restart**, or when state had to be read again, share-partitions that are remembered as unfinished are loaded
without waiting for a fetch (see `unfinished`). Those that have become idle are forgotten in the next turn of the event
loop, many with one write.

A change of the group's dead-letter topic, or of the number of its partitions, while dead letters are in flight can
leave a second copy, because each partition knows only its own dead letters.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text
from kshare_core.log_fields import about
from kshare_leader.dead_letters.destination import Destination, Refused, ToBeCreated, Unreachable
from kshare_leader.dead_letters.letters import OffsetRun, Source, build_letters
from kshare_leader.dead_letters.limits import (
    ARCHIVING_RUNS_LIMIT,
    CHECK_INTERVAL_MS,
    FORGET_AFTER_MS,
    FORGOTTEN_IN_A_WRITE,
    LOADS_LIMIT,
    PROBLEMS_LIMIT,
    READ_ATTEMPTS,
    REFUSAL_REPORT_INTERVAL_MS,
    RETRY_INTERVAL_MAX_MS,
    RETRY_INTERVAL_MS,
    ROUNDS_LIMIT,
    STALLED_AFTER_MS,
    STATE_CHECK_TIMEOUT_MS,
)
from kshare_leader.dead_letters.port import ArchivingPartition, DeadLetterSettings
from kshare_leader.dead_letters.target import CannotStore, DeadLetterTarget
from kshare_leader.dead_letters.unfinished import Unfinished
from kshare_leader.machine.share_partition import ArchivingRun
from kshare_leader.metrics import LeaderMetrics
from kshare_rpc.catalog import CatalogView
from kshare_runtime.ports import Clock


class _Work:
    """The dead letters of one share-partition; times are the event loop's."""

    __slots__ = ("attempts", "failed_reads", "failing_since_ms", "problem", "served", "task", "timer")

    def __init__(self, served: ArchivingPartition) -> None:
        self.served = served
        self.attempts = 0
        self.failed_reads = 0
        """Rounds one after the other whose records could not be read."""
        self.failing_since_ms = 0
        self.problem: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class _Refusals(NamedTuple):
    """The last log message about a group whose records are archived without dead letters."""

    reason: str
    reported_at_ms: int


class _Loading(NamedTuple):
    """Consecutive failed loads of an unfinished share-partition."""

    attempts: int
    not_before_ms: int


class DeadLetters:
    """See the module docstring. Created and used on one event loop."""

    def __init__(
        self,
        *,
        unfinished: Unfinished,
        target: DeadLetterTarget,
        view: Callable[[], CatalogView],
        clock: Clock,
        random: random.Random,
        report: Callable[[str], None],
        metrics: LeaderMetrics | None = None,
    ) -> None:
        self._metrics = metrics or LeaderMetrics()
        self._unfinished = unfinished
        self._target = target
        self._view = view
        self._clock = clock
        self._random = random
        self._report = report
        self._find: Callable[[SharePartitionKey], ArchivingPartition | None] = lambda key: None
        self._load: Callable[[SharePartitionKey], ArchivingPartition] | None = None
        self._works: dict[SharePartitionKey, _Work] = {}
        self._ready: dict[SharePartitionKey, None] = {}
        self._rounds: dict[asyncio.Task[None], None] = {}
        self._refusals: dict[str, _Refusals] = {}
        self._loading: dict[SharePartitionKey, _Loading] = {}
        self._idle_since_ms: dict[SharePartitionKey, int] = {}
        self._to_forget: dict[SharePartitionKey, None] = {}
        """Share-partitions that are unfinished no more, until this is written."""
        self._forgetting: asyncio.Handle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._remember_failure = ""
        """The failure of the newest note about Archiving records that were found; empty if it was written."""
        self._stopped = False

    def attach(
        self,
        *,
        find: Callable[[SharePartitionKey], ArchivingPartition | None],
        load: Callable[[SharePartitionKey], ArchivingPartition],
    ) -> None:
        """Sets the functions that find and load share-partitions; `load` raises KafkaError if it cannot."""
        self._find = find
        self._load = load

    # Calls from share-partitions

    def before_archiving(self, key: SharePartitionKey) -> None:
        """Remembers a share-partition before its first write with Archiving records; raises StorageFailure."""
        self._unfinished.remember(key)
        self._to_forget.pop(key, None)
        self._idle_since_ms.pop(key, None)
        self._watch()

    def wake(self, served: ArchivingPartition) -> None:
        """Queues the share-partition, which may have Archiving records whose dead letters are due."""
        if self._stopped or served.error is not None:
            return
        work = self._works.get(served.key)
        if work is None or work.served is not served:
            work = self._works[served.key] = _Work(served)
        if work.task is None and work.timer is None:
            self._line_up(work)

    def dropped(self, served: ArchivingPartition, *, was_at_rest: bool) -> None:
        """Handles a share-partition that is no longer served.

        `was_at_rest`: no record was Archiving, Acquired or being stored. Otherwise it is loaded again if unfinished.
        """
        key = served.key
        work = self._works.get(key)
        if work is not None and work.served is served:
            del self._works[key]
            if work.timer is not None:
                work.timer.cancel()
        self._target.dropped(key)
        if not self._is_unfinished(key):
            return
        self._idle_since_ms.pop(key, None)
        is_gone = served.error is not None and served.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if was_at_rest or is_gone:  # is_gone: the share coordinator has no state for it; its group was deleted
            self._forget(key)
            return
        attempts = self._loading[key].attempts + 1 if key in self._loading else 1
        self._loading[key] = _Loading(attempts, self._now_ms() + self._pause_ms(attempts))

    # Calls from the node

    def found_archiving(self, key: SharePartitionKey) -> None:
        """The stored state of a share-partition of this leader has Archiving records: it is loaded for them.

        A StorageFailure is logged, and the next refresh of the stored progress calls this again.
        """
        if self._is_unfinished(key):
            return
        try:
            self._unfinished.remember(key)
        except StorageFailure as failure:
            if str(failure) != self._remember_failure:  # a full disk fails for all share-partitions, at each refresh
                text = f"the dead letters of {key} wait until it is fetched, as it cannot be remembered: {failure}"
                about(key, self._report)(text)
            self._remember_failure = str(failure)
            return
        self._to_forget.pop(key, None)
        self._remember_failure = ""
        self._watch(at_once=True)

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Handles a new view of the catalog; failed rounds are retried soon."""
        for topic_id in old.topics_by_id:
            if topic_id not in new.topics_by_id:
                self._forget_times(self._unfinished.topic_removed(topic_id))
        self._forget_times(self._unfinished.keep_led(new))
        for group_id in [group_id for group_id in self._refusals if group_id not in new.group_configs]:
            del self._refusals[group_id]
        for work in self._works.values():
            self._try_sooner(work)
        self._watch(at_once=True)

    def partition_changed(self, partition: TopicPartition) -> None:
        """Handles a reassignment that brought a partition's rows here or removed them; StorageFailure is logged."""
        try:
            self._unfinished.partition_changed(partition)
        except StorageFailure as failure:
            name = f"{topic_id_text(partition.topic_id)}-{partition.partition}"
            self._report(f"which dead letters partition {name} has to send is not known: {failure}")
        self._watch(at_once=True)

    def _try_sooner(self, work: _Work) -> None:
        """Resets the back-off: the problem may be solved now, and other nodes see a new catalog slightly later."""
        work.attempts = 0
        if work.timer is not None and work.timer.when() - asyncio.get_running_loop().time() > RETRY_INTERVAL_MS / 1000:
            work.timer.cancel()
            self._line_up_later(work, RETRY_INTERVAL_MS)

    def _forget_times(self, keys: Iterable[SharePartitionKey]) -> None:
        for key in keys:
            self._loading.pop(key, None)
            self._idle_since_ms.pop(key, None)

    async def stop(self) -> None:
        """Cancels all rounds; dead letters in flight may be stored or not."""
        self._stopped = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        for work in self._works.values():
            if work.timer is not None:
                work.timer.cancel()
        tasks = list(self._rounds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._target.close()

    def problems(self) -> list[str]:
        """The share-partitions whose dead letters are stalled, at most PROBLEMS_LIMIT of them."""
        found: list[str] = []
        for key, work in self._works.items():
            waiting_ms = self._now_ms() - work.failing_since_ms
            if work.problem is not None and waiting_ms >= STALLED_AFTER_MS and len(found) < PROBLEMS_LIMIT:
                found.append(f"dead letters of {key} cannot be stored for {waiting_ms} ms: {work.problem}")
        return found

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _pause_ms(self, attempts: int) -> int:
        interval_ms = min(RETRY_INTERVAL_MS << min(attempts - 1, 10), RETRY_INTERVAL_MAX_MS)
        return int(interval_ms * (0.8 + 0.4 * self._random.random()))

    # Rounds

    def _line_up(self, work: _Work) -> None:
        pause_ms = work.served.no_dead_letters_before_ms - self._now_ms()
        if pause_ms > 0:
            self._line_up_later(work, pause_ms)
            return
        self._ready[work.served.key] = None
        self._start_rounds()

    def _line_up_later(self, work: _Work, pause_ms: int) -> None:
        def line_up() -> None:
            work.timer = None
            self._line_up(work)

        work.timer = asyncio.get_running_loop().call_later(pause_ms / 1000, line_up)

    def _start_rounds(self) -> None:
        while self._ready and len(self._rounds) < ROUNDS_LIMIT and not self._stopped:
            key = next(iter(self._ready))
            del self._ready[key]
            work = self._works.get(key)
            if work is None or work.task is not None:
                continue
            runs = work.served.archiving(ARCHIVING_RUNS_LIMIT)
            if not runs:
                del self._works[key]
                continue
            work.task = asyncio.get_running_loop().create_task(self._round(work, runs), name=f"letters {key}")
            self._rounds[work.task] = None
            work.task.add_done_callback(partial(self._round_ended, work))

    def _round_ended(self, work: _Work, task: asyncio.Task[None]) -> None:
        del self._rounds[task]
        work.task = None
        error = None if task.cancelled() else task.exception()
        if not self._stopped and self._works.get(work.served.key) is work:
            if error is None:
                work.attempts, work.failed_reads, work.problem = 0, 0, None
                self._line_up(work)
            else:
                if not isinstance(error, CannotStore):
                    report_contained_bug(f"dead letters of {work.served.key} failed unexpectedly", error)
                self._failed(work, str(error) if isinstance(error, CannotStore) else repr(error))
        self._start_rounds()

    def _failed(self, work: _Work, problem: str) -> None:
        work.attempts += 1
        if work.problem is None:
            work.failing_since_ms = self._now_ms()
        if problem != work.problem:
            key = work.served.key
            about(key, self._report)(f"dead letters of {key} cannot be stored, trying again: {problem}")
        work.problem = problem
        self._line_up_later(work, self._pause_ms(work.attempts))

    async def _round(self, work: _Work, runs: Sequence[ArchivingRun]) -> None:
        served = work.served
        settings = served.dead_letter_settings
        destination = await self._target.find(served.key, settings.topic_name)
        match destination:
            case Refused(reason):
                self._give_up(served, [OffsetRun(run.first_offset, run.last_offset) for run in runs], reason)
            case Unreachable(reason):
                raise CannotStore(reason)
            case ToBeCreated(topic_name):
                await self._target.create(topic_name)
            case Destination():
                await self._send(work, runs, destination, settings)

    def _give_up(self, served: ArchivingPartition, runs: Sequence[OffsetRun], reason: str) -> None:
        group_id, now_ms = served.key.group_id, self._now_ms()
        last = self._refusals.get(group_id)
        if last is None or last.reason != reason or now_ms - last.reported_at_ms >= REFUSAL_REPORT_INTERVAL_MS:
            self._refusals[group_id] = _Refusals(reason, now_ms)
            offsets = ", ".join(f"{first}-{last_offset}" for first, last_offset in runs[:10])
            more = " and more" if len(runs) > 10 else ""
            text = f"records {offsets}{more} of {served.key} are archived without dead letters: {reason}"
            about(served.key, self._report)(text)
        self._metrics.dead_letters(served.key, given_up=_count_of(runs))
        served.dead_letters_done(runs)

    async def _send(
        self, work: _Work, runs: Sequence[ArchivingRun], destination: Destination, settings: DeadLetterSettings
    ) -> None:
        served = work.served
        records = None
        if settings.copy_record:
            runs, records = await self._target.source_records(served, runs, destination.max_message_bytes)
        letters = build_letters(
            self._source(served.key),
            runs,
            records,
            now_ms=self._clock.now_ms(),
            limit_bytes=destination.max_message_bytes,
        )
        if records is not None and records.failure is not None and work.failed_reads + 1 < READ_ATTEMPTS:
            work.failed_reads += 1
            raise CannotStore(f"the records cannot be read: {records.failure}")
        if records is None or records.failure is None:
            work.failed_reads = 0
        if letters.too_large:
            reason = f"max.message.bytes {destination.max_message_bytes} of the dead-letter topic is too small"
            self._give_up(served, letters.too_large, reason)
        if not letters.offsets or served.error is not None:
            return
        try:
            appended = await self._target.append(served, destination, letters)
        except KafkaError as fenced:
            await self._fenced(served, fenced)
            return
        if served.error is not None:
            return
        self._metrics.dead_letters(served.key, stored=_count_of(appended))
        served.dead_letters_done(appended, stored_in=settings.topic_name)

    async def _fenced(self, served: ArchivingPartition, fenced: KafkaError) -> None:
        """Drops a share-partition that the share coordinator has a newer state of; raises CannotStore if it has none.

        Without a newer state, the state itself is older than the dead letters, as after a restore of an older backup of
        the share coordinator. A load would only read the same state, and end the locks of members each time.
        """
        if served.error is not None:
            return
        try:
            async with asyncio.timeout(STATE_CHECK_TIMEOUT_MS / 1000):
                is_replaced = await served.is_state_replaced()
        except TimeoutError:
            raise CannotStore(f"{fenced.message}; and its state cannot be read to find a newer one") from None
        except KafkaError:  # it cannot be loaded either, and a load names the problem
            is_replaced = True
        if not is_replaced:
            raise CannotStore(
                f"{fenced.message}; its share coordinator may have been restored from an older backup. Reset the "
                "group's offsets, or remove errors.deadletterqueue.topic.name from the group to archive the records "
                "without dead letters"
            )
        if served.error is None:
            served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, fenced.message))

    def _source(self, key: SharePartitionKey) -> Source:
        topic = self._view().topics_by_id.get(key.topic_id)
        topic_name = topic_id_text(key.topic_id) if topic is None else topic.name
        return Source(group_id=key.group_id, topic_name=topic_name, partition=key.partition)

    # Share-partitions without fetches

    def _watch(self, *, at_once: bool = False) -> None:
        if self._stopped or not len(self._unfinished):
            return
        if self._check_timer is not None:
            if not at_once:
                return
            self._check_timer.cancel()
        delay_ms = 0 if at_once else CHECK_INTERVAL_MS
        self._check_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._check)

    def _check(self) -> None:
        self._check_timer = None
        loads = 0
        for key in self._unfinished.share_partitions():
            served = self._find(key)
            if served is not None:
                self._forget_when_idle(key, served)
            elif loads < LOADS_LIMIT and key not in self._to_forget:
                loads += self._try_load(key)
        self._watch()

    def _try_load(self, key: SharePartitionKey) -> int:
        """Loads it if this node leads it and its back-off is over; returns the number of loads, 0 or 1."""
        loading = self._loading.get(key)
        if self._load is None or (loading is not None and self._now_ms() < loading.not_before_ms):
            return 0
        try:
            self._load(key)
        except KafkaError:  # another node leads it, or its log cannot be opened; the next check tries again
            return 0
        return 1

    def _forget_when_idle(self, key: SharePartitionKey, served: ArchivingPartition) -> None:
        if not served.is_at_rest:
            self._idle_since_ms.pop(key, None)
            return
        self._loading.pop(key, None)
        served.unload_if_unused()
        if served.error is not None:
            return
        since_ms = self._idle_since_ms.setdefault(key, self._now_ms())
        if self._now_ms() - since_ms >= FORGET_AFTER_MS:
            self._forget(key)

    def _forget(self, key: SharePartitionKey) -> None:
        self._idle_since_ms.pop(key, None)
        self._loading.pop(key, None)
        self._to_forget[key] = None
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_soon(self._forget_some)

    def _forget_some(self) -> None:
        """Forgets what is to be forgotten, FORGOTTEN_IN_A_WRITE share-partitions in a turn of the event loop."""
        self._forgetting = None
        keys = list(islice(self._to_forget, FORGOTTEN_IN_A_WRITE))
        for key in keys:
            del self._to_forget[key]
        try:
            self._unfinished.forget_all(keys)
        except StorageFailure as failure:
            others = f" and {len(keys) - 1} others" if len(keys) > 1 else ""
            self._report(f"{keys[0]}{others} still count as having dead letters to send: {failure}")
        if self._to_forget:
            self._forgetting = asyncio.get_running_loop().call_soon(self._forget_some)

    def _is_unfinished(self, key: SharePartitionKey) -> bool:
        return key in self._unfinished and key not in self._to_forget


def _count_of(runs: Iterable[OffsetRun]) -> int:
    return sum(last - first + 1 for first, last in runs)
