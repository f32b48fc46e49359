"""Planted bugs of the logs that owners fence in an existing cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kshare_upstream.fenced_log.owner import FencedLog
from support.simulation.cluster import KAFKA
from support.simulation.mutations.mutation import Patch, planted
from support.simulation.mutations.planted_bug import Focus, PlantedBug, at_least, only_faults


def _believe_position(check: object) -> Callable[[FencedLog, int], Awaitable[None]]:
    """What the cluster appended is confirmed, wherever it is."""

    async def changed(log: FencedLog, base_offset: int) -> None:
        return None

    return changed


PLANTED = (
    PlantedBug(
        name="the owner of a fenced log confirms without the position check",
        mutation=planted(Patch(FencedLog, "_check_position", _believe_position)),
        rules=("confirmed, and it does not count",),
        focus=Focus(
            "owners are replaced while they write",
            (at_least(coordinators=2, share_coordinators=2, brokers=3), only_faults("stale-owner")),
        ),
        seed=4,
        engine=KAFKA,
    ),
)
