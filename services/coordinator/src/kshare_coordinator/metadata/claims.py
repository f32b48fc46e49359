"""The plan of partitions that a coordinator claims and releases; pure.

Each of n live coordinators has at most its share, the n-th part of the group partitions rounded up. A coordinator with
fewer claims free ones, and one with more gives the rest back. The catalog counts for no share: any coordinator that
sees it free claims it.
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
    """The plan of one coordinator. `live`: node ids in order. `owners`: node ids by partition that has an owner.

    Coordinators start claiming at different partitions, so that they seldom compete.
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
