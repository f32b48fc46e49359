"""Drives the coordinator's machine without a shell: each record goes to rows as in the store."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from kshare_coordinator.handlers.catalog import random_topic_id
from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_coordinator.machine.state import CoordinatorState
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb

Answer = TypeVar("Answer")


class CoordinatorDriver:
    """A machine, its rows and the effects of the newest command."""

    def __init__(self, configs: Mapping[str, str] | None = None, *, state_partitions: int = 50) -> None:
        self.configs = Configs(PROCESS_CONFIGS, configs or {})
        self.rows: dict[bytes, bytes] = {}
        self.machine = CoordinatorMachine(self.configs, broker_id=1)
        self.effects: list[Effect] = []
        self.record_count = 0
        """Stored records of the newest command."""
        self.random = random.Random(1)
        self.now_ms = 0
        self.run(commands.Start(start_id="first", cluster_id="cluster", state_partition_count=state_partitions))

    @property
    def state(self) -> CoordinatorState:
        return self.machine.state

    def run(self, command: Command[Answer]) -> Answer:
        decision = self.machine.decide(command, self.now_ms)
        for record in decision.records:
            self.machine.replay(record)
            if not isinstance(record, records.Record):
                continue
            write = records.write_of(record)
            if write.value is None:
                self.rows.pop(write.key, None)
            else:
                self.rows[write.key] = write.value
        self.effects = list(decision.effects)
        self.record_count = sum(isinstance(record, records.Record) for record in decision.records)
        answer: Answer = decision.response
        return answer

    def load(self) -> CoordinatorMachine:
        """A machine made of the rows, in the order that a store gives them."""
        stored = [records.record_of(*row) for row in sorted(self.rows.items())]
        return CoordinatorMachine(self.configs, stored, broker_id=1)

    def restart(self) -> None:
        self.machine = self.load()

    def register(
        self, role: pb.Role.ValueType, node_id: int = 1, incarnation: str = "one", **fields: str | int
    ) -> pb.RegisterNodeResponse:
        node = pb.Node(role=role, node_id=node_id, incarnation=incarnation, rpc_address=f"host:{node_id}")
        if role == pb.ROLE_GATEWAY:
            node.advertised_host, node.advertised_port = "gateway", 9092
        for name, value in fields.items():
            setattr(node, name, value)
        return self.run(commands.RegisterNode(request=pb.RegisterNodeRequest(node=node)))

    def create(
        self, *topics: pb.CreateTopicsRequest.CreatableTopic, validate_only: bool = False
    ) -> list[pb.CreateTopicsResponse.CreatableTopicResult]:
        request = pb.CreateTopicsRequest(topics=topics, validate_only=validate_only)
        topic_ids = tuple(random_topic_id(self.random) for _ in topics)
        return list(self.run(commands.CreateTopics(request=request, topic_ids=topic_ids)).topics)

    def create_topic(self, name: str, partitions: int = 1) -> bytes:
        """The new topic's id."""
        result = self.create(creatable(name, partitions))[0]
        assert result.error_code == 0, result.error_message
        return result.topic_id

    def delete(self, *references: str | bytes) -> list[pb.DeleteTopicsResponse.Result]:
        topics = [
            pb.DeleteTopicsRequest.TopicReference(name=reference)
            if isinstance(reference, str)
            else pb.DeleteTopicsRequest.TopicReference(topic_id=reference)
            for reference in references
        ]
        return list(self.run(commands.DeleteTopics(request=pb.DeleteTopicsRequest(topics=topics))).results)

    def heartbeat(
        self, member_id: str, member_epoch: int, names: Sequence[str] | None = None, group_id: str = "group"
    ) -> pb.ShareGroupHeartbeatResponse:
        request = pb.ShareGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            has_subscribed_topic_names=names is not None,
            subscribed_topic_names=names or [],
        )
        return self.run(commands.ShareGroupHeartbeat(request=request))

    def initialize_all(self, group_id: str = "group") -> None:
        """What the shell does when every share coordinator answers well."""
        pending = self.state.share_groups[group_id].partitions
        self.run(
            commands.CompleteGroupState(
                group_id=group_id,
                initialized=tuple(
                    commands.Initialized(topic_id=entry.topic_id, partition=partition, state_epoch=entry.state_epoch)
                    for entry in pending.initializing
                    for partition in entry.partitions
                ),
                deleted=tuple(
                    (topic_id, partition)
                    for topic_id, topic in pending.deleting.items()
                    for partition in topic.partitions
                ),
            )
        )


def creatable(
    name: str, partitions: int = -1, replication_factor: int = -1, **fields: object
) -> pb.CreateTopicsRequest.CreatableTopic:
    topic = pb.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor
    )
    configs = fields.get("configs", {})
    assert isinstance(configs, dict)
    topic.configs.extend(pb.ConfigEntry(name=key, value=value) for key, value in configs.items())
    assigned = fields.get("assigned", [])
    assert isinstance(assigned, list)
    topic.assigned_partitions.extend(assigned)
    return topic


def assigned(answer: pb.ShareGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    """The assignment by topic name; None where the answer has none."""
    if not answer.has_assignment:
        return None
    return {topic.topic_name: list(topic.partitions) for topic in answer.assignment}
