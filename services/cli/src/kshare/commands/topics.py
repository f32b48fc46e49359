"""`kshare topics`: creates, lists and deletes topics with confluent-kafka's AdminClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from kshare.addresses import parse_addresses
from kshare.arguments import is_unicode
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach, topic_of
from kshare.failure import BAD_USE, CommandFailed
from kshare.output import Listing, Row, counted, show

TIMEOUT_S = 15.0
TIMEOUTS = {"operation_timeout": TIMEOUT_S, "request_timeout": TIMEOUT_S}


def admin_client(bootstrap: str, properties: Properties = NO_PROPERTIES) -> AdminClient:
    """An AdminClient with a socket timeout, so that an unreachable broker does not block it."""
    parse_addresses(bootstrap, what="--bootstrap")
    settings: dict[str, str | int | float | bool] = {
        **properties,
        "bootstrap.servers": bootstrap,
        "client.id": "kshare-cli",
        "socket.timeout.ms": 10_000,
        "log_level": 0,
    }
    try:
        return AdminClient(settings)
    except KafkaException as error:
        raise kafka_failure("creating the admin client", error) from None


def kafka_failure(what: str, error: KafkaException) -> CommandFailed:
    """A CommandFailed of one line: the action, Kafka's error code and its message."""
    detail = error.args[0] if error.args else error
    code = detail.name() if hasattr(detail, "name") else type(error).__name__
    text = detail.str() if hasattr(detail, "str") else str(error)
    return CommandFailed(f"{what} failed: {code.lstrip('_')}: {text}")


def parse_configs(entries: Sequence[str]) -> dict[str, str]:
    """Parses NAME=VALUE entries of the command line; CommandFailed."""
    configs = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--config must be NAME=VALUE, found {entry!r}", BAD_USE)
        if not is_unicode(entry):  # librdkafka's client crashes with such a name
            raise CommandFailed(f"--config {entry!r} is not UTF-8", BAD_USE)
        configs[name] = value
    return configs


def _one_result(futures: Mapping[str, Future[None]]) -> None:
    (future,) = futures.values()
    future.result(TIMEOUT_S + 5)


def create_topic(
    bootstrap: str,
    name: str,
    partitions: int | None,
    configs: Sequence[str],
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Creates a topic; without `partitions` the broker's num.partitions applies."""
    topic = NewTopic(name, num_partitions=-1 if partitions is None else partitions, config=parse_configs(configs))
    reach(bootstrap, properties)
    admin = admin_client(bootstrap, properties)  # it must outlive its futures
    try:
        _one_result(admin.create_topics([topic], **TIMEOUTS))
    except KafkaException as error:
        raise kafka_failure(f"creating topic {name}", error) from None
    except ValueError as error:  # librdkafka's own limit of partitions
        raise CommandFailed(f"creating topic {name} failed: {error}", BAD_USE) from None


def delete_topic(bootstrap: str, name: str, properties: Properties = NO_PROPERTIES) -> None:
    """CommandFailed if it does not exist."""
    topic_of(reach(bootstrap, properties), name, otherwise="kshare topics list shows all topics")
    admin = admin_client(bootstrap, properties)
    try:
        _one_result(admin.delete_topics([name], **TIMEOUTS))
    except KafkaException as error:
        raise kafka_failure(f"deleting topic {name}", error) from None


def show_topics(
    bootstrap: str, console: Console, properties: Properties = NO_PROPERTIES, *, as_json: bool = False
) -> None:
    """Prints all topics."""
    found = sorted(reach(bootstrap, properties).topics, key=lambda topic: str(topic.name))
    rows: list[Row] = [
        {
            "topic": str(topic.name),
            "partitions": len(topic.partitions),
            "without_leader": [
                int(partition.partition_index)
                for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
                if partition.leader_id < 0
            ],
        }
        for topic in found
    ]
    headings = {"topic": "topic", "partitions": "partitions", "without_leader": "without leader"}
    partitions = sum(len(topic.partitions) for topic in found)
    offline = sum(partition.leader_id < 0 for topic in found for partition in topic.partitions)
    summary = f"{counted(len(found), 'topic')}, {counted(partitions, 'partition')}, {offline:,} without a leader"
    show(console, Listing("topics", headings, rows, summary), as_json=as_json)
