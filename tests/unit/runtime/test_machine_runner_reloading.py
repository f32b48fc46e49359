"""The runner of one machine with slow appends, which is loaded again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_runtime.machine import Decision, MachineRunner
from support.simulation.loop import VirtualLoop


class Sums:
    """A number: a command adds to it, and answers the sum."""

    def __init__(self, total: int) -> None:
        self.total = total

    def decide(self, command: int, now_ms: int) -> Decision[int, int, None]:
        return Decision([command] if command else [], self.total + command)

    def replay(self, record: int) -> None:
        self.total += record


class SlowDisk:
    """An append takes a second, and fails while `failures` are left."""

    def __init__(self) -> None:
        self.appends: list[list[int]] = []
        self.failures = 0

    async def append(self, records: Sequence[int]) -> None:
        await asyncio.sleep(1)
        if self.failures:
            self.failures -= 1
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log is claimed again")
        self.appends.append(list(records))

    def runner(self) -> MachineRunner[int, int, int, None]:
        return MachineRunner(
            load=lambda: Sums(sum(map(sum, self.appends))),
            append=self.append,
            act=lambda effects: None,
            now_ms=lambda: 0,
        )


def test_turns_are_serial_and_decided_on_durable_state() -> None:
    async def body() -> None:
        disk = SlowDisk()
        runner = disk.runner()
        first = [runner.submit(1), runner.submit(2)]
        await asyncio.sleep(0.5)
        second = [runner.submit(0), runner.submit(4)]
        await asyncio.sleep(0)
        assert not any(future.done() for future in (*first, *second)), "a read waits for the append before it"
        assert await asyncio.gather(*first, *second) == [1, 3, 3, 7]
        assert disk.appends == [[1, 2], [4]]

    VirtualLoop().run(body())


def test_a_failed_append_leaves_the_state_that_was_durable() -> None:
    async def body() -> None:
        disk = SlowDisk()
        runner = disk.runner()
        assert await runner.submit(5) == 5
        disk.failures = 1
        failed = runner.submit(100)
        await asyncio.sleep(0.5)
        waiting = runner.submit(1)
        with pytest.raises(KafkaError, match="claimed again"):
            await failed
        assert await waiting == 6
        assert disk.appends == [[5], [1]]
        assert runner.storage_failure is None

    VirtualLoop().run(body())


def test_a_barrier_waits_for_the_append() -> None:
    async def body() -> None:
        disk = SlowDisk()
        runner = disk.runner()
        written = runner.submit(1)
        before, during = runner.barrier(), None
        await asyncio.sleep(0.5)
        during = runner.barrier()
        assert not before.done() and not during.done()
        await asyncio.gather(before, during)
        assert written.done() and disk.appends == [[1]]
        assert runner.barrier().done(), "nothing is under way"

    VirtualLoop().run(body())
