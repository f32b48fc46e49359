"""The rule of answers to acknowledgements: an answer with an error means that the acknowledgement took no effect.

It holds in orderly histories only: nodes are stopped, drained and started, and partitions move, but nothing crashes, is
cut off or times out. After a crash an error may stand for an outcome that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.simulation.evidence import ENDS, Evidence, Violation
from support.simulation.history import describe


def errors_took_no_effect(evidence: Evidence) -> Iterator[Violation]:
    """Every record that came to its end has an acknowledgement that ended it, and was not answered with an error.

    Records that were delivered as often as the limit allows came to their end by that.
    """
    if not evidence.expected.orderly:
        return
    for key in evidence.deliverable():
        ends = [sent for sent in evidence.sent[key] if sent.event.type in ENDS]
        if not ends or any(sent.confirmed or sent.answer is None for sent in ends):
            continue
        if evidence.highest_count(key) < evidence.expected.delivery_count_limit:
            text = f"it came to its end, but {describe(ends[-1].event)} was answered with {ends[-1].answer}"
            yield evidence.violation("answered with an error, and took effect", key, text)
