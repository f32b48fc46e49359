"""`kshare doctor`: what is wrong with a set-up, as a client on this machine sees it, and what to do about each thing.

Checks run in the order in which things have to work: the client library, the connection, the addresses that the
cluster tells its clients, share groups, roles, partitions, groups, and the data directory. A check only reads. One that
fails is a finding, and the others go on; without a connection the rest is not looked at.
"""

from __future__ import annotations

import importlib.metadata
import ipaddress
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

import confluent_kafka
from rich.console import Console
from rich.text import Text

from kshare.addresses import Address, parse_addresses
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import Unreachable, reach
from kshare.commands.groups.group_requests import SHARE
from kshare.commands.groups.overview import read_overviews
from kshare.commands.nodes import ROLE_NAMES
from kshare.commands.partitions import describe_partitions
from kshare.commands.resource_configs import GROUP, own_configs
from kshare.commands.state.coordinator_address import coordinator_address
from kshare.commands.state.coordinator_call import call_coordinator
from kshare.endpoint import Endpoint
from kshare.failure import BAD_USE, CommandFailed
from kshare.kafka_connection import KafkaConnection, connect_to_any
from kshare.output import Row, counted, show_json
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import DESCRIBE_NODES
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.metadata import MetadataResponse

CONNECT_TIMEOUT_S = 3.0
SLOW_ANSWER_MS = 500
SHOWN_GROUPS = 5
LEAST_FREE_BYTES, LEAST_FREE_SHARE = 1 << 30, 0.05
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
LOOPBACK_NAMES = ("localhost", "localhost.localdomain")


class Severity(StrEnum):
    """A problem makes the exit code 1; a warning may be intended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


Examined = TypeVar("Examined")

STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.PROBLEM: "red"}
WIDTH = max(map(len, Severity))


class Finding(NamedTuple):
    """What a check found; `advice` says what to do, and is empty where nothing has to be done."""

    check: str
    severity: Severity
    text: str
    advice: str = ""


class SetUp(NamedTuple):
    """The options that say which cluster is examined, and from where its coordinators are found."""

    bootstrap: str
    properties: Properties = NO_PROPERTIES
    coordinator: str | None = None
    data_dir: Path | None = None


def examine(set_up: SetUp) -> list[Finding]:
    """The findings of all checks, in their order. CommandFailed for an option or a file that no command could use."""
    parse_addresses(set_up.bootstrap, what="--bootstrap")
    if set_up.coordinator is not None:
        coordinator_address(set_up.coordinator, None)
    found = list(check_client_library())
    started = time.monotonic()
    try:
        metadata = reach(set_up.bootstrap, set_up.properties)
    except CommandFailed as failure:
        if failure.exit_code == BAD_USE:  # certificates of --command-config that cannot be loaded
            raise
        return [*found, _not_connected(failure), *_guarded(check_data_directory, set_up)]
    found.append(_connected(set_up.bootstrap, round((time.monotonic() - started) * 1000)))
    found += check_advertised_addresses(set_up, metadata)
    found += _guarded(check_share_groups, set_up)
    found += check_with_coordinator(set_up)
    for check in (check_groups, check_data_directory):
        found += _guarded(check, set_up)
    return found


def _guarded(check: Callable[[Examined], Iterator[Finding]], examined: Examined) -> list[Finding]:
    """The check's findings; its failure is one of them."""
    found: list[Finding] = []
    try:
        found.extend(check(examined))
    except CommandFailed as failure:
        found.append(Finding(check.__name__.removeprefix("check_"), Severity.PROBLEM, str(failure)))
    return found


def show_findings(findings: Sequence[Finding], console: Console, *, as_json: bool) -> None:
    """A line for each finding with its advice below it, and a line with their numbers."""
    counts = Counter(finding.severity for finding in findings)
    if as_json:
        rows: list[Row] = [
            {"check": one.check, "severity": str(one.severity), "text": one.text, "advice": one.advice}
            for one in findings
        ]
        problems, warnings = counts[Severity.PROBLEM], counts[Severity.WARNING]
        show_json(console, {"findings": rows, "problems": problems, "warnings": warnings})
        return
    for finding in findings:
        severity = Text(f"{finding.severity:<{WIDTH}}  ", style=STYLES[finding.severity])
        console.print(severity + Text(finding.text), soft_wrap=True)
        if finding.advice:
            console.print(Text(f"{' ' * WIDTH}  → {finding.advice}", style="bold"), soft_wrap=True)
    summary = f"{counted(counts[Severity.PROBLEM], 'problem')}, {counted(counts[Severity.WARNING], 'warning')}"
    console.print(summary, highlight=False)


# The checks


def check_client_library() -> Iterator[Finding]:
    version = importlib.metadata.version("confluent-kafka")
    if hasattr(confluent_kafka, "ShareConsumer"):
        yield Finding("client_library", Severity.OK, f"confluent-kafka {version} of this Python has share consumers")
    else:
        yield Finding(
            "client_library",
            Severity.PROBLEM,
            f"confluent-kafka {version} of this Python has no share consumers",
            "pip install --upgrade confluent-kafka",
        )


def _not_connected(failure: CommandFailed) -> Finding:
    if isinstance(failure, Unreachable):
        advice = "start kshare up, or name a gateway that runs with --bootstrap HOST:PORT"
        return Finding("connection", Severity.PROBLEM, failure.problem, advice)
    return Finding("connection", Severity.PROBLEM, str(failure))


def _connected(bootstrap: str, elapsed_ms: int) -> Finding:
    if elapsed_ms <= SLOW_ANSWER_MS:
        return Finding("connection", Severity.OK, f"{bootstrap} answered within {elapsed_ms} ms")
    return Finding(
        "connection",
        Severity.WARNING,
        f"{bootstrap} took {elapsed_ms} ms to answer",
        "look for a slow name server, a distant network, or a machine whose processors are busy",
    )


def check_advertised_addresses(set_up: SetUp, metadata: MetadataResponse) -> Iterator[Finding]:
    """Clients connect to the addresses of the metadata, whatever address they began with."""
    given = parse_addresses(set_up.bootstrap, what="--bootstrap")
    is_remote = not any(_is_loopback(address.host) for address in given)
    for broker in metadata.brokers:
        address = Address(broker.host, broker.port)
        what = f"clients are told to connect to node {broker.node_id} at {address}"
        advice = "set --advertised HOST:PORT (kshare up, attach) or advertised.listeners to an address clients reach"
        try:
            KafkaConnection(address, timeout_s=CONNECT_TIMEOUT_S, properties=set_up.properties).close()
        except CommandFailed as failure:
            yield Finding("advertised_addresses", Severity.PROBLEM, f"{what}: {failure}", advice)
            continue
        if is_remote and _is_loopback(address.host):
            text = f"{what}, which is another machine for each of them"
            yield Finding("advertised_addresses", Severity.PROBLEM, text, advice)
        else:
            yield Finding("advertised_addresses", Severity.OK, f"{what}, and it can be reached from here")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK_NAMES


def check_share_groups(set_up: SetUp) -> Iterator[Finding]:
    with connect_to_any(set_up.bootstrap, timeout_s=CONNECT_TIMEOUT_S, properties=set_up.properties) as connection:
        versions = connection.versions()
    if int(ApiKey.SHARE_FETCH) in versions:
        yield Finding("share_groups", Severity.OK, f"{set_up.bootstrap} serves share groups")
    else:
        text = f"{set_up.bootstrap} does not serve share groups: it is no kshare, and no Kafka with share groups"
        advice = f"kshare attach {set_up.bootstrap} serves them on its topics"
        yield Finding("share_groups", Severity.PROBLEM, text, advice)


def check_with_coordinator(set_up: SetUp) -> list[Finding]:
    """What the coordinator knows of roles and partitions; where it cannot be found, this is one finding."""
    try:
        address = coordinator_address(set_up.coordinator, set_up.data_dir, set_up.bootstrap, set_up.properties)
    except CommandFailed as failure:
        advice = ""
        if set_up.data_dir is not None and set_up.coordinator is None:
            advice = "give the --data-dir of a kshare up that runs, or none: the gateway knows the coordinator"
        return [Finding("coordinator", Severity.PROBLEM, str(failure), advice)]
    return [finding for check in (check_roles, check_partitions) for finding in _guarded(check, address)]


def check_roles(coordinator: Address) -> Iterator[Finding]:
    """Every role has a live node, and the coordinator knows of no problem."""
    answer = call_coordinator(coordinator, DESCRIBE_NODES, pb.DescribeNodesRequest())
    if answer.error_code:
        raise CommandFailed(f"the coordinator failed to list the nodes: {answer.error_message}")
    counts = Counter(described.node.role for described in answer.nodes if described.lease_remaining_ms > 0)
    for role, name in ROLE_NAMES.items():
        if not counts[role]:
            advice = f"start a {name}, and look at the log of the one that should run"
            yield Finding("roles", Severity.PROBLEM, f"no {name} is live", advice)
    for problem in answer.cluster_problems:
        yield Finding("roles", Severity.PROBLEM, problem, "kshare nodes shows all nodes")
    if not answer.cluster_problems and all(counts[role] for role in ROLE_NAMES):
        nodes = ", ".join(counted(counts[role], name) for role, name in ROLE_NAMES.items())
        yield Finding("roles", Severity.OK, f"the coordinator has live nodes of every role: {nodes}")


def check_partitions(coordinator: Address) -> Iterator[Finding]:
    answer = describe_partitions(coordinator, [])
    for leader in answer.leaders:
        if leader.is_live or not leader.partition_count:
            continue
        yield Finding(
            "partitions",
            Severity.PROBLEM,
            f"leader {leader.node_id} is gone, and {counted(leader.partition_count, 'partition')} with it",
            f"start leader {leader.node_id} again; if it is lost for good: kshare partitions give-up {leader.node_id}",
        )
    live = [leader for leader in answer.leaders if leader.is_live]
    placed = [leader.partition_count for leader in live if not leader.is_draining]
    if len(placed) > 1 and max(placed) > 2 * min(placed) + 1:
        text = f"leaders have from {min(placed):,} to {max(placed):,} partitions"
        yield Finding("partitions", Severity.WARNING, text, "kshare partitions rebalance --dry-run shows what to move")
    if all(leader.is_live or not leader.partition_count for leader in answer.leaders):
        number = sum(len(topic.partitions) for topic in answer.topics)
        text = f"{counted(number, 'partition')} have live leaders"
        yield Finding("partitions", Severity.OK, text)


def check_groups(set_up: SetUp) -> Iterator[Finding]:
    """Groups whose records no member processes, and groups whose dead letters have no topic."""
    groups = [group for group in read_overviews(set_up.bootstrap, set_up.properties) if group.kind.lower() == SHARE]
    waiting = [group for group in groups if group.lag and group.members == 0]
    for group in waiting[:SHOWN_GROUPS]:
        text = f"group {group.group_id} has no members, and {counted(group.lag or 0, 'record')} wait"
        advice = f"start its consumers, or kshare groups delete {group.group_id} if it is no longer used"
        yield Finding("groups", Severity.WARNING, text, advice)
    if len(waiting) > SHOWN_GROUPS:
        text = f"{len(waiting) - SHOWN_GROUPS:,} more groups have records and no members"
        yield Finding("groups", Severity.WARNING, text, "kshare groups list shows them")
    topics = {str(topic.name) for topic in reach(set_up.bootstrap, set_up.properties).topics}
    configs = own_configs(Endpoint(set_up.bootstrap, set_up.properties), GROUP, [group.group_id for group in groups])
    for group_id, own in configs.items():
        topic = own.get(DEAD_LETTER_TOPIC)
        if topic and topic not in topics:
            text = f"the dead-letter topic {topic} of group {group_id} does not exist"
            advice = f"kshare topics create {topic} --config errors.deadletterqueue.group.enable=true"
            yield Finding("groups", Severity.WARNING, text, advice)
    yield Finding("groups", Severity.OK, f"{counted(len(groups), 'share group')} answered")


def check_data_directory(set_up: SetUp) -> Iterator[Finding]:
    if set_up.data_dir is None:
        return
    try:
        usage = shutil.disk_usage(set_up.data_dir)
    except OSError as error:
        text = f"cannot look at {set_up.data_dir}: {error.strerror or error}"
        yield Finding("data_directory", Severity.PROBLEM, text, "give the --data-dir of kshare up")
        return
    free = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} GiB are free for {set_up.data_dir}"
    if usage.free < max(LEAST_FREE_BYTES, usage.total * LEAST_FREE_SHARE):
        advice = "free some room, or lower retention.bytes and retention.ms of topics; a full disk refuses writes"
        yield Finding("data_directory", Severity.WARNING, free, advice)
    else:
        yield Finding("data_directory", Severity.OK, free)
