"""The shell around classic groups: calls of JoinGroup and SyncGroup that wait for their answer, and timers.

The machine decides, and its effects (`groups.classic.timers`) are carried out here. Waiting calls and timers are not
stored. When the machine is reloaded after a failed write, it has lost a rebalance in progress. All waiting calls then
get NOT_COORDINATOR, which clients retry, and every member gets a full session timeout, as after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from kshare_coordinator.core import Core
from kshare_coordinator.deadlines import Deadlines
from kshare_coordinator.machine import commands
from kshare_coordinator.machine.groups.classic.timers import (
    ClassicGroupEffect,
    ClassicTimer,
    ClassicTimerCancelled,
    ClassicTimerSet,
    WaitingCallAnswered,
)
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

STORAGE_RETRY_MS = 1_000
"""Delay before an expired timer is retried whose command failed."""

log = logging.getLogger(__name__)

WaitingAnswer = pb.JoinGroupResponse | pb.SyncGroupResponse | ErrorCode


class ClassicGroupCalls:
    """Waiting calls and timers; see the module's text. A call is answered with a message or a retriable code."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timers: Deadlines[ClassicTimer] = Deadlines(self._expired)
        self._waiting: dict[int, asyncio.Future[WaitingAnswer]] = {}
        self._groups: dict[int, str] = {}
        """Group ids of waiting calls, by call id."""
        self._last_call_id = 0
        self._is_stopping = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        core.on_reload = self._reloaded

    async def resume(self, group_partition: int | None = None) -> None:
        """Resumes groups after a load; StorageFailure if the write fails. None: all groups of this coordinator."""
        await self._core.submit(commands.ResumeClassicGroups(group_partition=group_partition))

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Drops groups that another coordinator has gained; their waiting calls get NOT_COORDINATOR."""
        self._timers.forget(lambda timer: is_meant(timer.group_id))
        for call_id, waiting in self._waiting.items():
            if is_meant(self._groups[call_id]) and not waiting.done():
                waiting.set_result(ErrorCode.NOT_COORDINATOR)

    async def join(self, request: pb.JoinGroupRequest, new_member_suffix: str) -> WaitingAnswer:
        """Waits as long as the rebalance takes; raises KafkaError or StorageFailure."""
        call_id, waiting = self._new_call(request.group_id)
        try:
            answer = await self._core.submit(
                commands.JoinGroup(request=request, call_id=call_id, new_member_suffix=new_member_suffix)
            )
            return await self._wait(waiting) if answer is None else answer
        finally:
            self._end_call(call_id)

    async def sync(self, request: pb.SyncGroupRequest) -> WaitingAnswer:
        """Waits for the leader's assignment; raises KafkaError or StorageFailure."""
        call_id, waiting = self._new_call(request.group_id)
        try:
            answer = await self._core.submit(commands.SyncGroup(request=request, call_id=call_id))
            return await self._wait(waiting) if answer is None else answer
        finally:
            self._end_call(call_id)

    async def _wait(self, waiting: asyncio.Future[WaitingAnswer]) -> WaitingAnswer:
        if self._is_stopping:
            self.release()
        return await waiting

    def _new_call(self, group_id: str) -> tuple[int, asyncio.Future[WaitingAnswer]]:
        """Registers a call before its command is decided, because the same turn may answer it."""
        self._last_call_id += 1
        waiting: asyncio.Future[WaitingAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[self._last_call_id] = waiting
        self._groups[self._last_call_id] = group_id
        return self._last_call_id, waiting

    def _end_call(self, call_id: int) -> None:
        self._waiting.pop(call_id, None)
        self._groups.pop(call_id, None)

    def carry_out(self, effect: ClassicGroupEffect) -> None:
        match effect:
            case ClassicTimerSet(timer=timer, delay_ms=delay_ms, only_if_absent=only_if_absent):
                if not (only_if_absent and timer in self._timers):
                    self._timers.set(timer, max(0, delay_ms))
            case ClassicTimerCancelled(timer=timer):
                self._timers.remove(timer)
            case WaitingCallAnswered(call_id=call_id, answer=answer):
                waiting = self._waiting.get(call_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
            case _:
                assert_never(effect)

    def release(self) -> None:
        """Answers all waiting calls with NOT_COORDINATOR: the coordinator stops, or its machine was reloaded."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(ErrorCode.NOT_COORDINATOR)

    def begin_stop(self) -> None:
        """Answers all waiting calls and lets no further ones wait."""
        self._is_stopping = True
        self.release()

    async def stop(self) -> None:
        self.begin_stop()
        self._timers.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._timers.stop()

    def _reloaded(self) -> None:
        self.release()
        self._timers.stop()
        self._start(self._resume_after_reload())

    async def _resume_after_reload(self) -> None:
        try:
            await self.resume()
        except StorageFailure as failure:  # the next load resumes again
            log.error("classic groups could not be resumed: %s", failure)

    def _expired(self, timers: list[ClassicTimer]) -> None:
        for timer in timers:
            self._start(self._expire(timer))

    async def _expire(self, timer: ClassicTimer) -> None:
        try:
            await self._core.earlier_decided()
            if timer in self._timers:  # what extends it waited for a write until now
                return
            await self._core.submit(commands.ClassicTimerExpired(timer=timer))
        except (KafkaError, StorageFailure) as failure:
            log.error(
                "group %s: the expiry of a %s timer could not be written, retrying: %s",
                timer.group_id,
                timer.kind,
                failure,
            )
            if timer not in self._timers and self._core.keeps_group(timer.group_id):
                self._timers.set(timer, STORAGE_RETRY_MS)
            return
        if timer.member_id:
            log.info("group %s: the %s timer of member %s expired", timer.group_id, timer.kind, timer.member_id)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
