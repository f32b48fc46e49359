"""Leases by two clocks: that of the party that grants a lease, and that of its holder.

The granter counts a whole lease from when it received the newest renewal. The holder counts from when it sent that
renewal, and only `held_s` of it. So a holder has stopped before the granter may give to others what it held, as long as
the clocks keep the promise of docs/operations.md: while one clock counts 9 seconds, no other counts more than 10. Dates
play no part, because event loops read monotonic clocks.
"""

from __future__ import annotations

CLOCK_RATE_DIFFERENCE = 0.1
"""The part of a lease that a holder leaves unused, because its clock may be slower than the granter's.

The kernel's NTP code keeps the rate within 500 ppm. chrony slews a wrong clock by up to 83,333 ppm by default, which
docs/operations.md asks to lower: two machines that are slewed in opposite directions would differ by more than this.
"""


def held_s(lease_ms: float) -> float:
    """How long the holder may act on a lease, in seconds of its clock from when it sent the renewal."""
    return lease_ms / 1000 * (1 - CLOCK_RATE_DIFFERENCE)
