"""The names of a dead letter's headers (KIP-1191).

CONTEXT_PREFIX begins the names of the headers with the position of the dead letter's source record. A source record may
have such headers itself: it is a dead letter of another group, or its producer wants it to look like one. A copy has
them under names with COPIED_PREFIX, so that each context header of a dead letter was written by its leader. A redrive
restores the names.
"""

from __future__ import annotations

CONTEXT_PREFIX = "__dlq.errors."
COPIED_PREFIX = "__dlq.source."


def copied_name(name: str) -> str:
    """The name in a dead letter of a header of its source record; `source_name` is the inverse."""
    return COPIED_PREFIX + name if name.startswith((CONTEXT_PREFIX, COPIED_PREFIX)) else name


def source_name(name: str) -> str:
    """The name in the source record of a header that its dead letter has copied."""
    return name.removeprefix(COPIED_PREFIX)
