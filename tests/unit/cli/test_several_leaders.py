"""`kshare up` with several leaders: ids, ports and directories of their own, and a word about those left out."""

from __future__ import annotations

from pathlib import Path

from kshare.addresses import Address
from kshare.up.command import _stores_left_out
from kshare.up.data_directory import DataDirectory
from kshare.up.plan import LEADERS, node_command, plan_cluster
from kshare_core.configs import process_configs

ANYWHERE = Address("127.0.0.1", 0)


def test_leaders_have_ids_ports_and_directories_of_their_own(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    plan = plan_cluster(directory, ANYWHERE, None, None, leaders=3)
    commands = [node_command(directory, plan, node) for node in plan.leaders]
    options = [dict(zip(command[3::2], command[4::2], strict=True)) for command in commands]
    assert {tuple(command[1:3]) for command in commands} == {("-m", "kshare_leader")}
    assert [each["--node-id"] for each in options] == ["1", "2", "3"]
    assert [Path(each["--data-dir"]) for each in options] == [tmp_path, tmp_path / "leader-2", tmp_path / "leader-3"]
    assert len({each["--listen"] for each in options}) == len({each["--ready-file"] for each in options}) == 3
    names = [node.name for node in plan.nodes]
    assert names[-4:] == ["leader", "leader-2", "leader-3", "gateway"], "leaders start before clients may come"
    directory.close()


def test_a_leader_of_a_former_run_that_is_not_started(tmp_path: Path) -> None:
    for name in ("leader-2", "leader-3", "share-coordinator-2"):
        (tmp_path / name).mkdir()
    directory = DataDirectory(tmp_path)
    plan = plan_cluster(directory, ANYWHERE, None, None, leaders=2)
    warnings = _stores_left_out(directory, plan, process_configs({})[0])
    assert [warning.split()[0] for warning in warnings] == ["share-coordinator-2", "leader-3"]
    assert "records" in warnings[1] and "kshare.leaders is 2" in warnings[1]
    in_a_cluster, _ = process_configs({"kshare.engine": "kafka"})
    assert _stores_left_out(directory, plan, in_a_cluster) == [], "their data is in the cluster"
    directory.close()


def test_one_leader_unless_the_configuration_says_more() -> None:
    configs, _ = process_configs({})
    more, _ = process_configs({LEADERS: "3"})
    assert configs.integer(LEADERS) == 1 and more.integer(LEADERS) == 3
