"""Share consumers whose fetches fail for a long time fetch a few times a second, and go on when the outage is over."""

from __future__ import annotations

import re
import time
from pathlib import Path

from support.clients.delivery import Reader, new_group, new_topic, produce, values_of, wait_for
from support.clusters.kshare_cluster import KshareCluster
from support.servicekit.scraped import scrape

SETTINGS = {"kshare.node.lease.ms": "3000"}
WATCHED_S = 2.0
FETCHES_LIMIT = 25
"""In WATCHED_S: five a second, and the first ones after an error, which come faster. Without a pause: 5,000."""


def failed_fetches(gateway: str) -> int:
    """Answers of ShareFetch with the error of a leader whose lease has ended."""
    return int(scrape(gateway).total("gateway_errors_total", api="ShareFetch", error="NOT_LEADER_OR_FOLLOWER"))


def test_a_coordinator_that_is_away_for_longer_than_the_lease(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, SETTINGS, options=["--metrics-listen", "127.0.0.1:0"]) as cluster:
        ((_, gateway),) = re.findall(r"metrics of (gateway): http://([0-9.:]+)/metrics", cluster.log_text())
        topic, group = new_topic(cluster.records_bootstrap), new_group(cluster.bootstrap)
        produce(cluster.records_bootstrap, topic, ["before"])
        with Reader(cluster.bootstrap, group, topic) as reader:
            assert values_of(reader.accept(1)) == ["before"]
            with cluster.paused("coordinator"):

                def has_failed() -> bool:
                    assert not reader.poll()
                    return failed_fetches(gateway) > 0

                wait_for(has_failed, "a fetch fails")
                before, deadline = failed_fetches(gateway), time.monotonic() + WATCHED_S
                while time.monotonic() < deadline:
                    assert not reader.poll()
                assert 1 <= failed_fetches(gateway) - before <= FETCHES_LIMIT
            produce(cluster.records_bootstrap, topic, ["after"])
            assert values_of(reader.accept(1)) == ["after"]
