"""The bucket against a naive one, and the rates of clients that wait as they are told."""

from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_gateway.quotas.token_bucket import TokenBucket

steps = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 10_000)), min_size=1, max_size=40)
"""Milliseconds since the step before, and the tokens that are taken."""


@given(steps=steps, rate=st.integers(1, 20_000), burst_s=st.integers(1, 20))
def test_it_is_filled_every_millisecond(steps: list[tuple[int, int]], rate: int, burst_s: int) -> None:
    bucket, now_ms, tokens = TokenBucket(float(rate), burst_s, 0), 0, float(rate * burst_s)
    for pause_ms, taken in steps:
        now_ms += pause_ms
        tokens = min(tokens + pause_ms * rate / 1000, rate * burst_s) - taken
        bucket.take(taken, now_ms)
        assert bucket.throttle_ms(now_ms) == pytest.approx(max(0.0, -tokens / rate * 1000), abs=1)
        assert bucket.is_full(now_ms) == (tokens >= rate * burst_s - 1e-6) or abs(tokens - rate * burst_s) < 1e-3


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("size", [1_000, 100_000])
def test_clients_that_wait_as_they_are_told_keep_the_rate(clients: int, size: int) -> None:
    """They share the bucket, and each sends again when its throttle time is over, or after 5 ms."""
    rate, bucket, sent = 50_000, TokenBucket(50_000.0, 10, 0), 0
    turns = [(0, client) for client in range(clients)]
    while turns[0][0] < 120_000:
        now_ms, client = heapq.heappop(turns)
        bucket.take(size, now_ms)
        sent += size
        heapq.heappush(turns, (now_ms + max(5, bucket.throttle_ms(now_ms)), client))
    # Each client may have sent one request more when its turn came.
    assert rate * 120 <= sent - rate * 10 + clients * size and sent <= rate * 130 + clients * size


def test_a_bucket_lends_one_request_and_fills_up_to_its_burst() -> None:
    bucket = TokenBucket(10.0, 11, 0)
    bucket.take(100, 0)
    assert not bucket.is_exhausted(0) and bucket.throttle_ms(0) == 0
    bucket.take(60, 0)
    assert bucket.is_exhausted(0) and bucket.throttle_ms(0) == 5000
    assert not bucket.is_exhausted(5000) and bucket.throttle_ms(5000) == 0
    assert not bucket.is_full(15_999) and bucket.is_full(16_000) and bucket.is_full(60_000)
    bucket.take(1000, 60_000, most_owed_s=3)
    assert bucket.throttle_ms(60_000) == 3000


def test_a_changed_rate_keeps_what_is_owed() -> None:
    bucket = TokenBucket(10.0, 1, 0)
    bucket.take(60, 0)
    bucket.change_rate(100.0, 0)
    assert bucket.throttle_ms(0) == 500
    bucket.change_rate(1.0, 2_000)
    assert bucket.is_full(2_000)


def test_an_infinite_rate_never_throttles_and_a_later_rate_holds() -> None:
    bucket = TokenBucket(math.inf, 10, 0)
    for now_ms in (0, 0, 1000):
        bucket.take(1e12, now_ms)
        assert bucket.throttle_ms(now_ms) == 0 and bucket.is_full(now_ms)
    bucket.change_rate(100.0, 1000)
    bucket.take(1_500, 1000)
    assert bucket.throttle_ms(1000) == 5_000
    bucket.change_rate(math.inf, 1000)
    assert bucket.throttle_ms(1000) == 0


@pytest.mark.parametrize("rate", [1.0, 1e-300])
def test_a_throttle_time_fits_in_a_response(rate: float) -> None:
    bucket = TokenBucket(rate, 1, 0)
    bucket.take(3e9, 0)
    assert bucket.throttle_ms(0) == 2**31 - 1
