"""OffsetForLeaderEpoch at the gateway: each partition goes to its leader, and failures make clients ask again."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import CallFailed
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def ended(request: Any, payload: memoryview) -> Any:
    """Each epoch ends at ten times its number; partition 2 has none."""
    answer = leader_pb2.OffsetForLeaderEpochResponse()
    for entry in request.partitions:
        is_missing = entry.partition == 2
        answer.partitions.add(
            topic_id=entry.topic_id,
            partition=entry.partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_ID if is_missing else ErrorCode.NONE,
            leader_epoch=-1 if is_missing else entry.leader_epoch,
            end_offset=-1 if is_missing else 10 * entry.leader_epoch,
        )
    return answer


def wanted(name: str, *partitions: tuple[int, int]) -> dict[str, Any]:
    """Pairs of a partition and the epoch that is asked for."""
    entries = [
        {"partition": partition, "current_leader_epoch": 4, "leader_epoch": epoch} for partition, epoch in partitions
    ]
    return {"topic": name, "partitions": entries}


def results(answer: Any) -> list[tuple[str, int, int, int, int]]:
    return [
        (topic.topic, entry.partition, int(entry.error_code), entry.leader_epoch, entry.end_offset)
        for topic in answer.topics
        for entry in topic.partitions
    ]


@pytest.mark.parametrize("version", versions_of(ApiKey.OFFSET_FOR_LEADER_EPOCH))
def test_each_leader_is_asked_once_for_its_partitions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for leader in harness.leaders.values():
            leader.answers["OffsetForLeaderEpoch"] = ended
        topics = [wanted("orders", (0, 5), (2, 7), (9, 8)), wanted("missing", (0, 1)), wanted("mixed", (0, 3), (1, 9))]
        answer = await harness.client().ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, topics=topics)
        assert results(answer) == [
            ("orders", 0, 0, 5, 50),
            ("orders", 2, UNKNOWN, -1, -1),
            ("orders", 9, UNKNOWN, -1, -1),
            ("missing", 0, UNKNOWN, -1, -1),
            ("mixed", 0, 0, 3, 30),
            ("mixed", 1, 0, 9, 90),
        ]
        asked = {
            node_id: [
                [(entry.topic_id, entry.partition, entry.current_leader_epoch) for entry in request.partitions]
                for request in leader.requests("OffsetForLeaderEpoch")
            ]
            for node_id, leader in harness.leaders.items()
        }
        first = [(TOPIC_ID, 0, 4), (TOPIC_ID, 2, 4), (OTHER_TOPIC_ID, 0, 4)]
        assert asked == {1: [first], 2: [[(OTHER_TOPIC_ID, 1, 4)]]}

    run(scenario)


def test_a_leader_that_does_not_answer_is_asked_again_by_clients() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def away(request: Any, payload: memoryview) -> Any:
            raise CallFailed("away")

        harness.leaders[1].answers["OffsetForLeaderEpoch"] = away
        harness.leaders[2].answers["OffsetForLeaderEpoch"] = ended
        topics = [wanted("mixed", (0, 3), (1, 4))]
        answer = await harness.client().ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, topics=topics)
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert results(answer) == [("mixed", 0, moved, -1, -1), ("mixed", 1, 0, 4, 40)]

    run(scenario)
