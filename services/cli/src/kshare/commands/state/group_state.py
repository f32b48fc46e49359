"""The durable state of a share group, read over the Kafka protocol.

DescribeShareGroupOffsets (key 90) lists the share-partitions and their lag, and FindCoordinator with key type 2 their
share coordinators. ReadShareGroupState (84) with leader epoch -1, which fences no leader, and
ReadShareGroupStateSummary (87) return the state. This needs only the client port, and works with Apache Kafka too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kshare.addresses import Address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.groups.group_requests import read_share_offsets
from kshare.failure import CommandFailed
from kshare.kafka_connection import KafkaConnection, connect_to_any, refuse
from kshare_core.identifiers import SharePartitionKey
from kshare_kafka_client.connection import error_text
from kshare_wire.generated.requests import read_share_group_state as read
from kshare_wire.generated.requests import read_share_group_state_summary as summarize
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest

FIND_COORDINATOR_VERSION, READ_STATE_VERSION, READ_SUMMARY_VERSION = 6, 0, 1
SHARE = 2
"""The key type of share-partitions in FindCoordinator."""
SHARE_PARTITIONS_PER_REQUEST = 1_000
ONLY_READ = -1
"""The leader epoch of a read that fences no leader."""

Element = TypeVar("Element")


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets with one state; both ends are included. `state` is Kafka's number."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int

    @property
    def count(self) -> int:
        return self.last_offset - self.first_offset + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionState:
    """The stored state of one share-partition. If `problem` is set, it could not be read and the rest has no meaning.

    -1: unknown (`lag`, `delivery_complete_count`), or not yet set by share.auto.offset.reset (`start_offset`).
    """

    topic: str
    key: SharePartitionKey
    lag: int = -1
    start_offset: int = -1
    state_epoch: int = -1
    leader_epoch: int = -1
    delivery_complete_count: int = -1
    runs: Sequence[Run] = ()
    problem: str | None = None

    @property
    def end_offset(self) -> int:
        """The last offset that has a state, -1 without states."""
        return self.runs[-1].last_offset if self.runs else -1


def read_group_state(
    bootstrap: str, group_id: str, topic: str | None, properties: Properties = NO_PROPERTIES
) -> list[SharePartitionState]:
    """The group's share-partitions, by topic and partition, limited to `topic` if it is given; CommandFailed."""
    found = [
        SharePartitionState(
            topic=each.topic, key=SharePartitionKey(group_id, each.topic_id, each.partition), lag=each.lag
        )
        for each in read_share_offsets(bootstrap, group_id, properties)
        if topic in (None, each.topic)
    ]
    if not found:
        where = "" if topic is None else f" in topic {topic}"
        raise CommandFailed(f"group {group_id} has no share-partitions{where}, so no state is stored")
    states = {state.key: state for state in found}
    for portion in _portions(found):
        for address, keys in _share_coordinators(bootstrap, [state.key for state in portion], properties).items():
            with KafkaConnection(address, properties=properties) as connection:
                _read_states(connection, group_id, keys, states)
                _read_summaries(connection, group_id, keys, states)
    return sorted(states.values(), key=lambda state: (state.topic, state.key.partition))


def _portions(elements: Sequence[Element]) -> Iterator[Sequence[Element]]:
    for start in range(0, len(elements), SHARE_PARTITIONS_PER_REQUEST):
        yield elements[start : start + SHARE_PARTITIONS_PER_REQUEST]


def _find(bootstrap: str, keys: Sequence[str], properties: Properties) -> list[tuple[str, Address]]:
    request = FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys)
    with connect_to_any(bootstrap, properties=properties) as connection:
        found = connection.call(request, FIND_COORDINATOR_VERSION).coordinators
    for coordinator in found:
        refuse(coordinator.error_code, f"finding the coordinator of {coordinator.key}", coordinator.error_message)
    return [(coordinator.key, Address(coordinator.host, coordinator.port)) for coordinator in found]


def _share_coordinators(
    bootstrap: str, keys: Sequence[SharePartitionKey], properties: Properties
) -> dict[Address, list[SharePartitionKey]]:
    by_text = {str(key): key for key in keys}
    found: dict[Address, list[SharePartitionKey]] = {}
    for text, address in _find(bootstrap, list(by_text), properties):
        found.setdefault(address, []).append(by_text[text])
    return found


def _read_states(
    connection: KafkaConnection,
    group_id: str,
    keys: Sequence[SharePartitionKey],
    states: dict[SharePartitionKey, SharePartitionState],
) -> None:
    topics = tuple(
        read.ReadStateData(
            topic_id=topic_id,
            partitions=tuple(read.PartitionData(partition=each, leader_epoch=ONLY_READ) for each in partitions),
        )
        for topic_id, partitions in _by_topic(keys).items()
    )
    request = read.ReadShareGroupStateRequest(group_id=group_id, topics=topics)
    for topic in connection.call(request, READ_STATE_VERSION).results:
        for result in topic.partitions:
            key = SharePartitionKey(group_id, topic.topic_id, result.partition)
            runs = [
                Run(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
                for batch in result.state_batches
            ]
            problem = _problem(result.error_code, result.error_message)
            states[key] = replace(
                states[key],
                start_offset=result.start_offset,
                state_epoch=result.state_epoch,
                runs=sorted(runs, key=lambda run: run.first_offset),
                problem=problem,
            )


def _read_summaries(
    connection: KafkaConnection,
    group_id: str,
    keys: Sequence[SharePartitionKey],
    states: dict[SharePartitionKey, SharePartitionState],
) -> None:
    topics = tuple(
        summarize.ReadStateSummaryData(
            topic_id=topic_id,
            partitions=tuple(summarize.PartitionData(partition=each, leader_epoch=ONLY_READ) for each in partitions),
        )
        for topic_id, partitions in _by_topic(keys).items()
    )
    request = summarize.ReadShareGroupStateSummaryRequest(group_id=group_id, topics=topics)
    for topic in connection.call(request, READ_SUMMARY_VERSION).results:
        for result in topic.partitions:
            key = SharePartitionKey(group_id, topic.topic_id, result.partition)
            states[key] = replace(
                states[key],
                leader_epoch=result.leader_epoch,
                delivery_complete_count=result.delivery_complete_count,
                problem=states[key].problem or _problem(result.error_code, result.error_message),
            )


def _by_topic(keys: Iterable[SharePartitionKey]) -> Mapping[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, []).append(key.partition)
    return found


def _problem(code: int, message: str | None) -> str | None:
    return error_text(code, message) if code else None
