"""Tracing (W3C trace context): the port for span recorders, and the trace of the running work.

`current_traceparent` propagates by itself: tasks and callbacks inherit it from the code that creates them, and calls
between roles carry it in their frames. It is empty outside of traced work, which is the usual case, and then nothing
is recorded. A trace begins at a gateway, for a sampled part of the requests, or where a client's record belongs to one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

Attributes = Mapping[str, str | int]

current_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""The `traceparent` of the current span; empty: none."""

_SAMPLED = 1
_TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})")
"""Lower case only, as W3C trace context demands; ids of zeros are invalid."""


class Span(Protocol):
    """A span, recorded when it ends."""

    @property
    def traceparent(self) -> str:
        """The `traceparent` for child spans."""
        ...

    def add(self, attributes: Attributes) -> None: ...

    def link(self, traceparents: Sequence[str]) -> None:
        """Links the span to other traces."""
        ...

    def end(self, problem: str = "") -> None:
        """Ends the span; `problem` says why it failed, empty: it succeeded."""
        ...


class Tracer(Protocol):
    """Records the spans of one process."""

    def begin(self, name: str, attributes: Attributes, *, parent: str = "", links: Sequence[str] = ()) -> Span | None:
        """A span under `parent`, or the first one of a new trace; None if it is not sampled.

        `links` are the traceparents of related traces.
        """
        ...


def is_sampled(traceparent: str) -> bool:
    """Whether a text is a traceparent (version 00) whose trace is recorded; False for anything else."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found is not None and bool(int(found[1], 16) & _SAMPLED)
