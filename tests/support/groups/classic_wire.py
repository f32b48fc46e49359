"""The classic group protocol byte by byte, in any version, in one order: for requests that no client sends.

with ClassicConnection(bootstrap) as wire:
    answer = wire.join("group", version=9)     # kio's response of that version
    wire.send_join("group", member_id)         # waits at the coordinator; the answer is for `receive`

Each request goes to the coordinator of its group, as clients send it; one broker is every group's coordinator.
Members' metadata must be a subscription: with other bytes Apache Kafka 4.3.1 never answers a join.
"""

from __future__ import annotations

import datetime
import io
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from support.clients.administration import broker_addresses
from support.clients.leaders_and_coordinators import address_of_coordinator
from support.clients.raw_kafka import framed, header, read_frame
from support.clusters.engines import is_attached, release_of_upstream
from support.groups.classic_driver import RANGE
from support.kafka.java import WITHOUT_SHARE_GROUPS

OFFSET_COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 11, 12, 13, 14, 15, 16
DELETE_GROUPS, OFFSET_DELETE = 42, 47
UNREADY_CODES = (14, 15, 16)
"""Apache Kafka makes the topic of its groups when they are first asked for."""
TIMEOUT_S = 60.0
SESSION_MS, REBALANCE_MS = 10_000, 10_000


class ClassicConnection:
    """See the module's text; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._sockets: dict[str, socket.socket] = {}
        """By address."""
        self._coordinators: dict[str, str] = {}
        """Addresses by group."""
        self._expected: list[tuple[socket.socket, Any]] = []

    def __enter__(self) -> ClassicConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._sockets.values():
            each.close()

    def _connection(self, address: str) -> socket.socket:
        if address not in self._sockets:
            host, _, port = address.rpartition(":")
            self._sockets[address] = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        return self._sockets[address]

    def _coordinator(self, group: str) -> str:
        if group not in self._coordinators:
            self._coordinators[group] = address_of_coordinator(self._bootstrap, group)
        return self._coordinators[group]

    def send(self, key: int, version: int, address: str = "", **fields: Any) -> None:
        """To `address`, or to the coordinator of the group that the request names."""
        connection = self._connection(address or self._coordinator(fields["group_id"]))
        request_type: Any = load_request_schema(key, version)
        known = {name: value for name, value in fields.items() if name in request_type.__dataclass_fields__}
        body = io.BytesIO()
        entity_writer(request_type)(body, request_type(**known))
        connection.sendall(framed(header(key, version, flexible=request_type.__flexible__) + body.getvalue()))
        self._expected.append((connection, load_response_schema(key, version)))

    def receive(self) -> Any:
        """The answer to the oldest request without one."""
        connection, response_type = self._expected.pop(0)
        answer = read_frame(connection)
        assert answer is not None, "the connection was closed"
        body_offset = 5 if response_type.__flexible__ else 4
        return entity_reader(response_type)(answer, body_offset)[0]

    def call(self, key: int, version: int, **fields: Any) -> Any:
        """Asks again while the coordinator is not ready."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.send(key, version, **fields)
            answer = self.receive()
            if getattr(answer, "error_code", 0) not in UNREADY_CODES:
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def find_coordinator(self, group: str) -> None:
        """Apache Kafka makes the topic of its groups when it is asked this; returns when there is a coordinator."""
        self._coordinator(group)

    def join(self, group: str, member_id: str = "", **fields: Any) -> Any:
        return self.call(JOIN, fields.get("version", 9), **join_fields(group, member_id, **fields))

    def send_join(self, group: str, member_id: str = "", **fields: Any) -> None:
        self.send(JOIN, fields.get("version", 9), **join_fields(group, member_id, **fields))

    def new_member(self, group: str, **fields: Any) -> Any:
        """The answer to a dynamic member's second join; its first one must ask for its id."""
        first = self.join(group, **fields)
        assert first.error_code == 79, first
        return self.join(group, first.member_id, **fields)

    def sync(
        self,
        group: str,
        member_id: str,
        generation_id: int,
        assignments: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> Any:
        return self.call(
            SYNC, fields.get("version", 5), **sync_fields(group, member_id, generation_id, assignments, **fields)
        )

    def heartbeat(self, group: str, member_id: str, generation_id: int, instance: str | None = None) -> int:
        fields = {"member_id": member_id, "generation_id": generation_id, "group_instance_id": instance}
        return int(self.call(HEARTBEAT, 4, group_id=group, **fields).error_code)

    def leave(self, group: str, *members: tuple[str, str | None], version: int = 5) -> Any:
        """Pairs of member id and group instance id; the member id of the first below version 3."""
        identity = _part(LEAVE, max(version, 3), "MemberIdentity")
        identities = tuple(identity(member_id=name, group_instance_id=instance) for name, instance in members)
        return self.call(LEAVE, version, group_id=group, members=identities, member_id=members[0][0])

    def commit(
        self, group: str, topic: str, member_id: str = "", generation_id: int = -1, instance: str | None = None
    ) -> int:
        version = 9
        partition = _part(OFFSET_COMMIT, version, "OffsetCommitRequestPartition")
        of_topic = _part(OFFSET_COMMIT, version, "OffsetCommitRequestTopic")
        partitions = (partition(partition_index=0, committed_offset=0, committed_metadata=""),)
        answer = self.call(
            OFFSET_COMMIT,
            version,
            group_id=group,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            group_instance_id=instance,
            topics=(of_topic(name=topic, partitions=partitions),),
        )
        return int(answer.topics[0].partitions[0].error_code)

    def delete_offsets(self, group: str, *topics: tuple[str, Sequence[int]]) -> int | list[tuple[str, int, int]]:
        """The error of the whole request, or topic, partition and error of each."""
        partition = _part(OFFSET_DELETE, 0, "OffsetDeleteRequestPartition")
        of_topic = _part(OFFSET_DELETE, 0, "OffsetDeleteRequestTopic")
        wanted = tuple(
            of_topic(name=name, partitions=tuple(partition(partition_index=number) for number in numbers))
            for name, numbers in topics
        )
        answer = self.call(OFFSET_DELETE, 0, group_id=group, topics=wanted)
        if answer.error_code:
            return int(answer.error_code)
        return sorted(
            (topic.name, int(result.partition_index), int(result.error_code))
            for topic in answer.topics
            for result in topic.partitions
        )

    def delete_groups(self, *groups: str) -> dict[str, int]:
        """By one request for each coordinator."""
        of_coordinators: dict[str, list[str]] = {}
        for group in groups:
            of_coordinators.setdefault(self._coordinator(group), []).append(group)
        results = [
            result
            for address, names in of_coordinators.items()
            for result in self.call(DELETE_GROUPS, 2, address=address, groups_names=tuple(names)).results
        ]
        return {str(result.group_id): int(result.error_code) for result in results}

    def describe(self, group: str, version: int | None = None) -> Any:
        """`version` None: the newest that the cluster has."""
        if version is None:
            version = 5 if is_attached() and release_of_upstream() == WITHOUT_SHARE_GROUPS else 6
        address = self._coordinator(group)
        answer = self.call(DESCRIBE, version, address=address, groups=(group,), include_authorized_operations=False)
        return answer.groups[0]

    def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> dict[str, tuple[str, str, str]]:
        """Protocol type, state and type by group id; each broker lists those that it coordinates."""
        filters = {"states_filter": tuple(states), "types_filter": tuple(types)}
        answers = [self.call(LIST, 5, address=address, **filters) for address in broker_addresses(self._bootstrap)]
        groups = [group for answer in answers for group in answer.groups]
        return {str(group.group_id): (group.protocol_type, group.group_state, group.group_type) for group in groups}


def _part(key: int, version: int, name: str) -> Any:
    """A struct of a request."""
    request_type: Any = load_request_schema(key, version)
    return getattr(sys.modules[request_type.__module__], name)


def join_fields(
    group: str,
    member_id: str = "",
    *,
    version: int = 9,
    instance: str | None = None,
    protocol_type: str = "consumer",
    protocols: Sequence[tuple[str, bytes]] = (RANGE,),
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
) -> dict[str, Any]:
    protocol = _part(JOIN, version, "JoinGroupRequestProtocol")
    return {
        "group_id": group,
        "session_timeout": datetime.timedelta(milliseconds=session_ms),
        "rebalance_timeout": datetime.timedelta(milliseconds=rebalance_ms),
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocols": tuple(protocol(name=name, metadata=data) for name, data in protocols),
    }


def sync_fields(
    group: str,
    member_id: str,
    generation_id: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    version: int = 5,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> dict[str, Any]:
    part = _part(SYNC, version, "SyncGroupRequestAssignment")
    named = tuple(part(member_id=name, assignment=data) for name, data in (assignments or {}).items())
    return {
        "group_id": group,
        "generation_id": generation_id,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocol_name": protocol_name,
        "assignments": named,
    }
