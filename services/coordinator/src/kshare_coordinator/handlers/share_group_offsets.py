"""Handler of DescribeShareGroupOffsets: it calls all share coordinators at once, then all leaders at once.

The start offset is read before the end of the log, which only grows, so no race makes a lag negative. A call to a node
that cannot be reached is retried a few times, each time at the current owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.topic_look_up import LookUp
from kshare_coordinator.machine.groups.share import offsets as rules
from kshare_coordinator.machine.groups.share.offsets import NO_STATE, EndOffset, Summary
from kshare_core.errors import ErrorCode, StorageFailure
from kshare_core.identifiers import ZERO_TOPIC_ID, TopicPartition
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import leader_pb2, share_coordinator_pb2
from kshare_rpc.generated.methods import LIST_OFFSETS, READ_SHARE_GROUP_STATE_SUMMARY
from kshare_rpc.network import CallFailed, Channel, Network
from kshare_rpc.serving import serves

CALL_TIMEOUT_MS = 3_000
ATTEMPTS = 3
RETRY_INTERVAL_MS = 200
PARTITIONS_PER_CALL = 1_000
LATEST_TIMESTAMP = -1
READ_UNCOMMITTED = 0
SUMMARY_LEADER_EPOCH = -1
RETRIED_CODES = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Codes of nodes that do not have the newest catalog yet."""

Found = TypeVar("Found", Summary, EndOffset)
Ask = Callable[[Channel, Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Found]]]


class ShareGroupOffsetHandlers:
    """The handler; `look_up` makes the catalog know the topics of a request."""

    def __init__(self, core: Core, network: Network, look_up: LookUp) -> None:
        self._core = core
        self._network = network
        self._look_up = look_up
        self._channels: dict[str, Channel] = {}

    @serves(methods.DESCRIBE_SHARE_GROUP_OFFSETS)
    async def describe(
        self, request: pb.DescribeShareGroupOffsetsRequest, payload: memoryview
    ) -> pb.DescribeShareGroupOffsetsResponse:
        await self._look_up(topic.topic_name for topic in request.topics)
        try:
            entries = rules.described(self._core.state_of_group(request.group_id), request)
            keys = dict.fromkeys(entry.key for entry in entries if entry.key.topic_id != ZERO_TOPIC_ID)
            summaries = await self._summaries(request.group_id, keys)
            ends = await self._end_offsets(key for key in keys if summaries[key].needs_end_offset)
        finally:
            await self._close_channels_of_lost_nodes()
        results = [rules.answer_of(entry, summaries.get(entry.key, NO_STATE), ends.get(entry.key)) for entry in entries]
        return pb.DescribeShareGroupOffsetsResponse(results=results)

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _summaries(self, group_id: str, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Summary]:
        async def ask(channel: Channel, asked: Sequence[TopicPartition]) -> dict[TopicPartition, Summary]:
            request = share_coordinator_pb2.ReadShareGroupStateSummaryRequest(group_id=group_id)
            for key in asked:
                request.partitions.add(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    leader_epoch=SUMMARY_LEADER_EPOCH,
                    owner_epoch=rules.state_owner_epoch(self._core.state, group_id, key),
                )
            answer, _ = await channel.call(READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=CALL_TIMEOUT_MS)
            return {TopicPartition(each.topic_id, each.partition): rules.summary_of(each) for each in answer.results}

        def unreachable(problem: str) -> Summary:
            return NO_STATE._replace(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=problem)

        def address_of(key: TopicPartition) -> str | None:
            return rules.share_coordinator_address(self._core.state, group_id, key)

        return await self._ask_all(list(keys), address_of, ask, unreachable)

    async def _end_offsets(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, EndOffset]:
        async def ask(channel: Channel, asked: Sequence[TopicPartition]) -> dict[TopicPartition, EndOffset]:
            request = leader_pb2.ListOffsetsRequest(isolation_level=READ_UNCOMMITTED)
            for key in asked:
                request.partitions.add(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    current_leader_epoch=rules.leader_epoch(self._core.state, key),
                    timestamp=LATEST_TIMESTAMP,
                )
            answer, _ = await channel.call(LIST_OFFSETS, request, timeout_ms=CALL_TIMEOUT_MS)
            return {
                TopicPartition(each.topic_id, each.partition): EndOffset(
                    each.offset, each.error_code, "the leader refused to list offsets" if each.error_code else ""
                )
                for each in answer.partitions
            }

        def unreachable(problem: str) -> EndOffset:
            return EndOffset(-1, ErrorCode.LEADER_NOT_AVAILABLE, problem)

        def address_of(key: TopicPartition) -> str | None:
            return rules.leader_address(self._core.state, key)

        return await self._ask_all(list(keys), address_of, ask, unreachable)

    async def _ask_all(
        self,
        keys: list[TopicPartition],
        address_of: Callable[[TopicPartition], str | None],
        ask: Ask[Found],
        unreachable: Callable[[str], Found],
    ) -> dict[TopicPartition, Found]:
        """The newest answer for each key, or `unreachable`."""
        found: dict[TopicPartition, Found] = {}
        missing = keys
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_INTERVAL_MS / 1000)
            calls = []
            for address, part in _portions(missing, address_of):
                if address is None:
                    found.update((key, unreachable("no live node owns it")) for key in part)
                else:
                    calls.append(self._ask_one(address, part, ask, unreachable))
            for answers in await asyncio.gather(*calls):
                found.update(answers)
            missing = [key for key in missing if found[key].error_code in RETRIED_CODES]
            if not missing:
                break
        return found

    async def _ask_one(
        self,
        address: str,
        keys: Sequence[TopicPartition],
        ask: Ask[Found],
        unreachable: Callable[[str], Found],
    ) -> dict[TopicPartition, Found]:
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        try:
            answers = await ask(self._channels[address], keys)
        except CallFailed as failure:
            answers = {}
            problem = f"{address} did not respond: {failure or type(failure).__name__}"
        else:
            problem = f"{address} left it out of its response"
        return {key: answers[key] if key in answers else unreachable(problem) for key in keys}

    async def _close_channels_of_lost_nodes(self) -> None:
        try:
            live = {node.rpc_address for node in self._core.state.nodes.values()}
        except StorageFailure:
            return
        for address in [address for address in self._channels if address not in live]:
            await self._channels.pop(address).close()


def _portions(
    keys: Iterable[TopicPartition], address_of: Callable[[TopicPartition], str | None]
) -> list[tuple[str | None, list[TopicPartition]]]:
    by_address: dict[str | None, list[TopicPartition]] = {}
    for key in keys:
        by_address.setdefault(address_of(key), []).append(key)
    return [
        (address, part[first : first + PARTITIONS_PER_CALL])
        for address, part in by_address.items()
        for first in range(0, len(part), PARTITIONS_PER_CALL)
    ]
