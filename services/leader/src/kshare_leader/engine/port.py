"""What a LeaderNode needs of its engine, and what the engine gets from the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kshare_core.configs import Configs
from kshare_core.identifiers import TopicPartition
from kshare_leader.dead_letters.port import DeadLetterSender
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.ports import ServedLogs
from kshare_leader.settings import LeaderSettings
from kshare_rpc.catalog import CatalogView
from kshare_rpc.catalog_follower import CatalogFollower
from kshare_runtime.ports import Environment, KeyValueStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSurroundings:
    """The parts of a node that its engine uses; `settings.configs` follow the dynamic broker configs."""

    environment: Environment
    settings: LeaderSettings
    follower: CatalogFollower
    has_lease: Callable[[], bool]
    wait_for_version: Callable[[int, int], Awaitable[bool]]
    metrics: LeaderMetrics
    report: Callable[[str], None]

    @property
    def configs(self) -> Configs:
        return self.settings.configs


class LeaderEngine(Protocol):
    """The logs of a leader and what belongs to them.

    The node calls `open`, serves `handlers`, registers, and calls `start`. It stops with `stop_background`, then stops
    the share-partitions, then `close_logs`, then its server, then `close`.
    """

    @property
    def logs(self) -> ServedLogs: ...

    @property
    def store(self) -> KeyValueStore | None:
        """The node's store, for its metrics; None where the engine has none."""
        ...

    @property
    def dead_letters(self) -> DeadLetterSender: ...

    @property
    def history(self) -> DeliveryHistory | None: ...

    def open(self) -> None:
        """Opens what logs need; StorageFailure."""
        ...

    def handlers(self) -> Sequence[object]:
        """The handlers of the leader's service, those of the share RPCs apart."""
        ...

    def highest_leader_epoch(self) -> int:
        """The highest epoch of this leader or of its batches that is stored here; 0: none. StorageFailure."""
        ...

    def producer_id_end(self) -> int:
        """A number above all producer ids that logs here have seen; 0 where there is none. StorageFailure."""
        ...

    def on_log_replaced(self, listener: Callable[[TopicPartition], None]) -> None:
        """`listener` is called with each log that was truncated, and has or will have other records."""
        ...

    def on_view(self, old: CatalogView, new: CatalogView, *, are_configs_new: bool) -> None:
        """Brings the logs in line with a new view; called before share-partitions look up their logs by it."""
        ...

    def after_view(self, old: CatalogView, new: CatalogView) -> None:
        """Called when share-partitions have handled the view too."""
        ...

    def start(self) -> None:
        """Starts the periodic work, once the node is registered."""
        ...

    async def stop_background(self) -> None:
        """Stops the periodic work; also works before `start` and after a failed `open`."""
        ...

    async def close_logs(self) -> None:
        """Closes the logs and answers what waits for them."""
        ...

    async def close(self) -> None: ...

    def problems(self) -> list[str]:
        """Why the logs are not healthy; empty if they are."""
        ...
