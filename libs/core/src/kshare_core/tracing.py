"""Traces (W3C trace context): the port to whoever records spans, and which trace the work under way belongs to.

`current_traceparent` goes along by itself: tasks and callbacks inherit it from the code that makes them, calls between
roles carry it in their frames. It is empty outside of traced work, which is nearly all of it, and then nothing is
recorded: a trace begins at a gateway, for a sampled part of the requests, or where a client's record belongs to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

Attributes = Mapping[str, str | int]

current_traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""The `traceparent` of the span that the running code is part of; empty: of none."""

TRACEPARENT_LENGTH = 55
_SAMPLED = 1


class Span(Protocol):
    """A piece of work that is recorded when it ends."""

    @property
    def traceparent(self) -> str:
        """What work that it causes is given as its parent."""
        ...

    def add(self, attributes: Attributes) -> None: ...

    def link(self, traceparents: Sequence[str]) -> None:
        """Other traces that it has to do with."""
        ...

    def end(self, problem: str = "") -> None:
        """`problem`: why it failed; empty when it did not."""
        ...


class Tracer(Protocol):
    """Records the spans of one process."""

    def begin(self, name: str, attributes: Attributes, *, parent: str = "", links: Sequence[str] = ()) -> Span | None:
        """A span under `parent`, or the first one of a new trace; None where it is not sampled.

        `links` are the traceparents of other traces that it has to do with.
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
