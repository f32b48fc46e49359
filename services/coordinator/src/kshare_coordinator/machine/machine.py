"""The coordinator's machine: a table from each command to the function that decides it. See the package docstring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kshare_coordinator.machine import commands, records
from kshare_coordinator.machine.catalog.config_changes import decide_alter_configs
from kshare_coordinator.machine.catalog.giving_up import decide_give_up_node
from kshare_coordinator.machine.catalog.name_limits import NameLimits
from kshare_coordinator.machine.catalog.nodes import decide_expire_node, decide_register, decide_start
from kshare_coordinator.machine.catalog.partition_growth import decide_create_partitions
from kshare_coordinator.machine.catalog.partition_moves import (
    decide_advance_move,
    decide_drain_leader,
    decide_move_partitions,
)
from kshare_coordinator.machine.catalog.reconciliation import decide_reconcile_topics
from kshare_coordinator.machine.catalog.state_partitions import decide_complete_move, decide_drain
from kshare_coordinator.machine.catalog.topics import decide_create_topics, decide_delete_topics
from kshare_coordinator.machine.commands import Command, Effect
from kshare_coordinator.machine.groups.administration import decide_delete
from kshare_coordinator.machine.groups.classic.requests import ClassicSettings
from kshare_coordinator.machine.groups.classic_protocol import classic_protocol_deciders
from kshare_coordinator.machine.groups.consumer.heartbeats import decide_expire_member as decide_expire_consumer
from kshare_coordinator.machine.groups.consumer.heartbeats import decide_expire_revocation
from kshare_coordinator.machine.groups.consumer.heartbeats import decide_heartbeat as decide_consumer_heartbeat
from kshare_coordinator.machine.groups.consumer.rebalance import ConsumerGroupContext
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.subscriptions import TopicExpressions
from kshare_coordinator.machine.groups.share.administration import (
    decide_alter_offsets,
    decide_delete_offsets,
)
from kshare_coordinator.machine.groups.share.heartbeats import (
    decide_complete_group_state,
    decide_expire_member,
    decide_heartbeat,
)
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.offsets.commits import OffsetSettings, decide_commit, decide_expire
from kshare_coordinator.machine.offsets.deletion import decide_delete_offsets as decide_delete_committed_offsets
from kshare_coordinator.machine.records import AnyRecord, CatalogFollowed, CatalogLoaded, Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.contents import decide_add_offsets, decide_add_partitions
from kshare_coordinator.machine.transactions.ending import (
    TransactionSettings,
    decide_abort_timed_out,
    decide_complete,
    decide_end,
    decide_expire_transactional_ids,
    decide_init_producer,
    decide_next_coordinator_epoch,
)
from kshare_coordinator.machine.transactions.offsets import decide_complete_offsets, decide_transactional_commit
from kshare_core.configs import Configs, DynamicConfigs
from kshare_runtime.machine import Decision

PRODUCER_ID_BLOCK_SIZE = 1_000
"""As ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

AnyDecision = Decision[AnyRecord, Any, Effect]


class CoordinatorMachine:
    """The coordinator's implementation of kshare_runtime.machine.Machine.

    `static_configs` are the configs of this process: Kafka's broker configs and kshare's own.
    `configs` are `static_configs` plus the alterations by administrators, for the broker `broker_id`.
    """

    def __init__(
        self,
        static_configs: Configs,
        stored: Iterable[Record] = (),
        *,
        broker_id: int = -1,
        state: CoordinatorState | None = None,
    ) -> None:
        self.state = CoordinatorState() if state is None else state
        self._static_configs = static_configs
        self._broker_id = str(broker_id)
        configs = self.configs = DynamicConfigs(static_configs)
        for record in stored:
            self.state.replay(record)
        if state is None:
            self.state.forget_changes()
        self._alter_configs()
        self.state.consumer_offsets_partition_count = configs.integer("offsets.topic.num.partitions")
        self._name_limits = NameLimits(self.state, configs)
        lease_ms = configs.integer("kshare.node.lease.ms")
        groups = GroupSettings(configs)
        offsets = OffsetSettings.of(configs)
        state = self.state
        consumer_groups = ConsumerGroupContext(state, ConsumerGroupSettings(configs), TopicExpressions(state))
        self._timed_deciders: dict[type[Command[Any]], Callable[[Any, int], AnyDecision]] = {
            commands.OffsetCommit: lambda command, now_ms: decide_commit(state, command, offsets, now_ms),
            commands.TxnOffsetCommit: lambda command, now_ms: decide_transactional_commit(
                state, command, offsets, now_ms
            ),
            commands.CompleteTransactionOffsets: lambda command, now_ms: decide_complete_offsets(
                state, command, now_ms
            ),
            commands.ExpireOffsets: lambda command, now_ms: decide_expire(state, command, offsets, now_ms),
            **_transaction_deciders(state, TransactionSettings.of(configs)),
            **_topic_deciders(state, configs, groups),
            **_share_group_deciders(state, groups),
            **_consumer_group_deciders(consumer_groups, groups),
            **classic_protocol_deciders(consumer_groups, ClassicSettings.of(configs)),
        }
        self._deciders: dict[type[Command[Any]], Callable[[Any], AnyDecision]] = {
            commands.Start: lambda command: decide_start(state, command),
            commands.RegisterNode: lambda command: decide_register(state, command, lease_ms),
            commands.ExpireNode: lambda command: decide_expire_node(state, command),
            commands.CompleteStatePartitionMove: lambda command: decide_complete_move(state, command),
            commands.DrainShareCoordinator: lambda command: decide_drain(state, command),
            commands.MovePartitions: lambda command: decide_move_partitions(state, command),
            commands.AdvancePartitionMove: lambda command: decide_advance_move(state, command),
            commands.DrainLeader: lambda command: decide_drain_leader(state, command),
            commands.IncrementalAlterConfigs: lambda command: decide_alter_configs(state, command, configs),
            commands.DeleteGroup: lambda command: decide_delete(state, command),
            commands.DeleteOffsets: lambda command: decide_delete_committed_offsets(state, command),
            commands.AllocateProducerIds: lambda command: self._allocate_producer_ids(),
        }

    def decide(self, command: Command[Any], now_ms: int) -> AnyDecision:
        """The decision on a command; KafkaError if the command as a whole is rejected."""
        self._name_limits.check(command)
        timed = self._timed_deciders.get(type(command))
        return self._deciders[type(command)](command) if timed is None else timed(command, now_ms)

    def copy(self) -> CoordinatorMachine:
        """An equal machine that shares no mutable state with this one."""
        return CoordinatorMachine(self._static_configs, broker_id=int(self._broker_id), state=self.state.copy())

    def replay(self, record: AnyRecord) -> None:
        self.state.replay(record)
        if isinstance(record, Record):
            if record.key.WhichOneof("kind") == "broker_config":
                self._alter_configs()
        elif isinstance(record, CatalogLoaded | CatalogFollowed):
            self._alter_configs()

    def _alter_configs(self) -> None:
        found = self.state.broker_configs
        self.configs.alter(found.get("", {}), found.get(self._broker_id, {}))

    def _allocate_producer_ids(self) -> Decision[Record, range, Effect]:
        first = self.state.numbers.get(records.NEXT_PRODUCER_ID, 0)
        end = first + PRODUCER_ID_BLOCK_SIZE
        return Decision((records.cluster_number(records.NEXT_PRODUCER_ID, end),), range(first, end))


def _topic_deciders(
    state: CoordinatorState, configs: Configs, groups: GroupSettings
) -> dict[type[Command[Any]], Callable[[Any, int], AnyDecision]]:
    return {
        commands.CreateTopics: lambda command, now_ms: decide_create_topics(state, command, configs, groups, now_ms),
        commands.DeleteTopics: lambda command, now_ms: decide_delete_topics(state, command, configs, groups, now_ms),
        commands.CreatePartitions: lambda command, now_ms: decide_create_partitions(
            state, command, configs, groups, now_ms
        ),
        commands.GiveUpNode: lambda command, now_ms: decide_give_up_node(state, command, groups, now_ms),
        commands.ReconcileTopics: lambda command, now_ms: decide_reconcile_topics(state, command, groups, now_ms),
    }


def _share_group_deciders(
    state: CoordinatorState, groups: GroupSettings
) -> dict[type[Command[Any]], Callable[[Any, int], AnyDecision]]:
    return {
        commands.ShareGroupHeartbeat: lambda command, now_ms: decide_heartbeat(state, command, groups, now_ms),
        commands.ExpireMember: lambda command, now_ms: decide_expire_member(state, command, groups, now_ms),
        commands.CompleteGroupState: lambda command, now_ms: decide_complete_group_state(
            state, command, groups, now_ms
        ),
        commands.AlterShareGroupOffsets: lambda command, now_ms: decide_alter_offsets(state, command, groups, now_ms),
        commands.DeleteShareGroupOffsets: lambda command, now_ms: decide_delete_offsets(state, command, groups, now_ms),
    }


def _consumer_group_deciders(
    context: ConsumerGroupContext, groups: GroupSettings
) -> dict[type[Command[Any]], Callable[[Any, int], AnyDecision]]:
    state = context.state

    def expire_member(command: commands.ExpireMember, now_ms: int) -> AnyDecision:
        if command.group_id in state.consumer_groups:
            return decide_expire_consumer(context, command, now_ms)
        return decide_expire_member(state, command, groups, now_ms)

    return {
        commands.ConsumerGroupHeartbeat: lambda command, now_ms: decide_consumer_heartbeat(context, command, now_ms),
        commands.ExpireRevocation: lambda command, now_ms: decide_expire_revocation(context, command, now_ms),
        commands.ExpireMember: expire_member,
    }


def _transaction_deciders(
    state: CoordinatorState, settings: TransactionSettings
) -> dict[type[Command[Any]], Callable[[Any, int], AnyDecision]]:
    return {
        commands.InitTransactionalProducer: lambda command, now_ms: decide_init_producer(
            state, command, settings, now_ms
        ),
        commands.AddPartitionsToTransaction: lambda command, now_ms: decide_add_partitions(state, command, now_ms),
        commands.AddOffsetsToTransaction: lambda command, now_ms: decide_add_offsets(state, command, now_ms),
        commands.EndTransaction: lambda command, now_ms: decide_end(state, command, now_ms),
        commands.CompleteTransaction: lambda command, now_ms: decide_complete(state, command, now_ms),
        commands.AbortTimedOutTransaction: lambda command, now_ms: decide_abort_timed_out(state, command, now_ms),
        commands.ExpireTransactionalIds: lambda command, now_ms: decide_expire_transactional_ids(
            state, command, settings, now_ms
        ),
        commands.NextCoordinatorEpoch: lambda command, now_ms: decide_next_coordinator_epoch(state, command),
    }
