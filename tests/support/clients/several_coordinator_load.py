"""Load of several clients on a `kshare up` with several coordinators, and what is known of its coordinators.

Each client runs in a thread, notes when each record came and what it committed, and takes errors for what they are to
a client that goes on: it tries again. What is lost or stands still is seen in the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, KafkaException, Producer, ShareConsumer

from kshare.addresses import Address
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import call_one, coordinators_at
from kshare_core.errors import ErrorCode
from kshare_rpc.generated import methods
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.network import CallFailed
from support.clusters.kshare_cluster import KshareCluster, children_of, command_line

POLL_S = 0.1
PRODUCE_INTERVAL_S = 0.05
DONE_WITHIN_S = 40.0


class Load(threading.Thread):
    """A client in a thread; a context manager that stops it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(60)
        assert not self.is_alive(), f"{self.name} does not end"
        assert self.failure is None, self.failure

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self.failure = failure

    def work(self) -> None:
        raise NotImplementedError


class Producing(Load):
    """Numbered records into all partitions in turn; `confirmed` are those that the cluster has.

    The producer is idempotent: another one's retry would write a value twice, and consumers know records by values.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        self._topic, self._partitions = topic, partitions
        self.confirmed: list[str] = []

    def work(self) -> None:
        number = 0
        while not self._stop_asked.wait(PRODUCE_INTERVAL_S):
            value = str(number)
            self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._confirmed)
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(60) == 0

    def _confirmed(self, error: Any, message: Any) -> None:
        if error is None:
            self.confirmed.append(message.value().decode())


class Consuming(Load):
    """What both kinds of consumers have in common: `came` is when each record's first delivery came, by its value."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.came: dict[str, float] = {}

    def note(self, messages: Iterable[Any]) -> list[Any]:
        good = [message for message in messages if message.error() is None]
        now = time.monotonic()
        for message in good:
            self.came.setdefault(message.value().decode(), now)
        return good

    def wait_for(self, values: Iterable[str]) -> None:
        """Until all of these came; AssertionError names what is missing."""
        wanted = set(values)
        deadline = time.monotonic() + DONE_WITHIN_S
        while missing := wanted - set(self.came):
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"{self.name}: {len(missing)} of {len(wanted)} never came"
            time.sleep(0.1)


class ShareConsuming(Consuming):
    """A member of a share group that accepts everything; `accepted` are those whose acceptance was confirmed."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(f"share consumer of {group}")
        self.accepted: dict[str, None] = {}
        self.came_again: list[tuple[str, int, int, int]] = []
        """Value, partition, offset and delivery count of what was delivered after its acceptance was confirmed."""
        self._consumer: Any = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._consumer.subscribe([topic])

    def work(self) -> None:
        while not self._stop_asked.is_set():
            try:
                messages = self.note(self._consumer.poll(POLL_S))
                self._accept(messages)
            except KafkaException:
                continue
        self._consumer.close()

    def _accept(self, messages: list[Any]) -> None:
        for message in messages:
            value = message.value().decode()
            if value in self.accepted:
                self.came_again.append((value, message.partition(), message.offset(), message.delivery_count()))
            self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        if not messages:
            return
        results = self._consumer.commit_sync(30.0)
        confirmed = {at.partition for at, error in results.items() if error is None}
        self.accepted.update(
            dict.fromkeys(message.value().decode() for message in messages if message.partition() in confirmed)
        )


class OrdinaryConsuming(Consuming):
    """A member of a consumer group of either protocol, which commits what it has read."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str) -> None:
        super().__init__(f"{protocol} consumer of {group}")
        classic = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 500} if protocol == "classic" else {}
        self.committed: dict[int, int] = {}
        """The newest offset of each partition whose commit was confirmed."""
        self.went_back: list[tuple[int, int, int]] = []
        """Partition, the offset that was delivered, and the committed one, which is later."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **classic,
            }
        )
        self._consumer.subscribe([topic])

    def work(self) -> None:
        while not self._stop_asked.is_set():
            messages = self.note(self._consumer.consume(100, POLL_S))
            for message in messages:
                committed = self.committed.get(message.partition(), 0)
                if message.offset() < committed:
                    self.went_back.append((message.partition(), message.offset(), committed))
            if messages:
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        try:
            results = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return
        for at in results or []:
            if at.error is None:
                self.committed[at.partition] = max(at.offset, self.committed.get(at.partition, 0))


class Coordinators:
    """The coordinators of a `kshare up`, each asked directly."""

    def __init__(self, cluster: KshareCluster) -> None:
        self._cluster = cluster
        self.data_dir = cluster.folder / "data"

    def addresses(self) -> list[Address]:
        return coordinators_at(coordinator_address(None, self.data_dir))

    def active(self) -> Address | None:
        """The one that answers for the catalog."""
        for address in self.addresses():
            answer = call_one(address, methods.DESCRIBE_NODES, pb.DescribeNodesRequest())
            if not isinstance(answer, CallFailed) and not answer.error_code:
                return address
        return None

    def wait_for_active(self, timeout_s: float = 20.0) -> Address:
        deadline = time.monotonic() + timeout_s
        while (active := self.active()) is None:
            assert time.monotonic() < deadline, f"no coordinator was active for {timeout_s} s"
            time.sleep(0.1)
        return active

    def pid(self, address: Address) -> int:
        """Of the process that listens there."""
        for child in children_of(self._cluster.pid):
            command = command_line(child)
            if "kshare_coordinator" in command and str(address) == command[command.index("--listen") + 1]:
                return child
        raise RuntimeError(f"no coordinator's process listens on {address}")

    def owned(self, address: Address) -> set[int]:
        """The group partitions that it answers for now; none where it does not answer at all."""
        answer = call_one(address, methods.LIST_GROUPS, pb.ListGroupsRequest())
        if isinstance(answer, CallFailed) or answer.error_code:
            return set()
        return set(answer.group_partitions)

    def assert_not_split(self) -> None:
        """No group partition is answered for by two at the same time; nor the catalog."""
        first, *others = self.addresses()
        before = self.owned(first)
        between = set().union(*map(self.owned, others))
        after = self.owned(first)
        assert not before & between & after, "two coordinators answer for the same groups"

    def all_are_owned(self) -> bool:
        return set().union(*map(self.owned, self.addresses())) == set(range(50))

    def epochs(self, group: str, kind: str) -> tuple[int, int]:
        """Group epoch and assignment epoch, from the one coordinator that has the group."""
        found = []
        for address in self.addresses():
            method: Any = methods.SHARE_GROUP_DESCRIBE if kind == "share" else methods.CONSUMER_GROUP_DESCRIBE
            answer: Any = call_one(address, method, method.request_type(group_ids=[group]))
            if not isinstance(answer, CallFailed):
                found += [each for each in answer.groups if each.error_code != ErrorCode.NOT_COORDINATOR]
        (described,) = found
        assert described.error_code == 0, described
        return described.group_epoch, described.assignment_epoch


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """How many seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def several_coordinators(etcd_endpoint: str, count: int = 2) -> dict[str, str]:
    """The configs of a `kshare up` with so many."""
    return {
        "kshare.coordinators": str(count),
        "kshare.metadata.store": "etcd",
        "kshare.metadata.etcd.endpoints": etcd_endpoint,
    }
