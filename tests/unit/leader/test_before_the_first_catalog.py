"""A leader that serves already but has not seen the catalog: it knows nothing of topics, and must not say otherwise.

Clients take UNKNOWN_TOPIC_ID for the end of a topic; NOT_LEADER_OR_FOLLOWER makes them ask again.
"""

from __future__ import annotations

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_rpc.catalog import CatalogView
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.leader_logs import BROKER, KEY, NODE_ID, StillClock, topic, view_of

UNKNOWN = TopicPartition(b"topic-of-no-body", 0)


def code_of(logs: PartitionLogs, key: TopicPartition) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        logs.lookup(key)
    return caught.value.code


def test_no_topic_is_unknown_before_the_first_view() -> None:
    logs = PartitionLogs(
        store=MemoryDisk().open_store("leader"),
        clock=StillClock(),
        node_id=NODE_ID,
        configs=BROKER,
        has_lease=lambda: True,
        report=lambda text: None,
    )
    assert code_of(logs, KEY) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(logs, UNKNOWN) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    logs.on_view(CatalogView(), view_of(topic()))
    assert logs.lookup(KEY) is not None
    assert code_of(logs, UNKNOWN) is ErrorCode.UNKNOWN_TOPIC_ID
