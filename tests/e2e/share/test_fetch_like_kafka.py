"""Sequences of ShareFetch and ShareAcknowledge, and each of their errors: field by field as Kafka 4.3.1 answers.

Error messages are not compared: Kafka's are mostly null, ours say what is wrong. Record batches are compared by the
offsets and values of their records. What differs on purpose is in docs/kafka-differences.md and not asked for here.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords

from kshare_wire.generated.api_keys import ApiKey
from support.clients.delivery import ACCEPT, REJECT, RELEASE, new_topic, produce, set_group, wait_for
from support.kafka.same_answers import Asked, Pair, running_pair, wait_for_coordinator
from support.kafka.whole_answers import Recording, fields_of, same_recordings

MEMBER = "AAAAAAAAAAAAAAAAAAAAAA"
LOADING_MEMBER = "BBBBBBBBBBBBBBBBBBBBBB"
MISSING = uuid.UUID("11111111-2222-3333-4444-555555555555")
WAIT_MS = 300
GAP, ACCEPTED, RELEASED, REJECTED, RENEWED = 0, 1, 2, 3, 4
assert (ACCEPT.value, RELEASE.value, REJECT.value) == (ACCEPTED, RELEASED, REJECTED)

Where = tuple[str | uuid.UUID, int]
"""A topic, by its name or an id, and a partition."""
Batch = tuple[int, int, list[int]]
"""First and last offset, and acknowledge types."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp) as pair:
        for asked in (pair.kshare, pair.kafka):
            wait_for_coordinator(asked.requests, 0, "any")
        yield pair


class Session:
    """A member's requests; every answer is noted."""

    def __init__(self, asked: Asked, recording: Recording, group_id: str, **partitions: int) -> None:
        """Topics are made, named after the group; the member joins, and their share-partitions are initialized."""
        self.asked = asked
        self.recording = recording
        self.group_id = group_id
        self.topics = {name: f"{group_id}-{name}" for name in partitions}
        for name, count in partitions.items():
            new_topic(asked.records_bootstrap, count, name=self.topics[name])
            wait_for(functools.partial(self._knows, self.topics[name]), "the new topic")
        set_group(asked.bootstrap, group_id, auto_offset_reset="earliest")
        self._join(len(partitions))
        self._load([(name, partition) for name, count in partitions.items() for partition in range(count)])

    def _knows(self, topic: str) -> bool:
        try:
            return bool(self.asked.topic_id(topic))
        except AssertionError:
            return False

    def _join(self, topics: int) -> None:
        epoch, names = 0, list(self.topics.values())
        while True:
            answer = self.asked.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=self.group_id,
                member_id=MEMBER,
                member_epoch=epoch,
                subscribed_topic_names=names,
            )
            epoch = int(answer.member_epoch)
            if answer.assignment is not None and len(answer.assignment.topic_partitions) == topics:
                return
            time.sleep(0.05)

    def _load(self, partitions: list[Where]) -> None:
        """Waits until their leaders have them: a first answer does not name those that were still loading."""
        topics: dict[uuid.UUID, list[dict[str, Any]]] = {}
        for topic, partition in partitions:
            topics.setdefault(self._id(topic), []).append({"partition_index": partition, "acknowledgement_batches": []})
        values: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": LOADING_MEMBER,
            "topics": [{"topic_id": topic_id, "partitions": entries} for topic_id, entries in topics.items()],
            "forgotten_topics_data": [],
            "max_wait": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        }

        def named() -> int:
            answer = self.asked.ask(ApiKey.SHARE_FETCH, 1, share_session_epoch=0, **values)
            return sum(len(topic.partitions) for topic in answer.responses)

        wait_for(lambda: named() == len(partitions), "the share-partitions")
        self.asked.ask(ApiKey.SHARE_FETCH, 1, share_session_epoch=-1, **{**values, "topics": []})

    def produce(self, name: str, count: int, partition: int = 0) -> None:
        produce(
            self.asked.records_bootstrap, self.topics[name], [f"value-{number}" for number in range(count)], partition
        )

    def fetch(
        self,
        label: str,
        epoch: int,
        partitions: Iterable[Where] | Mapping[Any, list[Batch]] = (),
        forgotten: Iterable[Where] = (),
        version: int = 1,
        **fields: Any,
    ) -> Any:
        asked: dict[str, Any] = {
            "max_wait": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "forgotten_topics_data": self._forgotten(forgotten),
        }
        return self._ask(ApiKey.SHARE_FETCH, label, epoch, partitions, version, {**asked, **fields})

    def acknowledge(
        self, label: str, epoch: int, partitions: Mapping[Any, list[Batch]], version: int = 1, **fields: Any
    ) -> Any:
        return self._ask(ApiKey.SHARE_ACKNOWLEDGE, label, epoch, partitions, version, fields)

    def _ask(
        self,
        api: ApiKey,
        label: str,
        epoch: int,
        partitions: Iterable[Where] | Mapping[Any, list[Batch]],
        version: int,
        fields: dict[str, Any],
    ) -> Any:
        batches = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, ())
        topics: dict[uuid.UUID, list[dict[str, Any]]] = {}
        for (topic, partition), of_partition in batches.items():
            entry = {"partition_index": partition, "acknowledgement_batches": [_batch(*each) for each in of_partition]}
            topics.setdefault(self._id(topic), []).append(entry)
        values = {
            "group_id": self.group_id,
            "member_id": MEMBER,
            "share_session_epoch": epoch,
            "topics": [{"topic_id": topic_id, "partitions": entries} for topic_id, entries in topics.items()],
            **fields,
        }
        answer = self.asked.ask(api, version, **values)
        told = fields_of(answer, self.asked.topic_names(), left_out=("error_message", "acknowledge_error_message"))
        self.recording.note(f"{api.name} {label}", _read(told))
        return told

    def _forgotten(self, partitions: Iterable[Where]) -> list[dict[str, Any]]:
        return [{"topic_id": self._id(topic), "partitions": [partition]} for topic, partition in partitions]

    def _id(self, topic: str | uuid.UUID) -> uuid.UUID:
        return topic if isinstance(topic, uuid.UUID) else self.asked.topic_id(self.topics[topic])


def _batch(first: int, last: int, kinds: list[int]) -> dict[str, Any]:
    return {"first_offset": first, "last_offset": last, "acknowledge_types": kinds}


def _read(fields: Any) -> Any:
    """With the records of batches for their bytes."""
    if isinstance(fields, list):
        return [_read(each) for each in fields]
    if not isinstance(fields, dict):
        return fields
    return {name: _records(value) if name == "records" else _read(value) for name, value in fields.items()}


def _records(data: bytes | None) -> list[tuple[int, bytes]] | None:
    if data is None:
        return None
    found = []
    records = MemoryRecords(bytes(data))
    while (batch := records.next_batch()) is not None:
        found += [(record.offset, record.value) for record in batch]
    return found


def partitions_of(answer: Any) -> list[tuple[str, int]]:
    """The topics and partitions that an answer names."""
    return sorted(
        (topic["topic_id"], part["partition_index"]) for topic in answer["responses"] for part in topic["partitions"]
    )


@pytest.mark.timeout(180)
def test_which_partitions_are_named(pair: Pair) -> None:
    """Every one that is asked for in the first answer, later those with news; after a wait, where there is nothing."""

    def sequence(asked: Asked, recording: Recording) -> None:
        session = Session(asked, recording, "names", one=3, two=1)
        first = session.fetch("first", 0, [("one", 1), ("one", 2)])
        assert partitions_of(first) == [("names-one", 1), ("names-one", 2)]
        session.fetch("first again", 0, [("one", 1), ("one", 2)])
        session.fetch("nothing new", 1)
        session.fetch("one joins", 2, [("two", 0)])
        session.fetch("nothing new", 3)
        session.produce("one", 10)
        session.fetch("one joins with records", 4, [("one", 0)])
        session.fetch("accepted", 5, {("one", 0): [(0, 1, [ACCEPTED])]})
        session.fetch("released, and forgotten", 6, {("one", 0): [(2, 3, [RELEASED])]}, [("one", 0)])
        session.fetch("not of the session", 7)
        session.fetch("first, all", 0, [("one", 0), ("one", 1), ("one", 2), ("two", 0)])
        session.fetch("first, too much in flight for none", 0, [("one", 0), ("two", 0)])
        session.fetch("no records wanted", 0, [("two", 0)], max_records=0)
        session.fetch("no bytes wanted", 0, [("two", 0)], max_bytes=0)
        session.fetch("nothing asked for", 0)
        session.fetch("nothing asked for", 1)
        session.fetch("one joins an empty session", 2, [("two", 0)])

    same_recordings(pair, sequence)


@pytest.mark.timeout(180)
def test_epochs_of_sessions(pair: Pair) -> None:
    def sequence(asked: Asked, recording: Recording) -> None:
        session = Session(asked, recording, "epochs", one=2)
        where = ("one", 0)
        accepted = {where: [(0, 0, [ACCEPTED])]}
        session.fetch("none to go on with", 1, max_wait=0)
        session.fetch("none to close", -1)
        session.acknowledge("none", 1, accepted)
        session.acknowledge("none to close", -1, accepted)
        session.produce("one", 6)
        session.fetch("opened with acknowledgements", 0, accepted)
        session.fetch("opened", 0, [where])
        for epoch in (2, 99, -2):
            session.fetch("wrong", epoch)
            session.acknowledge("wrong", epoch, accepted)
        session.acknowledge("never opens", 0, accepted)
        session.acknowledge("goes on", 1, accepted)
        session.acknowledge("is old", 1, accepted)
        session.fetch("is old", 1)
        session.fetch("goes on", 2, {where: [(1, 1, [REJECTED])]})
        session.fetch("closed with acknowledgements", -1, {where: [(2, 2, [ACCEPTED])]})
        session.fetch("closed", 3)
        session.acknowledge("closed", 3, accepted)
        session.fetch("opened, what was released comes again", 0, [where])
        session.acknowledge("closed with acknowledgements", -1, {where: [(3, 3, [ACCEPTED])]})
        session.fetch("opened without records", 0, [("one", 1)])
        session.acknowledge("closed with nothing", -1, {})
        session.acknowledge("closed", 1, {})
        for member_id in ("", "m" * 37):
            session.fetch("member id", 0, [where], member_id=member_id)
        session.acknowledge("member id", 1, accepted, member_id="")

    same_recordings(pair, sequence)


BATCHES: list[tuple[str, list[Batch]]] = [
    ("first above last", [(6, 5, [ACCEPTED])]),
    ("no types", [(6, 6, [])]),
    ("type 9", [(6, 6, [9])]),
    ("type -1", [(6, 6, [-1])]),
    ("two types for four offsets", [(5, 8, [ACCEPTED, ACCEPTED])]),
    ("overlapping", [(5, 6, [ACCEPTED]), (6, 7, [ACCEPTED])]),
    ("not in order", [(8, 8, [ACCEPTED]), (5, 5, [ACCEPTED])]),
    ("renewed without the flag", [(8, 8, [RENEWED])]),
    ("beyond what is in flight", [(100, 100, [ACCEPTED])]),
    ("no batches", []),
    ("a gap", [(8, 8, [GAP])]),
    ("each its own", [(4, 7, [ACCEPTED, RELEASED, REJECTED, GAP])]),
    ("released is not acquired", [(5, 5, [ACCEPTED])]),
]


@pytest.mark.timeout(180)
def test_batches_of_acknowledgements(pair: Pair) -> None:
    """In both APIs, in requests that go on for partitions that are fine."""

    def sequence(asked: Asked, recording: Recording) -> None:
        for api in ("fetch", "acknowledge"):
            session = Session(asked, recording, f"batches-{api}", one=2)
            session.produce("one", 10)
            session.fetch("opened", 0, [("one", 0)])
            fields = {"max_wait": 0} if api == "fetch" else {}
            epoch = 1
            for label, batches in BATCHES:
                if api == "fetch" and not batches:  # it is a partition that is fetched
                    continue
                forgotten = {"forgotten": [("one", 0)]} if api == "fetch" else {}
                getattr(session, api)(label, epoch, {("one", 0): batches}, **fields, **forgotten)
                epoch += 1

    same_recordings(pair, sequence)


@pytest.mark.timeout(180)
def test_partitions_without_acknowledgements(pair: Pair) -> None:
    """They are answered beside others that are acknowledged, and where they do not exist."""

    def sequence(asked: Asked, recording: Recording) -> None:
        session = Session(asked, recording, "silent", one=2)
        session.produce("one", 4)
        session.fetch("opened", 0, [("one", 0)])
        accepted: list[Batch] = [(2, 2, [ACCEPTED])]
        beside = session.acknowledge("beside one with", 1, {("one", 0): accepted, ("one", 1): []})
        assert partitions_of(beside) == [("silent-one", 0), ("silent-one", 1)]
        session.acknowledge("beside a refused one", 2, {("one", 0): accepted, ("one", 1): []})
        session.acknowledge("alone", 3, {("one", 0): [], ("one", 1): []})
        session.acknowledge("unknown", 4, {("one", 9): [], (MISSING, 0): []})
        session.acknowledge("beside an unknown one", 5, {("one", 9): accepted, ("one", 1): []})

    same_recordings(pair, sequence)


@pytest.mark.timeout(180)
def test_partitions_that_do_not_exist(pair: Pair) -> None:
    """In ShareAcknowledge; Kafka 4.3.1 fails a ShareFetch of one as a whole, with UNKNOWN_SERVER_ERROR."""

    def sequence(asked: Asked, recording: Recording) -> None:
        session = Session(asked, recording, "missing", one=2)
        session.produce("one", 4)
        session.fetch("opened", 0, [("one", 0)])
        wanted: dict[Where, list[Batch]] = {
            ("one", 9): [(0, 0, [ACCEPTED])],
            (MISSING, 0): [(0, 0, [ACCEPTED])],
            ("one", 0): [(0, 0, [ACCEPTED])],
        }
        answer = session.acknowledge("beside one that exists", 1, wanted)
        codes = [part["error_code"] for topic in answer["responses"] for part in topic["partitions"]]
        assert sorted(codes) == ["none", "unknown_topic_id", "unknown_topic_or_partition"]

    same_recordings(pair, sequence)


RENEWED_TWICE: list[tuple[str, list[Batch]]] = [
    ("both renew", [(4, 6, [RENEWED]), (6, 8, [RENEWED])]),
    ("renewed, then accepted", [(5, 6, [RENEWED]), (6, 6, [ACCEPTED])]),
    ("accepted, then renewed", [(7, 8, [ACCEPTED]), (8, 9, [RENEWED])]),
]


@pytest.mark.timeout(180)
def test_version_2(pair: Pair) -> None:
    """Renewed locks, and exact record limits."""

    def sequence(asked: Asked, recording: Recording) -> None:
        session = Session(asked, recording, "second", one=1)
        session.produce("one", 10)
        where = ("one", 0)
        nothing: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "batch_size": 0}
        session.fetch("exact limit", 0, [where], version=2, share_acquire_mode=1, max_records=3)
        session.fetch("renewed", 1, {where: [(0, 1, [RENEWED])]}, version=2, is_renew_ack=True, **nothing)
        renewing = {where: [(2, 2, [RENEWED])]}
        session.fetch("renewed without the flag", 2, renewing, version=2, forgotten=[where], max_wait=0)
        session.fetch("flag with a limit", 3, renewing, version=2, is_renew_ack=True, max_wait=0)
        session.acknowledge("renewed", 3, renewing, version=2, is_renew_ack=True)
        session.acknowledge("renewed without the flag", 4, renewing, version=2)
        session.acknowledge("flag with accepted", 5, {where: [(2, 2, [ACCEPTED])]}, version=2, is_renew_ack=True)
        session.fetch("exact limit", 6, [where], version=2, share_acquire_mode=1, max_records=2)
        session.fetch("the rest", 7, [where], version=2)
        codes = []
        for epoch, (label, batches) in enumerate(RENEWED_TWICE, 8):
            answer = session.acknowledge(label, epoch, {where: batches}, version=2, is_renew_ack=True)
            codes += [part["error_code"] for topic in answer["responses"] for part in topic["partitions"]]
        assert codes == ["none", "none", "invalid_record_state"]

    same_recordings(pair, sequence)
