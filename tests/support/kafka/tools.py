"""Kafka 4.3.1's command-line tools, unchanged, run against kshare and Apache Kafka with the same arguments.

with ToolPair((kshare.bootstrap, kafka.bootstrap)) as pair:
    assert name in pair.same("kafka-topics", "--list").lines

A Java process for each system runs the tools' own main, one after the other (tests/java/KafkaTools.java); the two
systems are asked at the same time. `in_processes` starts a process of its own for each, as a user does. Compared are
the exit code and what was printed, but for addresses, ids that are drawn at random, and the words of error messages:
whether there is an error, and its class, is compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from functools import cached_property
from threading import Timer
from types import TracebackType
from typing import Any, NamedTuple

from support.clients.administration import broker_addresses, wait_until_known
from support.clusters.engines import brokers_of_upstream, is_attached, release_of_answers
from support.kafka.java import NEWEST
from support.kafka.java_programs import java_command

TIMEOUT_S = 60
"""Of one run of one tool."""
KNOWN_WITHIN_S = 10
READING = frozenset({"--describe", "--list", "describe", "list"})
"""With one of these a tool only looks."""

TOOLS = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-share-consumer-perf-test": "org.apache.kafka.tools.ShareConsumerPerformance",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-share-consumer": "org.apache.kafka.tools.VerifiableShareConsumer",
}
"""Command in Kafka's bin folder -> the class that it starts."""
OF_RECORDS = frozenset(
    {
        *("kafka-console-consumer", "kafka-consumer-perf-test", "kafka-verifiable-consumer"),
        *("kafka-console-producer", "kafka-producer-perf-test", "kafka-verifiable-producer"),
    }
)
"""Those that connect where records are produced and read by ordinary consumers."""


class Printed(NamedTuple):
    """What a tool printed, blanks made equal, empty lines and stack traces left out; errors come last."""

    exit_code: int
    lines: tuple[str, ...]

    def rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(line.split()) for line in self.lines)

    def has(self, wanted: str) -> bool:
        """Whether it is part of a line."""
        return any(wanted in line for line in self.lines)


def _java(program: str, *arguments: str) -> list[str]:
    """Java that prints what the tool prints; of the logs only the errors of tools, which name the exception."""
    logs = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.tools=error"
    return java_command(program, *arguments, log_level="off", flags=[logs, "-Duser.timezone=UTC"])


class ToolRuns:
    """One Java process that runs tools against one cluster."""

    def __init__(self, bootstrap: str, records_bootstrap: str = "") -> None:
        """`records_bootstrap`: where the tools of OF_RECORDS connect, if that is another address."""
        self.bootstrap = bootstrap
        self.records_bootstrap = records_bootstrap or bootstrap
        self._process = self._start()

    @cached_property
    def addresses(self) -> list[str]:
        """What is printed as ADDRESS; asked for when needed, since not every cluster answers an unknown client."""
        bootstraps = dict.fromkeys((self.bootstrap, self.records_bootstrap))
        return [address for each in bootstraps for address in (each, *broker_addresses(each))]

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        command = _java("KafkaTools")
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def given(self, tool: str, arguments: Sequence[str], server: bool) -> list[str]:
        """The arguments as this system's tool gets them; see `ToolPair.run`."""
        bootstrap = self.records_bootstrap if tool in OF_RECORDS else self.bootstrap
        at = ["--bootstrap-server", bootstrap] if server else []
        return [argument.replace("ADDRESS", bootstrap) for argument in arguments] + at

    def ask(self, tool: str, arguments: Sequence[str], typed: str) -> None:
        assert self._process.stdin is not None
        wanted = {"tool": TOOLS[tool], "arguments": list(arguments), "typed": typed, "seconds": TIMEOUT_S}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()

    def text(self, tool: str, *arguments: str) -> str:
        """What a tool prints on this system alone, as it is; AssertionError where it fails."""
        self.ask(tool, [*arguments, "--bootstrap-server", self.bootstrap], "")
        found = self.answer()
        assert found["exit"] == 0, found
        return str(found["output"])

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = Timer(TIMEOUT_S + 10, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._end()
            self._process = self._start()
            raise AssertionError("the tool ended the Java process by itself; run it in a process of its own")
        found: dict[str, Any] = json.loads(line)
        if "stuck" in found:  # its threads may still print
            self._end()
            self._process = self._start()
            raise AssertionError(f"at {self.bootstrap} not done within {TIMEOUT_S} s: {found}")
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        finally:
            self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class ToolPair:
    """kshare and Kafka, in this order; a context manager that ends the Java processes."""

    def __init__(self, bootstraps: tuple[str, str], records_bootstraps: tuple[str, str] | None = None) -> None:
        self.bootstraps = bootstraps
        self.records_bootstraps = records_bootstraps or bootstraps
        self.runs = [ToolRuns(*addresses) for addresses in zip(bootstraps, self.records_bootstraps, strict=True)]

    def __enter__(self) -> ToolPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runs in self.runs:
            runs.close()

    def run(self, tool: str, *arguments: str, typed: str = "", server: bool = True) -> tuple[Printed, Printed]:
        """What the tool prints on each; `server` gives it --bootstrap-server, and ADDRESS stands for its value."""
        for runs in self.runs:
            runs.ask(tool, runs.given(tool, arguments, server), typed)
        kshare, kafka = (
            _printed(runs.addresses, answer) for runs, answer in zip(self.runs, self._answers(), strict=True)
        )
        return kshare, kafka

    def _answers(self) -> list[dict[str, Any]]:
        """Both are waited for, also where the first is an error."""
        with ThreadPoolExecutor(max_workers=len(self.runs)) as pool:
            waiting = [pool.submit(runs.answer) for runs in self.runs]
        return [each.result() for each in waiting]

    def same(
        self,
        tool: str,
        *arguments: str,
        typed: str = "",
        server: bool = True,
        view: Callable[[Printed], Printed] = lambda printed: printed,
        until: str = "",
    ) -> Printed:
        """Asserts that both print the same, seen through `view`, and gives what kshare's printed.

        A broker of Kafka knows a change some time after its controller has confirmed it. So a command that changes
        nothing is asked of Kafka again for a while where it differs or lacks `until`, and of kshare where the answer is
        a cluster's.
        """

        def is_known() -> bool:
            return ours == kafkas and (not until or ours.has(until))

        kshare, kafka = self.run(tool, *arguments, typed=typed, server=server)
        ours, kafkas = view(kshare), view(kafka)
        deadline = time.monotonic() + KNOWN_WITHIN_S
        while not is_known() and READING & {*arguments} and time.monotonic() < deadline:
            if is_attached():
                kshare, kafka = self.run(tool, *arguments, typed=typed, server=server)
                ours, kafkas = view(kshare), view(kafka)
                continue
            runs = self.runs[1]
            runs.ask(tool, runs.given(tool, arguments, server), typed)
            kafkas = view(_printed(runs.addresses, runs.answer()))
        if ours != kafkas:
            difference = unified_diff(kafkas.lines, ours.lines, "Kafka", "kshare", lineterm="", n=1)
            exits = f"exit codes: Kafka {kafkas.exit_code}, kshare {ours.exit_code}"
            raise AssertionError("\n".join((" ".join((tool, *arguments)), exits, *difference)))
        return kshare

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """By kafka-topics; returns when both brokers can take records for it, which is later than its answer."""
        self.same("kafka-topics", "--create", "--topic", name, "--partitions", str(partitions))
        self.wait_for_partitions(name, partitions)

    def wait_for_partitions(self, name: str, partitions: int) -> None:
        """Until both brokers know that the topic has so many."""
        for bootstrap in self.records_bootstraps:
            wait_until_known(bootstrap, name, partitions)

    def in_processes(self, tool: str, *arguments: str, server: bool = True) -> tuple[Printed, Printed]:
        """As `run`, in a Java process that is the tool's own; for those that end it themselves, or print meanwhile."""
        started = []
        for runs in self.runs:
            command = _java(TOOLS[tool], *runs.given(tool, arguments, server))
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        found = []
        for runs, process in zip(self.runs, started, strict=True):
            try:
                output, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
            found.append(_printed(runs.addresses, {"exit": process.returncode, "output": output, "errors": errors}))
        kshare, kafka = found
        return kshare, kafka

    def each(self, action: Callable[[str], object]) -> None:
        """Does something at both bootstraps, one after the other."""
        for bootstrap in self.bootstraps:
            action(bootstrap)


def no_such_group() -> str:
    """What a tool that describes a group says of one that does not exist."""
    return "GroupIdNotFoundException" if release_of_answers() == NEWEST else "Error: ..."


def any_order(printed: Printed) -> Printed:
    """For lines that a tool takes from a hash map."""
    return printed._replace(lines=tuple(sorted(printed.lines)))


def without(*columns: str) -> Callable[[Printed], Printed]:
    """The rows of a table without some columns, in any order; the first line is the heading."""

    def view(printed: Printed) -> Printed:
        if not printed.lines:
            return printed
        heading, *rows = printed.rows()
        kept = [index for index, name in enumerate(heading) if name not in columns]
        short = [" ".join(row[index] for index in kept if index < len(row)) for row in (heading, *rows)]
        return printed._replace(lines=(short[0], *sorted(short[1:])))

    return view


def about(*words: str) -> Callable[[Printed], Printed]:
    """The lines with one of the words, in any order: lists have what other tests left, too."""

    def view(printed: Printed) -> Printed:
        return printed._replace(
            lines=tuple(sorted(line for line in printed.lines if any(word in line for word in words)))
        )

    return view


RANDOM_ID = re.compile(
    r"(?<![A-Za-z0-9+/_-])(?!console-)(?=[A-Za-z0-9+/_-]*[A-Z0-9])[A-Za-z0-9_-]{22}(?![A-Za-z0-9+/_-])"
)
"""A Uuid as Kafka prints it."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SAID = (
    (re.compile(r"(org\.apache\.kafka\.\S*(?:Exception|Error)): .*"), r"\1"),
    (re.compile(r"^(Error\b[^:]*:).*"), r"\1 ..."),
    (re.compile(r"^\[[^]]*\] ERROR "), "ERROR "),
    (re.compile(r"\b(console-consumer|perf-consumer)-\d+"), r"\1-NUMBER"),
)
"""Words of error messages and names that are drawn at random, which are not compared."""
HASHED = re.compile(r"\[[\w-]+\](?:, ?\[[\w-]+\])+|(?<=Valid states are: )\S.*|(?<=Valid types are: )\S.*")
"""Options and states that tools print in the order of a hash map."""


PLACED = re.compile(r"(?<=\bLeader: )\d+|(?<=\bReplicas: )[\d,]+|(?<=\bIsr: )[\d,]+|(?<=ADDRESS \()\d+(?=\))")
"""Ids of the brokers that lead, replicate or coordinate: a cluster of several draws them at random."""
ANY_BROKER = "BROKER"


def first_broker() -> str:
    """How the id of a broker that leads, replicates or coordinates is shown."""
    return "1" if brokers_of_upstream() == 1 else ANY_BROKER


def without_drawn_brokers(text: str) -> str:
    if brokers_of_upstream() == 1:
        return text
    return PLACED.sub(lambda found: re.sub(r"\d+", ANY_BROKER, found[0]), text)


def _in_order(found: re.Match[str]) -> str:
    return ", ".join(sorted(part.strip() for part in found[0].split(",")))


def _printed(addresses: Sequence[str], answer: dict[str, Any]) -> Printed:
    text = str(answer["output"]) + "\n" + str(answer["errors"])
    lines = []
    places = (address.partition(":") for address in addresses)
    address = re.compile("|".join(rf"{re.escape(host)}[:\s]\s*{port}" for host, _, port in places))
    for line in address.sub("ADDRESS", text).splitlines():
        line = UUID.sub("UUID", RANDOM_ID.sub("ID", " ".join(line.split())))
        for pattern, shown in SAID:
            line = pattern.sub(shown, line)
        line = without_drawn_brokers(HASHED.sub(_in_order, line))
        if line and not re.match(r"at \S+\(|\.\.\. \d+ more", line):
            lines.append(line)
    return Printed(int(answer["exit"]), tuple(lines))
