"""Periodic scans for transactions that exceed their timeout, and for expired transactional ids.

Both run at Kafka's intervals: transaction.abort.timed.out.transaction.cleanup.interval.ms, and
transaction.remove.expired.transaction.cleanup.interval.ms. After a failed write the next scan finds the same work.

A transaction exceeds its timeout by wall time since its start, as in Kafka, or by monotonic time since a scan of this
coordinator first saw it. The second bound holds where wall time stepped back, or where the coordinator that started the
transaction had a clock ahead of this one: readers of its offsets would otherwise wait for as long as the clocks differ.
"""

from __future__ import annotations

import asyncio
import logging

from kshare_coordinator.core import Core
from kshare_coordinator.machine.commands import AbortTimedOutTransaction, ExpireTransactionalIds
from kshare_coordinator.machine.transactions.ending import timed_out_transactions
from kshare_coordinator.machine.transactions.metadata import OpenTransaction
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
        self._first_seen: dict[str, tuple[OpenTransaction, float]] = {}
        """The open transaction of each transactional id at the newest scan, with the time of the loop at its first."""
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
        seen_open = self._open_for_too_long()
        found = list(dict.fromkeys((*timed_out_transactions(self._core.state, self._clock.now_ms()), *seen_open)))
        aborts = [
            self._core.submit(
                AbortTimedOutTransaction(transactional_id=transactional_id, seen_open=seen_open.get(transactional_id))
            )
            for transactional_id in found
        ]
        aborted = await asyncio.gather(*aborts)
        for transactional_id, was_open in zip(found, aborted, strict=True):
            if was_open:
                log.info("transaction %s exceeded its timeout and is aborted", transactional_id)

    def _open_for_too_long(self) -> dict[str, OpenTransaction]:
        """The transactions that scans have seen for longer than their timeouts."""
        now_s, state = asyncio.get_running_loop().time(), self._core.state
        first_seen: dict[str, tuple[OpenTransaction, float]] = {}
        overdue: dict[str, OpenTransaction] = {}
        for transactional_id in state.ongoing_transactions:
            metadata = state.transactions[transactional_id]
            opened = metadata.open_transaction
            if opened is None:
                continue
            seen, since_s = self._first_seen.get(transactional_id, (None, now_s))
            if seen != opened:
                since_s = now_s
            first_seen[transactional_id] = opened, since_s
            if (now_s - since_s) * 1000 > metadata.transaction_timeout_ms:
                overdue[transactional_id] = opened
        self._first_seen = first_seen
        return overdue

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
