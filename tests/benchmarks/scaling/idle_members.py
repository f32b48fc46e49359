"""Members of share groups that have nothing to do, in a process of their own: `with idle_members(...)`.

Each is a ShareConsumer of confluent-kafka with connections of its own, which polls twice in a second, so its ShareFetch
waits at the server nearly always, as that of a worker that waits for work.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from confluent_kafka import ShareConsumer

from benchmarks.consumer_process import ConsumerProcess
from benchmarks.endpoints import administration
from benchmarks.scenarios import SCENARIO_TIMEOUT_S, fresh_name
from kshare_wire.generated.api_keys import ApiKey
from support.clients.kafka_requests import KafkaRequests

MEMBERS_OF_A_GROUP = 100
"""Below group.share.max.size, which is 200 by default."""
POLL_INTERVAL_S = 0.5
CLOSED_AT_ONCE = 50


@contextmanager
def idle_members(bootstrap: str, topic: str, count: int) -> Iterator[None]:
    """Returns when every member has its assignment, and its first ShareFetch waits."""
    groups = {fresh_name("idle"): min(MEMBERS_OF_A_GROUP, count - at) for at in range(0, count, MEMBERS_OF_A_GROUP)}
    if not groups:
        yield
        return
    with _Process("benchmarks.scaling.idle_members", bootstrap, topic, json.dumps(groups)) as process:
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        while (ready := _with_assignments(bootstrap, list(groups))) < count:
            if time.monotonic() > deadline or process.process.poll() is not None:
                raise RuntimeError(f"only {ready} of {count} members have their assignment")
            time.sleep(0.2)
        time.sleep(2 * POLL_INTERVAL_S)  # each has polled with its assignment
        yield


def _with_assignments(bootstrap: str, groups: list[str]) -> int:
    """How many members have been told their assignment of the group's last epoch.

    Kafka answers a join without one, and tells it with the next heartbeat, 5 s later. A member fetches nothing before.
    """
    with KafkaRequests(administration(bootstrap)) as requests:
        answer = requests.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=groups, include_authorized_operations=False)
    return sum(
        member.member_epoch == group.group_epoch and bool(member.assignment.topic_partitions)
        for group in answer.groups
        for member in group.members
    )


class _Process(ConsumerProcess):
    def heard(self, line: str) -> None:
        raise AssertionError(f"an idle member got a record: {line}")


def wait_for_work(settings: dict[str, str | int | float | bool], topic: str, groups: dict[str, int]) -> None:
    """What the process runs, until its standard input is closed."""
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    members = [
        ShareConsumer({**settings, "group.id": group, "log_level": 3})
        for group, count in groups.items()
        for _ in range(count)
    ]
    for member in members:
        member.subscribe([topic])
    while not ended.wait(POLL_INTERVAL_S):
        for member in members:
            for message in member.poll(0):
                print(message.value(), flush=True)
    with ThreadPoolExecutor(CLOSED_AT_ONCE) as threads:
        list(threads.map(ShareConsumer.close, members))


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    wait_for_work(json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
