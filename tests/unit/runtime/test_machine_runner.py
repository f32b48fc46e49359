"""The runner's promises: one append for a turn, nothing before it is durable, and no failure reaches others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_runtime.machine import Decision, MachineRunner
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyValueStore, Write

Runner = MachineRunner[str, int, int, str]


class Sum:
    """Adds numbers: "5" adds 5 and answers the sum after it, "?" answers the sum, "bad" is refused."""

    def __init__(self) -> None:
        self.total = 0
        self.count = 0

    def decide(self, command: str, now_ms: int) -> Decision[int, int, str]:
        if command == "?":
            return Decision([], self.total)
        if command == "bad":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "bad is not a number")
        number = int(command)
        return Decision([number], self.total + number, [f"{command} at {now_ms}"])

    def replay(self, record: int) -> None:
        if record == 13:
            raise RuntimeError("13 cannot be replayed")
        self.total += record
        self.count += 1


class Scene:
    """A runner over a memory store, and what it did."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store: KeyValueStore = self.disk.open_store("sum")
        self.did: list[str] = []
        self.append_error: Exception | None = None
        self.load_error: StorageFailure | None = None
        self.load_count = 0
        self.refuses_writes = False
        self.runner: Runner = MachineRunner(
            load=self.load,
            append=self.append,
            act=self.act,
            now_ms=lambda: 42,
            queue_limit=5,
            check_writable=self.check_writable,
        )

    def check_writable(self, records: Sequence[int]) -> None:
        if self.refuses_writes:
            raise StorageFailure(f"refuses {list(records)}")

    def load(self) -> Sum:
        self.load_count += 1
        if self.load_error is not None:
            raise self.load_error
        machine = Sum()
        for _, value in self.store.scan("numbers", b""):
            machine.replay(int(value))
        return machine

    def append(self, records: Sequence[int]) -> None:
        self.did.append(f"append {list(records)}")
        if self.append_error is not None:
            raise self.append_error
        machine = self.runner.machine
        assert isinstance(machine, Sum)
        first = machine.count - len(records)
        self.store.write([Write("numbers", b"%04d" % (first + n), b"%d" % r) for n, r in enumerate(records)])

    def act(self, effects: Sequence[str]) -> None:
        self.did.append(f"act {list(effects)}")

    async def submit(self, *commands: str) -> list[Any]:
        return await asyncio.gather(*[self.runner.submit(command) for command in commands], return_exceptions=True)


def run(play: Callable[[Scene], Any]) -> None:
    async def main() -> None:
        await play(Scene())

    asyncio.run(main())


def test_the_commands_of_a_turn_are_one_append() -> None:
    async def play(scene: Scene) -> None:
        assert await scene.submit("1", "2", "?", "3") == [1, 3, 3, 6]
        assert scene.did == ["append [1, 2, 3]", "act ['1 at 42', '2 at 42', '3 at 42']"]
        assert await scene.submit("4") == [10]
        assert scene.did[2:] == ["append [4]", "act ['4 at 42']"]

    run(play)


def test_a_turn_without_records_does_not_touch_the_disk() -> None:
    async def play(scene: Scene) -> None:
        scene.disk.fail_next_writes(1)
        assert await scene.submit("?", "?") == [0, 0]
        assert scene.did == []

    run(play)


def test_nothing_is_answered_before_the_append() -> None:
    async def play(scene: Scene) -> None:
        future = scene.runner.submit("1")
        scene.append_error = StorageFailure("looked")
        assert not future.done()
        with pytest.raises(StorageFailure, match="looked"):
            await future

    run(play)


def test_a_refused_command_does_not_affect_others() -> None:
    async def play(scene: Scene) -> None:
        first, bad, third, last = await scene.submit("1", "bad", "x", "2")
        assert (first, last) == (1, 3)
        assert isinstance(bad, KafkaError)
        assert isinstance(third, ValueError)
        assert scene.did == ["append [1, 2]", "act ['1 at 42', '2 at 42']"]

    run(play)


def test_what_the_store_refuses_is_not_applied_and_nothing_is_loaded_again() -> None:
    async def play(scene: Scene) -> None:
        scene.disk.fail_next_writes(1)
        assert [type(answer) for answer in await scene.submit("1")] == [StorageFailure]
        assert scene.load_count == 2, "at the start and after the failed append"
        machine, scene.refuses_writes = scene.runner.machine, True
        for number in range(10):
            refused, read, bad, other = await scene.submit(f"{number}", "?", "bad", "5")
            assert isinstance(refused, StorageFailure) and str(refused) == f"refuses [{number}]"
            assert isinstance(other, StorageFailure) and read == 0 and isinstance(bad, KafkaError)
        assert scene.runner.storage_failure is not None, "nothing was written since"
        assert scene.load_count == 2 and scene.runner.machine is machine
        assert scene.did == ["append [1]"], "it is not tried, and no effect is carried out"
        scene.refuses_writes = False
        assert await scene.submit("7", "?") == [7, 7]
        assert scene.load_count == 2 and scene.runner.storage_failure is None

    run(play)


def test_a_failed_append_fails_the_turn_and_leaves_no_trace() -> None:
    async def play(scene: Scene) -> None:
        await scene.submit("1")
        scene.disk.fail_next_writes(1, "No space left on device")
        answers = await scene.submit("2", "?", "bad", "3")
        assert [type(answer) for answer in answers] == [StorageFailure] * 4
        assert "No space left on device" in str(answers[0])
        assert "No space left on device" in str(scene.runner.storage_failure)
        assert scene.did == ["append [1]", "act ['1 at 42']", "append [2, 3]"]
        assert await scene.submit("?") == [1]
        assert await scene.submit("4") == [5]
        assert scene.runner.storage_failure is None

    run(play)


@pytest.mark.parametrize("bug", ["append", "replay"])
def test_a_bug_fails_the_turn_and_leaves_no_trace(bug: str) -> None:
    async def play(scene: Scene) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        await scene.submit("1")
        if bug == "append":
            scene.append_error = TypeError("a bug")
        answers = await scene.submit("2", "13" if bug == "replay" else "3", "4")
        assert [type(answer) for answer in answers] == [StorageFailure] * 3
        assert ("TypeError: a bug" if bug == "append" else "13 cannot be replayed") in str(answers[2])
        assert not any(text.startswith("act ['2") for text in scene.did)
        scene.append_error = None
        assert await scene.submit("?", "5") == [1, 6]
        expected = TypeError if bug == "append" else RuntimeError
        assert [type(context["exception"]) for context in reported] == [expected], "it is not taken for a failing disk"

    run(play)


def test_a_store_that_cannot_be_read_is_tried_again_before_anything_is_answered() -> None:
    async def play(scene: Scene) -> None:
        await scene.submit("1")
        scene.disk.fail_next_writes(1, "bad sector")
        scene.load_error = StorageFailure("still a bad sector")
        for command in ("2", "?"):
            (answer,) = await scene.submit(command)
            assert isinstance(answer, StorageFailure)
            assert "still a bad sector" in str(scene.runner.storage_failure)
        scene.load_error = None
        assert await scene.submit("?", "2") == [1, 3]
        assert scene.runner.storage_failure is None

    run(play)


def test_more_commands_than_the_queue_takes() -> None:
    async def play(scene: Scene) -> None:
        answers = await scene.submit("1", "1", "1", "1", "1", "1")
        assert answers[:5] == [1, 2, 3, 4, 5]
        assert isinstance(answers[5], StorageFailure)
        assert "more than 5 commands" in str(answers[5])
        assert await scene.submit("1") == [6]

    run(play)


def test_a_cancelled_caller_does_not_affect_others() -> None:
    async def play(scene: Scene) -> None:
        gone = scene.runner.submit("1")
        stays = scene.runner.submit("2")
        gone.cancel()
        assert await stays == 3
        scene.disk.fail_next_writes(1)
        gone, stays = scene.runner.submit("1"), scene.runner.submit("2")
        gone.cancel()
        with pytest.raises(StorageFailure):
            await stays

    run(play)


def test_a_barrier_is_done_when_all_that_was_submitted_before_is_written() -> None:
    async def play(scene: Scene) -> None:
        assert scene.runner.barrier().done(), "nothing waits"
        answers = [scene.runner.submit("1"), scene.runner.submit("2")]
        barrier = scene.runner.barrier()
        after = scene.runner.submit("3")
        assert not barrier.done()
        await barrier
        assert [answer.result() for answer in answers] == [1, 3]
        assert scene.did[0] == "append [1, 2, 3]"
        assert await after == 6

    run(play)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_barrier_is_done_after_a_turn_that_failed_too(given_up: bool) -> None:
    async def play(scene: Scene) -> None:
        answer = scene.runner.submit("1")
        abandoned, barrier = scene.runner.barrier(), scene.runner.barrier()
        if given_up:
            abandoned.cancel()
        scene.append_error = StorageFailure("full")
        await barrier
        with pytest.raises(StorageFailure, match="full"):
            answer.result()

    run(play)


def test_a_refused_command_leaves_nothing_to_the_cycle_collector() -> None:
    async def main() -> None:
        scene = Scene()
        for _ in range(3):
            with pytest.raises(KafkaError):
                await scene.runner.submit("bad")
        await asyncio.sleep(0)
        assert not [
            each for each in gc.get_objects() if isinstance(each, KafkaError) and "is not a number" in str(each)
        ]

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
