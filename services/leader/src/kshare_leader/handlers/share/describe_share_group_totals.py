"""DescribeShareGroupTotals: what this leader counts for each share group, summed over share-partitions and topics.

An observer takes rates from two answers. Thousands of share-partitions are summed in slices, one for each turn of the
event loop, so that fetches are served meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from kshare_core.states import AcknowledgeType
from kshare_core.work_slices import WorkSlices, portions
from kshare_leader.metrics import GroupTopicCounts
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2

Response = leader_pb2.DescribeShareGroupTotalsResponse


class ShareGroupTotals:
    """The sums over a directory's share-partitions and their metrics."""

    def __init__(self, directory: SharePartitionDirectory, view: Callable[[], CatalogView], incarnation: str) -> None:
        self._directory = directory
        self._view = view
        self._incarnation = incarnation
        self._slices = WorkSlices()

    async def describe(self) -> Response:
        return await self._slices.run(self._sum())

    def _sum(self) -> Generator[None, None, Response]:
        directory, metrics = self._directory, self._directory.metrics
        groups: dict[str, Response.Group] = {}

        def of(group_id: str) -> Response.Group:
            return groups.get(group_id) or groups.setdefault(group_id, Response.Group(group_id=group_id))

        for portion in portions(list(metrics.share_partitions.items())):
            for key, counts in portion:
                group = of(key.group_id)
                group.delivered_total += counts.acquired
                group.accepted_total += counts.acknowledged[AcknowledgeType.ACCEPT]
                group.dead_letters_total += counts.dead_letters
            yield
        for served_portion in portions(list(directory.served.items())):
            for key, served in served_portion:
                if served.machine is not None:
                    group = of(key.group_id)
                    group.acquired_count += served.machine.acquired_count
                    if (held_ms := served.oldest_acquired_ms) > group.oldest_acquired_ms:
                        group.oldest_acquired_ms = held_ms
                        group.oldest_topic_id, group.oldest_partition = key.topic_id, key.partition
            yield
        for (group_id, _), counts_of_topic in list(metrics.group_topics.items()):
            of(group_id).redelivered_total += _redelivered(counts_of_topic)
        known = self._view().topics_by_id
        appended = sum(
            counts_of_log.records_in
            for topic_id, counts_of_log in metrics.topics.items()
            if topic_id in known and not known[topic_id].internal
        )
        return Response(groups=groups.values(), appended_total=appended, incarnation=self._incarnation)


def _redelivered(counts: GroupTopicCounts) -> int:
    """Deliveries with a count above 1: all but those of the lowest bucket."""
    return sum(counts.deliveries.counts[1:])
