"""Loading of a share-partition: its stored state, cut where the log has other records, or a start offset that is found.

The state is read, and truncated where it has records that the log does not have. If there is no stored start offset,
one is found by the newest configs of the group, for which the leader may have to wait (`current_catalog`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey
from kshare_leader.machine.share_partition import SharePartition
from kshare_leader.metrics import ShareCounts
from kshare_leader.ports import TopicLog
from kshare_leader.share.current_catalog import CurrentCatalog
from kshare_leader.share.group_settings import GroupSettings
from kshare_leader.share.limits import RETRY_INTERVAL_MAX_MS
from kshare_leader.share.refused_loads import RefusedLoads
from kshare_leader.share.start_offset import (
    SharePartitionState,
    Truncation,
    find_start_offset,
    state_end_offset,
    truncated,
)
from kshare_leader.share.state_store import ShareStateStore, StateOwner


class LoadedState(NamedTuple):
    """A machine with the state. Where `reset` is not empty, its start offset is new and has to be stored first."""

    machine: SharePartition
    state_epoch: int
    truncation: Truncation
    """The newest truncation of the state."""
    reset: str = ""
    """The share.auto.offset.reset that gave the start offset."""


class StateLoader:
    """Loads one share-partition. `settings` returns those of its group in the newest catalog."""

    def __init__(
        self,
        *,
        key: SharePartitionKey,
        leader_epoch: int,
        log: TopicLog,
        store: ShareStateStore,
        catalog: CurrentCatalog,
        settings: Callable[[], GroupSettings],
        wall_now_ms: Callable[[], int],
        report: Callable[[str], None],
        counts: ShareCounts,
        refused_loads: RefusedLoads,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.log = log
        self.counts = counts
        self._store = store
        self._catalog = catalog
        self._settings = settings
        self._wall_now_ms = wall_now_ms
        self._report = report
        self._refused_loads = refused_loads

    async def load(self) -> LoadedState:
        """The loaded state, after the back-off of earlier refusals; raises KafkaError and notes it for the back-off.

        A new start offset is not stored yet: `start_offset_stored` or `refused` follows.
        """
        pause_ms = self._refused_loads.pause_ms(self.key, self.leader_epoch, self._now_ms())
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)
        try:
            loaded = await self._reported_load()
        except KafkaError:
            self.refused()
            raise
        if not loaded.reset:
            self._refused_loads.loaded(self.key)
        return loaded

    def start_offset_stored(self) -> None:
        self._refused_loads.loaded(self.key)

    def refused(self) -> None:
        self._refused_loads.refused(self.key, self.leader_epoch, self._now_ms())

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def _reported_load(self) -> LoadedState:
        """Raises KafkaError, for every problem, and has reported it."""
        try:
            return await self._load()
        except KafkaError as error:
            # A client may ask for thousands of share-partitions that its group never initialized; it is told each time.
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._report(f"share-partition {self.key} cannot be loaded: {error}")
            raise
        except StorageFailure as failure:
            self._report(f"share-partition {self.key} cannot find its start offset: {failure}")
            raise KafkaError(failure.code, str(failure)) from failure
        except Exception as bug:
            report_contained_bug(f"share-partition {self.key} failed unexpectedly while it was loaded", bug)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)) from bug

    async def _load(self) -> LoadedState:
        state = await self._read_state()
        if state.start_offset >= 0:
            machine = SharePartition(start_offset=state.start_offset, state_batches=state.state_batches)
            return LoadedState(machine, state.state_epoch, state.truncation)
        await self._catalog.catch_up(self.key)
        await self.log.refresh()
        reset = self._settings().auto_offset_reset
        start = await find_start_offset(reset, self.log, self._wall_now_ms())
        machine = SharePartition(start_offset=start, start_is_stored=False)
        return LoadedState(machine, state.state_epoch, state.truncation, reset)

    async def _read_state(self) -> SharePartitionState:
        """Reads the stored state, and truncates it first if it has records that the log does not have.

        The state is read again after a truncation, so that this leader serves the share coordinator's state.
        Raises KafkaError and StorageFailure.
        """
        cuts = 0
        while True:
            state = await self._store.read(self.key, self.leader_epoch)
            offset = await self.log.diverging_offset(state.leader_epochs, state_end_offset(state))
            if offset is None:
                return state
            if cuts:  # the share coordinator reported a truncation that did not happen
                self._report(f"the state of share-partition {self.key} was not cut at offset {offset}, trying again")
                await asyncio.sleep(RETRY_INTERVAL_MAX_MS / 1000)
            owner = StateOwner(
                self.key,
                state.state_epoch,
                self.leader_epoch,
                self.log.encoded_leader_epochs(),
                self.log.has_brokers_epochs,
            )
            await self._store.truncate(owner, truncated(state, offset))
            if not cuts:
                self._report_truncation(state, offset)
            cuts += 1

    def _report_truncation(self, state: SharePartitionState, offset: int) -> None:
        state_end, log_end = state_end_offset(state), self.log.high_watermark
        why = "the log ends there" if offset == log_end else "the log has other records from there on"
        self.counts.note_truncated(state_end - offset)
        self._report(
            f"the state of share-partition {self.key} was cut at offset {offset}: {why}. The state had start offset "
            f"{state.start_offset} and knew offsets up to {state_end - 1}; the log of partition "
            f"{self.key.partition} has offsets {self.log.log_start_offset} to {log_end - 1}. What was acknowledged at "
            f"offset {offset} or later was of records that are lost, or an administrator set a start offset beyond the "
            "log's end. All records that are in the log from there on will be delivered"
        )
