"""Which partitions are claimed and given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.metadata.claims import ClaimPlan, plan_claims
from kshare_coordinator.metadata.port import CATALOG

ALL_OF_1 = dict.fromkeys(range(CATALOG, 6), 1)


def plan(node_id: int, live: list[int], owners: dict[int, int], group_partitions: int = 6) -> ClaimPlan:
    return plan_claims(node_id=node_id, live=live, owners=owners, group_partitions=group_partitions)


def test_the_first_claims_everything() -> None:
    assert plan(1, [1], {}) == ClaimPlan([CATALOG, 0, 1, 2, 3, 4, 5], [])


def test_a_coordinator_that_owns_everything_gives_a_share_back() -> None:
    assert plan(1, [1, 2], ALL_OF_1) == ClaimPlan([], [3, 4, 5])
    assert plan(2, [1, 2], ALL_OF_1) == ClaimPlan([], [])
    assert plan(1, [1, 2, 3], ALL_OF_1) == ClaimPlan([], [2, 3, 4, 5])


def test_a_coordinator_with_its_share_claims_only_the_catalog_in_addition() -> None:
    owners = dict.fromkeys(range(3), 1)
    assert plan(1, [1, 2], owners) == ClaimPlan([CATALOG], [])
    assert plan(2, [1, 2], owners) == ClaimPlan([CATALOG, 3, 4, 5], [])


def test_they_begin_at_different_places() -> None:
    assert [plan(node, [1, 2, 3], {}).claim[1:] for node in (1, 2, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_a_coordinator_not_yet_listed_as_live_plans_as_the_first() -> None:
    assert plan(9, [], {}) == ClaimPlan([CATALOG, 0, 1, 2, 3, 4, 5], [])


@given(
    nodes=st.lists(st.integers(1, 30), min_size=1, max_size=8, unique=True).map(sorted),
    group_partitions=st.integers(1, 50),
    owners=st.dictionaries(st.integers(CATALOG, 49), st.integers(1, 30)),
    order=st.randoms(use_true_random=False),
)
def test_plans_that_are_carried_out_end_in_balance(
    nodes: list[int], group_partitions: int, owners: dict[int, int], order: object
) -> None:
    """From any state, a few rounds in which everyone carries its plan out: all is owned, nobody has more than a share.

    Only what a live coordinator owns counts; what a dead one has goes with its lease.
    """
    state = {p: owner for p, owner in owners.items() if owner in nodes and p < group_partitions}
    share = -(-group_partitions // len(nodes))
    for _ in range(3):
        for node in nodes:
            found = plan(node, nodes, state, group_partitions)
            assert all(state[p] == node for p in found.give_back), "only one's own is given back"
            assert all(p not in state for p in found.claim), "only what is free is claimed"
            assert CATALOG not in found.give_back
            for p in found.give_back:
                del state[p]
            state.update(dict.fromkeys(found.claim, node))
    assert sorted(state) == list(range(CATALOG, group_partitions))
    groups = [owner for p, owner in state.items() if p != CATALOG]
    assert max(groups.count(node) for node in nodes) <= share
    assert all(plan(node, nodes, state, group_partitions) == ClaimPlan([], []) for node in nodes)
