"""The coordinator's machine: the state, the deciders of all commands with their settings, and the replay of records.

See the package docstring. Which function decides a command is registered beside the function (`deciding`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kshare_coordinator.machine.catalog.engine import Engine
from kshare_coordinator.machine.catalog.name_limits import NameLimits
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.deciding import AnyDecision, bound, load_deciders
from kshare_coordinator.machine.groups.classic.requests import ClassicSettings
from kshare_coordinator.machine.groups.consumer.rebalance import ConsumerGroupContext
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_coordinator.machine.groups.consumer.subscriptions import TopicExpressions
from kshare_coordinator.machine.groups.share.settings import GroupSettings
from kshare_coordinator.machine.offsets.commits import OffsetSettings
from kshare_coordinator.machine.records import AnyRecord, CatalogFollowed, CatalogLoaded, Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.transactions.ending import TransactionSettings
from kshare_core.configs import Configs, DynamicConfigs

_DECIDERS = load_deciders()


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
            self.state.forget_order()
        self._alter_configs()
        self.state.consumer_offsets_partition_count = configs.integer("offsets.topic.num.partitions")
        self._name_limits = NameLimits(self.state, configs)
        consumer_groups = ConsumerGroupContext(self.state, ConsumerGroupSettings(configs), TopicExpressions(self.state))
        settings: dict[type, object] = {
            CoordinatorState: self.state,
            ConsumerGroupContext: consumer_groups,
            Configs: configs,
            Engine: Engine.of(static_configs),
            GroupSettings: GroupSettings(configs),
            OffsetSettings: OffsetSettings.of(configs),
            TransactionSettings: TransactionSettings.of(configs),
            ClassicSettings: ClassicSettings.of(configs),
        }
        self._deciders = {command: bound(function, settings) for command, function in _DECIDERS.items()}

    def decide(self, command: Command[Any], now_ms: int) -> AnyDecision:
        """The decision on a command; KafkaError if the command as a whole is rejected."""
        self._name_limits.check(command)
        return self._deciders[type(command)](command, now_ms)

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
