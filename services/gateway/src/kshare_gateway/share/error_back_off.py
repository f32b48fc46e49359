"""The back-off of a share session whose responses have errors and no records.

Clients fetch again at once after a partition's error, so an error that lasts would be a tight retry loop. The first
such response is not delayed: the error may be that of a reassignment, after which the client finds the partition again.
The next one is delayed by FIRST_PAUSE_MS, and each further one by twice as long, up to LONGEST_PAUSE_MS.
"""

from __future__ import annotations

FIRST_PAUSE_MS = 10
LONGEST_PAUSE_MS = 200


class ErrorBackOff:
    """The pause before a session's next response with errors and without records; see the module docstring."""

    __slots__ = ("pause_ms",)

    def __init__(self) -> None:
        self.pause_ms = 0

    def failed(self) -> None:
        """The response has errors and no records."""
        self.pause_ms = min(2 * self.pause_ms or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)

    def succeeded(self) -> None:
        """The response has no errors."""
        self.pause_ms = 0
