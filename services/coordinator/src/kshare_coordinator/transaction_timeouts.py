"""Periodic scans for transactions that exceed their timeout, and for expired transactional ids.

Both compare wall time and run at Kafka's intervals: transaction.abort.timed.out.transaction.cleanup.interval.ms, and
transaction.remove.expired.transaction.cleanup.interval.ms. After a failed write the next scan finds the same work.
"""

from __future__ import annotations

import asyncio
import logging

from kshare_coordinator.core import Core
from kshare_coordinator.machine.commands import AbortTimedOutTransaction, ExpireTransactionalIds
from kshare_coordinator.machine.transactions.ending import timed_out_transactions
from kshare_core.configs import Configs
from kshare_core.errors import KafkaError, StorageFailure
from kshare_runtime.ports import Clock

log = logging.getLogger(__name__)


class TransactionTimeouts:
    """The two scan loops, which run until they are cancelled."""

    def __init__(self, core: Core, clock: Clock, configs: Configs) -> None:
        self._core = core
        self._clock = clock
        self._abort_interval_ms = configs.integer("transaction.abort.timed.out.transaction.cleanup.interval.ms")
        self._expiry_interval_ms = configs.integer("transaction.remove.expired.transaction.cleanup.interval.ms")

    async def abort_timed_out(self) -> None:
        while True:
            await asyncio.sleep(self._abort_interval_ms / 1000)
            try:
                await self._abort()
            except (KafkaError, StorageFailure) as failure:
                log.error("timed-out transactions could not be aborted, retrying later: %s", failure)

    async def _abort(self) -> None:
        """Aborts all timed-out transactions in one turn of the machine, with one write."""
        found = timed_out_transactions(self._core.state, self._clock.now_ms())
        aborts = [
            self._core.submit(AbortTimedOutTransaction(transactional_id=transactional_id)) for transactional_id in found
        ]
        aborted = await asyncio.gather(*aborts)
        for transactional_id, was_open in zip(found, aborted, strict=True):
            if was_open:
                log.info("transaction %s exceeded its timeout and is aborted", transactional_id)

    async def expire_transactional_ids(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_ms / 1000)
            try:
                count = await self._core.submit(ExpireTransactionalIds())
            except (KafkaError, StorageFailure) as failure:
                log.error("expired transactional ids could not be removed, retrying later: %s", failure)
                continue
            if count:
                log.info("removed %d transactional ids unused for transactional.id.expiration.ms", count)
