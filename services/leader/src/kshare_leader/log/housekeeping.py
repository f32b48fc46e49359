"""The periodic tasks of logs: retention, compaction, and freeing the disk of removed records.

Two tasks, as in Kafka. The first applies retention to topics that are not compacted, every
log.retention.check.interval.ms. The second compacts the due log with the largest dirty ratio, then the next, and sleeps
for log.cleaner.backoff.ms when none is due. It also does the retention of compacted topics
(cleanup.policy=compact,delete), so that the two never work on the same log. Without log.cleaner.enable the first task
does the retention of all topics.

Clients are served meanwhile: the cleaner sleeps after each slice for as long as the slice took, so that it never uses
more than half of the process, and longer where log.cleaner.io.max.bytes.per.second requires it.

A log whose batches cannot be opened is not compacted again until the leader restarts, as in Kafka. After a failure of
the disk, which may concern one log alone, the other due logs come first. Both are reported.

Of the other log.cleaner configs, `threads`, `io.buffer.size` and `io.buffer.load.factor` have no meaning here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kshare_core.configs import Configs
from kshare_core.contained_bugs import report_contained_bug, restarted_after_bugs
from kshare_core.errors import KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.compaction import CompactionAborted, LogCompaction, plan_compaction
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.retention import retained_from
from kshare_runtime.ports import Clock

KEY_BYTES = 192
"""Memory for one key while a log is compacted; a run holds log.cleaner.dedupe.buffer.size / KEY_BYTES keys."""
PUT_OFF_MS = 5 * 60_000
"""For how long a log whose compaction failed is compacted only where no other one is due."""
LOGS_PER_TURN = 50
"""Logs whose retention is checked before the task yields to the event loop, where none of them needed a write."""


class LogHousekeeping:
    """The two tasks of one node; the module's docstring has the rules."""

    def __init__(
        self, *, logs: PartitionLogs, clock: Clock, configs: Configs, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._report = report
        self._first_delay_s = configs.integer("log.initial.task.delay.ms") / 1000
        self._retention_interval_s = configs.integer("log.retention.check.interval.ms") / 1000
        self._configs = configs
        self._cleaner_enabled = configs.boolean("log.cleaner.enable")
        self._uncleanable: dict[TopicPartition, PartitionLog] = {}
        self._put_off: dict[TopicPartition, int] = {}
        """Until when due logs whose last run failed let the other ones pass, in the clock's milliseconds."""

    async def run(self) -> None:
        """Runs both tasks until it is cancelled."""
        tasks = [restarted_after_bugs("the retention of logs", self._check_retention)]
        if self._cleaner_enabled:
            tasks.append(restarted_after_bugs("the compaction of logs", self._clean))
        await asyncio.gather(*tasks)

    async def _check_retention(self) -> None:
        await asyncio.sleep(self._first_delay_s)
        while True:
            await self.retain_all(compacted=None if not self._cleaner_enabled else False)
            await asyncio.sleep(self._retention_interval_s)

    async def _clean(self) -> None:
        while True:
            cleaned = await self.clean_one()
            await self.retain_all(compacted=True)
            await asyncio.sleep(0 if cleaned else self._configs.integer("log.cleaner.backoff.ms") / 1000)

    async def retain_all(self, *, compacted: bool | None) -> None:
        """Applies retention to logs of compacted topics (True), of other topics (False), or of all (None)."""
        for count, log in enumerate(self._logs.all_logs()):
            has_written = (compacted is None or log.settings.compacts == compacted) and self._retain(log)
            if has_written or count % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def clean_one(self) -> bool:
        """Compacts the due log with the largest dirty ratio; False where none is due or the run failed."""
        now_ms = self._clock.now_ms()
        due: list[tuple[float, PartitionLog]] = []
        for log in self._logs.all_logs():
            if not log.settings.compacts or log.is_moving or self._uncleanable.get(log.topic_partition) is log:
                continue
            plan = plan_compaction(log, now_ms)
            if plan.is_due:
                due.append((plan.dirty_ratio, log))
        if not due:
            return False
        self._put_off = {key: until_ms for key, until_ms in self._put_off.items() if until_ms > now_ms}
        first = [pair for pair in due if pair[1].topic_partition not in self._put_off]
        _, log = max(first or due, key=lambda pair: pair[0])
        try:
            return await self._compact(log, now_ms)
        except KafkaError as error:
            self._uncleanable[log.topic_partition] = log
            self._report(f"partition {log.name} will no longer be compacted: {error}")
        except StorageFailure as failure:
            self._put_off[log.topic_partition] = now_ms + PUT_OFF_MS
            self._report(f"partition {log.name} could not be compacted: {failure}")
        except Exception as error:
            self._put_off[log.topic_partition] = now_ms + PUT_OFF_MS
            report_contained_bug(f"the compaction of partition {log.name}", error)
        return False

    async def _compact(self, log: PartitionLog, now_ms: int) -> bool:
        loop = asyncio.get_running_loop()
        keys_limit = max(1, self._configs.integer("log.cleaner.dedupe.buffer.size") // KEY_BYTES)
        rate = self._configs.number("log.cleaner.io.max.bytes.per.second")
        run = LogCompaction(log, plan_compaction(log, now_ms), now_ms=now_ms, keys_limit=keys_limit)
        steps = run.steps()
        result: object = None
        while True:
            began = loop.time()
            try:
                step = steps.send(result)
            except StopIteration:
                return True
            except CompactionAborted:
                return False
            if isinstance(step, int):
                result = None
                await asyncio.sleep(max(loop.time() - began, step / rate))
            else:
                result = await log.reader.aside.run(step)

    def _retain(self, log: PartitionLog) -> bool:
        """Whether that took a durable write, or an attempt."""
        if log.is_closed or self._logs.find(log.topic_partition) is not log:
            return False
        try:
            now_ms = self._clock.now_ms()
            log.segments.note_time(now_ms)
            start_offset = retained_from(log.segments, log.settings, now_ms, log.high_watermark)
            has_moved = start_offset > log.log_start_offset
            if has_moved:
                self._logs.move_starts([(log, start_offset)])
            return log.remove_unreachable() or has_moved
        except StorageFailure as failure:
            self._report(f"retention of partition {log.name} failed: {failure}")
            return True
