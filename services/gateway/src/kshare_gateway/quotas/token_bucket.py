"""A bucket of tokens, which measures every quota.

Kafka 4.3.1 measures rates over sampled windows, and only controller_mutation_rate with a bucket (TokenBucket). Windows
let a saturated client send in bursts of ten seconds' worth, with pauses between them. The bucket allows the same burst
after a time without requests, and tells the same throttle times, but then the rate holds at every moment.
"""

from __future__ import annotations

LONGEST_THROTTLE_MS = 2**31 - 1


class TokenBucket:
    """It gets `rate` tokens a second and holds those of `burst_s` seconds; it may owe tokens. Times are in ms.

    The rate may be infinite.
    """

    def __init__(self, rate: float, burst_s: float, now_ms: int) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._tokens = rate * burst_s
        self._filled_at_ms = now_ms

    def take(self, tokens: float, now_ms: int, *, most_owed_s: float | None = None) -> None:
        """Takes tokens, also more than there are; it owes at most those of `most_owed_s` seconds."""
        self._fill(now_ms)
        self._tokens -= tokens
        if most_owed_s is not None:
            self._tokens = max(self._tokens, -self.rate * most_owed_s)

    def throttle_ms(self, now_ms: int) -> int:
        """How long until it owes nothing, at most what a response can say."""
        self._fill(now_ms)
        return round(min(-self._tokens / self.rate * 1000, LONGEST_THROTTLE_MS)) if self._tokens < 0 else 0

    def is_exhausted(self, now_ms: int) -> bool:
        """Whether it owes tokens."""
        self._fill(now_ms)
        return self._tokens < 0

    def is_full(self, now_ms: int) -> bool:
        """Whether a new bucket would be the same."""
        self._fill(now_ms)
        return self._tokens >= self.rate * self._burst_s

    def change_rate(self, rate: float, now_ms: int) -> None:
        """Another rate from now on; what is owed stays owed."""
        self._fill(now_ms)
        self.rate = rate
        self._tokens = min(self._tokens, rate * self._burst_s)

    def _fill(self, now_ms: int) -> None:
        if now_ms == self._filled_at_ms:  # no time at an infinite rate would be NaN, which no comparison finds
            return
        gained = (now_ms - self._filled_at_ms) / 1000 * self.rate
        self._tokens = min(self._tokens + gained, self.rate * self._burst_s)
        self._filled_at_ms = now_ms
