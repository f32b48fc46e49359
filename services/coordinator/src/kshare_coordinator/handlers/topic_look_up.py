"""The port of handlers to the mirror of an existing cluster's topics (`kshare_coordinator.mirror`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

LookUp = Callable[[Iterable[str]], Awaitable[None]]
"""Returns when the catalog has those of the topics that exist, or soon without them."""


async def nothing_to_look_up(names: Iterable[str]) -> None:
    """With the embedded engine the catalog has all topics that there are."""
