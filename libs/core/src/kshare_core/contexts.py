"""The context for work that serves many requests at once and belongs to none of them."""

from __future__ import annotations

from contextvars import Context, copy_context

from kshare_core.log_fields import current_request_id, has_log_fields, no_log_fields
from kshare_core.tracing import current_traceparent


def context_of_no_request() -> Context:
    """The running context without the trace, the request id and the log fields of the request that triggered the work.

    All else stays, such as the simulation's current node.
    """
    context = copy_context()
    if current_request_id.get() or current_traceparent.get() or has_log_fields():
        context.run(_forget)
    return context


def _forget() -> None:
    current_traceparent.set("")
    current_request_id.set("")
    no_log_fields()
