"""A rule of the metadata in etcd: an entry of a partition's journal is written once.

A coordinator that has lost a partition, and whose write arrives late, would replace an entry that the next owner was
told is durable. The next owner still has it in memory, so that only a later owner would miss it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from support.simulation.evidence import Violation

JOURNAL = b"/journal/"


def journals_are_written_once(replaced: Sequence[tuple[bytes, int]]) -> Iterator[Violation]:
    """`replaced`: keys of etcd whose values were replaced, with the revisions."""
    for key, revision in replaced:
        if JOURNAL in key:
            text = f"{key.decode()} got another value in revision {revision}"
            yield Violation("an entry of the metadata was overwritten", text)
