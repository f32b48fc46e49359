"""The transaction coordinator of the simulated cluster: transactional ids, their transactions, and their markers.

The protocol is that before transaction version 2 (KIP-890): partitions are added by AddPartitionsToTxn, and the epoch
grows when a producer begins anew or its transaction takes too long. Its state is replicated as the cluster's own; every
broker answers for every id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.errors import ErrorCode
from kshare_upstream.port import NO_LEADER
from kshare_upstream.port import UpstreamPartitionName as Name
from support.simulation.loop import VirtualLoop
from support.simulation.upstream.partitions import LeaderLost, SimulatedPartition

FIRST_PRODUCER_ID = 1001
RETRY_S = 0.2


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class _Transactions:
    """What the coordinator knows of a transactional id."""

    identity: ProducerIdentity
    timeout_s: float
    partitions: dict[Name, None] = field(default_factory=dict)
    """Those of the transaction under way."""
    begun_at: float = 0.0
    is_under_way: bool = False
    ending: bool | None = None
    """Whether it commits, while its markers are being written."""
    ended: bool | None = None
    """Whether the last transaction of this epoch was committed; None where there was none."""


class TransactionCoordinator:
    """See the module's text."""

    def __init__(
        self, loop: VirtualLoop, partition: Callable[[Name], SimulatedPartition | None], now_ms: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._partition = partition
        self._now_ms = now_ms
        self._known: dict[str, _Transactions] = {}
        self._last_producer_id = FIRST_PRODUCER_ID - 1
        self._markers: list[tuple[_Transactions, ProducerIdentity, bool]] = []
        self._work = asyncio.Event()

    def fresh_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    # Requests

    def initialize(self, transactional_id: str, timeout_s: float) -> tuple[int, ProducerIdentity]:
        """InitProducerId: aborts what is under way, and fences the producer before."""
        nobody = ProducerIdentity(-1, -1)
        known = self._known.get(transactional_id)
        if known is None:
            identity = ProducerIdentity(self.fresh_producer_id(), 0)
            self._known[transactional_id] = _Transactions(identity, timeout_s)
            return ErrorCode.NONE, identity
        if known.ending is None and known.is_under_way:
            self._abort(known)
        if known.ending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS, nobody
        known.identity = known.identity._replace(epoch=known.identity.epoch + 1)
        known.timeout_s, known.ended = timeout_s, None
        return ErrorCode.NONE, known.identity

    def add_partitions(self, transactional_id: str, identity: ProducerIdentity, names: Iterable[Name]) -> int:
        known = self._known.get(transactional_id)
        error = self._identity_error(known, identity)
        if known is None or error:
            return error
        if known.ending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if not known.is_under_way:
            known.is_under_way, known.begun_at, known.ended = True, self._loop.now_s, None
        known.partitions |= dict.fromkeys(names)
        return ErrorCode.NONE

    def end(self, transactional_id: str, identity: ProducerIdentity, *, commit: bool) -> int:
        """EndTxn: answered when the decision is stored; the markers follow."""
        known = self._known.get(transactional_id)
        error = self._identity_error(known, identity)
        if known is None or error:
            return error
        if known.ending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS if known.ending is commit else ErrorCode.INVALID_TXN_STATE
        if not known.is_under_way:
            return ErrorCode.NONE if known.ended is commit else ErrorCode.INVALID_TXN_STATE
        self._finish(known, commit=commit)
        return ErrorCode.NONE

    def may_append(self, transactional_id: str | None, identity: ProducerIdentity, at: Name) -> bool:
        """Whether the transaction under way has the partition (the verification of KIP-890)."""
        known = self._known.get(transactional_id or "")
        return (
            known is not None
            and known.identity == identity
            and known.is_under_way
            and known.ending is None
            and at in known.partitions
        )

    @staticmethod
    def _identity_error(known: _Transactions | None, identity: ProducerIdentity) -> int:
        if known is None or known.identity.producer_id != identity.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if known.identity.epoch == identity.epoch else ErrorCode.PRODUCER_FENCED

    # Ends

    def _abort(self, known: _Transactions) -> None:
        """Ends a transaction that its producer did not end; the producer is fenced."""
        known.identity = known.identity._replace(epoch=known.identity.epoch + 1)
        self._finish(known, commit=False)

    def _finish(self, known: _Transactions, *, commit: bool) -> None:
        known.ending = commit
        self._markers.append((known, known.identity, commit))
        self._work.set()

    def tick(self) -> None:
        """Aborts the transactions that take too long."""
        now = self._loop.now_s
        for known in self._known.values():
            if known.is_under_way and known.ending is None and now - known.begun_at > known.timeout_s:
                self._abort(known)

    async def write_markers(self) -> None:
        """Runs for ever: writes the markers of ended transactions, each to all of its partitions."""
        while True:
            self._work.clear()
            waiting, self._markers = self._markers, []
            for known, identity, commit in waiting:
                for at in known.partitions:
                    await self._write_marker(at, identity, commit=commit)
                known.partitions = {}
                known.is_under_way, known.ending, known.ended = False, None, commit
            if not self._markers:
                await self._work.wait()

    async def _write_marker(self, at: Name, identity: ProducerIdentity, *, commit: bool) -> None:
        """Until the marker is replicated, or the topic is gone."""
        while (partition := self._partition(at)) is not None:
            if partition.leader != NO_LEADER:
                end = partition.log.append_marker(
                    *identity, commit=commit, now_ms=self._now_ms(), epoch=partition.leader_epoch
                )
                try:
                    async with asyncio.timeout(10 * RETRY_S):
                        await partition.replicated(end)
                except (LeaderLost, TimeoutError):
                    pass
                else:
                    return
            await asyncio.sleep(RETRY_S)
