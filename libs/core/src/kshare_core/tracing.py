"""Tracing (W3C trace context): the port for span recorders, and the trace of the running work.

`current_traceparent` propagates by itself: tasks and callbacks inherit it from the code that creates them, and calls
between roles carry it in their frames. It is empty outside of traced work, which is the usual case, and then nothing
is recorded. A trace begins at a gateway, for a sampled part of the requests, or where a client's record belongs to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

Attributes = Mapping[str, str | int]

current_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""The `traceparent` of the current span; empty: none."""

TRACEPARENT_LENGTH = 55
_SAMPLED = 1


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
    if len(traceparent) != TRACEPARENT_LENGTH or not traceparent.startswith("00-"):
        return False
    version, trace_id, span_id, flags = (*traceparent.split("-"), "", "", "")[:4]
    try:
        is_valid = int(trace_id, 16) > 0 and int(span_id, 16) > 0 and len(trace_id) == 32 and len(span_id) == 16
        return is_valid and version == "00" and bool(int(flags, 16) & _SAMPLED)
    except ValueError:
        return False
