"""The subscription inside a member's metadata: how it is read, and that no bytes do harm."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.machine.groups.classic.consumer_protocol import subscribed_topics
from support.groups.classic_driver import subscription


@given(st.lists(st.text(max_size=20), max_size=10), st.binary(max_size=20))
def test_topics_are_read_and_the_rest_is_not_looked_at(names: list[str], rest: bytes) -> None:
    assert subscribed_topics(subscription(*names) + rest) == names


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", 0, 1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih", 0, 1, 5) + b"abc",
        struct.pack(">hih", 0, 1, 2) + b"\xff\xff",
        struct.pack(">hi", 0, 2_000_000_000) + bytes(50),
    ],
)
def test_what_is_no_subscription_is_none(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None


@given(st.binary(max_size=100))
def test_any_bytes_can_be_looked_at(metadata: bytes) -> None:
    names = subscribed_topics(metadata)
    assert names is None or all(isinstance(name, str) for name in names)
