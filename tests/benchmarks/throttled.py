"""What throttled clients cost those without a quota: `produce` of one client, alone and beside twenty throttled ones.

The twenty share a client id, whose quota is far below what they try to send, so they are throttled all the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from benchmarks.endpoints import administration, client_settings
from benchmarks.scenarios import RECORD, SCENARIO_TIMEOUT_S, Sizes, fresh_name, produce_latency
from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic
from support.clients.kafka_requests import KafkaRequests

THROTTLED_CLIENTS = 20
CLIENT_ID = "throttled"
BYTES_PER_S = 200_000.0


def beside_throttled_clients(bootstrap: str, sizes: Sizes) -> dict[str, float]:
    """The times of `produce-latency` alone and beside the throttled clients."""
    alone = produce_latency(bootstrap, sizes)
    with _throttled(bootstrap):
        beside = produce_latency(bootstrap, sizes)
    figures = {f"alone: {figure}": value for figure, value in alone.items()}
    return {**figures, **{f"beside throttled: {figure}": value for figure, value in beside.items()}}


@contextmanager
def _throttled(bootstrap: str) -> Iterator[None]:
    """Returns when each of the clients has been told that it is throttled."""
    topic, ended = fresh_name("throttled"), threading.Event()
    create_topic(administration(bootstrap), topic, 1)
    _set_quota(bootstrap, BYTES_PER_S)
    told = [threading.Event() for _ in range(THROTTLED_CLIENTS)]
    threads = [threading.Thread(target=_send, args=(bootstrap, topic, each, ended)) for each in told]
    try:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + SCENARIO_TIMEOUT_S
        for each in told:
            if not each.wait(max(0.0, deadline - time.monotonic())):
                raise RuntimeError("not every client was throttled")
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        _set_quota(bootstrap, None)


def _send(bootstrap: str, topic: str, told: threading.Event, ended: threading.Event) -> None:
    def throttled(event: object) -> None:
        told.set()

    settings = {"client.id": CLIENT_ID, "linger.ms": 5, "throttle_cb": throttled, "message.timeout.ms": 600_000}
    producer = Producer({**client_settings(bootstrap), **settings, "queue.buffering.max.messages": 200})
    while not ended.is_set():
        try:
            producer.produce(topic, RECORD)
        except BufferError:
            producer.poll(0.05)
    producer.purge()


def _set_quota(bootstrap: str, bytes_per_s: float | None) -> None:
    operation = {"key": "producer_byte_rate", "value": bytes_per_s or 0.0, "remove": bytes_per_s is None}
    entry = {"entity": [{"entity_type": "client-id", "entity_name": CLIENT_ID}], "ops": [operation]}
    with KafkaRequests(administration(bootstrap)) as requests:
        answer = requests.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    if any(int(each.error_code) for each in answer.entries):
        raise RuntimeError(f"the quota was refused: {answer}")
