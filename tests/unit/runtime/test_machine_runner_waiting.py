"""The runner with slow appends, against a naive model: results are visible only once they are durable.

Commands come at any time, appends are slow, fail, or succeed and say that they failed to nobody (their answer is lost
and the store reads them back as failed). The model folds the records of the appends that were confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_runtime.machine import Decision, Machine, MachineRunner
from support.simulation.loop import VirtualLoop

Told = tuple[str, int]
Record = int | Told
Runner = MachineRunner[str, Record, Any, str]


class History:
    """A list of numbers: "5" adds 5 and answers the list after it, "?" answers the list, "bad" is refused."""

    def __init__(self, numbers: Sequence[Record] = ()) -> None:
        self.numbers = list(numbers)

    def decide(self, command: str, now_ms: int) -> Decision[Record, tuple[Record, ...], str]:
        if command == "?":
            return Decision([], tuple(self.numbers))
        if command == "bad":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "bad is not a number")
        number = int(command)
        return Decision([number], (*self.numbers, number), [command])

    def replay(self, record: Record) -> None:
        if record == 13:
            raise RuntimeError("13 cannot be replayed")
        self.numbers.append(record)


def copy_of(machine: Machine[str, Record, Any, str]) -> History:
    assert isinstance(machine, History)
    return History(machine.numbers)


@dataclass(frozen=True)
class Append:
    """How an append goes: after `delay_ms`; `error` None is success. Without a delay it is done at once."""

    delay_ms: int
    error: Exception | None = None


PLANNED_BUGS = ("RuntimeError('13 cannot be replayed')", "ValueError('bug')")
"""How the reports of the bugs end that tests here plan."""


class Scene:
    """A runner whose appends go as they are told to; `durable` has what was confirmed."""

    def __init__(self, appends: Sequence[Append] = ()) -> None:
        self.appends = list(appends)
        self.durable: list[Record] = []
        self.under_way = 0
        self.did: list[str] = []
        self.is_owner = True
        self.runner: Runner = MachineRunner(
            load=History,
            append=self.append,
            act=self.did.extend,
            now_ms=lambda: 42,
            queue_limit=5,
            copy=copy_of,
            admit=self.admit,
        )

    def admit(self, command: str) -> None:
        if not self.is_owner:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, "elsewhere")

    @property
    def seen(self) -> list[Record]:
        machine = self.runner.machine
        assert isinstance(machine, History)
        return machine.numbers

    def append(self, records: Sequence[Record]) -> Awaitable[None] | None:
        assert not self.under_way, "one append at a time"
        how = self.appends.pop(0) if self.appends else Append(1)
        if how.delay_ms:
            return self._append(records, how)
        if how.error is not None:
            raise how.error
        self.durable.extend(records)
        return None

    async def _append(self, records: Sequence[Record], how: Append) -> None:
        self.under_way += 1
        try:
            await asyncio.sleep(how.delay_ms / 1000)
        finally:
            self.under_way -= 1
        if how.error is not None:
            raise how.error
        self.durable.extend(records)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(time_limit=100.0, step_limit=100_000)
    loop.run(main())
    assert [problem for problem in loop.problems if not problem.endswith(PLANNED_BUGS)] == []


def test_a_turn_ends_when_its_records_fill_an_append() -> None:
    """Many large commands at once are several appends; one of them would be refused as too large."""

    async def main() -> None:
        scene = Scene()
        appended: list[list[Record]] = []

        def append(records: Sequence[Record]) -> Awaitable[None] | None:
            appended.append(list(records))
            return scene.append(records)

        runner: Runner = MachineRunner(
            load=History,
            append=append,
            act=scene.did.extend,
            now_ms=lambda: 42,
            copy=copy_of,
            size=lambda record: 10 if record == 1_000 else 1,
            turn_bytes_limit=20,
        )
        answers = [runner.submit(text) for text in ["1000", "?", "1000", "1", "2", "1000", "1000", "3"]]
        barrier = runner.barrier()
        assert [len(await answer) for answer in answers] == [1, 1, 2, 3, 4, 5, 6, 7]
        await barrier
        assert appended == [[1_000, 1_000], [1, 2, 1_000, 1_000], [3]]
        assert scene.did == ["1000", "1000", "1", "2", "1000", "1000", "3"]

    run(main)


APPENDS = st.builds(
    Append,
    delay_ms=st.sampled_from([0, 1, 5, 50]),
    error=st.sampled_from(
        [None, None, None, StorageFailure("lost"), KafkaError(ErrorCode.NOT_COORDINATOR, "fenced"), ValueError("bug")]
    ),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit", "ask", "bad", "13", "tell", "wait", "barrier"]),
        st.integers(0, 20),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(appends=st.lists(APPENDS, max_size=12), steps=STEPS, turn_bytes_limit=st.sampled_from([0, 2]))
def test_what_is_seen_and_answered_is_what_was_confirmed(
    appends: list[Append], steps: list[tuple[str, int]], turn_bytes_limit: int
) -> None:
    async def main() -> None:
        scene = Scene(appends)
        scene.runner = MachineRunner(
            load=History,
            append=scene.append,
            act=scene.did.extend,
            now_ms=lambda: 42,
            copy=copy_of,
            size=lambda record: 1,
            turn_bytes_limit=turn_bytes_limit,
        )
        numbered = iter(range(100, 1000))
        asked: list[tuple[str, asyncio.Future[Any], int]] = []
        barriers: list[tuple[asyncio.Future[None], int]] = []
        for kind, number in steps:
            assert scene.seen == scene.durable, "seen before it is durable, or not seen though it is"
            if kind in ("submit", "ask", "bad", "13"):
                text = {"submit": str(next(numbered)), "ask": "?"}.get(kind, kind)
                asked.append((text, scene.runner.submit(text), len(scene.durable)))
            elif kind == "tell":
                told: Told = ("told", next(numbered))
                scene.runner.tell(told, lambda told=told: scene.durable.append(told))  # type: ignore[misc]
            elif kind == "barrier":
                barriers.append((scene.runner.barrier(), len(asked)))
            else:
                await asyncio.sleep(number / 1000)
            for barrier, before in barriers:
                if barrier.done():
                    assert all(future.done() for _, future, _ in asked[:before])
        answers = await asyncio.gather(*(future for _, future, _ in asked), return_exceptions=True)
        await scene.runner.barrier()
        assert all(barrier.done() for barrier, _ in barriers)
        assert scene.seen == scene.durable
        for (text, _, _), answer in zip(asked, answers, strict=True):
            check(text, answer, scene.durable)
        expected = [text for (text, _, _), answer in zip(asked, answers, strict=True) if is_stored(text, answer)]
        assert scene.did == expected, "effects of what was confirmed, in order, and of nothing else"
        assert [n for n in scene.durable if isinstance(n, int)] == [int(text) for text in expected]

    run(main)


def is_stored(text: str, answer: object) -> bool:
    return text not in ("?", "bad", "13") and not isinstance(answer, BaseException)


def check(text: str, answer: object, durable: list[Record]) -> None:
    """An answer shows a beginning of the durable history; a refusal leaves nothing of its command in it."""
    if isinstance(answer, tuple):
        assert list(answer) == durable[: len(answer)]
        assert text == "?" or answer[-1] == int(text)
    elif text == "bad" and isinstance(answer, KafkaError):
        assert answer.code in (ErrorCode.INVALID_REQUEST, ErrorCode.NOT_COORDINATOR)
    else:
        assert isinstance(answer, StorageFailure | KafkaError), answer
        assert text in ("?", "bad", "13") or int(text) not in durable


def test_commands_gather_while_an_append_takes_its_time() -> None:
    async def main() -> None:
        scene = Scene([Append(10), Append(10)])
        first = scene.runner.submit("1")
        await asyncio.sleep(0.005)
        others = [scene.runner.submit(text) for text in ("2", "?", "3")]
        assert scene.seen == [], "nothing is durable yet"
        assert await first == (1,)
        assert scene.seen == [1]
        assert await asyncio.gather(*others) == [(1, 2), (1, 2), (1, 2, 3)]
        assert asyncio.get_running_loop().time() == pytest.approx(0.02), "two appends, one for all that gathered"

    run(main)


def test_a_failed_append_leaves_no_trace_and_the_next_turn_is_decided_on_what_is_durable() -> None:
    async def main() -> None:
        scene = Scene([Append(1), Append(10, StorageFailure("no quorum")), Append(1)])
        await scene.runner.submit("1")
        lost = scene.runner.submit("2")
        await asyncio.sleep(0.005)
        later = scene.runner.submit("3")
        with pytest.raises(StorageFailure, match="no quorum"):
            await lost
        assert scene.runner.storage_failure == "no quorum"
        assert await later == (1, 3)
        assert scene.runner.storage_failure is None
        assert scene.seen == scene.durable == [1, 3]
        assert scene.did == ["1", "3"], "no effect of what was not stored"

    run(main)


def test_a_fenced_append_answers_its_error_and_is_no_failure_of_the_storage() -> None:
    async def main() -> None:
        scene = Scene([Append(1, KafkaError(ErrorCode.NOT_COORDINATOR, "fenced"))])
        first, second = scene.runner.submit("1"), scene.runner.submit("2")
        for future in (first, second):
            with pytest.raises(KafkaError) as refusal:
                await future
            assert refusal.value.code is ErrorCode.NOT_COORDINATOR
        assert scene.runner.storage_failure is None

    run(main)


def test_a_fenced_machine_is_refused_before_and_after_the_append() -> None:
    async def main() -> None:
        scene = Scene([Append(10)])
        changing, asking = scene.runner.submit("1"), scene.runner.submit("?")
        await asyncio.sleep(0.005)
        queued = scene.runner.submit("2")
        scene.is_owner = False
        with pytest.raises(StorageFailure, match="The write succeeded"):
            await changing
        for future in (asking, queued):
            with pytest.raises(KafkaError, match="elsewhere"):
                await future
        assert scene.seen == [1], "it is durable, so nobody may say that nothing was done"

    run(main)


def test_more_commands_than_the_limit_are_refused_while_an_append_takes_its_time() -> None:
    async def main() -> None:
        scene = Scene([Append(10)])
        first = scene.runner.submit("1")
        await asyncio.sleep(0.001)
        waiting = [scene.runner.submit("?") for _ in range(3)]
        scene.runner.tell(("told", 0), lambda: scene.durable.append(("told", 0)))
        waiting += [scene.runner.submit("?") for _ in range(2)]
        with pytest.raises(StorageFailure, match="more than 5"):
            await scene.runner.submit("?")
        await first
        assert len(await asyncio.gather(*waiting)) == 5

    run(main)


def test_stopping_gives_up_what_is_under_way() -> None:
    async def main() -> None:
        scene = Scene([Append(1000)])
        first = scene.runner.submit("1")
        await asyncio.sleep(0.001)
        second = scene.runner.submit("2")
        await scene.runner.stop()
        for future in (first, second):
            with pytest.raises(StorageFailure, match="closed"):
                await future
        assert scene.seen == []

    run(main)
