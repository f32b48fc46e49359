"""An asyncio event loop whose time is virtual, and the lives of hosts that run on it.

Time only passes when nothing is left to do: the loop then jumps to the next timer. Every task and timer belongs to the
`Incarnation` in its context (or to nobody: the simulation itself), by whose clock it sees the time. A dead
incarnation's code never runs again, not even its `finally` blocks, as when a process is killed; a paused one's code
waits until it is resumed, as under SIGSTOP.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import math
import re
import sys
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from support.simulation.ended_tasks import EndedTasks, watched_gathers

T = TypeVar("T")

CANCELLED_TIMERS_KEPT = 200
ROLE_CODE = re.compile("/services/|/libs/core/")
"""In the path of every file of a role, and of the wrapper of their background tasks."""


class MonotonicClock:
    """The monotonic clock of one machine: it starts anywhere, never jumps, and only its rate may be wrong.

    That is what CLOCK_MONOTONIC promises, and `loop.time()` reads. Its values on two machines are unrelated. The kernel
    slews it by at most 500 ppm to follow NTP, and by more where a daemon changes the length of a tick.
    """

    def __init__(self, starts_at_s: float = 0.0) -> None:
        self.rate = 1.0
        """Its seconds in one second of true time."""
        self._changed_at_s = 0.0
        self._showed_s = starts_at_s
        self._former: list[tuple[float, float, float]] = []
        """When former rates began, what it showed then, and the rates."""

    def read(self, true_s: float) -> float:
        return self._showed_s + (true_s - self._changed_at_s) * self.rate

    def shown_at(self, true_s: float) -> float:
        """What it showed at a time that may be long past."""
        if true_s >= self._changed_at_s:
            return self.read(true_s)
        changed_at_s, showed_s, rate = [one for one in self._former if one[0] <= true_s][-1]
        return showed_s + (true_s - changed_at_s) * rate

    def true_time(self, shown_s: float) -> float:
        """The first true time at which it shows at least so much."""
        true_s = self._changed_at_s + (shown_s - self._showed_s) / self.rate
        while self.read(true_s) < shown_s:
            true_s = math.nextafter(true_s, math.inf)
        return true_s

    def set_rate(self, rate: float, true_s: float) -> None:
        """From `true_s`, which is now, it runs at this rate; see also `VirtualLoop.set_rate`."""
        self._former.append((self._changed_at_s, self._showed_s, self.rate))
        self._showed_s, self._changed_at_s, self.rate = self.read(true_s), true_s, rate


DamagedRows = dict[tuple[str, bytes], None]
"""Families and keys."""


class Incarnation:
    """One life of a host: from a start to the crash that ends it. `clock`: its machine's; None shows the true time."""

    def __init__(self, host: str, number: int, clock: MonotonicClock | None = None) -> None:
        self.host = host
        self.number = number
        self.clock = clock
        self.dead = False
        self.paused = False
        self.is_stopping = False
        """Whether it was asked to stop in order, and closes its stores."""
        self.stores_remotely = False
        """Whether what it stores is on other hosts, so that writes fail with the network."""
        self.damaged_rows: DamagedRows = {}
        """The rows of which a read has returned wrong bits."""
        self.has_misdirected_reads = False
        """Whether a read of a value file has returned the bytes of another place."""
        self.before_step: Callable[[], None] | None = None
        """Called before each of its steps; it may end this life, and the step then does not run."""
        self.deferred: list[asyncio.Handle] = []
        """Steps that wait for `resume`, and all steps of a dead incarnation: none of it is collected, and so run."""
        self.context = contextvars.copy_context()
        self.context.run(current_incarnation.set, self)

    @property
    def has_read_damage(self) -> bool:
        """Whether a read of its disk has returned wrong bytes."""
        return bool(self.damaged_rows) or self.has_misdirected_reads

    @property
    def stopped(self) -> bool:
        return self.dead or self.paused

    def __repr__(self) -> str:
        return f"{self.host}#{self.number}"


current_incarnation: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar("incarnation", default=None)


Connect = Callable[[Callable[[], asyncio.BaseProtocol], str], Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]]
"""Connects to an address ("host:port"); OSError."""


class HostDied(BaseException):
    """Ends the step in which a host dies: no code catches it, and its other steps never run."""


class HostTimer(asyncio.TimerHandle):
    """A timer by the clock of a host."""

    __slots__ = ("clock", "is_due", "shown_s")

    def __init__(
        self,
        shown_s: float,
        clock: MonotonicClock,
        callback: Callable[..., object],
        args: Sequence[object],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        super().__init__(clock.true_time(shown_s), callback, args, loop, context)
        self.clock = clock
        self.shown_s = shown_s
        """When it is due, as its clock will show."""
        self.is_due = False
        """Whether it was due when it was set: uvloop then returns a handle that does not know its time."""

    def when(self) -> float:
        if self.is_due:
            raise AttributeError("'uvloop.loop.Handle' object has no attribute 'when'")
        return self.shown_s


class Deadlock(Exception):
    """Nothing is scheduled and the simulation is not finished; the text names the tasks that wait."""


class LimitReached(Exception):
    """The simulation took more virtual time or more steps than it may."""


UVLOOP_RESOLUTION_S = 0.0005


class _DueHandle(asyncio.TimerHandle):
    """What uvloop returns for a time within half a millisecond: a handle that does not know its time."""

    __slots__ = ()

    def when(self) -> float:
        raise AttributeError("'uvloop.loop.Handle' object has no attribute 'when'")


def time_of(handle: asyncio.TimerHandle) -> float:
    """When a handle of a VirtualLoop fires, also one that is due: for what is no code of a role."""
    return asyncio.TimerHandle.when(handle)


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module's text. `time_limit` is in virtual seconds; a step is one callback."""

    # What BaseEventLoop keeps, as far as `_run_once` needs it.
    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, int, asyncio.TimerHandle]]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self, *, time_limit: float = 3600.0, step_limit: int = 5_000_000) -> None:
        super().__init__()
        self._now = 0.0
        self._timers_made = 0
        self._time_limit = time_limit
        self._step_limit = step_limit
        self.steps = 0
        self.connect: Connect | None = None
        """What `create_connection` does; there are no sockets."""
        self._has_hosts = False
        """Whether any incarnation has run; unit tests of a role's parts have none."""
        self.problems: list[str] = []
        """Exceptions that nobody caught; each is a bug in the code that ran."""
        self._tasks = EndedTasks(HostDied)
        self.set_exception_handler(self._note_exception)

    @staticmethod
    def running() -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    @property
    def now_s(self) -> float:
        """The true time, which no host knows."""
        return self._now

    def time(self) -> float:
        """What the clock of the host shows whose code asks; the true time for the simulation itself."""
        incarnation = current_incarnation.get()
        clock = None if incarnation is None else incarnation.clock
        return self._now if clock is None else clock.read(self._now)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """`when` is by the clock of the host whose code asks. The handle is as uvloop's, on which the roles run."""
        incarnation = current_incarnation.get()
        if incarnation is not None and incarnation.clock is not None:
            timer = HostTimer(when, incarnation.clock, callback, args, self, context)
            timer.is_due = when - self.time() < UVLOOP_RESOLUTION_S
            return self._schedule(timer)
        kind = _DueHandle if when - self._now < UVLOOP_RESOLUTION_S else asyncio.TimerHandle
        return self._schedule(kind(when, callback, args, self, context))

    def call_at_true(
        self, when_s: float, callback: Callable[..., object], *arguments: Any, context: contextvars.Context
    ) -> asyncio.TimerHandle:
        """`call_at` by the true time, also where the code of a host runs."""
        return self._schedule(asyncio.TimerHandle(when_s, callback, arguments, self, context))

    def _schedule(self, timer: asyncio.TimerHandle) -> asyncio.TimerHandle:
        """Timers of the same time fire in the order in which they were made, whatever other timers there are."""
        self._check_closed()  # type: ignore[attr-defined]
        self._timers_made += 1
        heapq.heappush(self._scheduled, (timer._when, self._timers_made, timer))  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def set_rate(self, clock: MonotonicClock, rate: float) -> None:
        """The clock runs at this rate from now on; timers that were set by it are due when it shows their times."""
        clock.set_rate(rate, self._now)
        for index, (_, number, timer) in enumerate(self._scheduled):
            if isinstance(timer, HostTimer) and timer.clock is clock:
                timer._when = when = clock.true_time(timer.shown_s)  # type: ignore[attr-defined]
                self._scheduled[index] = when, number, timer
        heapq.heapify(self._scheduled)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs `main` to its end, and throws away all that is then still under way."""
        collecting = gc.isenabled()
        gc.disable()  # the moment of a collection is not the seed's
        try:
            with watched_gathers(self._note_problem):
                return self.run_until_complete(main)
        finally:
            self.note_ended_tasks()
            self._discard()
            if collecting:
                gc.enable()

    def run_in(self, incarnation: Incarnation, callback: Callable[..., object], *arguments: object) -> None:
        """Calls `callback` soon, as code of the incarnation."""
        self._has_hosts = True
        self.call_soon(callback, *arguments, context=incarnation.context)

    def task_in(self, incarnation: Incarnation, main: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that belongs to the incarnation."""
        self._has_hosts = True
        return self.create_task(main, name=name, context=incarnation.context.copy())

    def create_task(self, coro: Any, *, name: object = None, context: Any = None) -> asyncio.Task[Any]:
        """Work of a role that belongs to no incarnation would outlive its host, so it is a problem."""
        code = getattr(coro, "cr_code", None)
        incarnation = current_incarnation.get() if context is None else context.get(current_incarnation)
        if self._has_hosts and incarnation is None and code is not None and ROLE_CODE.search(code.co_filename):
            self._note_problem(f"{coro.__qualname__} runs on no host")
        task = super().create_task(coro, name=name, context=context)
        self._tasks.add(task, incarnation)
        return task

    def note_ended_tasks(self, incarnation: Incarnation | None = None) -> None:
        """Notes the exceptions of tasks that no code has looked at: of this life, or of all."""
        for text in self._tasks.unseen(self._ready, incarnation):
            self._note_problem(text)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str = "", port: int = 0, **options: object
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """A connection from the host whose code calls to another one, without TLS."""
        assert self.connect is not None, f"nothing connects simulated hosts, so {host}:{port} is not reached"
        return await self.connect(protocol_factory, f"{host}:{port}")

    def resume(self, incarnation: Incarnation) -> None:
        """Lets a paused incarnation go on, with all that came meanwhile.

        What came from the network runs before the timers that became due, as in asyncio's own loops: they look at the
        sockets first. So a message may be handled long after a timer that should have ended what it is about.
        """
        incarnation.paused = False
        deferred = incarnation.deferred
        self._ready.extend(handle for handle in deferred if not isinstance(handle, asyncio.TimerHandle))
        self._ready.extend(handle for handle in deferred if isinstance(handle, asyncio.TimerHandle))
        deferred.clear()

    def _run_once(self) -> None:
        self._drop_cancelled_timers()
        ready, scheduled = self._ready, self._scheduled
        if not ready and not self._stopping:
            self._advance()
        while scheduled and scheduled[0][0] <= self._now:
            _, _, timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            incarnation = handle._context.get(current_incarnation)  # type: ignore[attr-defined]
            if incarnation is not None and incarnation.before_step is not None and not incarnation.stopped:
                incarnation.before_step()  # it may end this life
            if incarnation is not None and incarnation.stopped:
                incarnation.deferred.append(handle)
                continue
            self.steps += 1
            handle._run()
        if self.steps > self._step_limit:
            raise LimitReached(f"more than {self._step_limit} steps; waiting: {self.waiting()}")

    def _drop_cancelled_timers(self) -> None:
        scheduled = self._scheduled
        if self._timer_cancelled_count > CANCELLED_TIMERS_KEPT and self._timer_cancelled_count > len(scheduled) / 2:
            kept = [entry for entry in scheduled if not entry[2]._cancelled]
            for _, _, timer in scheduled:
                timer._scheduled = not timer._cancelled  # type: ignore[attr-defined]
            heapq.heapify(kept)
            scheduled[:] = kept
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0][2]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)[2]._scheduled = False  # type: ignore[attr-defined]

    def _advance(self) -> None:
        if not self._scheduled:
            raise Deadlock(f"nothing is scheduled at {self._now:.3f} s; waiting: {self.waiting()}")
        self._now = max(self._now, self._scheduled[0][0])
        if self._now > self._time_limit:
            raise LimitReached(f"more than {self._time_limit} virtual seconds; waiting: {self.waiting()}")

    def waiting(self) -> str:
        """The tasks that are not done, by name and the line that each waits in."""
        lines = []
        for task in asyncio.all_tasks(self):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "?"
            lines.append(f"{task.get_name()} at {where}")
        return "; ".join(sorted(lines))

    def _note_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, HostDied):
            return
        self._note_problem(f"{context['message']}: {error!r}")

    def _note_problem(self, text: str) -> None:
        self.problems.append(f"at {self._now:.3f} s: {text}")

    def _discard(self) -> None:
        """Ends every task without letting its code do anything that could be seen."""
        tasks = list(asyncio.all_tasks(self))
        self.close()
        known, noted = len(self.problems), sys.unraisablehook
        sys.unraisablehook = lambda _: None
        try:
            with warnings.catch_warnings():
                # Coroutines that a `finally` block makes for tasks are never awaited: the loop is closed.
                warnings.simplefilter("ignore", RuntimeWarning)
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    self._close_coroutine(task)
            tasks.clear()
            gc.collect()
        finally:
            sys.unraisablehook = noted
        del self.problems[known:]

    @staticmethod
    def _close_coroutine(task: asyncio.Task[Any]) -> None:
        """Unwinds the coroutine of a task; what its `finally` blocks still try ends at the closed loop."""
        coroutine = cast(Coroutine[Any, Any, Any], task.get_coro())
        try:
            coroutine.close()
        except RuntimeError:
            return

    # What BaseEventLoop asks of the part that talks to the system.
    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError("there are no sockets in the simulation")

    def _write_to_self(self) -> None:
        """Only threads need waking."""
