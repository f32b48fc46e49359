"""Where partitions are placed: leaders, share coordinators, and moves under way. Pure."""

from __future__ import annotations

from collections import Counter

from kshare_console.views.overview import name_of
from kshare_console.views.paging import Json
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

MOVES_LIMIT = 500


def placement(partitions: pb.DescribePartitionsResponse, states: pb.DescribeStatePartitionsResponse) -> Json:
    owned = Counter(each.node_id for each in states.state_partitions)
    moves = [
        {
            "topic": topic.name,
            "partition": one.partition,
            "from": name_of("leader", one.leader_node_id),
            "to": name_of("leader", one.moving_to_node_id),
            "phase": "switching" if one.is_fenced else "copying",
        }
        for topic in partitions.topics
        for one in topic.partitions
        if one.is_moving
    ]
    return {
        "leaders": [
            {
                "node_id": each.node_id,
                "name": name_of("leader", each.node_id),
                "address": each.rpc_address,
                "partitions": each.partition_count,
                "live": each.is_live,
                "draining": each.is_draining,
            }
            for each in partitions.leaders
        ],
        "share_coordinators": [
            {
                "node_id": each.node_id,
                "name": name_of("share-coordinator", each.node_id),
                "address": each.rpc_address,
                "state_partitions": owned[each.node_id],
                "live": each.is_live,
                "draining": each.is_draining,
            }
            for each in states.share_coordinators
        ],
        "moves": moves[:MOVES_LIMIT],
        "moves_total": len(moves),
    }
