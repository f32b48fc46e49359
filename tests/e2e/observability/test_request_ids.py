"""A client's request is followed by its id through the logs of all roles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.clients.delivery import ACCEPT, Reader, new_group, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster

ANSWERED = {"leader": "Leader/ShareAcknowledge", "share-coordinator": "WriteShareGroupState"}
"""The call of a role that is a part of the acknowledgement."""


def lines_of(cluster: KshareCluster, role: str, **fields: str) -> list[dict[str, Any]]:
    """Those with these fields."""
    text = (cluster.data_dir / "logs" / f"{role}.log").read_text()
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return [line for line in found if line.items() >= fields.items()]


@pytest.mark.timeout(120)
def test_an_acknowledgement_from_the_gateway_to_the_share_coordinator(tmp_path: Path) -> None:
    variables = {"KSHARE_LOG_LEVEL": "debug", "KSHARE_LOG_FORMAT": "json"}
    with KshareCluster(tmp_path, variables=variables) as cluster:
        topic, group = new_topic(cluster.bootstrap), new_group(cluster.bootstrap)
        produce(cluster.bootstrap, topic, ["an order"])
        with Reader(cluster.bootstrap, group, topic) as reader:
            reader.take()
            reader.settle(ACCEPT)

        def acknowledgements() -> list[dict[str, Any]]:
            lines = lines_of(cluster, "gateway", group=group)
            return [line for line in lines if "ShareAcknowledge version" in line["event"]]

        wait_for(lambda: bool(acknowledgements()), "the gateway has logged the acknowledgement")
        request_id = acknowledgements()[0]["request_id"]
        assert request_id.startswith("g1-")

        def calls(role: str) -> list[dict[str, Any]]:
            lines = lines_of(cluster, role, request_id=request_id)
            return [line for line in lines if ANSWERED[role] in line["event"]]

        for role in ANSWERED:
            wait_for(lambda role=role: bool(calls(role)), f"{role} has logged its part")  # type: ignore[misc]
            (answered,) = calls(role)
            assert answered["group"] == group
            assert answered["partitions"].endswith("-0")
            assert answered["role"] == role
