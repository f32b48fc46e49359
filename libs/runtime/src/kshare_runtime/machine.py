"""The loop that runs a pure state machine: decide, append, replay, respond, act.

A machine is a plain object with two methods. `decide(command, now_ms)` never changes anything and returns a Decision:
records to append, a response, and effects for the shell to carry out. `replay(record)` is the only method that changes
its state, for live commands and at load alike.

The runner takes all commands that arrived during one turn of the event loop. In one uninterrupted call it decides and
replays each in order, appends all their records with one fsync, answers them and hands their effects to the shell. The
machine cannot be read in between, so state that is not durable is never seen. A command whose records the store is
known to refuse is answered with StorageFailure before they are replayed. When the append fails, the machine is
loaded again from the store, every command of the turn is answered with StorageFailure, and no effect of it is carried
out. A `replay` or `append` that raises anything else is a bug and ends its turn in the same way, so the state in memory
is never ahead of the disk. A bug is also reported to the event loop's exception handler, so that it is not taken for a
disk failure. When the store cannot be read either, each turn first tries to load it again.

An append may also be asynchronous, where the store is not a disk of this process. Then there are two machines. A turn
is decided on the *deciding* machine. When its append has completed, its records are replayed on the *durable* machine,
the only one visible outside, and the turn is answered. Meanwhile commands queue up for the next turn. When the append
fails, the deciding machine is replaced by a copy of the durable one. Records of other owners of the store (`tell`) go
through the same queue, so that both machines replay them at the same place in their histories.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from kshare_core.contained_bugs import report_contained_bug
from kshare_core.contexts import context_of_no_request
from kshare_core.errors import KafkaError, StorageFailure
from kshare_fastpath.prompt_future import PromptFuture

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
    """The result of `decide`: `records` to append, the `response`, and `effects` to carry out after the append."""

    records: Sequence[Record_co]
    response: Response_co
    effects: Sequence[Effect_co] = ()


class Machine(Protocol[Command_contra, Record, Response_co, Effect_co]):
    """A pure state machine; the module's docstring has the rules."""

    def decide(self, command: Command_contra, now_ms: int) -> Decision[Record, Response_co, Effect_co]: ...

    def replay(self, record: Record) -> None: ...


class MachineRunner(Generic[Command, Record, Response, Effect]):
    """The runner of one machine on the event loop.

    `load` builds the machine from the store. `append` makes records durable or raises StorageFailure (or a KafkaError,
    which then answers every command). `act` carries out effects (it may start tasks, but must not block). `now_ms` is
    the wall clock.

    Nothing is decided while an `append` that returned an awaitable is under way. `copy` returns an equal, independent
    machine: the durable one, which others may read meanwhile. Without it a failure loads the machine again, so `load`
    must give what is durable. `check_writable` raises StorageFailure where it is known that `append` would refuse the
    records of one command: the command gets the error, the others of its turn go on, and nothing is loaded again.
    `admit` raises where a command must not be decided, or must not be answered any more after an asynchronous append
    (StorageFailure where it changed something). With `turn_bytes_limit`, a turn ends when its records have that many
    bytes by `size`; an append exceeds the limit by the records of its last command at most.
    """

    def __init__(
        self,
        *,
        load: Callable[[], Machine[Command, Record, Response, Effect]],
        append: Callable[[Sequence[Record]], Awaitable[None] | None],
        act: Callable[[Sequence[Effect]], None],
        now_ms: Callable[[], int],
        queue_limit: int = 10_000,
        copy: Callable[[Machine[Command, Record, Response, Effect]], Machine[Command, Record, Response, Effect]]
        | None = None,
        check_writable: Callable[[Sequence[Record]], None] = lambda records: None,
        admit: Callable[[Command], None] | None = None,
        size: Callable[[Record], int] = lambda record: 0,
        turn_bytes_limit: int = 0,
    ) -> None:
        self._load = load
        self._append = append
        self._act = act
        self._now_ms = now_ms
        self._queue_limit = queue_limit
        self._copy = copy
        self._check_writable = check_writable
        self._admit = admit
        self._size = size
        self._turn_bytes_limit = turn_bytes_limit
        self._queue: list[tuple[Command, asyncio.Future[Response]]] = []
        self._parts: deque[list[tuple[Command, asyncio.Future[Response]]] | Callable[[], None]] = deque()
        """The parts of the queue before `_queue`: lists of commands, and callbacks between them."""
        self._turn: asyncio.Handle | None = None
        self._context = context_of_no_request()
        """The context of all turns: a turn serves many requests and belongs to none of them."""
        self._barriers: list[asyncio.Future[None]] = []
        self._appending: asyncio.Future[None] | None = None
        self._is_stopped = False
        self.machine = load()
        """The durable machine: its state is on disk."""
        self._deciding = self.machine if copy is None else copy(self.machine)
        self._stale = False
        """Whether `machine` may have state that is not durable, because it could not be loaded again."""
        self.storage_failure: str | None = None
        """The error of the newest append, None after a successful one; the health check shows it."""

    def submit(self, command: Command) -> asyncio.Future[Response]:
        """The response, once the command's records are durable; StorageFailure where they could not be written."""
        loop = asyncio.get_running_loop()
        future: PromptFuture[Response] = PromptFuture(loop=loop)
        if len(self._queue) >= self._queue_limit or (self._parts and self._waiting() >= self._queue_limit):
            future.set_exception(StorageFailure(f"more than {self._queue_limit} commands are waiting for the disk"))
            return future
        self._queue.append((command, future))
        if self._turn is None and self._appending is None:
            self._turn = loop.call_soon(self._run_turn, context=self._context)
        return future

    def tell(self, record: Record | None, then: Callable[[], None] = lambda: None) -> None:
        """Queues a record of another owner of the store: it is replayed in its turn, not appended; then `then` runs.

        None: no record that the machine must replay.
        """
        assert self._copy is not None, "only a store with several owners tells what others did"

        def hear() -> None:
            if record is not None:
                self._deciding.replay(record)
                self.machine.replay(record)
            then()

        self._put(hear)

    def replace(self, machine: Machine[Command, Record, Response, Effect]) -> None:
        """Replaces the machine, when the store can be read again."""
        self.machine = self._deciding = machine if self._copy is None else self._copy(machine)

    def barrier(self) -> asyncio.Future[None]:
        """Done when every command submitted before was decided and its records are written, or failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._turn is None and self._appending is None:
            future.set_result(None)
        elif self._copy is None and self._appending is None:
            self._barriers.append(future)
        else:
            self._put(partial(_release, future))
        return future

    async def stop(self) -> None:
        """Cancels the append in flight; waiting commands get StorageFailure. Nothing may be submitted afterwards."""
        self._is_stopped = True
        if self._appending is not None:
            self._appending.cancel()
            await asyncio.gather(self._appending, return_exceptions=True)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        parts, self._parts = [*self._parts, self._queue], deque()
        self._queue = []
        for part in parts:
            if isinstance(part, list):
                _refuse([future for _, future in part], StorageFailure("the store is being closed"))

    def _waiting(self) -> int:
        return len(self._queue) + sum(len(part) for part in self._parts if isinstance(part, list))

    def _put(self, part: Callable[[], None]) -> None:
        if self._queue:
            self._parts.append(self._queue)
            self._queue = []
        self._parts.append(part)
        self._go_on()

    def _go_on(self) -> None:
        is_idle = self._turn is None and self._appending is None and not self._is_stopped
        if is_idle and (self._parts or self._queue):
            self._turn = asyncio.get_running_loop().call_soon(self._run_turn, context=self._context)

    def _run_turn(self) -> None:
        self._turn = None
        barriers, self._barriers = self._barriers, []
        try:
            self._take_turn()
        finally:
            self._go_on()
        for future in barriers:
            if self._appending is not None:
                self._put(partial(_release, future))
            else:
                _release(future)

    def _take_turn(self) -> None:
        while self._parts:
            part = self._parts.popleft()
            if not isinstance(part, list):
                part()
            elif self._waits_for(part):
                return
        queue, self._queue = self._queue, []
        self._waits_for(queue)

    def _waits_for(self, queue: list[tuple[Command, asyncio.Future[Response]]]) -> bool:
        """Decides the commands and answers them; True where their append is asynchronous and the answers come later."""
        records: list[Record] = []
        answers: list[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]] = []
        try:
            if self._stale:
                self._reload()
            self._decide_turn(queue, records, answers)
            waiting = self._append(records) if records else None
            if isinstance(waiting, PromptFuture):
                self._appending = waiting
                waiting.listen(partial(self._appended, queue, records, answers))
                return True
            if waiting is not None:
                finishing = self._finish(waiting, queue, records, answers)
                self._appending = asyncio.get_running_loop().create_task(finishing)
                return True
            self._confirm(records)
        except Exception as failure:  # StorageFailure, or a bug in replay or append
            self._fail(failure, [future for _, future in queue])
            return False
        self._answer(answers)
        return False

    def _decide_turn(
        self,
        queue: list[tuple[Command, asyncio.Future[Response]]],
        records: list[Record],
        answers: list[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]],
    ) -> None:
        """Decides commands until their records reach `turn_bytes_limit`; the other commands wait for a turn."""
        size = sized = 0
        for command, future in queue:
            answers.append((future, self._decide(command, records)))
            if self._turn_bytes_limit and len(records) > sized:
                size += sum(map(self._size, records[sized:]))
                sized = len(records)
                if size >= self._turn_bytes_limit and len(answers) < len(queue):
                    self._parts.appendleft(queue[len(answers) :])
                    del queue[len(answers) :]
                    return

    def _decide(self, command: Command, records: list[Record]) -> Decision[Record, Response, Effect] | Exception:
        try:
            if self._admit is not None:
                self._admit(command)
            decision = self._deciding.decide(command, self._now_ms())
            if decision.records:
                self._check_writable(decision.records)
        except (KafkaError, StorageFailure) as refusal:
            # A traceback holds the frames of all callers, and theirs the refusal: garbage of each refused command.
            return refusal.with_traceback(None)
        except Exception as error:  # a bug or bad input ends this command, never the loop
            return error
        for record in decision.records:
            self._deciding.replay(record)
        records.extend(decision.records)
        return decision

    def _confirm(self, records: Sequence[Record]) -> None:
        """Applies durable records to the durable machine."""
        if not records:
            return
        self.storage_failure = None
        if self._deciding is not self.machine:
            for record in records:
                self.machine.replay(record)

    def _answer(
        self, answers: Sequence[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]]
    ) -> None:
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

    async def _finish(
        self,
        waiting: Awaitable[None],
        queue: Sequence[tuple[Command, asyncio.Future[Response]]],
        records: Sequence[Record],
        answers: Sequence[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]],
    ) -> None:
        try:
            await waiting
            self._confirm_and_answer(queue, records, answers)
        except asyncio.CancelledError:
            self._fail(StorageFailure("the store is being closed"), [future for _, future in queue])
            raise
        except Exception as failure:
            self._fail(failure, [future for _, future in queue])
        finally:
            self._appending = None
            self._go_on()

    def _appended(
        self,
        queue: Sequence[tuple[Command, asyncio.Future[Response]]],
        records: Sequence[Record],
        answers: Sequence[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]],
        appended: asyncio.Future[None],
    ) -> None:
        """As `_finish`, without a task."""
        try:
            appended.result()
            self._confirm_and_answer(queue, records, answers)
        except asyncio.CancelledError:
            self._fail(StorageFailure("the store is being closed"), [future for _, future in queue])
        except Exception as failure:
            self._fail(failure, [future for _, future in queue])
        finally:
            self._appending = None
            self._go_on()

    def _confirm_and_answer(
        self,
        queue: Sequence[tuple[Command, asyncio.Future[Response]]],
        records: Sequence[Record],
        answers: Sequence[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]],
    ) -> None:
        """Ends a turn whose records became durable after it."""
        self._confirm(records)
        self._refuse_late(queue, answers)
        self._answer(answers)

    def _refuse_late(
        self,
        queue: Sequence[tuple[Command, asyncio.Future[Response]]],
        answers: Sequence[tuple[asyncio.Future[Response], Decision[Record, Response, Effect] | Exception]],
    ) -> None:
        """Refuses commands that must not be answered any more.

        The records of a command that changed something are durable, so its answer must not say that nothing was done.
        """
        if self._admit is None:
            return
        for (command, future), (_, answer) in zip(queue, answers, strict=True):
            try:
                self._admit(command)
            except Exception as refusal:  # the error of admit is the answer
                has_changed = isinstance(answer, Decision) and answer.records
                _refuse(
                    [future], StorageFailure(f"The write succeeded, but then: {refusal}") if has_changed else refusal
                )

    def _fail(self, failure: Exception, futures: Sequence[asyncio.Future[Response]]) -> None:
        error: Exception = failure
        if not isinstance(failure, KafkaError):
            text = str(failure)
            if not isinstance(failure, StorageFailure):
                text = f"{type(failure).__name__}: {failure}"
                report_contained_bug("a turn of a state machine failed with an unexpected error", failure)
            self.storage_failure = text
            error = StorageFailure(text)
        self._stale = True
        try:
            self._reload()
        except Exception as unreadable:  # answered below; the next turn tries again
            self.storage_failure = f"{self.storage_failure}; {unreadable}"
        for future in futures:
            _refuse([future], _caused_by(error, failure))

    def _reload(self) -> None:
        if self._copy is None:
            self.machine = self._deciding = self._load()
        else:
            self._deciding = self._copy(self.machine)
        self._stale = False


def _release(barrier: asyncio.Future[None]) -> None:
    if not barrier.done():
        barrier.set_result(None)


def _caused_by(error: Exception, failure: Exception) -> Exception:
    """A separate exception for each waiting command: the traceback of a shared one would grow with each of them."""
    if isinstance(error, KafkaError):
        own: Exception = KafkaError(error.code, error.message)
    else:
        own = StorageFailure(str(error))
    own.__cause__ = failure
    return own


def _refuse(futures: Sequence[asyncio.Future[Response]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
