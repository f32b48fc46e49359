"""Redrive by this process on a real cluster: which records move, that they move once, and which cannot move."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import UserDict
from collections.abc import Callable, Iterator, KeysView, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kshare_core.delivery_history import DeliveryEvent, EventType
from kshare_kafka_client.redrive.candidates import Candidate
from kshare_kafka_client.redrive.direct import redrive_directly
from kshare_kafka_client.redrive.ledger import create_ledger, read_ledger
from kshare_kafka_client.redrive.mover import PartitionMover
from kshare_kafka_client.redrive.originals import IS_GONE
from kshare_kafka_client.redrive.pace import Pace
from kshare_kafka_client.redrive.request import (
    LEDGER_TOPIC,
    Account,
    GivenOffsets,
    RedriveFailed,
    RedriveRequest,
    Selection,
)
from kshare_kafka_client.redrive.sources import NO_SUCH_OFFSET
from kshare_kafka_client.topics import KafkaUnavailable, Partition, UnknownTopic, topic_ids
from kshare_leader.machine.transitions import ArchivingReason
from support.clients.administration import alter_group, create_topic, delete_topic
from support.clients.delivery import ACCEPT, REJECT, SETTINGS, Reader, new_group, new_topic, produce
from support.clients.delivery_history import HISTORY_ON, wait_for_events
from support.clusters.kshare_cluster import KshareCluster
from support.pipeline.plain_records import Headers, Letter, committed_records, write_letters

ENABLED = {"errors_deadletterqueue_group_enable": "true"}
# Some records here are of 1970, older than any retention.
SERVERS = {**SETTINGS, **HISTORY_ON, "log.retention.ms": "-1"}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KshareCluster(tmp_path_factory.mktemp("kshare"), SERVERS, single_process=True) as running:
        yield running.bootstrap


def new_letters_topic(bootstrap: str, partitions: int = 1) -> str:
    name = f"dlq.{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, name, partitions, **ENABLED)
    return name


def request_of(bootstrap: str, *letters_topics: str, **selection: object) -> RedriveRequest:
    return RedriveRequest(
        {"bootstrap.servers": bootstrap},
        dead_letter_topics=letters_topics,
        selection=replace(Selection(), **selection),  # type: ignore[arg-type]
        timeout_s=30.0,
    )


def values(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    return [(record.value or b"-").decode() for record in committed_records(bootstrap, topic, partitions)]


def moved_from(topic: str, offset: int, count: int = 1) -> Headers:
    texts = {"topic": topic, "partition": "0", "offset": str(offset), "count": str(count)}
    return [(f"__redrive.{name}", text.encode()) for name, text in texts.items()]


@pytest.mark.parametrize("has_copy", [True, False])
def test_rejected_records_come_back_as_they_were_and_only_once(bootstrap: str, has_copy: bool) -> None:
    topic, letters = new_topic(bootstrap, 2), new_letters_topic(bootstrap)
    group = f"group-{uuid.uuid4().hex[:8]}"
    copy = {"errors.deadletterqueue.copy.record.enable": "true"} if has_copy else {}
    own = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": letters}
    alter_group(bootstrap, group, {**own, **copy})
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(4):
        headers: list[tuple[str, str | bytes | None]] = [("trace", str(number).encode()), ("none", None)]
        producer.produce(topic, f"value-{number}".encode(), f"key-{number}".encode(), 1, headers=headers)
    assert producer.flush(30) == 0
    with Reader(bootstrap, group, topic) as reader:
        taken = 0
        while taken < 4:
            taken += len(reader.take())
            reader.settle(REJECT)
    deadline = time.monotonic() + 30
    while len(committed_records(bootstrap, letters)) < 4:
        assert time.monotonic() < deadline, "the dead letters did not come"
        time.sleep(0.05)

    first = redrive_directly(request_of(bootstrap, letters))
    second = redrive_directly(request_of(bootstrap, letters))
    assert (first.moved, first.already_moved, first.problems) == ({topic: {"rejected": 4}}, 0, {})
    assert (second.moved, second.already_moved, second.problems) == ({}, 4, {})
    again = committed_records(bootstrap, topic, 2)[4:]
    assert [(record.partition, record.key, record.value) for record in again] == [
        (1, f"key-{number}".encode(), f"value-{number}".encode()) for number in range(4)
    ]
    assert [record.headers for record in again] == [
        [("trace", str(number).encode()), ("none", None), *moved_from(letters, number)] for number in range(4)
    ]


def test_a_record_that_fails_again_is_moved_again_and_counted(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    write_letters(bootstrap, letters, [Letter(topic, 0, value=b"poison")])
    assert redrive_directly(request_of(bootstrap, letters)).moved_count == 1
    (moved,) = committed_records(bootstrap, topic)
    write_letters(bootstrap, letters, [Letter(topic, moved.offset, value=moved.value, headers=moved.headers)])
    account = redrive_directly(request_of(bootstrap, letters))
    assert (account.moved_count, account.already_moved) == (1, 1)
    assert committed_records(bootstrap, topic)[1].headers == moved_from(letters, 1, count=2)


def test_only_what_is_selected_moves(bootstrap: str) -> None:
    one, other, letters = new_topic(bootstrap), new_topic(bootstrap), new_letters_topic(bootstrap)
    too_many = ArchivingReason.DELIVERY_COUNT_EXCEEDED
    write_letters(
        bootstrap,
        letters,
        [
            Letter(one, 0, value=b"a", key=b"k", time_ms=1_000_000),
            Letter(one, 1, value=b"b", reason=too_many, time_ms=2_000_000),
            Letter(one, 2, value=b"c", group="others", time_ms=3_000_000),
            Letter(other, 3, value=b"d", key=b"k", time_ms=4_000_000),
        ],
    )

    def moving(**selection: object) -> list[str | None]:
        account = redrive_directly(replace(request_of(bootstrap, letters, **selection), dry_run=True))
        assert account.moved_count == len(account.first_ones)
        return [shown["value"] for shown in account.first_ones]

    assert moving() == ["a", "b", "c", "d"]
    assert moving(reasons=("rejected",)) == ["a", "c", "d"]
    assert moving(reasons=("delivery_count_limit", "unheard of")) == ["b"]
    assert moving(groups=("others",)) == ["c"]
    assert moving(topics=(other,)) == ["d"]
    assert moving(keys=(b"k", b"x")) == ["a", "d"]
    assert moving(since_ms=2_000_000) == ["b", "c", "d"]
    assert moving(since_ms=2_000_000, until_ms=4_000_000, reasons=("rejected",)) == ["c"]
    assert moving(since_ms=4_000_001) == []
    redrive_directly(request_of(bootstrap, letters, keys=(b"k",)))
    assert (values(bootstrap, one), values(bootstrap, other)) == (["a"], ["d"])
    assert moving() == ["b", "c"]


def topics_of(bootstrap: str) -> set[str]:
    """But for the one that Apache Kafka makes when the first consumer looks for its coordinator."""
    return {*AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics} - {"__consumer_offsets"}


def test_a_dry_run_shows_and_moves_nothing(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap, 2)
    for partition in range(2):
        found = [Letter(topic, number, value=f"{partition}-{number}".encode()) for number in range(4)]
        write_letters(bootstrap, letters, found, partition)
    topics_before = topics_of(bootstrap)
    account = redrive_directly(replace(request_of(bootstrap, letters), dry_run=True))
    assert account.moved == {topic: {"rejected": 8}}
    assert [shown["from"] for shown in account.first_ones] == [
        *(f"{letters}:0:{number}" for number in range(4)),
        f"{letters}:1:0",
    ]
    assert account.first_ones[0] == {
        "from": f"{letters}:0:0",
        "to": f"{topic}:0",
        "group": "workers",
        "reason": "rejected",
        "key": None,
        "value": "0-0",
    }
    assert values(bootstrap, topic) == []
    assert topics_of(bootstrap) == topics_before
    assert redrive_directly(request_of(bootstrap, letters)).moved == account.moved
    assert sorted(values(bootstrap, topic)) == [
        f"{partition}-{number}" for partition in range(2) for number in range(4)
    ]


def test_what_cannot_move_is_counted_with_its_reason(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    produce(bootstrap, topic, ["kept"])
    found = [Letter(topic, 0), Letter(topic, 7), Letter("gone-topic", 0, value=b"x"), Letter(topic, 0, 5, value=b"x")]
    write_letters(bootstrap, letters, [*found, Letter("__consumer_offsets", 0, value=b"x")])
    produce(bootstrap, letters, ["no letter"])
    account = redrive_directly(request_of(bootstrap, letters))
    assert account.moved == {topic: {"rejected": 1}}
    assert account.problems == {
        IS_GONE: 1,
        "topic gone-topic does not exist": 1,
        f"topic {topic} has no partition 5": 1,
        "its source topic __consumer_offsets is internal": 1,
        "no dead letter: without the headers __dlq.errors.topic, partition and offset": 1,
    }
    assert values(bootstrap, topic) == ["kept", "kept"]


def test_a_topic_that_is_not_there_is_named(bootstrap: str) -> None:
    with pytest.raises(UnknownTopic, match=r"there is no topic dlq\.nothing"):
        redrive_directly(request_of(bootstrap, "dlq.nothing"))


def test_given_offsets_are_appended_again_once(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, [f"v{number}" for number in range(6)])
    given = (GivenOffsets(topic, 0, 1, 2), GivenOffsets(topic, 0, 5, 8))
    request = replace(request_of(bootstrap), offsets=given)
    account = redrive_directly(request)
    assert (account.moved, account.problems) == ({topic: {"given": 3}}, {NO_SUCH_OFFSET: 3})
    moved = committed_records(bootstrap, topic)[6:]
    assert [(record.value, record.headers) for record in moved] == [
        (f"v{number}".encode(), moved_from(topic, number)) for number in (1, 2, 5)
    ]
    overlapping = (GivenOffsets(topic, 0, 1, 2), GivenOffsets(topic, 0, 2, 2), GivenOffsets(topic, 0, 2, 1_000_000))
    shown = redrive_directly(replace(request, offsets=overlapping, dry_run=True))
    assert (shown.moved_count, shown.already_moved) == (5, 3), "3, 4 and the three that were appended"
    second = redrive_directly(
        replace(request, offsets=(GivenOffsets(topic, 0, 1, 3), given[1]._replace(last_offset=5)))
    )
    assert (second.moved_count, second.already_moved) == (1, 3)
    assert values(bootstrap, topic)[-1] == "v3"


def test_records_that_a_group_archived_come_back_as_its_history_tells(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    group = new_group(bootstrap)
    produce(bootstrap, topic, [f"v{number}" for number in range(6)])
    with Reader(bootstrap, group, topic) as reader:
        taken = 0
        while taken < 6:
            messages = reader.take()
            taken += len(messages)
            for message in messages:
                reader.consumer.acknowledge(message, REJECT if (message.offset() or 0) % 2 else ACCEPT)
            assert reader.commit() == {}
    wait_for_events(bootstrap, group, topic, lambda events: _archived_count(events) == 3)
    request = replace(request_of(bootstrap), archived_groups=(group,))
    shown = redrive_directly(replace(request, dry_run=True))
    account = redrive_directly(request)
    assert shown.moved == account.moved == {topic: {"rejected": 3}}
    assert account.first_ones[0]["group"] == group
    assert values(bootstrap, topic)[6:] == ["v1", "v3", "v5"]
    assert redrive_directly(request).already_moved == 3
    assert redrive_directly(replace(request, archived_groups=("nobody",))) == Account()


def _archived_count(events: list[DeliveryEvent]) -> int:
    return sum(
        (event.last_offset or 0) - (event.first_offset or 0) + 1
        for event in events
        if event.event is EventType.ARCHIVED
    )


def test_a_run_that_was_killed_moves_the_rest_when_it_is_run_again(bootstrap: str, tmp_path: Path) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    wanted = [f"v{number}" for number in range(300)]
    write_letters(bootstrap, letters, [Letter(topic, n, value=value.encode()) for n, value in enumerate(wanted)])
    command = [str(Path(sys.executable).parent / "kshare"), "redrive", letters, "--bootstrap", bootstrap]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([*command, "--rate", "40"], stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while len(before := values(bootstrap, topic)) < 80:
        assert running.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(before) < 300
    assert values(bootstrap, topic) == wanted
    shown = done.stdout.splitlines()[-1]
    moved, already = (int(word) for word in shown.split() if word.isdigit())
    assert moved + already == 300
    assert already >= len(before)


def test_a_second_run_ends_the_first_and_both_together_move_once(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    write_letters(bootstrap, letters, [Letter(topic, number, value=f"v{number}".encode()) for number in range(4)])
    properties = {"bootstrap.servers": bootstrap}
    create_ledger(properties)
    account = Account()
    ids = topic_ids(properties, [letters])
    request = replace(request_of(bootstrap, letters), timeout_s=20.0)
    first = PartitionMover(
        Partition(letters, 0), ids[letters], request, account, Pace(None, time.monotonic, time.sleep)
    )
    first.move([candidate(letters, 0, topic)])
    assert redrive_directly(request_of(bootstrap, letters)).moved_count == 3
    with pytest.raises(RedriveFailed, match=f"another redrive of {letters}:0 has begun"):
        first.move([candidate(letters, 1, topic)])
    assert values(bootstrap, topic) == ["v0", "v1", "v2", "v3"]


def candidate(letters: str, offset: int, topic: str) -> Candidate:
    return Candidate(
        letters, 0, offset, topic, 0, offset, "workers", "rejected", 1, 0, None, f"v{offset}".encode(), [], True
    )


def test_a_record_above_librdkafkas_default_size_moves(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    large = b"large" * 300_000
    write_letters(bootstrap, letters, [Letter(topic, 0, value=b"v0"), Letter(topic, 1, value=large)])
    account = redrive_directly(request_of(bootstrap, letters))
    assert (account.moved_count, account.problems) == (2, {})
    assert [record.value for record in committed_records(bootstrap, topic)] == [b"v0", large]


@pytest.mark.parametrize("has_own_limit", [False, True])
def test_a_record_that_is_too_large_stays_a_dead_letter_and_the_rest_moves_once(
    bootstrap: str, has_own_limit: bool
) -> None:
    """The broker rejects it or, with the user's message.max.bytes, the client."""
    topic = new_topic(bootstrap) if has_own_limit else new_topic(bootstrap, max_message_bytes="10000")
    letters = new_letters_topic(bootstrap)
    found = [Letter(topic, number, value=f"v{number}".encode()) for number in range(20)]
    too_large = (0, 11)
    for number in too_large:
        found[number] = found[number]._replace(value=os.urandom(9_990))
    write_letters(bootstrap, letters, found)
    request = request_of(bootstrap, letters)
    if has_own_limit:
        request = replace(request, properties={**request.properties, "message.max.bytes": "9900"})
    problem = (
        f"with the headers of a redrive it is larger than max.message.bytes of topic {topic}, "
        "or the client's message.max.bytes"
    )
    account = redrive_directly(request)
    assert (account.moved_count, account.problems) == (18, {problem: 2})
    again = redrive_directly(request)
    assert (again.moved_count, again.already_moved, again.problems) == (0, 18, {problem: 2})
    assert values(bootstrap, topic) == [f"v{number}" for number in range(20) if number not in too_large]


def test_a_batch_that_is_larger_than_its_topic_allows_moves_in_several(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap, max_message_bytes="10000"), new_letters_topic(bootstrap)
    records = [os.urandom(3_000) for _ in range(20)]
    write_letters(bootstrap, letters, [Letter(topic, number, value=value) for number, value in enumerate(records)])
    account = redrive_directly(request_of(bootstrap, letters))
    assert (account.moved_count, account.problems) == (20, {})
    assert [record.value for record in committed_records(bootstrap, topic)] == records


def test_a_run_that_breaks_off_within_a_transaction_aborts_it(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    properties = {"bootstrap.servers": bootstrap, "linger.ms": "0"}
    create_ledger(properties)
    one_at_a_time = {**properties, "queue.buffering.max.messages": "1"}  # the first is in the log when the third fails
    ids = topic_ids(properties, [letters])
    request = replace(request_of(bootstrap, letters), properties=one_at_a_time)
    pace = Pace(None, time.monotonic, time.sleep)
    good = [candidate(letters, 0, topic), candidate(letters, 1, topic)]
    broken = candidate(letters, 2, topic)._replace(partition=2**40)
    mover = PartitionMover(Partition(letters, 0), ids[letters], request, Account(), pace)
    with pytest.raises(OverflowError), mover:
        mover.move([*good, broken])
    assert values(bootstrap, topic) == []
    produce(bootstrap, topic, ["later"])
    assert values(bootstrap, topic) == ["later"]


class PropertiesReadTwice(UserDict[str, str]):
    """Properties of clients, with what happens before they are read for the second time."""

    def __init__(self, properties: Mapping[str, str], happens: Callable[[], None]) -> None:
        super().__init__(properties)
        self._happens = [lambda: None, happens]

    def keys(self) -> KeysView[str]:
        self._happens.pop(0)()
        return super().keys()


def test_notes_that_are_lost_while_they_are_read_end_the_run(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    write_letters(bootstrap, letters, [Letter(topic, 0, value=b"v")])
    assert redrive_directly(request_of(bootstrap, letters)).moved_count == 1
    properties = {"bootstrap.servers": bootstrap}
    topic_id = topic_ids(properties, [letters])[letters]

    def lose_notes() -> None:
        delete_topic(bootstrap, LEDGER_TOPIC)
        create_ledger(properties)

    read_twice = PropertiesReadTwice(properties, lose_notes)
    with pytest.raises(RedriveFailed, match=f"records of topic {LEDGER_TOPIC}.*were removed while it was read"):
        read_ledger(read_twice, topic_id, 0, timeout_s=20, must_exist=True)


def test_the_rate_is_kept_by_the_clock_that_is_handed_in(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    write_letters(bootstrap, letters, [Letter(topic, number, value=b"v") for number in range(500)])
    now_s = [100.0]
    sent_at: list[tuple[float, int]] = []

    def sleep(duration_s: float) -> None:
        sent_at.append((now_s[0], len(values(bootstrap, topic))))
        now_s[0] += duration_s

    account = redrive_directly(replace(request_of(bootstrap, letters), rate=100.0), now_s=lambda: now_s[0], sleep=sleep)
    assert account.moved_count == 500
    assert sent_at == [(100.0 + second, 100 * (second + 1)) for second in range(4)]


def test_notes_behind_another_producers_open_transaction_are_read(bootstrap: str) -> None:
    topic, letters = new_topic(bootstrap), new_letters_topic(bootstrap)
    write_letters(bootstrap, letters, [Letter(topic, number, value=b"v") for number in range(2)])
    properties = {"bootstrap.servers": bootstrap}
    create_ledger(properties)
    other = Producer({**properties, "transactional.id": f"other-{letters}"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(LEDGER_TOPIC, b'{"version":1,"topic":"x","moved":[]}', b"AAAA/0/0")
    other.flush(20)
    topic_id = topic_ids(properties, [letters])[letters]
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(redrive_directly, request_of(bootstrap, letters))
        with pytest.raises(KafkaUnavailable, match=r"nothing came for 0\.5 s"):
            read_ledger(properties, topic_id, 0, timeout_s=0.5, must_exist=True)
        other.abort_transaction(20)
        assert moving.result(30).moved_count == 2
    moved = read_ledger(properties, topic_id, 0, timeout_s=20, must_exist=True)
    assert [offset in moved for offset in range(3)] == [True, True, False]
    assert values(bootstrap, topic) == ["v", "v"]
