"""Which partitions a coordinator claims and which it gives back; pure.

Each of n live coordinators has at most its share, the n-th part of the group partitions rounded up. Who has less claims
free ones; who has more gives the rest back. The catalog is nobody's share: whoever sees it free claims it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kshare_coordinator.metadata.port import CATALOG


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    claim: Sequence[int]
    give_back: Sequence[int]


def plan_claims(*, node_id: int, live: Sequence[int], owners: Mapping[int, int], group_partitions: int) -> ClaimPlan:
    """`live`: node ids in order. `owners`: node ids by partition; those without an owner are not in it.

    Coordinators begin to claim at different places, so that they seldom want the same.
    """
    share = -(-group_partitions // max(1, len(live)))
    mine = [partition for partition in range(group_partitions) if owners.get(partition) == node_id]
    free = [partition for partition in range(group_partitions) if partition not in owners]
    rank = live.index(node_id) if node_id in live else 0
    first = [partition for partition in free if partition >= rank * share]
    rotated = first + free[: len(free) - len(first)]
    claim = rotated[: max(0, share - len(mine))]
    if CATALOG not in owners:
        claim.insert(0, CATALOG)
    return ClaimPlan(claim, mine[share:])
