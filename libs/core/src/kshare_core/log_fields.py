"""Log fields of the current context: its request id, group and partition, added to every log line.

`current_request_id` propagates like the trace (`tracing`): tasks inherit it, and calls between roles carry it in their
frames. A gateway assigns one to every client request, so a request can be followed through all roles, sampled or not.
`log_fields` sets the other fields around the lines that have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text

current_request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the client request that the running code works for; empty: none."""

_NO_FIELDS: Mapping[str, str | int] = {}
_current_fields: ContextVar[Mapping[str, str | int]] = ContextVar("log_fields", default=_NO_FIELDS)

REQUEST_ID_LIMIT = 100
"""The maximum length in characters of a request id from a call; longer ones are truncated."""


@contextmanager
def log_fields(**fields: str | int) -> Iterator[None]:
    """Adds these fields to lines that are logged within; names are Kafka's: group, topic_id, partition, …"""
    token = _current_fields.set({**_current_fields.get(), **fields})
    try:
        yield
    finally:
        _current_fields.reset(token)


def has_log_fields() -> bool:
    """Whether the context has log fields other than the request id."""
    return bool(_current_fields.get())


def no_log_fields() -> None:
    """Clears the context's log fields, except the request id."""
    _current_fields.set(_NO_FIELDS)


def about(key: TopicPartition | SharePartitionKey, report: Callable[[str], None]) -> Callable[[str], None]:
    """Wraps `report` so that its lines have the fields of one partition, or of one share-partition."""
    fields: dict[str, str | int] = {"topic_id": topic_id_text(key.topic_id), "partition": key.partition}
    if isinstance(key, SharePartitionKey):
        fields["group"] = key.group_id

    def report_about(text: str) -> None:
        with log_fields(**fields):
            report(text)

    return report_about


def current_log_fields() -> dict[str, str | int]:
    """All fields of a line that is logged now."""
    found = dict(_current_fields.get())
    if request_id := current_request_id.get():
        found["request_id"] = request_id
    return found
