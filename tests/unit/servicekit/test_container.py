"""What a container fills in before its role starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kshare_servicekit.container import CannotStart, completed_environment


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
    assert "KSHARE_ADVERTISED_ADDRESS" not in completed("gateway", node_id="1")
    assert "KSHARE_ADVERTISED_ADDRESS" not in completed("leader", node_id="1", listen="0.0.0.0:0")


def test_it_becomes_the_roles_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kshare_servicekit.container", "share-coordinator", "--help"]
    environment = {"KSHARE_DATA_DIR": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: python -m kshare_share_coordinator" in result.stdout
    assert int((tmp_path / "node-id").read_text()) >= 1_000
