"""`kafka-share-groups` of Kafka 4.3.1, unchanged, with every option: it prints on kshare what it prints on Kafka.

Both systems have the same topics, records and groups, and are asked the same, step by step. Compared is what was
printed, but for addresses, member ids, leader epochs, and the words of error messages (whether there is an error, and
its class, is compared). Where kshare knows more or counts other epochs, a test says so.
"""

from __future__ import annotations

import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from support.clients.delivery import (
    RELEASE,
    Reader,
    System,
    new_topic,
    produce,
    running_system,
    set_group,
    values_of,
    wait_for,
)
from support.environment.machine_stalls import MachineStalls
from support.kafka.java_programs import java_command
from support.kafka.tools import first_broker, without_drawn_brokers

TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
TIMEOUT_S = 90
HOUR_MS = 3_600_000
SECOND_MS = time.time_ns() // 1_000_000
FIRST_MS = SECOND_MS - 2 * HOUR_MS
"""Not older: retention removes what is a week old, at some time of its own."""
BETWEEN = datetime.fromtimestamp((SECOND_MS - HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
"""In UTC: after the first timestamp and before the second."""
RECORDS = 10

MEMBER_ID = re.compile(r"(?<= )[A-Za-z0-9+/_-]{22}(?= )")
"""librdkafka's."""


class Printed(NamedTuple):
    """The lines that say something, blanks made equal; an order that the tool takes from a hash map is put right."""

    exit_code: int
    lines: tuple[str, ...]


class Pair:
    """kshare and Kafka."""

    def __init__(self, systems: tuple[System, System]) -> None:
        self.systems = systems
        self._addresses = [_addresses_of(system.bootstrap) for system in systems]

    def run(self, *arguments: str) -> list[Printed]:
        """What the tool prints on each; both run at the same time."""
        started = [self._start(system.bootstrap, arguments) for system in self.systems]
        found = []
        for addresses, process in zip(self._addresses, started, strict=True):
            output, errors = process.communicate(timeout=TIMEOUT_S)
            lines = _plain(output + errors, addresses)
            is_plain_list = arguments == ("--list",)
            found.append(Printed(process.returncode, tuple(sorted(lines)) if is_plain_list else lines))
        return found

    @staticmethod
    def _start(bootstrap: str, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        given = ("--bootstrap-server", bootstrap, *arguments)
        command = java_command(TOOL, *given, flags=["-Duser.timezone=UTC"])
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def same(self, *arguments: str) -> Printed:
        """Asserts that both print the same, and gives it."""
        kshare, kafka = self.run(*arguments)
        assert kshare == kafka, arguments
        return kshare


def _addresses_of(bootstrap: str) -> list[str]:
    """The address that clients begin with, and those of the brokers that they go on to."""
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).brokers.values()
    return [bootstrap, *(f"{broker.host}:{broker.port}" for broker in brokers)]


def _plain(text: str, addresses: list[str]) -> tuple[str, ...]:
    lines = []
    for address in addresses:
        text = text.replace(address, "ADDRESS")
    for line in text.splitlines():
        line = without_drawn_brokers(MEMBER_ID.sub("ID", " ".join(line.split())))
        line = re.sub(r"(Valid states are:) .*", r"\1 ...", line)
        line = re.sub(r"(Error: )(?!Deletion|Executing).*", r"\1...", line)
        line = re.sub(r"(org\.apache\.kafka\.\S*Exception): .*", r"\1", line)
        if line and not line.startswith("at ") and not line.startswith("..."):
            lines.append(line)
    return tuple(_rows_in_order(lines))


def _rows_in_order(lines: list[str]) -> list[str]:
    """Rows below a heading sorted; what is not a table stays where it is."""
    found: list[str] = []
    rows: list[str] | None = None
    for line in lines:
        if re.match(r"(GROUP|TOPIC) [A-Z#(-]", line):
            found += sorted(rows or [])
            found.append(line)
            rows = []
        elif rows is not None and not line.startswith(("Share group", "Error", "*", "Deletion", "These")):
            rows.append(line)
        else:
            found += sorted(rows or [])
            rows = None
            found.append(line)
    return found + sorted(rows or [])


def _without(printed: Printed, *columns: str) -> list[tuple[str, ...]]:
    """The table that was printed, but for some columns."""
    heading, *rows = [tuple(line.split()) for line in printed.lines]
    kept = [index for index, name in enumerate(heading) if name not in columns]
    return [tuple(row[index] for index in kept) for row in (heading, *rows)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        kshare, kafka = (
            stack.enter_context(running_system(kind, tmp_path_factory.mktemp(kind))) for kind in ("kshare", "kafka")
        )
        yield Pair((kshare, kafka))


def consumed(pair: Pair, topic: str, partitions: int = 1) -> str:
    """A group on both systems that has consumed RECORDS records of the topic, and that nobody is in."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    for system in pair.systems:
        new_topic(system.records_bootstrap, partitions, name=topic)
        set_group(system.bootstrap, group, auto_offset_reset="earliest")
        half = RECORDS // 2
        produce(system.records_bootstrap, topic, map(str, range(half)), timestamp_ms=FIRST_MS)
        produce(system.records_bootstrap, topic, map(str, range(half, RECORDS)), timestamp_ms=SECOND_MS)
        with Reader(system.bootstrap, group, topic) as reader:
            reader.accept(RECORDS)
    return group


def topic_name() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def first_values(pair: Pair, group: str, topic: str) -> list[list[str]]:
    """What the next member is given, on each system; it gives all back."""
    found = []
    for system in pair.systems:
        with Reader(system.bootstrap, group, topic) as reader:
            found.append(values_of(reader.take()))
            reader.settle(RELEASE)
    return found


@pytest.mark.timeout(240)
def test_list_and_describe(pair: Pair) -> None:
    topic = topic_name()
    group = consumed(pair, topic, 2)
    assert group in pair.same("--list").lines
    assert f"{group} Empty" in pair.same("--list", "--state").lines
    assert f"{group} Empty" in pair.same("--list", "--state", "empty,dead").lines
    assert not any(group in line for line in pair.same("--list", "--state", "Stable").lines)
    assert pair.same("--list", "--state", "nonsense").exit_code == 1
    state = pair.same("--describe", "--group", group, "--state")
    assert f"{group} ADDRESS ({first_broker()}) Empty 0" in state.lines
    kshare, kafka = pair.run("--describe", "--group", group, "--state", "--verbose")
    group_epoch, assignment_epoch = map(int, kshare.lines[1].split()[-3:-1])
    assert group_epoch == assignment_epoch + 1, "the last member left, and nobody was assigned anything since"
    for printed in (kshare, kafka):
        assert re.fullmatch(rf"{group} ADDRESS \({first_broker()}\) Empty \d+ \d+ 0", printed.lines[1])
    assert (kshare.lines[0], kshare.lines[2:]) == (kafka.lines[0], kafka.lines[2:])
    pair.same("--describe", "--group", group, "--members")
    pair.same("--describe", "--group", group, "--members", "--verbose")
    for missing in (("--group", "missing"), ("--group", "missing", "--state"), ("--group", "missing", "--members")):
        pair.same("--describe", *missing)


@pytest.mark.timeout(240)
def test_describe_offsets(pair: Pair) -> None:
    """The start offset that Kafka has stored may lie before records that are done; the lag knows of them."""
    topic = topic_name()
    group = consumed(pair, topic)
    for options in ((), ("--offsets",)):
        kshare, kafka = pair.run("--describe", "--group", group, *options)
        assert kshare.lines[1] == f"{group} {topic} 0 {RECORDS} 0"
        assert _without(kshare, "START-OFFSET") == _without(kafka, "START-OFFSET")
    kshare, kafka = pair.run("--describe", "--group", group, "--offsets", "--verbose")
    assert _without(kshare, "START-OFFSET", "LEADER-EPOCH") == _without(kafka, "START-OFFSET", "LEADER-EPOCH")
    kshare, kafka = pair.run("--describe", "--all-groups", "--offsets")
    assert (group, topic, "0", "0") in _without(kshare, "START-OFFSET")
    assert (group, topic, "0", "0") in _without(kafka, "START-OFFSET")


@pytest.mark.timeout(240)
def test_a_group_with_a_member(pair: Pair) -> None:
    topic = topic_name()
    group = consumed(pair, topic, 2)
    with ExitStack() as stack:
        for system in pair.systems:
            reader = stack.enter_context(Reader(system.bootstrap, group, topic, client_id="worker"))
            produce(system.records_bootstrap, topic, ["more"], partition=1)
            reader.accept(1)
        members = pair.same("--describe", "--group", group, "--members")
        assert members.lines[1] == f"{group} ID /127.0.0.1 worker 2 {topic}:0,1"
        kshare, kafka = pair.run("--describe", "--group", group, "--members", "--verbose")
        assert _without(kshare, "MEMBER-EPOCH") == _without(kafka, "MEMBER-EPOCH")
        pair.same("--describe", "--group", group, "--state")
        assert f"{group} Stable" in pair.same("--list", "--state", "stable").lines
        for refused in (
            ("--reset-offsets", "--group", group, "--to-earliest", "--all-topics", "--execute"),
            ("--delete-offsets", "--group", group, "--topic", topic),
            ("--delete", "--group", group),
        ):
            pair.same(*refused)


@pytest.mark.timeout(300)
def test_reset_offsets(pair: Pair) -> None:
    """By every scenario, for all topics, one topic, and some of its partitions; without --execute nothing changes."""
    topic = topic_name()
    group = consumed(pair, topic)
    reset = ("--reset-offsets", "--group", group)
    every = ("--all-topics",)
    dry = pair.same(*reset, *every, "--to-earliest", "--dry-run")
    assert f"{group} {topic} 0 0" in dry.lines
    for printed in pair.run("--describe", "--group", group):
        assert _without(printed, "START-OFFSET")[1] == (group, topic, "0", "0"), "nothing changed"
    assert f"{group} {topic} 0 0" in pair.same(*reset, *every, "--to-earliest", "--execute").lines
    assert pair.same("--describe", "--group", group).lines[1] == f"{group} {topic} 0 0 {RECORDS}"
    assert [values[0] for values in first_values(pair, group, topic)] == ["0", "0"]
    assert f"{group} {topic} 0 5" in pair.same(*reset, "--topic", topic, "--to-datetime", BETWEEN, "--execute").lines
    assert [values[0] for values in first_values(pair, group, topic)] == ["5", "5"]
    assert (
        f"{group} {topic} 0 {RECORDS}" in pair.same(*reset, "--topic", f"{topic}:0", "--to-latest", "--execute").lines
    )
    for system in pair.systems:
        produce(system.records_bootstrap, topic, ["after"])
    assert [values[0] for values in first_values(pair, group, topic)] == ["after", "after"]


@pytest.mark.timeout(240)
def test_reset_offsets_of_a_group_that_does_not_exist(pair: Pair) -> None:
    topic, group = topic_name(), f"group-{uuid.uuid4().hex[:8]}"
    for system in pair.systems:
        new_topic(system.records_bootstrap, 2, name=topic)
        produce(system.records_bootstrap, topic, map(str, range(RECORDS)))
        produce(system.records_bootstrap, topic, map(str, range(RECORDS)), partition=1)
    reset = ("--reset-offsets", "--group", group)
    pair.same(*reset, "--topic", f"{topic}:1", "--to-latest", "--execute")
    assert f"{group} Empty" in pair.same("--list", "--state").lines
    for system in pair.systems:
        set_group(system.bootstrap, group, auto_offset_reset="earliest")
        with Reader(system.bootstrap, group, topic) as reader:
            assert {message.partition() for message in reader.accept(RECORDS)} == {0}


@pytest.mark.timeout(240)
def test_reset_offsets_that_are_refused(pair: Pair) -> None:
    topic = topic_name()
    group = consumed(pair, topic)
    reset = ("--reset-offsets", "--group", group)
    for wrong in (
        ("--topic", "missing", "--to-earliest", "--execute"),
        ("--topic", f"{topic}:7", "--to-earliest", "--execute"),
        ("--topic", topic, "--to-datetime", "yesterday", "--execute"),
        ("--topic", topic, "--execute"),
        ("--to-earliest", "--execute"),
        ("--all-topics", "--to-earliest"),
        ("--all-topics", "--to-earliest", "--to-latest", "--execute"),
    ):
        pair.same(*reset, *wrong)


@pytest.mark.timeout(240)
def test_delete_offsets(pair: Pair) -> None:
    topic, other = topic_name(), topic_name()
    group = consumed(pair, topic)
    for system in pair.systems:
        new_topic(system.records_bootstrap, name=other)
    done = pair.same("--delete-offsets", "--group", group, "--topic", topic)
    assert f"{topic} Successful" in done.lines
    none = pair.same("--describe", "--group", group)
    assert any("has no offset information" in line for line in none.lines)
    pair.same("--delete-offsets", "--group", group, "--topic", topic, "--topic", other, "--topic", "missing")
    pair.same("--delete-offsets", "--group", "missing", "--topic", topic)
    pair.same("--delete-offsets", "--group", group)
    assert [values[0] for values in first_values(pair, group, topic)] == ["0", "0"], "share.auto.offset.reset again"


@pytest.mark.timeout(240)
def test_delete_groups(pair: Pair) -> None:
    topic = topic_name()
    group = consumed(pair, topic)
    done = pair.same("--delete", "--group", group)
    assert f"Deletion of requested share groups ('{group}') was successful." in done.lines
    assert group not in pair.same("--list").lines
    pair.same("--delete", "--group", group)
    pair.same("--delete", "--group", group, "--topic", topic)
    assert [values[0] for values in first_values(pair, group, topic)] == ["0", "0"], "made again, it knows nothing"
    every = pair.run("--delete", "--all-groups")
    assert all(printed.exit_code == 0 and "was successful" in printed.lines[0] for printed in every)
    wait_for(lambda: pair.same("--list").lines == (), "no share group is left")


@pytest.mark.timeout(240)
def test_a_stalled_members_session_does_not_outlive_an_alteration(pair: Pair) -> None:
    """The position is read anew at once, although the former member's share session still is open at the leader."""
    topic = topic_name()
    group = consumed(pair, topic)
    pair.same("--reset-offsets", "--group", group, "--all-topics", "--to-earliest", "--execute")
    began = time.monotonic()
    with MachineStalls() as stalls, Reader(pair.systems[0].bootstrap, group, topic) as reader:
        assert values_of(reader.take())[0] == "0"
        now = time.monotonic()
        assert now - began < 2 + stalls.credit_s(began, now, 2)
        reader.settle(RELEASE)
