"""A scripted leader behind a gateway, and ShareFetch and ShareAcknowledge of a client in few words."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import (
    MEMBER,
    OTHER_TOPIC_ID,
    GatewayClient,
    GatewayHarness,
    ScriptedRole,
    run,
    topic,
)
from support.simulation.loop import VirtualLoop

BATCH_SIZE = 100
WHO = {"group_id": "workers", "member_id": MEMBER}


def raw_batch(base_offset: int, last_offset: int) -> bytes:
    head = struct.pack(">qi", base_offset, BATCH_SIZE - 12) + bytes(11) + struct.pack(">i", last_offset - base_offset)
    return head.ljust(BATCH_SIZE, bytes([base_offset % 250 + 1]))


class FakeLeader:
    """A leader with an endless log of batches of ten records up to `high_watermark`; `ready` partitions have records.

    Each ShareFetch that fetches a ready partition acquires its next batch; a wait ends when `wake` or `fail` is called.
    A ShareFetch does not wait where one of its partitions has an error. What is in `loading` is not initialized yet.
    """

    def __init__(self, role: ScriptedRole, high_watermark: int = 1000) -> None:
        self.role = role
        self.high_watermark = high_watermark
        self.next_offset: dict[tuple[bytes, int], int] = {}
        self.ready: dict[tuple[bytes, int], int] = {}
        self.loading: set[tuple[bytes, int]] = set()
        self.acknowledge_error = 0
        self.errors: dict[tuple[bytes, int], int] = {}
        """Partitions that cannot be fetched."""
        self._awake = asyncio.Event()
        role.answers["ShareFetch"] = self.share_fetch
        role.answers["ShareAcknowledge"] = self.share_acknowledge
        role.answers["Fetch"] = self.fetch

    def wake(self, topic_id: bytes, partition: int, batches: int = 1) -> None:
        self.ready[(topic_id, partition)] = batches
        self._awake.set()

    def fail(self, topic_id: bytes, partition: int, code: int) -> None:
        self.errors[(topic_id, partition)] = code
        self._awake.set()

    async def share_fetch(self, request: Any, payload: memoryview) -> Any:
        answer = leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=12345)
        pieces: list[bytes] = []
        self._acquire(request, answer, pieces)
        has_records = bool(pieces) or any(entry.acquired_records for entry in answer.partitions)
        if not has_records and request.max_wait_ms and not any(entry.error_code for entry in answer.partitions):
            self._awake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), request.max_wait_ms / 1000)
            answer = leader_pb2.ShareFetchResponse(acquisition_lock_timeout_ms=12345)
            self._acquire(request, answer, pieces)
        return answer, pieces

    def _acquire(self, request: Any, answer: Any, pieces: list[bytes]) -> None:
        for wanted in request.partitions:
            key = (wanted.topic_id, wanted.partition)
            entry = leader_pb2.ShareFetchResponse.Partition(topic_id=wanted.topic_id, partition=wanted.partition)
            if wanted.acknowledgement_batches:
                entry.acknowledge_error_code = self.acknowledge_error
            entry.error_code = self.errors.get(key, 0)
            entry.is_acquirable = (
                wanted.fetch and request.max_records > 0 and key not in self.loading and not entry.error_code
            )
            if wanted.fetch and self.ready.get(key, 0) and not entry.error_code:
                self.ready[key] -= 1
                base = self.next_offset.get(key, 0)
                self.next_offset[key] = base + 10
                entry.acquired_records.add(first_offset=base, last_offset=base + 9, delivery_count=1)
                inline = not any(run.first_offset <= base and base + 9 <= run.last_offset for run in wanted.cached)
                entry.batches.add(base_offset=base, last_offset=base + 9, length=BATCH_SIZE, inline=inline)
                entry.next_fetch_offset, entry.high_watermark = base + 10, self.high_watermark
                if inline:
                    pieces.append(raw_batch(base, base + 9))
            answer.partitions.append(entry)

    def share_acknowledge(self, request: Any, payload: memoryview) -> Any:
        answer = leader_pb2.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=12345)
        for wanted in request.partitions:
            answer.partitions.add(
                topic_id=wanted.topic_id, partition=wanted.partition, error_code=self.acknowledge_error
            )
        return answer

    def fetch(self, request: Any, payload: memoryview) -> Any:
        (wanted,) = request.partitions
        batches = [raw_batch(base, base + 9) for base in range(wanted.fetch_offset, wanted.fetch_offset + 30, 10)]
        answer = leader_pb2.FetchResponse()
        answer.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition, records_length=300)
        return answer, [*batches, b"half a batch"]


def listed(topic_id: bytes, *partitions: int, acknowledge: tuple[int, int, list[int]] | None = None) -> dict[str, Any]:
    batches = []
    if acknowledge is not None:
        first, last, kinds = acknowledge
        batches = [{"first_offset": first, "last_offset": last, "acknowledge_types": kinds}]
    return {
        "topic_id": topic_id,
        "partitions": [{"partition_index": part, "acknowledgement_batches": batches} for part in partitions],
    }


def share_fetch(client: GatewayClient, epoch: int, *topics: dict[str, Any], version: int = 1, **more: Any) -> Any:
    values = {"max_wait": 0, "min_bytes": 1, "max_bytes": 10_000, "max_records": 100, "batch_size": 100, **more}
    return client.send(ApiKey.SHARE_FETCH, version, **{**WHO, "share_session_epoch": epoch, "topics": topics, **values})


async def fetched(client: GatewayClient, epoch: int, *topics: dict[str, Any], **more: Any) -> Any:
    return await asyncio.wait_for(share_fetch(client, epoch, *topics, **more), 5)


async def acknowledged(client: GatewayClient, epoch: int, *topics: dict[str, Any], **more: Any) -> Any:
    return await client.ask(
        ApiKey.SHARE_ACKNOWLEDGE, 1, **{**WHO, "share_session_epoch": epoch, "topics": topics, **more}
    )


def found(answer: Any) -> list[tuple[bytes, int, int, int, list[tuple[int, int]], bytes]]:
    return [
        (
            topic.topic_id.bytes,
            part.partition_index,
            int(part.error_code),
            part.acknowledge_error_code,
            [(run.first_offset, run.last_offset) for run in part.acquired_records],
            bytes(part.records),
        )
        for topic in answer.responses
        for part in topic.partitions
    ]


def delivered(answer: Any) -> list[int]:
    """The partitions that have records in the answer."""
    return [part.partition_index for topic in answer.responses for part in topic.partitions if part.acquired_records]


def taken_back(leader: ScriptedRole) -> list[tuple[list[int], list[int]]]:
    """Fetches whose records a leader was told to take back, and the partitions that were named with them."""
    return [
        (list(request.lost_fetch_numbers), [partition.partition for partition in request.partitions])
        for request in leader.requests("ReleaseShareSession")
        if request.lost_fetch_numbers
    ]


def partitions_asked(request: Any) -> list[tuple[int, bool]]:
    return [(entry.partition, entry.fetch) for entry in request.partitions]


Scenario = Callable[[GatewayHarness, dict[int, FakeLeader], GatewayClient], Any]


def play(scenario: Scenario, texts: dict[str, str] | None = None) -> None:
    async def whole(harness: GatewayHarness) -> None:
        leaders = {node_id: FakeLeader(role) for node_id, role in harness.leaders.items()}
        await scenario(harness, leaders, harness.client())

    run(whole, texts)


def play_virtually(scenario: Scenario, texts: dict[str, str] | None = None) -> None:
    """As `play`, with only the topic "mixed", on a virtual clock."""

    async def whole() -> None:
        async with GatewayHarness(texts) as harness:
            harness.catalog.topics["mixed"] = topic("mixed", OTHER_TOPIC_ID, [1, 2])
            await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)
            leaders = {node_id: FakeLeader(role) for node_id, role in harness.leaders.items()}
            await scenario(harness, leaders, harness.client())

    loop = VirtualLoop()
    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()
