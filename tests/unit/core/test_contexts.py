"""Contexts of work for many requests: nothing that belongs to one of them, and everything else."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context

from kshare_core.contexts import context_of_no_request
from kshare_core.log_fields import current_log_fields, current_request_id, log_fields
from kshare_core.tracing import current_traceparent

host: ContextVar[str] = ContextVar("host", default="")


def seen() -> tuple[str, str, str, dict[str, str | int]]:
    return host.get(), current_traceparent.get(), current_request_id.get(), current_log_fields()


def test_a_request_is_left_behind_and_nothing_else() -> None:
    def of_a_request() -> Context:
        host.set("a")
        current_traceparent.set("00-trace")
        current_request_id.set("r1")
        with log_fields(group="g"):
            assert seen() == ("a", "00-trace", "r1", {"group": "g", "request_id": "r1"})
            return context_of_no_request()

    assert copy_context().run(of_a_request).run(seen) == ("a", "", "", {})


def test_without_a_request_it_is_a_copy() -> None:
    def of_none() -> tuple[Context, str]:
        host.set("b")
        context = context_of_no_request()
        context.run(host.set, "c")
        return context, host.get()

    context, mine = copy_context().run(of_none)
    assert mine == "b" and context.run(seen) == ("c", "", "", {})
