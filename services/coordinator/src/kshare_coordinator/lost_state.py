"""The search for initialized share-partitions without state, after a start of a share coordinator.

Its store may be an older copy by then (`kshare restore --only share-coordinator`). Share-partitions that were
initialized after the backup have no state in it, so leaders would deliver none of their records, for good. The search
reads the summaries of all initialized share-partitions in the state partitions of a share coordinator that has
started, or that this coordinator sees for the first time. Those without state are begun anew
(`machine.groups.share.lost_state`).

A state partition that moves, and a share coordinator that is not ready, refuse; these share-partitions are asked for
again later. So a summary without state is never that of a state that is elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kshare_coordinator.group_state import NO_LEADER_EPOCH, NOT_READY_CODES
from kshare_coordinator.machine.commands import BeginStateAnew
from kshare_coordinator.machine.groups.share.given_up_state import initialized_in
from kshare_coordinator.machine.groups.share.offsets import share_coordinator_address
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.contained_bugs import restarted_after_bugs
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as share_pb
from kshare_rpc.generated.methods import READ_SHARE_GROUP_STATE_SUMMARY
from kshare_rpc.network import CallFailed, Network

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
            for group_id in sorted(self._due):
                numbers = self._due.pop(group_id)
                if not await self._search(group_id, numbers):
                    self._add([group_id], numbers)
            delay_s = FIRST_RETRY_S if len(self._due) < before else min(2 * delay_s, RETRY_MAX_S)
            await asyncio.sleep(delay_s)

    async def _search(self, group_id: str, numbers: frozenset[int]) -> bool:
        """Searches the state partitions for one group; False if it has to be repeated."""
        try:
            state = self._state()
            group = state.share_groups.get(group_id)
            if group is None or group.is_deleting:
                return True
            state_epoch = group.state_epoch
            found = initialized_in(numbers, state.state_partition_count, group_id, group.partitions)
            wanted = [TopicPartition(topic_id, part) for topic_id, parts in found.items() for part in parts]
            lost, is_complete = await self._without_state(group_id, wanted)
            if lost:
                command = BeginStateAnew(group_id=group_id, state_epoch=state_epoch, lost=tuple(lost))
                count = await self._begin_anew(command)
                is_complete = is_complete and count == len(lost)
                log.warning(
                    "group %s: %d of %d share-partitions have no state at their share coordinators, as after a restore "
                    "of an older backup; %d begin anew at the first record of their logs",
                    group_id,
                    len(lost),
                    len(wanted),
                    count,
                )
        except (KafkaError, StorageFailure) as failure:
            log.warning("group %s: the search for lost state failed, retrying: %s", group_id, failure)
            return isinstance(failure, KafkaError)  # the group is another coordinator's
        return is_complete

    async def _without_state(
        self, group_id: str, wanted: Sequence[TopicPartition]
    ) -> tuple[list[TopicPartition], bool]:
        """The share-partitions without state, and whether all were answered."""
        by_address: dict[str, list[TopicPartition]] = {}
        is_complete = True
        for key in wanted:
            address = share_coordinator_address(self._state(), group_id, key)
            if address is None:
                is_complete = False
            else:
                by_address.setdefault(address, []).append(key)
        lost: list[TopicPartition] = []
        for address, keys in sorted(by_address.items()):
            for first in range(0, len(keys), SHARE_PARTITIONS_PER_CALL):
                results = await self._summaries(group_id, address, keys[first : first + SHARE_PARTITIONS_PER_CALL])
                lost += [TopicPartition(each.topic_id, each.partition) for each in results if _has_no_state(each)]
                is_ready = bool(results) and not any(each.error_code in NOT_READY_CODES for each in results)
                is_complete = is_complete and is_ready
                await asyncio.sleep(PAUSE_S)
        return lost, is_complete

    async def _summaries(self, group_id: str, address: str, keys: Sequence[TopicPartition]) -> list[SummaryResult]:
        """The summaries; empty if the call failed."""
        request = share_pb.ReadShareGroupStateSummaryRequest(
            group_id=group_id,
            partitions=[
                SummaryPartition(topic_id=key.topic_id, partition=key.partition, leader_epoch=NO_LEADER_EPOCH)
                for key in keys
            ],
        )
        channel = self._network.connect(address)
        try:
            answer, _ = await channel.call(READ_SHARE_GROUP_STATE_SUMMARY, request, timeout_ms=CALL_TIMEOUT_MS)
        except CallFailed:
            return []
        finally:
            await channel.close()
        return list(answer.results)


def _has_no_state(result: SummaryResult) -> bool:
    """Whether the summary is that of a share-partition which is not initialized; state epochs begin with 1."""
    return (
        result.error_code == ErrorCode.NONE
        and result.state_epoch == 0
        and result.start_offset == UNINITIALIZED_START_OFFSET
    )
