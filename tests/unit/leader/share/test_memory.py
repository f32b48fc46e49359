"""The memory cost of idle share-partitions at a leader."""

from __future__ import annotations

from support.leader.share.idle_share_partitions import measure
from support.leader.share.service import run

LIMIT_BYTES = 50_000_000
"""For 10,000 of them (issue 4)."""


def test_ten_thousand_idle_share_partitions_are_cheap() -> None:
    assert run(lambda: measure(groups=100, partitions=100)) < LIMIT_BYTES
