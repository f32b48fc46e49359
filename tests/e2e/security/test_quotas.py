"""Client quotas with real clients: rates hold for one client and for twenty, throttling is told and ends."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, ShareConsumer, ThrottleEvent

from kshare_core.errors import ErrorCode
from kshare_wire.generated.api_keys import ApiKey
from support.clients.administration import create_topic, read_from_earliest
from support.clients.kafka_requests import KafkaRequests
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 30.0
RATE = 400_000
VALUE = b"x" * 10_000
MEASURED_S = 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KshareCluster]:
    folder: Path = tmp_path_factory.mktemp("quotas")
    settings = {"controller.quota.window.num": "2"}
    with KshareCluster(folder, settings) as cluster:
        yield cluster


def set_quota(cluster: KshareCluster, entity: dict[str, str | None], **quotas: float | None) -> None:
    parts = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()]
    with KafkaRequests(cluster.bootstrap) as root:
        answer = root.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": parts, "ops": ops}], validate_only=False)
    assert [int(entry.error_code) for entry in answer.entries] == [0], answer


def new_name() -> str:
    return f"quota-{uuid.uuid4().hex[:8]}"


def new_topic(cluster: KshareCluster) -> str:
    name = new_name()
    create_topic(cluster.bootstrap, name, 1)
    return name


class Throttled:
    """The throttle times that clients told, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, event: ThrottleEvent) -> None:
        self.times.append(event.throttle_time)

    @property
    def has_begun(self) -> bool:
        return any(self.times)


class Load:
    """Clients with the same client id, which work in a thread of their own and count the bytes that they moved."""

    def __init__(self, cluster: KshareCluster, quota: str) -> None:
        self.cluster, self.name, self.throttled, self.moved = cluster, new_name(), Throttled(), 0
        set_quota(cluster, {"client_id": self.name}, **{quota: float(RATE)})
        self.settings: dict[str, Any] = {
            "bootstrap.servers": cluster.bootstrap,
            "client.id": self.name,
            "throttle_cb": self.throttled,
        }

    def work(self, stop: threading.Event) -> None:
        raise NotImplementedError


class Producing(Load):
    def __init__(self, cluster: KshareCluster, clients: int) -> None:
        super().__init__(cluster, "producer_byte_rate")
        own = {"batch.size": 20_000, "max.in.flight": 1, "queue.buffering.max.messages": 20}
        self._topic = new_topic(cluster)
        self._producers = [Producer({**self.settings, **own}) for _ in range(clients)]

    def _delivered(self, error: Any, message: Message) -> None:
        self.moved += 0 if error else len(VALUE)

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for producer in self._producers:
                while len(producer) < 4:
                    producer.produce(self._topic, VALUE, on_delivery=self._delivered)
                producer.poll(0.005)
        for producer in self._producers:
            producer.purge()
            producer.flush(TIMEOUT_S)
        self._producers.clear()  # they would look for a cluster that is gone until the end of all tests


class Consuming(Load):
    def __init__(self, cluster: KshareCluster, topic: str, kind: Any) -> None:
        super().__init__(cluster, "consumer_byte_rate")
        read_from_earliest(cluster.bootstrap, self.name)
        own = {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 40_000}
        self._is_sharing = kind is ShareConsumer
        if self._is_sharing:
            own = {"share.acknowledgement.mode": "implicit"}
        sizes = {"fetch.max.bytes": 40_000, "message.max.bytes": 40_000}
        self._consumer = kind({**self.settings, **own, **sizes, "group.id": self.name})
        self._consumer.subscribe([topic])

    def work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            polled = self._consumer.poll(0.05)
            messages = [polled] if isinstance(polled, Message) else polled or []
            self.moved += sum(len(message.value() or b"") for message in messages if message.error() is None)
        self._consumer.close()


def test_rates_hold_for_one_client_and_for_twenty(cluster: KshareCluster) -> None:
    """From the first throttling on, after the burst that a rate allows at its beginning."""
    topic = filled_topic(cluster, RATE * (MEASURED_S + 40))
    loads: dict[str, Load] = {
        "one producer": Producing(cluster, 1),
        "twenty producers": Producing(cluster, 20),
        "a consumer": Consuming(cluster, topic, Consumer),
        "a share consumer": Consuming(cluster, topic, ShareConsumer),
    }
    stop = threading.Event()
    threads = [threading.Thread(target=load.work, args=(stop,)) for load in loads.values()]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not all(load.throttled.has_begun for load in loads.values()):
            assert time.monotonic() < deadline, [name for name, load in loads.items() if not load.throttled.has_begun]
            stop.wait(0.1)
        stop.wait(1)
        began, before = time.monotonic(), {name: load.moved for name, load in loads.items()}
        stop.wait(MEASURED_S)
        lasted_s = time.monotonic() - began
        rates = {name: (load.moved - before[name]) / lasted_s for name, load in loads.items()}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert rates == pytest.approx(dict.fromkeys(loads, RATE), rel=0.1)


def filled_topic(cluster: KshareCluster, size: int) -> str:
    topic = new_topic(cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 20_000})
    for _ in range(size // len(VALUE)):
        producer.produce(topic, VALUE)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return topic


def test_throttling_is_told_and_ends(cluster: KshareCluster) -> None:
    name, topic, throttled = new_name(), new_topic(cluster), Throttled()
    set_quota(cluster, {"client_id": name}, producer_byte_rate=50_000)
    settings = {"bootstrap.servers": cluster.bootstrap, "client.id": name, "throttle_cb": throttled}
    producer = Producer(settings)

    def produce_until(is_seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_seen():
            assert time.monotonic() < deadline, throttled.times
            if len(producer) < 5:
                producer.produce(topic, VALUE)
            producer.poll(0.05)

    produce_until(lambda: throttled.has_begun)
    set_quota(cluster, {"client_id": name}, producer_byte_rate=None)
    produce_until(lambda: throttled.times[-1] == 0)
    assert producer.flush(TIMEOUT_S) == 0


def test_clients_without_a_quota_go_on_beside_throttled_ones(cluster: KshareCluster) -> None:
    name, topic, throttled, free = new_name(), new_topic(cluster), Throttled(), Throttled()
    set_quota(cluster, {"client_id": name}, producer_byte_rate=10_000)
    slow = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": name, "throttle_cb": throttled})
    for _ in range(20):
        slow.produce(topic, VALUE)
    deadline = time.monotonic() + TIMEOUT_S
    while not throttled.has_begun:
        slow.poll(0.05)
        assert time.monotonic() < deadline
    fast = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "free", "throttle_cb": free})
    for _ in range(500):
        fast.produce(topic, VALUE)
    assert fast.flush(TIMEOUT_S) == 0
    assert not free.has_begun and max(throttled.times) > 1
    set_quota(cluster, {"client_id": name}, producer_byte_rate=None)
    slow.purge()
    slow.flush(TIMEOUT_S)


def test_topics_beyond_the_rate_of_changes_are_refused(cluster: KshareCluster) -> None:
    set_quota(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=1)
    topics = [{"name": new_name(), "num_partitions": 3, "replication_factor": 1} for _ in range(2)]
    with KafkaRequests(cluster.bootstrap) as client:
        began = time.monotonic()
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=10_000, validate_only=False)
        codes = sorted(int(topic.error_code) for topic in answer.topics)
        client.ask(ApiKey.METADATA, 12, topics=[])
        muted_s = time.monotonic() - began
    set_quota(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=None)
    throttle_s = answer.throttle_time.total_seconds()
    assert codes == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED] and 0 < throttle_s <= 1.1
    assert muted_s >= throttle_s - 0.05, "the connection is not read while it is throttled"


def test_metadata_creates_no_more_topics_than_that(tmp_path: Path) -> None:
    """As where Kafka's brokers ask the controller for them: what is beyond the rate stays unknown."""
    with KshareCluster(tmp_path, {"auto.create.topics.enable": "true", "num.partitions": "12"}) as cluster:
        set_quota(cluster, {"user": "ANONYMOUS"}, controller_mutation_rate=1)
        wanted = [{"name": new_name()} for _ in range(2)]
        with KafkaRequests(cluster.bootstrap) as client:
            answer = client.ask(ApiKey.METADATA, 12, topics=wanted, allow_auto_topic_creation=True)
        codes = sorted(int(topic.error_code) for topic in answer.topics)
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_time_on_the_event_loop_is_limited(cluster: KshareCluster) -> None:
    name = new_name()
    set_quota(cluster, {"user": "ANONYMOUS"}, request_percentage=0.01)
    with KafkaRequests(cluster.bootstrap) as client:
        throttle_s = 0.0
        deadline = time.monotonic() + TIMEOUT_S
        while not throttle_s:
            answer = client.ask(ApiKey.METADATA, 12, topics=None)
            throttle_s = answer.throttle_time.total_seconds()
            assert time.monotonic() < deadline, name
    set_quota(cluster, {"user": "ANONYMOUS"}, request_percentage=None)
    assert throttle_s <= 1.0


def test_connections_of_an_address_are_limited(cluster: KshareCluster) -> None:
    address = "127.0.0.7"
    set_quota(cluster, {"ip": address}, connection_creation_rate=1)

    def answers(host: str) -> bool:
        source = (host, 0)
        with socket.create_connection(("127.0.0.1", cluster.port), TIMEOUT_S, source_address=source) as connection:
            connection.sendall(bytes.fromhex("0000000a00120000000000010000"))
            return bool(connection.recv(100))

    began = time.monotonic()
    answered = [answers(address) for _ in range(12)]
    assert answered.count(True) < len(answered) and answered[0]
    assert time.monotonic() - began > 0.5, "a connection that is refused is kept for its throttle time"
    assert answers("127.0.0.1")
    set_quota(cluster, {"ip": address}, connection_creation_rate=None)
    assert answers(address)
