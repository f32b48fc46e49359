"""Whole answers as plain values, so that those of kshare and of Apache Kafka can be compared field by field.

A sequence of requests is a function of one `Asked` system that notes each answer in a `Recording`; `same_recordings`
runs it on both and compares step by step.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from support.kafka.same_answers import Asked, Pair

Step = tuple[str, Any]
SHOWN = 4
"""Steps that a failure shows."""


def fields_of(answer: Any, names: Mapping[uuid.UUID, str], left_out: Iterable[str] = ()) -> Any:
    """Nested dictionaries and lists; topic ids as names, durations in milliseconds, the order of arrays does not count.

    `left_out`: names of fields that are not compared.
    """
    if isinstance(answer, tuple):
        return sorted((fields_of(part, names, left_out) for part in answer), key=repr)
    if hasattr(answer, "__dataclass_fields__"):
        kept = [name for name in answer.__dataclass_fields__ if not name.startswith("__") and name not in left_out]
        return {name: fields_of(getattr(answer, name), names, left_out) for name in kept}
    if isinstance(answer, uuid.UUID):
        return names.get(answer, str(answer))
    if isinstance(answer, datetime.timedelta):
        return round(answer.total_seconds() * 1000)
    if isinstance(answer, ErrorCode):
        return answer.name
    return int(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


class Recording:
    """What one system answered, step by step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def note(self, label: str, answer: Any) -> None:
        self.steps.append((label, answer))


def same_recordings(pair: Pair, sequence: Callable[[Asked, Recording], None]) -> list[Step]:
    """The steps, which are the same; AssertionError with the first ones that differ."""
    recordings = []
    for asked in (pair.kshare, pair.kafka):
        recording = Recording()
        sequence(asked, recording)
        recordings.append(recording.steps)
    kshare, kafka = recordings
    differences = [
        f"{ours[0]}\n  kshare: {ours[1]}\n  Kafka:  {theirs[1]}"
        for ours, theirs in zip(kshare, kafka, strict=False)
        if ours != theirs
    ]
    assert not differences, f"{len(differences)} steps differ, the first ones:\n" + "\n".join(differences[:SHOWN])
    assert len(kshare) == len(kafka)
    return kshare
