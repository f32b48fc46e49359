"""The same requests to kshare and to Apache Kafka 4.3.1, and whether the error codes of their answers are the same.

with asked_pair(folders) as pair:
    pair.same(ApiKey.DELETE_GROUPS, 2, groups_names=["nobody"])

Both systems have what `Prepared` makes: topics with records, and groups of each type. Where a request needs a topic's
id, `TopicId("orders")` stands for the one that the topic has in the system that is asked.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from kshare_core.errors import ErrorCode as E
from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import Reader, new_topic, produce, running_system, set_group
from support.clients.kafka_requests import KafkaRequests

TOPIC, OTHER_TOPIC, MEMBERLESS, BUSY, SIMPLE = "orders", "other", "memberless", "busy", "classic"
"""Two topics; share groups without and with a member; a group that only committed an offset."""
PARTITIONS = 2
FROM_KAFKA_4_4 = "errors.deadletterqueue."
"""KIP-1191, which kshare has and Kafka 4.3.1 has not."""
NAMES = frozenset(
    {
        "name",
        "topic_name",
        "group_id",
        "key",
        "partition_index",
        "resource_name",
        "resource_type",
        "group_state",
        "transactional_id",
        "transaction_state",
    }
)
"""What an answer says its error codes are about."""
UNREADY = (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
TIMEOUT_S = 60.0


class TopicId(NamedTuple):
    """Stands for the id of the topic."""

    name: str


def codes(answer: Any) -> Any:
    """The error codes of an answer, with the names of what they are about; nothing else of it."""
    if isinstance(answer, tuple):
        parts = [part for part in answer if not str(getattr(part, "name", "")).startswith(FROM_KAFKA_4_4)]
        return sorted((codes(part) for part in parts), key=repr)
    found: dict[str, Any] = {}
    for name in getattr(answer, "__dataclass_fields__", {}):
        value = getattr(answer, name)
        if isinstance(value, ErrorCode):
            found[name] = value.name
        elif isinstance(value, tuple) and value and hasattr(value[0], "__dataclass_fields__"):
            found[name] = codes(value)
        elif name in NAMES:
            found[name] = value
    return found


class Asked:
    """One of the two systems, and the ids of its topics."""

    def __init__(self, bootstrap: str, requests: KafkaRequests, records_bootstrap: str = "") -> None:
        """`records_bootstrap` is for producers and administrators of topics, where it is another address."""
        self.bootstrap = bootstrap
        self.records_bootstrap = records_bootstrap or bootstrap
        self.requests = requests
        self._ids: dict[str, uuid.UUID] = {}

    def ask(self, api: ApiKey, version: int, **values: Any) -> Any:
        return self.requests.ask(api, version, **{name: self._resolved(value) for name, value in values.items()})

    def topic_names(self) -> dict[uuid.UUID, str]:
        """By id: the topics that were asked for so far."""
        return {topic_id: name for name, topic_id in self._ids.items()}

    def forget_topic(self, name: str) -> None:
        """It was deleted: one of the same name has another id."""
        self._ids.pop(name, None)

    def topic_id(self, name: str) -> uuid.UUID:
        """AssertionError until the system knows the topic."""
        return self._id(name)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, TopicId):
            return self._id(value.name)
        if isinstance(value, dict):
            return {name: self._resolved(each) for name, each in value.items()}
        return [self._resolved(each) for each in value] if isinstance(value, list) else value

    def _id(self, name: str) -> uuid.UUID:
        if name not in self._ids:
            answer = self.requests.ask(ApiKey.METADATA, 12, topics=[{"topic_id": bytes(16), "name": name}])
            assert not int(answer.topics[0].error_code), answer
            self._ids[name] = answer.topics[0].topic_id
        return self._ids[name]


class Pair:
    def __init__(self, kshare: Asked, kafka: Asked) -> None:
        self.kshare = kshare
        self.kafka = kafka

    def same(self, api: ApiKey, version: int, **values: Any) -> Any:
        """The codes, which are the same; AssertionError where they are not."""
        return self.same_of(lambda asked: codes(asked.ask(api, version, **values)))

    def same_of(self, ask: Callable[[Asked], Any]) -> Any:
        """What is asked of each by itself, and told alike."""
        kshare, kafka = ask(self.kshare), ask(self.kafka)
        assert kshare == kafka, f"kshare: {kshare}\nKafka:  {kafka}"
        return kshare


@contextmanager
def asked_pair(folder_of: Callable[[str], Path], **settings: str) -> Iterator[Pair]:
    """Both systems, running and prepared; `folder_of` makes a folder for each."""
    with running_pair(folder_of, **settings) as pair, ExitStack() as stack:
        for asked in (pair.kshare, pair.kafka):
            prepare(asked.bootstrap, asked.requests, stack)
        yield pair


@contextmanager
def running_pair(folder_of: Callable[[str], Path], **settings: str) -> Iterator[Pair]:
    """Both systems, running and empty."""
    with ExitStack() as stack:
        asked = []
        for kind in ("kshare", "kafka"):
            system = stack.enter_context(running_system(kind, folder_of(kind), **settings))
            requests = stack.enter_context(KafkaRequests(system.bootstrap))
            asked.append(Asked(system.bootstrap, requests, system.records_bootstrap))
        yield Pair(*asked)


def prepare(bootstrap: str, requests: KafkaRequests, stack: ExitStack) -> None:
    """Makes topics with records and groups of each type."""
    new_topic(bootstrap, PARTITIONS, name=TOPIC)
    new_topic(bootstrap, name=OTHER_TOPIC)
    produce(bootstrap, TOPIC, ["one", "two"])
    for group in (MEMBERLESS, BUSY):
        set_group(bootstrap, group, auto_offset_reset="earliest")
        reader = Reader(bootstrap, group, TOPIC)
        reader.accept(2)
        if group == BUSY:
            stack.callback(reader.close)
        else:
            reader.close()
    commit(requests, SIMPLE)


def commit(requests: KafkaRequests, group: str) -> None:
    """Makes a group of the classic protocol without members."""
    wait_for_coordinator(requests, 0, group)
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    for _ in range(50):
        answer = requests.ask(
            ApiKey.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
        )
        if int(answer.topics[0].partitions[0].error_code) == 0:
            return
    raise AssertionError(answer)


def wait_for_coordinator(requests: KafkaRequests, key_type: int, key: str, *, version: int = 4) -> None:
    """Apache Kafka makes the topic of its groups, or transactions, when it is asked this."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = requests.ask(ApiKey.FIND_COORDINATOR, version, key_type=key_type, coordinator_keys=[key])
        code = E(int(answer.coordinators[0].error_code))
        if code not in UNREADY:
            assert not code, answer
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
