"""WriteTxnMarkers at the gateway: markers go to the partitions' leaders, each producer is answered once."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.internal_topics import CONSUMER_OFFSETS_TOPIC
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.network import CallFailed
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import OTHER_TOPIC_ID, TOPIC_ID, GatewayHarness, run, versions_of

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def written(request: Any, payload: memoryview) -> Any:
    """Producer 8 is fenced everywhere."""
    answer = leader_pb2.WriteTxnMarkersResponse()
    for marker in request.markers:
        for entry in marker.partitions:
            code = ErrorCode.INVALID_PRODUCER_EPOCH if marker.producer_id == 8 else ErrorCode.NONE
            answer.results.add(
                producer_id=marker.producer_id, topic_id=entry.topic_id, partition=entry.partition, error_code=code
            )
    return answer


def marker(producer_id: int, *topics: tuple[str, list[int]], **values: Any) -> dict[str, Any]:
    named = [{"name": name, "partition_indexes": partitions} for name, partitions in topics]
    defaults = {"producer_epoch": 3, "transaction_result": False, "coordinator_epoch": -1}
    return {"producer_id": producer_id, "topics": named, **defaults, **values}


def results(answer: Any) -> dict[int, dict[str, list[tuple[int, int]]]]:
    assert len({each.producer_id for each in answer.markers}) == len(answer.markers)
    return {
        each.producer_id: {
            topic.name: [(entry.partition_index, int(entry.error_code)) for entry in topic.partitions]
            for topic in each.topics
        }
        for each in answer.markers
    }


@pytest.mark.parametrize("version", versions_of(ApiKey.WRITE_TXN_MARKERS))
def test_markers_go_to_the_leaders_of_their_partitions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        for leader in harness.leaders.values():
            leader.answers["WriteTxnMarkers"] = written
        newer = {"transaction_version": 2} if version >= 2 else {}
        markers = [
            marker(7, ("orders", [0, 9]), ("mixed", [1]), ("missing", [0]), **newer),
            marker(8, ("mixed", [0, 1]), transaction_result=True, coordinator_epoch=5),
            marker(7, (CONSUMER_OFFSETS_TOPIC, [0])),
        ]
        answer = await harness.client().ask(ApiKey.WRITE_TXN_MARKERS, version, markers=markers)
        fenced = ErrorCode.INVALID_PRODUCER_EPOCH
        assert results(answer) == {
            7: {
                "orders": [(0, 0), (9, UNKNOWN)],
                "mixed": [(1, 0)],
                "missing": [(0, UNKNOWN)],
                CONSUMER_OFFSETS_TOPIC: [(0, ErrorCode.INVALID_TOPIC_EXCEPTION)],
            },
            8: {"mixed": [(0, fenced), (1, fenced)]},
        }
        (first,), (second,) = (harness.leaders[node_id].requests("WriteTxnMarkers") for node_id in (1, 2))
        told = [(each.producer_id, each.committed, each.coordinator_epoch) for each in first.markers]
        assert told == [(7, False, -1), (8, True, 5)]
        assert [each.transaction_version for each in first.markers] == [2 if newer else 0, 0]
        places = [[(entry.topic_id, entry.partition) for entry in each.partitions] for each in first.markers]
        assert places == [[(TOPIC_ID, 0)], [(OTHER_TOPIC_ID, 0)]]
        places = [[(entry.topic_id, entry.partition) for entry in each.partitions] for each in second.markers]
        assert places == [[(OTHER_TOPIC_ID, 1)], [(OTHER_TOPIC_ID, 1)]]

    run(scenario)


def test_markers_can_be_sent_again_to_a_leader_that_did_not_answer() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        def away(request: Any, payload: memoryview) -> Any:
            raise CallFailed("away")

        harness.leaders[1].answers["WriteTxnMarkers"] = away
        harness.leaders[2].answers["WriteTxnMarkers"] = written
        markers = [marker(7, ("mixed", [0, 1]))]
        answer = await harness.client().ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=markers)
        assert results(answer) == {7: {"mixed": [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (1, 0)]}}

    run(scenario)
