"""The faults that a soak draws: all of them at first, none that ends a spared process later."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.__main__ import SETTINGS
from soak.faults import Faults, spared_nodes
from support.clusters.kshare_cluster import ROLES, ClusterNode, KshareCluster

GATEWAY, LEADER, OTHER_LEADER = ClusterNode("gateway", 1), ClusterNode("leader", 1), ClusterNode("leader", 2)
PAUSES = {"pause {} past its lease", "pause {} shortly"}


def drawn(folder: Path, node: ClusterNode, *, is_sparing: bool) -> set[str]:
    faults = Faults(KshareCluster(folder, SETTINGS), seed=1)
    faults.spared = [GATEWAY, LEADER]
    return {name.replace(node.name, "{}") for name in faults.kinds(node, is_sparing=is_sparing)}


@pytest.mark.parametrize(
    ("node", "is_sparing", "others"),
    [
        (LEADER, False, {"kill {}", "full disk at {}", "kill everything", "restart"}),
        (LEADER, True, {"full disk at {}"}),
        (OTHER_LEADER, True, {"kill {}", "full disk at {}"}),
        (GATEWAY, False, {"kill {}", "kill everything", "restart"}),
        (GATEWAY, True, set()),
    ],
)
def test_faults_of_a_node(tmp_path: Path, node: ClusterNode, is_sparing: bool, others: set[str]) -> None:
    assert drawn(tmp_path, node, is_sparing=is_sparing) == PAUSES | others


def test_one_node_of_each_role_is_spared_and_the_seed_draws_which(tmp_path: Path) -> None:
    nodes = KshareCluster(tmp_path, SETTINGS).nodes
    assert [node.name for node in nodes if node.role == "leader"] == ["leader", "leader-2"]
    found = [spared_nodes(nodes, seed) for seed in range(20)]
    assert all([node.role for node in spared] == list(ROLES) for spared in found)
    assert {spared[2] for spared in found} == {LEADER, OTHER_LEADER}
    assert spared_nodes(nodes, 3) == spared_nodes(nodes, 3)
