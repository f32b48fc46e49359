"""The settings that a container fills in before its role starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kshare_servicekit.container import CannotStart, completed_environment, id_of_address


def completed(role: str, hostname: str = "3f2a91c0d411", drawn: int = 4711, **environment: str) -> dict[str, str]:
    return completed_environment(
        role,
        {f"KSHARE_{name.upper()}": value for name, value in environment.items()},
        hostname=hostname,
        own_address=lambda: "172.18.1.5",
        draw_node_id=lambda: drawn,
    )


@pytest.mark.parametrize(
    ("role", "hostname", "given", "node_id"),
    [
        ("leader", "kshare-leader-0", {}, "1"),
        ("share-coordinator", "kshare-share-coordinator-12", {}, "13"),
        ("leader", "kshare-leader-0", {"node_id": "7"}, "7"),
        ("gateway", "kshare-gateway-5d9c-77", {}, str((18 << 16) + (1 << 8) + 5)),
    ],
)
def test_node_ids_that_are_not_kept(role: str, hostname: str, given: dict[str, Any], node_id: str) -> None:
    assert completed(role, hostname, **given)["KSHARE_NODE_ID"] == node_id


@pytest.mark.parametrize("role", ["leader", "share-coordinator", "coordinator"])
def test_a_pod_of_a_deployment_has_the_id_of_its_address(role: str) -> None:
    """Its name may end in digits, which are no ordinal: a Deployment draws five of its characters."""
    found = completed(role, f"kshare-{role}-7d9f8c6b54-24567", node_id="address", data_dir="/nonexistent")
    assert found["KSHARE_NODE_ID"] == str(((172 & 127) << 24) + (18 << 16) + (1 << 8) + 5)


def test_addresses_of_all_private_networks_have_different_ids() -> None:
    networks = ("10.64.1.2", "100.64.1.2", "172.16.1.2", "172.31.1.2", "192.168.1.2")
    found = {id_of_address(address) for address in networks}
    assert len(found) == len(networks)
    assert all(0 < node_id < 2**31 for node_id in found)


def test_a_drawn_node_id_stays_with_the_data_directory(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    assert completed("leader", drawn=4711, data_dir=data_dir)["KSHARE_NODE_ID"] == "4711"
    assert completed("leader", "another-host", drawn=1, data_dir=data_dir)["KSHARE_NODE_ID"] == "4711"


def test_a_damaged_node_id_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "node-id").write_text("", encoding="ascii")
    with pytest.raises(CannotStart, match="it must have the node id"):
        completed("leader", data_dir=str(tmp_path))


def test_a_node_id_needs_a_place() -> None:
    with pytest.raises(CannotStart, match="KSHARE_DATA_DIR"):
        completed("leader")


def test_the_advertised_address() -> None:
    found = completed("leader", node_id="1", listen="0.0.0.0:9190")
    assert found["KSHARE_ADVERTISED_ADDRESS"] == "172.18.1.5:9190"
    given = completed("leader", node_id="1", listen="0.0.0.0:9190", advertised_address="leader-0.kshare:1")
    assert given["KSHARE_ADVERTISED_ADDRESS"] == "leader-0.kshare:1"
    named = completed("leader", node_id="1", listen="0.0.0.0:9190", advertised_service="kshare-leader.team.svc")
    assert named["KSHARE_ADVERTISED_ADDRESS"] == "172-18-1-5.kshare-leader.team.svc:9190"
    assert "KSHARE_ADVERTISED_ADDRESS" not in completed("gateway", node_id="1")
    assert "KSHARE_ADVERTISED_ADDRESS" not in completed("leader", node_id="1", listen="0.0.0.0:0")


def test_it_becomes_the_roles_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kshare_servicekit.container", "share-coordinator", "--help"]
    environment = {"KSHARE_DATA_DIR": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: python -m kshare_share_coordinator" in result.stdout
    assert int((tmp_path / "node-id").read_text()) >= 1_000


CLAIM = """
import sys
from pathlib import Path
from kshare_servicekit.container import claimed_directory
print(claimed_directory(Path(sys.argv[1])).name, flush=True)
sys.stdin.read()
"""


class Replica:
    """A process that has a directory of a shared volume until it ends."""

    def __init__(self, volume: Path) -> None:
        command = [sys.executable, "-c", CLAIM, str(volume)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.directory = self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate()


def test_each_replica_has_a_directory_of_its_own_and_a_new_one_takes_over(tmp_path: Path) -> None:
    first, second, third = Replica(tmp_path), Replica(tmp_path), Replica(tmp_path)
    try:
        assert [each.directory for each in (first, second, third)] == ["replica-1", "replica-2", "replica-3"]
        second.end()
        second = Replica(tmp_path)
        assert second.directory == "replica-2"
    finally:
        for each in (first, second, third):
            each.end()
    again = Replica(tmp_path)
    again.end()
    assert again.directory == "replica-1"


def test_the_node_id_stays_with_the_directory_of_a_shared_volume(tmp_path: Path) -> None:
    found = completed("leader", drawn=4711, data_dir="/elsewhere", shared_volume=str(tmp_path))
    assert found["KSHARE_DATA_DIR"] == str(tmp_path / "replica-1")
    assert found["KSHARE_NODE_ID"] == (tmp_path / "replica-1" / "node-id").read_text().strip() == "4711"


def at_ipv6(role: str, **environment: str) -> dict[str, str]:
    return completed_environment(
        role,
        {f"KSHARE_{name.upper()}": value for name, value in environment.items()},
        hostname="3f2a91c0d411",
        own_address=lambda: "fd00:10:244:1::5",
        draw_node_id=lambda: 4711,
    )


def test_a_container_with_an_ipv6_address_alone() -> None:
    found = at_ipv6("leader", node_id="address", listen="[::]:9190")
    assert found["KSHARE_ADVERTISED_ADDRESS"] == "[fd00:10:244:1::5]:9190"
    assert 0 < int(found["KSHARE_NODE_ID"]) < 2**31
    assert at_ipv6("gateway")["KSHARE_NODE_ID"] == found["KSHARE_NODE_ID"]
    named = at_ipv6("leader", node_id="address", listen="[::]:9190", advertised_service="leaders.team.svc")
    assert named["KSHARE_ADVERTISED_ADDRESS"] == "fd00-10-244-1--5.leaders.team.svc:9190"


def test_pods_of_two_nodes_with_the_same_lower_bits_have_different_ids() -> None:
    """Each node of Kubernetes has a network of its own, and numbers its pods alike."""
    addresses = [f"fd00:10:244:{node}::{pod:x}" for node in range(1, 11) for pod in range(2, 32)]
    assert len({id_of_address(address) for address in addresses}) == len(addresses)
