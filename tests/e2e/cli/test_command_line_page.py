"""docs/command-line.md: every indented line runs, in the page's order, and does what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support.clusters.kshare_cluster import KshareCluster

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
LIMIT_S = 60.0

Record = dict[str, str | list[dict[str, str]]]


def page_lines() -> list[str]:
    text = re.sub(r"```.*?```", "", (ROOT / "docs/command-line.md").read_text(), flags=re.DOTALL)
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def test_every_line_of_the_page(tmp_path: Path) -> None:
    printed: dict[str, str] = {}
    with KshareCluster(tmp_path / "cluster") as cluster:
        environment = {
            **os.environ,
            "KSHARE_BOOTSTRAP": cluster.bootstrap,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }
        profile = tmp_path / "config/kshare/profiles/production.properties"
        profile.parent.mkdir(parents=True)
        profile.write_text(f"bootstrap.servers={cluster.bootstrap}\n")
        for line in page_lines():
            command = ["bash", "-o", "pipefail", "-c", line]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            printed[line] = done.stdout
        copied = _records(environment, "orders.copy")
        worker = printed["kshare client-config python --topic orders --group billing"]
        assert _first_line(worker, environment).endswith(("order", "<order/>")), "the printed program is a worker"
    assert sorted((str(record["key"]), str(record["value"])) for record in copied if record["headers"]) == [
        ("customer-7", "fifth order"),
        ("customer-8", "seventh order"),
    ]
    assert {str(record["value"]) for record in copied} == {
        *(f"{number} order" for number in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")),
        "<order/>\n",
    }
    assert {str(record["key"]) for record in copied if record["value"] == "sixth order"} == {"customer-7"}
    groups = json.loads(printed["kshare groups list --output json"])["groups"]
    assert [group["group"] for group in groups] == ["billing"]
    assert "0 problems" in printed["kshare doctor"] and "group billing has no members" in printed["kshare doctor"]
    assert f"│ {cluster.bootstrap} │ plaintext" in printed["kshare profiles"]
    topics = json.loads(printed["kshare topics list -o json"])["topics"]
    assert {"orders", "orders.copy"} <= {topic["topic"] for topic in topics}


def _records(environment: dict[str, str], topic: str) -> list[Record]:
    command = [str(BIN / "kshare"), "peek", topic, "--output", "json", "--max", "100"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _first_line(program: str, environment: dict[str, str]) -> str:
    """What a Python program prints first; it is ended then."""
    command = [sys.executable, "-u", "-c", program]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            return running.stdout.readline().strip()
        finally:
            running.kill()
