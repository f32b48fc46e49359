"""The loop that owns a pure machine: decide, append, replay, respond, act.

A machine is a plain object with two methods. `decide(command, now_ms)` looks, never changes anything, and returns a
Decision: records to append, a response, and effects for the shell to carry out. `replay(record)` is the only way that
its state changes, for live commands and at load alike.

The runner takes all commands that came in during one turn of the event loop, and in one uninterrupted call: decides and
replays each in order, appends all their records with one fsync, then answers them and hands their effects to the shell.
Nobody can look at the machine in between, so state that is not durable is never seen. When the append fails, the
machine is loaded again from the store, every command of the turn is answered with StorageFailure, and no effect of it
is carried out. A `replay` or `append` that raises anything else is a bug and ends its turn in the same way: what is in
memory is never more than what is on the disk. When the store cannot be read either, each turn tries again first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kshare_core.errors import StorageFailure

Command_contra = TypeVar("Command_contra", contravariant=True)
Record = TypeVar("Record")
Record_co = TypeVar("Record_co", covariant=True)
Response_co = TypeVar("Response_co", covariant=True)
Effect_co = TypeVar("Effect_co", covariant=True)
Command = TypeVar("Command")
Response = TypeVar("Response")
Effect = TypeVar("Effect")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Record_co, Response_co, Effect_co]):
    """What a machine answers to a command: `records` to append, the `response`, and `effects` after the append."""

    records: Sequence[Record_co]
    response: Response_co
    effects: Sequence[Effect_co] = ()


class Machine(Protocol[Command_contra, Record, Response_co, Effect_co]):
    """A pure state machine; see the module's text."""

    def decide(self, command: Command_contra, now_ms: int) -> Decision[Record, Response_co, Effect_co]: ...

    def replay(self, record: Record) -> None: ...


class MachineRunner(Generic[Command, Record, Response, Effect]):
    """Runs one machine on the event loop; see the module's text.

    `load` builds the machine from the store; `append` makes records durable or raises StorageFailure; `act` carries
    out effects (it may start tasks, but must not block); `now_ms` is the wall clock.
    """

    def __init__(
        self,
        *,
        load: Callable[[], Machine[Command, Record, Response, Effect]],
        append: Callable[[Sequence[Record]], None],
        act: Callable[[Sequence[Effect]], None],
        now_ms: Callable[[], int],
        queue_limit: int = 10_000,
    ) -> None:
        self._load = load
        self._append = append
        self._act = act
        self._now_ms = now_ms
        self._queue_limit = queue_limit
        self._queue: list[tuple[Command, asyncio.Future[Response]]] = []
        self._turn: asyncio.Handle | None = None
        self._barriers: list[asyncio.Future[None]] = []
        self.machine = load()
        self._stale = False
        """Whether `machine` may hold what is not durable, because it could not be loaded again."""
        self.storage_failure: str | None = None
        """Why the newest append failed, None after one that succeeded; the health check shows it."""

    def submit(self, command: Command) -> asyncio.Future[Response]:
        """The response, when the command's records are durable; StorageFailure when they could not be made so."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        if len(self._queue) >= self._queue_limit:
            future.set_exception(StorageFailure(f"more than {self._queue_limit} commands are waiting for the disk"))
            return future
        self._queue.append((command, future))
        if self._turn is None:
            self._turn = loop.call_soon(self._run_turn)
        return future

    def barrier(self) -> asyncio.Future[None]:
        """Done when every command that was submitted before has been decided and its records are written, or failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._turn is None:
            future.set_result(None)
        else:
            self._barriers.append(future)
        return future

    def _run_turn(self) -> None:
        self._turn = None
        barriers, self._barriers = self._barriers, []
        self._take_turn()
        for future in barriers:
            if not future.done():
                future.set_result(None)

    def _take_turn(self) -> None:
        queue, self._queue = self._queue, []
        records: list[Record] = []
        answers: list[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]] = []
        try:
            if self._stale:
                self._reload()
            for command, future in queue:
                answers.append((future, self._decide(command, records)))
            if records:
                self._append(records)
                self.storage_failure = None
        except Exception as failure:  # StorageFailure, or a bug in replay or append
            self._fail(failure, [future for _, future in queue])
            return
        effects: list[Effect] = []
        for future, answer in answers:
            if isinstance(answer, Exception):
                if not future.done():
                    future.set_exception(answer)
                continue
            effects.extend(answer.effects)
            if not future.done():
                future.set_result(answer.response)
        if effects:
            self._act(effects)

    def _decide(self, command: Command, records: list[Record]) -> Decision[Record, Response, Effect] | Exception:
        try:
            decision = self.machine.decide(command, self._now_ms())
        except Exception as error:  # a bug or bad input ends this command, never the loop
            return error
        for record in decision.records:
            self.machine.replay(record)
        records.extend(decision.records)
        return decision

    def _fail(self, failure: Exception, futures: Sequence[asyncio.Future[Response]]) -> None:
        text = str(failure) if isinstance(failure, StorageFailure) else f"{type(failure).__name__}: {failure}"
        self.storage_failure = text
        self._stale = True
        try:
            self._reload()
        except Exception as unreadable:  # answered below; the next turn tries again
            self.storage_failure = f"{text}; {unreadable}"
        for future in futures:
            if not future.done():
                error = StorageFailure(text)
                error.__cause__ = failure
                future.set_exception(error)

    def _reload(self) -> None:
        self.machine = self._load()
        self._stale = False
