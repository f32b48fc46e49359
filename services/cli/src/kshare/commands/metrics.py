"""`kshare metrics --describe`: the document of all metrics, which is kept at deploy/observability/metrics.md."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kshare_servicekit.measures import Chapter

INTRODUCTION = """\
# Metrics

Every process serves its metrics in Prometheus' text format at the address given with `--metrics-listen`, as
`GET /metrics`; `kshare up --metrics-listen HOST:PORT` gives each process the next port, and one port to
`--single-process`, where all samples of nodes have the label `node_id`. This document is written by
`kshare metrics --describe`; a test compares the two.

Names are `kshare_<role>_<what>_<unit>`, counters end in `_total`. Durations are in seconds, sizes in bytes. Histograms
have the usual `_bucket`, `_count` and `_sum`. There are also prometheus-client's `process_*` and `python_*`.

**Limits.** At one leader at most `kshare.metrics.share.partitions.limit` share-partitions have samples of their own,
those with the largest lag, and as many groups and topics of groups; of topics the `kshare.metrics.topics.limit`
largest. All others are summed up in one sample whose labels are `(others)`. What a share-partition counted before it
moved there stays where it was, so no counter ever falls, and a rate over all is right.

**Queries to begin with.** Lag of a group: `sum by (group) (kshare_leader_share_lag_records)`. Accepted per second:
`sum by (group) (rate(kshare_leader_share_acknowledged_records_total{type="accept"}[1m]))`. Cache hits of a gateway:
`rate(kshare_gateway_cache_hit_bytes_total[5m]) / (rate(kshare_gateway_cache_hit_bytes_total[5m]) +
rate(kshare_gateway_cache_miss_bytes_total[5m]))`. Is every node healthy: `min(kshare_node_healthy)`.
"""


def description() -> str:
    """The document, with a line break at its end."""
    # Loads every role, which other commands need not.
    from kshare_coordinator import measures as coordinator
    from kshare_gateway import measures as gateway
    from kshare_leader import measures_families as leader
    from kshare_servicekit import process_measures
    from kshare_servicekit.measures import Chapter, describe
    from kshare_share_coordinator import measures as share_coordinator

    return describe(
        INTRODUCTION,
        [
            Chapter(
                "Leaders",
                "Share-partitions, topics and their logs, at the leader that has the partition.",
                leader.FAMILIES,
            ),
            Chapter("Share coordinators", "Durable state of share-partitions.", share_coordinator.FAMILIES),
            Chapter(
                "Coordinators",
                "Groups, and at the active one the catalog: topics, nodes, placement, transactions.",
                coordinator.FAMILIES,
            ),
            Chapter("Gateways", "Clients of the Kafka protocol.", gateway.FAMILIES),
            *_pipeline_chapter(),
            Chapter("Every process", "Health, the event loop, and calls between roles.", process_measures.FAMILIES),
        ],
    )


def _pipeline_chapter() -> list[Chapter]:
    """Without it where the package is not installed, as in the image of the kshare command."""
    if importlib.util.find_spec("kshare_pipeline") is None:
        return []
    from kshare_pipeline import measures as pipeline
    from kshare_servicekit.measures import Chapter

    text = "The service that makes tables, marts and a report of the delivery history."
    return [Chapter("The pipeline", text, pipeline.FAMILIES)]
