"""A client's request is followed by its id through the logs of all roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.clients.delivery import ACCEPT, Reader, new_group, new_topic, produce
from support.clusters.kshare_cluster import KshareCluster


def lines_of(folder: Path, role: str) -> list[dict[str, Any]]:
    text = (folder / "data" / "logs" / f"{role}.log").read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.timeout(120)
def test_an_acknowledgement_from_the_gateway_to_the_share_coordinator(tmp_path: Path) -> None:
    variables = {"KSHARE_LOG_LEVEL": "debug", "KSHARE_LOG_FORMAT": "json"}
    with KshareCluster(tmp_path, variables=variables) as cluster:
        topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
        produce(cluster.bootstrap, topic, ["an order"])
        with Reader(cluster.bootstrap, group, topic) as reader:
            reader.take()
            reader.settle(ACCEPT)
    at_gateway = [line for line in lines_of(tmp_path, "gateway") if "ShareAcknowledge version" in line["event"]]
    acknowledged = next(line for line in at_gateway if line.get("group") == group)
    request_id = acknowledged["request_id"]
    assert request_id.startswith("g1-")
    for role, call in (("leader", "Leader/ShareAcknowledge"), ("share-coordinator", "WriteShareGroupState")):
        found = [line for line in lines_of(tmp_path, role) if line.get("request_id") == request_id]
        (answered,) = [line for line in found if call in line["event"]]
        assert answered["group"] == group
        assert answered["partitions"].endswith("-0")
        assert answered["role"] == role
