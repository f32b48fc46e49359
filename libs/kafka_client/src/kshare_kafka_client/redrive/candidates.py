"""A record that may be moved, and the source record that a dead letter's headers name (KIP-1191). Pure.

A dead letter with a copy has the record's key, value and headers (errors.deadletterqueue.copy.record.enable). One
without key, value and own headers is no copy, or the copy of an empty record: both are looked up at the source. If the
record is itself a dead letter, its letter has its headers under other names (`dead_letter_headers`), or in letters of
older versions under the same names, before those of the letter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kshare_core.dead_letter_headers import CONTEXT_PREFIX, source_name
from kshare_core.delivery_history import REASON_DELIVERY_COUNT_LIMIT, REASON_REJECTED
from kshare_kafka_client.redrive.request import Selection
from kshare_kafka_client.topics import Partition

REDRIVE_PREFIX = "__redrive."
REASON_OF_MESSAGE = {
    "Offset rejected by client.": REASON_REJECTED,
    "Offset delivery count exceeded the threshold.": REASON_DELIVERY_COUNT_LIMIT,
}
"""The delivery history's reasons for Kafka's texts of `__dlq.errors.message`. Other texts are their own reason."""
REASON_GIVEN = "given"
"""The reason of offsets that the user gave."""
UNREADABLE_HEADERS = "the name of a header is not UTF-8, which the client library cannot read"

Headers = list[tuple[str, bytes | None]]


class Candidate(NamedTuple):
    """`from_…` is the dead letter, or the archived record itself; the ledger notes it. Times are milliseconds."""

    from_topic: str
    from_partition: int
    from_offset: int
    topic: str
    partition: int
    offset: int
    """The record at its source."""
    group_id: str
    reason: str
    delivery_count: int
    time_ms: int
    """The time when the dead letter was written, the record archived or, for given offsets, the record appended."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    has_content: bool
    """Whether key, value and headers are the record's; otherwise they have to be looked up."""
    problem: str = ""
    """Why it cannot be moved; empty when it can."""

    @property
    def place(self) -> Partition:
        return Partition(self.from_topic, self.from_partition)


def headers_of(message: Any) -> tuple[Headers, str]:
    """A message's headers as pairs of text and bytes, and why they cannot be read; empty when they can."""
    try:
        found: Any = message.headers() or []
    except SystemError:  # from confluent-kafka, which decodes the names
        return [], UNREADABLE_HEADERS
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs], ""


def bytes_of(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def dead_letter(message: Any) -> Candidate:
    """The candidate of a dead letter; with a `problem` if its headers do not name the source."""
    headers, problem = headers_of(message)
    places = {name: index for index, (name, _) in enumerate(headers) if name.startswith(CONTEXT_PREFIX)}
    context = {
        name.removeprefix(CONTEXT_PREFIX): (headers[index][1] or b"").decode(errors="backslashreplace")
        for name, index in places.items()
    }
    own = [(source_name(name), value) for index, (name, value) in enumerate(headers) if places.get(name) != index]
    text = context.get("message", "")
    partition, offset = _number(context.get("partition")), _number(context.get("offset"))
    topic = context.get("topic", "")
    key, value = bytes_of(message.key()), bytes_of(message.value())
    return Candidate(
        from_topic=message.topic(),
        from_partition=message.partition(),
        from_offset=message.offset(),
        topic=topic,
        partition=partition,
        offset=offset,
        group_id=context.get("group", ""),
        reason=REASON_OF_MESSAGE.get(text, text),
        delivery_count=max(0, _number(context.get("delivery.count"))),
        time_ms=message.timestamp()[1],
        key=key,
        value=value,
        headers=own,
        has_content=bool(own) or key is not None or value is not None,
        problem=problem or _source_problem(topic, partition, offset),
    )


def _source_problem(topic: str, partition: int, offset: int) -> str:
    if not topic or partition < 0 or offset < 0:
        return f"no dead letter: without the headers {CONTEXT_PREFIX}topic, partition and offset"
    return f"its source topic {topic} is internal" if topic.startswith("__") else ""


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else -1


def matches(candidate: Candidate, selection: Selection) -> bool:
    """Whether the candidate is selected, apart from its key, which may have to be looked up first."""
    return (
        _one_of(candidate.reason, selection.reasons)
        and _one_of(candidate.group_id, selection.groups)
        and _one_of(candidate.topic, selection.topics)
        and (selection.since_ms is None or candidate.time_ms >= selection.since_ms)
        and (selection.until_ms is None or candidate.time_ms < selection.until_ms)
    )


def matches_key(candidate: Candidate, selection: Selection) -> bool:
    return not selection.keys or (candidate.key is not None and candidate.key in selection.keys)


def _one_of(value: str, allowed: Iterable[str]) -> bool:
    return not allowed or value in allowed


def headers_of_moved(candidate: Candidate) -> Headers:
    """The record's headers and its origin. Headers of an earlier redrive are replaced, except their count."""
    earlier = dict(candidate.headers).get(REDRIVE_PREFIX + "count") or b""
    count = max(0, _number(earlier.decode(errors="replace"))) + 1
    texts = (
        ("topic", candidate.from_topic),
        ("partition", str(candidate.from_partition)),
        ("offset", str(candidate.from_offset)),
        ("count", str(count)),
    )
    own = [header for header in candidate.headers if not header[0].startswith(REDRIVE_PREFIX)]
    return [*own, *((REDRIVE_PREFIX + name, text.encode()) for name, text in texts)]


def summary(candidate: Candidate) -> dict[str, Any]:
    """One of the examples in an account."""
    return {
        "from": f"{candidate.from_topic}:{candidate.from_partition}:{candidate.from_offset}",
        "to": f"{candidate.topic}:{candidate.partition}",
        "group": candidate.group_id,
        "reason": candidate.reason,
        "key": _excerpt(candidate.key),
        "value": _excerpt(candidate.value),
    }


def _excerpt(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    text = raw[:60].decode(errors="backslashreplace")
    return text if len(raw) <= 60 else text + "…"
