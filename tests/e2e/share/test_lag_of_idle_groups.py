"""The lag of a group whose workers are all gone: it is among the metrics after a restart of the leader, and a move.

An autoscaler that scales workers to none wakes them by this figure.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kshare.commands.groups.group_requests import read_share_offsets
from kshare.failure import CommandFailed
from support.clients.delivery import ACCEPT, Reader, new_group, new_topic, produce, wait_for
from support.clusters.kshare_cluster import KshareCluster, children_of, command_line
from support.servicekit.scraped import scrape

SETTINGS = {"kshare.leaders": "2", "kshare.node.lease.ms": "3000"}
KNOWN_WITHIN_S = 15.0
"""Of which a few seconds are the restart, or the move; the limit is far from the minute of the regular refresh."""


def shown_lags(cluster: KshareCluster, group: str) -> dict[str, float]:
    """The group's samples by leader; a leader that is just starting shows nothing."""
    found: dict[str, float] = {}
    for name, address in re.findall(r"metrics of (leader[a-z0-9 -]*): http://([0-9.:]+)/metrics", cluster.log_text()):
        try:
            samples = scrape(address).samples
        except OSError:
            continue
        for (sample, labels), value in samples.items():
            if sample == "kshare_leader_share_lag_records" and ("group", group) in labels:
                found[name] = value
    return found


def node_id(name: str) -> int:
    """Of a leader: "leader" is the first."""
    found = re.search(r"\d+", name)
    return int(found.group()) if found else 1


def leader_pid(cluster: KshareCluster, number: int) -> int:
    for child in children_of(cluster.pid):
        words = command_line(child)
        if "kshare_leader" in words and words[words.index("--node-id") + 1] == str(number):
            return child
    raise AssertionError(f"no process of leader {number}")


def admin_answers(cluster: KshareCluster, group: str, topic: str) -> Iterator[int | None]:
    """What the admin API says of the lag: None until a gateway answers."""
    deadline = time.monotonic() + KNOWN_WITHIN_S
    answer: int | None = None
    while answer is None:
        assert time.monotonic() < deadline, "no gateway answered"
        with suppress(CommandFailed):  # while it starts
            answer = sum(one.lag for one in read_share_offsets(cluster.bootstrap, group) if one.topic == topic)
        yield answer


def test_lag_outlasts_restarts_and_a_move(tmp_path: Path) -> None:
    with KshareCluster(tmp_path, SETTINGS, options=["--metrics-listen", "127.0.0.1:0"]) as cluster:
        topic, group = new_topic(cluster.records_bootstrap), new_group(cluster.bootstrap)
        produce(cluster.records_bootstrap, topic, map(str, range(10)))
        with Reader(cluster.bootstrap, group, topic) as reader:
            messages = reader.take()
            reader.settle(ACCEPT, [messages[0], *messages[4:7]])
            wait_for(lambda: list(shown_lags(cluster, group).values()) == [6.0], "the lag before")
            cluster.wait_until_gone(cluster.kill_role("gateway"))
            # The held records count as before while no gateway serves, and when the next one knows no session
            for answer in admin_answers(cluster, group, topic):
                assert answer in (None, 6)
                assert set(shown_lags(cluster, group).values()) <= {6.0}, "never another figure"
        wait_for(lambda: list(shown_lags(cluster, group).values()) == [6.0], "a member's end settles no record")
        (before,) = shown_lags(cluster, group)

        pid = leader_pid(cluster, node_id(before))
        os.kill(pid, signal.SIGKILL)
        cluster.wait_until_gone(pid)
        started_at = time.monotonic()
        wait_for(lambda: list(shown_lags(cluster, group).values()) == [6.0], "the lag after the leaders' restart")
        assert time.monotonic() - started_at < KNOWN_WITHIN_S
        (before,) = shown_lags(cluster, group)  # another one, if the cluster has the records and a lease ended

        to = 3 - node_id(before)
        command = [str(Path(sys.executable).parent / "kshare"), "partitions", "move", f"{topic}:0", "--to", str(to)]
        command += ["--wait", "--bootstrap", cluster.bootstrap]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        moved_at = time.monotonic()
        produce(cluster.records_bootstrap, topic, ["more"])
        wait_for(lambda: list(shown_lags(cluster, group).values()) == [7.0], "the lag after the move")
        assert list(shown_lags(cluster, group)) != [before]
        assert time.monotonic() - moved_at < KNOWN_WITHIN_S

        with Reader(cluster.bootstrap, group, topic) as reader:
            reader.accept(7)
        wait_for(lambda: list(shown_lags(cluster, group).values()) == [0.0], "the lag when all is accepted")
        assert list(admin_answers(cluster, group, topic)) == [0]
