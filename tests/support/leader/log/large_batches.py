"""Batches that are too large for the event loop, and a thread for them whose work begins when a test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from kshare_leader.log.aside import Aside
from support.wire.raw_batches import plain_batch, record

LARGE_COUNT = 300_000
Result = TypeVar("Result")


class HeldAside(Aside):
    """Work begins only when the test lets it."""

    def __init__(self) -> None:
        super().__init__("held")
        self.begun: list[asyncio.Event] = []

    async def run(self, work: Callable[[], Result]) -> Result:
        held = asyncio.Event()
        self.begun.append(held)
        await held.wait()
        return work()


def large_batch(**fields: int) -> bytes:
    """Of 300,000 records, 2.4 MB after decompression."""
    records = b"".join(record(delta, value=None) for delta in range(LARGE_COUNT))
    return plain_batch(records, codec="zstd", count=LARGE_COUNT, **{"first_timestamp_ms": 1_000_000, **fields})
