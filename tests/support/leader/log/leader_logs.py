"""Fixtures of tests of topic logs: a catalog's view, a clock that does not advance, and the logs of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.identifiers import TopicPartition
from kshare_leader.log.aside import Aside
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.seen_ids import SeenProducerIds
from kshare_leader.log.tail import TailCache
from kshare_rpc.catalog import CatalogStart, CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_runtime.ports import KeyValueStore

NODE_ID = 1
TOPIC = b"topic-0000000001"
KEY = TopicPartition(TOPIC, 0)
BROKER = Configs(PROCESS_CONFIGS)


class StillClock:
    """A wall clock that moves only when a test says so."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms


def topic(
    topic_id: bytes = TOPIC,
    *,
    leaders: Sequence[int] = (NODE_ID, NODE_ID),
    leader_epoch: int = 3,
    configs: Mapping[str, str] | None = None,
) -> coordinator_pb2.Topic:
    """A topic with one partition for each of `leaders`."""
    return coordinator_pb2.Topic(
        topic_id=topic_id,
        name=topic_id.decode(),
        partitions=[
            coordinator_pb2.Topic.Partition(partition=number, leader_node_id=leader, leader_epoch=leader_epoch)
            for number, leader in enumerate(leaders)
        ],
        configs=[coordinator_pb2.ConfigEntry(name=name, value=value) for name, value in (configs or {}).items()],
    )


def view_of(
    *topics: coordinator_pb2.Topic, version: int = 1, cluster_id: str = "cluster", starts: Sequence[CatalogStart] = ()
) -> CatalogView:
    return CatalogView(
        version=version,
        cluster_id=cluster_id,
        starts=tuple(starts),
        topics_by_id={topic.topic_id: topic for topic in topics},
        topics_by_name={topic.name: topic for topic in topics},
    )


def open_logs(
    store: KeyValueStore,
    *topics: coordinator_pb2.Topic,
    clock: StillClock | None = None,
    has_lease: Callable[[], bool] = lambda: True,
    report: Callable[[str], None] = lambda text: None,
    tails: TailCache | None = None,
    aside: Aside | None = None,
    node_id: int = NODE_ID,
    seen_ids: SeenProducerIds | None = None,
    rows: KeyValueStore | None = None,
) -> PartitionLogs:
    """The logs of a node after a first view with `topics`, by default one topic of two partitions."""
    logs = PartitionLogs(
        store=store,
        clock=clock or StillClock(),
        node_id=node_id,
        configs=BROKER,
        has_lease=has_lease,
        report=report,
        tails=tails,
        aside=aside,
        seen_ids=seen_ids,
        rows=rows,
    )
    logs.on_view(CatalogView(), view_of(*(topics or (topic(),))))
    return logs
