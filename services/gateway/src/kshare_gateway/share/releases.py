"""Releases of records at leaders: those of ended sessions, and those that reached no client.

Both use ReleaseShareSession and are retried while the leader does not answer: otherwise the records would stay acquired
until their locks expire. Retries stop when the leader is gone from the catalog (it holds nothing any more), or when the
locks have expired.

- The end of a session releases what its fetches acquired. The request names the last fetch, so that a late release
  takes nothing from a newer session of the same member. The deliveries count (KAFKA-19972), except those of a fetch
  that has not been answered yet: its response reaches no client any more.
- Records that no client has seen are taken back: released without counting a delivery. After a failed call these are
  all records of its fetch, and it is unknown whether the leader acquired any; the call may even still wait there. Of a
  response that arrived, these are the records of the partitions that are not delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kshare_core.identifiers import TopicPartition
from kshare_gateway.gateway import Gateway, log
from kshare_gateway.share.sessions import ShareSessionKey
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import RELEASE_SHARE_SESSION
from kshare_rpc.network import CallFailed

RETRY_INTERVAL_MS = 100
"""First retry back-off; it doubles up to RETRY_INTERVAL_MAX_MS."""
RETRY_INTERVAL_MAX_MS = 2_000
LOST_FETCHES_LIMIT = 100
"""Lost fetches kept for one session at one leader; the oldest are left to their lock timeouts."""


class _Lost:
    """Fetches of a session at a leader whose records are taken back, and the deadline for retries."""

    __slots__ = ("deadline", "fetches")

    def __init__(self) -> None:
        self.fetches: dict[int, tuple[TopicPartition, ...]] = {}
        """By number the partitions whose records are taken back; empty: all of them."""
        self.deadline = 0.0

    def add(self, fetch_number: int, partitions: tuple[TopicPartition, ...]) -> None:
        before = self.fetches.get(fetch_number, partitions)
        if len(self.fetches) >= LOST_FETCHES_LIMIT and fetch_number not in self.fetches:
            del self.fetches[next(iter(self.fetches))]
        self.fetches[fetch_number] = tuple(dict.fromkeys(before + partitions)) if before and partitions else ()


class SessionReleases:
    """Pending releases of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lost: dict[tuple[ShareSessionKey, str], _Lost] = {}

    async def end_session(
        self, key: ShareSessionKey, address: str, last_fetch_number: int, undelivered: int | None
    ) -> None:
        """Returns after the first attempt; where it failed, the others are made in the background.

        `undelivered`: the fetch whose response the client has not seen, if there is one.
        """
        request = leader_pb2.ReleaseShareSessionRequest(
            owner=self._gateway.session_owner(key),
            last_fetch_number=last_fetch_number,
            undelivered_fetch_numbers=() if undelivered is None else (undelivered,),
        )
        if not await self._send(address, request):
            self._gateway.spawn(self._end_late(key, address, request), "late release of a share session")

    def take_back(
        self, key: ShareSessionKey, address: str, fetch_number: int, partitions: Iterable[TopicPartition] = ()
    ) -> None:
        """Releases the records of a fetch that no client has seen, in the background; all of them, or of partitions."""
        lost = self._lost.get((key, address))
        if lost is None:
            lost = self._lost[key, address] = _Lost()
            self._gateway.spawn(self._take_back(key, address, lost), "taking back of lost records")
        lost.add(fetch_number, tuple(partitions))
        lost.deadline = self._locks_end(key)

    async def _end_late(
        self, key: ShareSessionKey, address: str, request: leader_pb2.ReleaseShareSessionRequest
    ) -> None:
        deadline = self._locks_end(key)
        attempts = 0
        while await self._pause(address, attempts, deadline):
            if await self._send(address, request):
                return
            attempts += 1

    async def _take_back(self, key: ShareSessionKey, address: str, lost: _Lost) -> None:
        try:
            attempts = 0
            while lost.fetches:
                partitions = next(iter(lost.fetches.values()))
                numbers = [number for number, of_number in lost.fetches.items() if of_number == partitions]
                request = leader_pb2.ReleaseShareSessionRequest(
                    owner=self._gateway.session_owner(key), lost_fetch_numbers=numbers
                )
                for topic_id, partition in partitions:
                    request.partitions.add(topic_id=topic_id, partition=partition)
                if await self._send(address, request):
                    attempts = 0
                    for number in numbers:
                        if lost.fetches.get(number) == partitions:
                            del lost.fetches[number]
                elif await self._pause(address, attempts, lost.deadline):
                    attempts += 1
                else:
                    return
        finally:
            del self._lost[key, address]

    async def _send(self, address: str, request: leader_pb2.ReleaseShareSessionRequest) -> bool:
        """Whether the leader answered."""
        try:
            answer, _ = await self._gateway.call_leader(address, RELEASE_SHARE_SESSION, request)
        except CallFailed as failure:
            log.info(
                "the release to leader %s for member %s failed, retrying until its locks expire: %s",
                address,
                request.owner.member_id,
                failure,
            )
            return False
        if answer.error_code:  # the leader cannot store it; it continues on its own, or the locks expire
            log.warning(
                "leader %s refused to release the records of member %s: error code %d",
                address,
                request.owner.member_id,
                answer.error_code,
            )
        return True

    async def _pause(self, address: str, attempts: int, deadline: float) -> bool:
        """Waits for the back-off; returns whether to retry."""
        interval_ms = min(RETRY_INTERVAL_MS << min(attempts, 10), RETRY_INTERVAL_MAX_MS)
        await asyncio.sleep(interval_ms / 1000)
        return asyncio.get_running_loop().time() < deadline and self._is_leader(address)

    def _is_leader(self, address: str) -> bool:
        leader = coordinator_pb2.ROLE_LEADER
        return any(node.role == leader and node.rpc_address == address for node in self._gateway.view.nodes)

    def _locks_end(self, key: ShareSessionKey) -> float:
        """When locks acquired by now have expired, in seconds of the event loop's time."""
        lock_ms = self._gateway.record_lock_duration_ms(key.group_id)
        return asyncio.get_running_loop().time() + lock_ms / 1000
