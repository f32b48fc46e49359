"""Log lines have the fields of the work that they belong to: request, group, partition."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text
from kshare_core.log_fields import about, current_request_id, log_fields
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as pb
from kshare_rpc.generated.methods import SHARE_COORDINATOR, WRITE_SHARE_GROUP_STATE
from kshare_rpc.grpc_network import GrpcNetwork
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Network, Service
from kshare_servicekit import logs

TOPIC = bytes(range(16))


def logged(capsys: pytest.CaptureFixture[str], work: Callable[[], None]) -> list[dict[str, Any]]:
    """The lines of a leader's process that does the work."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure(role="leader", node_id=1, log_format="json", log_level="debug")
        work()
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("{") for line in lines), lines
    return [json.loads(line) for line in lines]


def test_fields_are_those_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        log = logging.getLogger("kshare_leader.node")
        with log_fields(group="workers"), log_fields(topic_id="x", partition=3):
            log.warning("within")
        about(SharePartitionKey("workers", TOPIC, 7), log.warning)("of a share-partition")
        about(TopicPartition(TOPIC, 8), log.warning)("of a partition")
        log.warning("of nothing")

    within, share_partition, partition, nothing = logged(capsys, work)
    assert (within["group"], within["topic_id"], within["partition"]) == ("workers", "x", 3)
    assert (within["role"], within["event"]) == ("leader", "within")
    assert share_partition["group"] == "workers"
    assert share_partition["topic_id"] == partition["topic_id"] == topic_id_text(TOPIC)
    assert (share_partition["partition"], partition["partition"]) == (7, 8)
    assert not {"group", "partition", "request_id"} & set(nothing)


@pytest.mark.parametrize("kind", [GrpcNetwork, InProcessNetwork])
def test_a_call_carries_the_request_that_it_is_for(
    kind: Callable[[], Network], capsys: pytest.CaptureFixture[str]
) -> None:
    async def write(request: pb.WriteShareGroupStateRequest, payload: memoryview) -> pb.WriteShareGroupStateResponse:
        logging.getLogger("handler").warning("at work")
        return pb.WriteShareGroupStateResponse()

    async def main() -> None:
        network = kind()
        server = await network.serve("127.0.0.1:0", [Service(SHARE_COORDINATOR, {WRITE_SHARE_GROUP_STATE: write})])
        channel = network.connect(server.address)
        request = pb.WriteShareGroupStateRequest(group_id="workers")
        request.partitions.add(topic_id=TOPIC, partition=5)
        for request_id in ("g1-42", "", "x" * 1_000):
            current_request_id.set(request_id)
            await channel.call(WRITE_SHARE_GROUP_STATE, request, timeout_ms=5_000)
        await channel.close()
        await server.stop(0)

    lines = logged(capsys, lambda: asyncio.run(main()))
    found = [line for line in lines if line["logger"] in ("handler", "kshare_rpc.call_server")]
    assert [line["event"] for line in found] == ["at work", "ShareCoordinator/WriteShareGroupState was answered"] * 3
    assert [line.get("request_id") for line in found[:4]] == ["g1-42", "g1-42", None, None]
    answered = found[1]
    assert (answered["group"], answered["partitions"]) == ("workers", f"{topic_id_text(TOPIC)}-5")
    assert answered["duration_ms"] >= 0
