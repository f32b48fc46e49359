"""Fields that all log lines of the running work have: which request it belongs to, which group, which partition.

`current_request_id` goes along by itself like the trace (`tracing`): tasks inherit it, calls between roles carry it in
their frames. A gateway gives every request of a client one, so a request can be followed through all roles, sampled or
not. Fields that only some lines have are set around them by `log_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text

current_request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the client's request that the running code works for; empty: for none."""

_NO_FIELDS: Mapping[str, str | int] = {}
_current_fields: ContextVar[Mapping[str, str | int]] = ContextVar("log_fields", default=_NO_FIELDS)

REQUEST_ID_LIMIT = 100
"""Characters of a request id that is taken from a call; longer ones are cut off."""


@contextmanager
def log_fields(**fields: str | int) -> Iterator[None]:
    """Lines that are logged within have these fields as well; Kafka's words: group, topic_id, partition, …"""
    token = _current_fields.set({**_current_fields.get(), **fields})
    try:
        yield
    finally:
        _current_fields.reset(token)


def has_log_fields() -> bool:
    """Whether a line that is logged now has fields of its surroundings, besides the request id."""
    return bool(_current_fields.get())


def no_log_fields() -> None:
    """Lines that are logged from now on in this context have none."""
    _current_fields.set(_NO_FIELDS)


def about(key: TopicPartition | SharePartitionKey, report: Callable[[str], None]) -> Callable[[str], None]:
    """`report` for lines about one partition, or one group's share-partition: they have its fields."""
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
