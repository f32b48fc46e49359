"""The search for initialized share-partitions without state, after a start of a share coordinator.

Its store may be an older copy by then (`kshare restore --only share-coordinator`). Share-partitions that were
initialized after the backup have no state in it, so leaders would deliver none of their records, for good. The search
reads the summaries of all initialized share-partitions in the state partitions of a share coordinator that has
started, or that this coordinator sees for the first time. Those without state are begun anew
(`machine.groups.share.lost_state`).

A state partition that moves, and a share coordinator that is not ready, refuse; its share-partitions are asked for
again later, and only they: a share coordinator may be away for long. So a summary without state is never that of a
state that is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kshare_coordinator.group_state import NO_LEADER_EPOCH, NOT_READY_CODES
from kshare_coordinator.machine.commands import BeginStateAnew
from kshare_coordinator.machine.groups.share.given_up_state import initialized_in
from kshare_coordinator.machine.groups.share.offsets import share_coordinator_address, state_owner_epoch
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey, TopicPartition, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_rpc.network import CallFailed, Channel, Network

FIRST_RETRY_S = 0.1
RETRY_MAX_S = 2.0
CALL_TIMEOUT_MS = 5_000
SHARE_PARTITIONS_PER_CALL = 200
"""The share coordinator reads each from its disk: a few milliseconds for one call."""
PAUSE_S = 0.02
UNINITIALIZED_START_OFFSET = -1

log = logging.getLogger(__name__)

SummaryPartition = share_pb.ReadShareGroupStateSummaryRequest.SharePartition
SummaryResult = share_pb.ReadShareGroupStateSummaryResponse.Result


class LostStateSearch:
    """The search of one coordinator in its own groups; `begin_anew` hands a command to the machine."""

    def __init__(
        self,
        *,
        network: Network,
        state: Callable[[], CoordinatorState],
        begin_anew: Callable[[BeginStateAnew], Awaitable[int]],
    ) -> None:
        self._network = network
        self._state = state
        self._begin_anew = begin_anew
        self._incarnations: dict[int, str] = {}
        """The newest known incarnation of each share coordinator."""
        self._due: dict[str, frozenset[int]] = {}
        """State partitions to be searched, by group."""
        self._is_due = asyncio.Event()
        self._channels: dict[str, Channel] = {}
        """Those of one pass over the groups."""
        self._silent: dict[str, None] = {}
        """Share coordinators that did not answer in this pass, and are not called again in it."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the search, with all groups due."""
        work = restarted_after_bugs("the search for lost share-group state", self._run)
        self._task = asyncio.get_running_loop().create_task(work, name="lost-share-group-state")
        self.nodes_changed()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def nodes_changed(self) -> None:
        """Makes the groups due that have state at share coordinators which have started."""
        state = self._state()
        started: dict[int, None] = {}
        for (role, node_id), node in state.nodes.items():
            if role == pb.ROLE_SHARE_COORDINATOR and self._incarnations.get(node_id) != node.incarnation:
                self._incarnations[node_id] = node.incarnation
                started[node_id] = None
        numbers = frozenset(number for number, owner in state.state_partition_owners.items() if owner in started)
        if numbers:
            self._add(state.share_groups, numbers)

    def groups_gained(self, group_ids: Sequence[str]) -> None:
        """Makes groups due whose former coordinator may not have ended its search."""
        self._add(group_ids, frozenset(range(self._state().state_partition_count)))

    def _add(self, group_ids: Mapping[str, object] | Sequence[str], numbers: frozenset[int]) -> None:
        for group_id in group_ids:
            self._due[group_id] = self._due.get(group_id, frozenset()) | numbers
        self._is_due.set()

    async def _run(self) -> None:
        delay_s = FIRST_RETRY_S
        while True:
            if not self._due:
                self._is_due.clear()
                await self._is_due.wait()
            before = len(self._due)
            try:
                for group_id in sorted(self._due):
                    left = await self._search(group_id, self._due.pop(group_id))
                    if left:
                        self._add([group_id], left)
                    await asyncio.sleep(0)  # a group without a call takes the event loop for its share-partitions only
            finally:
                await self._close_channels()
                self._silent.clear()
            delay_s = FIRST_RETRY_S if len(self._due) < before else min(2 * delay_s, RETRY_MAX_S)
            await asyncio.sleep(delay_s)

    async def _close_channels(self) -> None:
        while self._channels:
            await self._channels.popitem()[1].close()

    async def _search(self, group_id: str, numbers: frozenset[int]) -> frozenset[int]:
        """Searches the state partitions for one group; returns those for which it has to be repeated."""
        try:
            state = self._state()
            group = state.share_groups.get(group_id)
            if group is None or group.is_deleting:
                return frozenset()
            state_epoch, count = group.state_epoch, state.state_partition_count
            found = initialized_in(numbers, count, group_id, group.partitions)
            wanted = [TopicPartition(topic_id, part) for topic_id, parts in found.items() for part in parts]
            lost, unanswered = await self._without_state(group_id, wanted)
            if lost:
                command = BeginStateAnew(group_id=group_id, state_epoch=state_epoch, lost=tuple(lost))
                begun = await self._begin_anew(command)
                log.warning(
                    "group %s: %d of %d share-partitions have no state at their share coordinators, as after a restore "
                    "of an older backup; %d begin anew at the first record of their logs",
                    group_id,
                    len(lost),
                    len(wanted),
                    begun,
                )
                if begun != len(lost):
                    unanswered += lost
        except (KafkaError, StorageFailure) as failure:  # KafkaError: another group of the same turn was lost
            log.warning("group %s: the search for lost state failed, retrying: %s", group_id, failure)
            return numbers
        return frozenset(state_partition_of(SharePartitionKey(group_id, *key), count) for key in unanswered)

    async def _without_state(
        self, group_id: str, wanted: Sequence[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The share-partitions without state, and those that no share coordinator answered for."""
        by_address: dict[str, list[TopicPartition]] = {}
        lost: list[TopicPartition] = []
        unanswered: list[TopicPartition] = []
        for key in wanted:
            address = share_coordinator_address(self._state(), group_id, key)
            if address is None or address in self._silent:
                unanswered.append(key)
            else:
                by_address.setdefault(address, []).append(key)
        for address, keys in sorted(by_address.items()):
            for first in range(0, len(keys), SHARE_PARTITIONS_PER_CALL):
                asked = keys[first : first + SHARE_PARTITIONS_PER_CALL]
                results = await self._summaries(group_id, address, asked)
                found = {TopicPartition(each.topic_id, each.partition): each for each in results}
                lost += [key for key in asked if key in found and _has_no_state(found[key])]
                unanswered += [key for key in asked if key not in found or found[key].error_code in NOT_READY_CODES]
                await asyncio.sleep(PAUSE_S)
        return lost, unanswered

    async def _summaries(self, group_id: str, address: str, keys: Sequence[TopicPartition]) -> list[SummaryResult]:
        """The summaries; empty if the call failed."""
        request = share_pb.ReadShareGroupStateSummaryRequest(
            group_id=group_id,
            partitions=[
                SummaryPartition(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    leader_epoch=NO_LEADER_EPOCH,
                    owner_epoch=state_owner_epoch(self._state(), group_id, key),
                )
                for key in keys
            ],
        )
        if address not in self._channels:
            self._channels[address] = self._network.connect(address)
        try:
            answer, _ = await self._channels[address].call(
                READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=CALL_TIMEOUT_MS
            )
        except CallFailed:
            self._silent[address] = None
            return []
        return list(answer.results)


def _has_no_state(result: SummaryResult) -> bool:
    """Whether the summary is that of a share-partition which is not initialized; state epochs begin with 1."""
    return (
        result.error_code == ErrorCode.NONE
        and result.state_epoch == 0
        and result.start_offset == UNINITIALIZED_START_OFFSET
    )
