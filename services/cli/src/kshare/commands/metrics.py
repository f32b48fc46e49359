"""`kshare metrics --describe`: the reference of all metrics, stored as deploy/observability/metrics.md."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kshare_servicekit.metric_families import Chapter

INTRODUCTION = """\
# Metrics

Every process serves its metrics in Prometheus' text format at `GET /metrics` of the address `--metrics-listen`. `kshare
up --metrics-listen HOST:PORT` gives each process the next port, and the web console (`--console`) the next free one.
With one process (`--processes 1`) all roles have one port, and all samples of nodes have the label `node_id`. This
document is the output of `kshare metrics --describe`; a test compares the two.

Names are `kshare_<role>_<what>_<unit>`, counters end in `_total`. Durations are in seconds, sizes in bytes. Histograms
have the usual `_bucket`, `_count` and `_sum`. prometheus-client's `process_*` and `python_*` are served as well.

**Exemplars.** A scraper whose header Accept lists `application/openmetrics-text` gets OpenMetrics 1.0, as Prometheus
does. There the durations of clients' requests, of served calls between roles, and of ShareFetch and ShareAcknowledge at
leaders have an exemplar in each bucket: the newest value of a recorded trace, with its `trace_id`. Prometheus keeps
exemplars with `--enable-feature=exemplar-storage`.

**Limits.** A leader has separate samples for at most `kshare.metrics.share.partitions.limit` share-partitions, those
with the largest lag. The same limit holds for groups and for pairs of group and topic. Topics are limited to the
`kshare.metrics.topics.limit` largest. All others are summed in one sample with the labels `(others)`. A reassigned
share-partition's counts stay at the former leader, so counters never decrease and a rate over all leaders is correct.

**First queries.** Lag of a group: `sum by (group) (kshare_leader_share_lag_records)`. Accepted per second:
`sum by (group) (rate(kshare_leader_share_acknowledged_records_total{type="accept"}[1m]))`. Cache hits of a gateway:
`rate(kshare_gateway_cache_hit_bytes_total[5m]) / (rate(kshare_gateway_cache_hit_bytes_total[5m]) +
rate(kshare_gateway_cache_miss_bytes_total[5m]))`. Health of all nodes: `min(kshare_node_healthy)`.
"""


def description() -> str:
    """The document, with a line break at its end."""
    # Imported here since it loads every role, which other commands do not need.
    from kshare_console import metrics as console
    from kshare_coordinator import metrics as coordinator
    from kshare_gateway import metrics as gateway
    from kshare_leader import metric_families as leader
    from kshare_servicekit import process_metrics
    from kshare_servicekit.metric_families import Chapter, describe
    from kshare_share_coordinator import metrics as share_coordinator

    return describe(
        INTRODUCTION,
        [
            Chapter(
                "Leaders",
                "Share-partitions, topics and their logs, from the partition's leader.",
                leader.FAMILIES,
            ),
            Chapter("Share coordinators", "Durable state of share-partitions.", share_coordinator.FAMILIES),
            Chapter(
                "Coordinators",
                "Groups; from the active coordinator also the catalog: topics, nodes, placement, transactions.",
                coordinator.FAMILIES,
            ),
            Chapter("Gateways", "Clients of the Kafka protocol.", gateway.FAMILIES),
            Chapter("Consoles", "Browsers of the web console.", console.FAMILIES),
            *_pipeline_chapter(),
            Chapter("Every process", "Health, the event loop, and calls between roles.", process_metrics.FAMILIES),
        ],
    )


def _pipeline_chapter() -> list[Chapter]:
    """The pipeline's chapter; none if the package is not installed, as in the image of the kshare command."""
    if importlib.util.find_spec("kshare_pipeline") is None:
        return []
    from kshare_pipeline import metrics as pipeline
    from kshare_servicekit.metric_families import Chapter

    text = "The service that turns the delivery history into tables, marts and a report."
    return [Chapter("The pipeline", text, pipeline.FAMILIES)]
