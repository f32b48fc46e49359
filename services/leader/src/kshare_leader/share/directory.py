"""The directory of share-partitions that this leader serves, and its reaction to catalog changes.

A share-partition is created when a fetch first names it. It is dropped when its topic is deleted, when the partition is
fenced for a reassignment, when it gets another leader or leader epoch, when its log is reopened, when its state cannot
be trusted, and when it is unused (see `served_partition`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, TopicPartition, topic_id_text
from kshare_core.log_fields import about
from kshare_leader.dead_letters.port import DeadLetterSender
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.history.partition_history import SILENT, PartitionHistory
from kshare_leader.machine.interval_map import Owner
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.ports import TopicLogs
from kshare_leader.share.current_catalog import CurrentCatalog
from kshare_leader.share.fetch_sessions import FetchSessions
from kshare_leader.share.group_settings import GroupSettings, GroupSettingsSource
from kshare_leader.share.limits import (
    IDLE_CHECK_INTERVAL_MS,
    PROBLEMS_LIMIT,
    WAITING_FETCHES_LIMIT,
)
from kshare_leader.share.loading import StateLoader
from kshare_leader.share.refused_loads import RefusedLoads
from kshare_leader.share.served_partition import ServedPartition
from kshare_leader.share.state_store import ShareStateStore
from kshare_leader.share.waiting_fetches import Waiter
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import common_pb2, coordinator_pb2


class NoRoom(KafkaError):
    """The leader serves as many share-partitions as it may. The code is one that clients of a partition repeat."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class UnansweredFetch(Protocol):
    """A ShareFetch in progress."""

    @property
    def owner(self) -> Owner: ...

    def give_back(self) -> None:
        """Releases what it acquired, without counting a delivery; it acquires nothing more."""
        ...


class SharePartitionDirectory:
    """See the module docstring. `wall_now_ms` is the wall clock."""

    def __init__(
        self,
        *,
        logs: TopicLogs,
        view: Callable[[], CatalogView],
        store: ShareStateStore,
        catalog: CurrentCatalog,
        settings: GroupSettingsSource,
        node_id: int,
        wall_now_ms: Callable[[], int],
        report: Callable[[str], None],
        max_share_partitions: int,
        dead_letters: DeadLetterSender | None = None,
        metrics: LeaderMetrics | None = None,
        history: DeliveryHistory | None = None,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self.has_lease = has_lease
        """Whether this node may serve; without it nothing is acquired, as another node may lead already."""
        self.metrics = metrics or LeaderMetrics()
        self.metrics.is_kept = lambda key: key in self._served
        self._logs = logs
        self._view = view
        self._store = store
        self._catalog = catalog
        self._settings = settings
        self._node_id = node_id
        self._wall_now_ms = wall_now_ms
        self._report = report
        self._dead_letters = dead_letters
        self._history = history
        self._max_share_partitions = max_share_partitions
        self._served: dict[SharePartitionKey, ServedPartition] = {}
        self._of_group: dict[str, dict[SharePartitionKey, ServedPartition]] = {}
        self.fetch_sessions = FetchSessions()
        self._unanswered: dict[UnansweredFetch, None] = {}
        self._waiting: dict[Waiter, None] = {}
        self._last_wait_number = 0
        self._refused_loads = RefusedLoads()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def settings(self, group_id: str) -> GroupSettings:
        return self._settings.of(group_id)

    # Finding

    def check_leadership(self, key: TopicPartition) -> int:
        """The partition's leader epoch. Raises KafkaError if it does not exist or this node does not lead it."""
        if self._stopped:  # acquisitions here are no longer known: the client retries, elsewhere or later
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this leader is stopping")
        view = self._view()
        partition = view.partition(key)
        if partition is None:
            text = f"partition {key.partition} of topic {topic_id_text(key.topic_id)}"
            if not view.version:
                raise KafkaError(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    f"{text} cannot be looked up: the catalog has not been received yet",
                )
            if key.topic_id in view.topics_by_id:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{text} does not exist")
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"{text} does not exist: no topic has this id")
        if partition.leader_node_id != self._node_id:
            text = f"leader node {self._node_id} does not lead it; node {partition.leader_node_id} does"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        if partition.is_fenced:
            text = f"it moves from leader node {self._node_id} to {partition.moving_to_node_id}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return partition.leader_epoch

    def current_leader(self, key: TopicPartition) -> common_pb2.LeaderIdAndEpoch | None:
        """The leader's node id and epoch by the newest view, for responses with NOT_LEADER_OR_FOLLOWER."""
        partition = self._view().partition(key)
        if partition is None:
            return None
        return common_pb2.LeaderIdAndEpoch(leader_id=partition.leader_node_id, leader_epoch=partition.leader_epoch)

    def find(self, key: SharePartitionKey) -> ServedPartition | None:
        """The share-partition if it is served; never creates it."""
        return self._served.get(key)

    def find_or_load(self, key: SharePartitionKey) -> ServedPartition:
        """The share-partition, which starts loading if it is new. Raises KafkaError."""
        leader_epoch = self.check_leadership(key.topic_partition)
        log = self._logs.find_opening(key.topic_partition)
        if log is None:
            text = f"leader node {self._node_id} has not opened the log yet"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        served = self._served.get(key)
        if served is not None:
            if served.log is log and served.leader_epoch == leader_epoch:
                return served
            served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the log was reopened"))
        if len(self._served) >= self._max_share_partitions:
            limit = self._max_share_partitions
            text = f"this leader serves {limit} share-partitions; kshare.leader.max.share.partitions allows no more"
            raise NoRoom(text)
        if self._stopped:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this leader is stopping")
        settings = partial(self._settings.of, key.group_id)
        loader = StateLoader(
            key=key,
            leader_epoch=leader_epoch,
            log=log,
            store=self._store,
            catalog=self._catalog,
            settings=settings,
            wall_now_ms=self._wall_now_ms,
            report=about(key, self._report),
            counts=self.metrics.of_share_partition(key, log.high_watermark),
            refused_loads=self._refused_loads,
        )
        served = ServedPartition(
            loader=loader,
            store=self._store,
            settings=settings,
            on_dropped=self._forget,
            dead_letters=self._dead_letters,
            history=self._begin_history(key, leader_epoch),
        )
        self._served[key] = served
        self._of_group.setdefault(key.group_id, {})[key] = served
        self._watch_for_idle()
        return served

    def _begin_history(self, key: SharePartitionKey, leader_epoch: int) -> PartitionHistory:
        if self._history is None:
            return SILENT
        return self._history.begin(
            key, leader_epoch, lambda: self._settings.of(key.group_id).limits.delivery_count_limit
        )

    @property
    def served(self) -> Mapping[SharePartitionKey, ServedPartition]:
        """All served share-partitions."""
        return self._served

    @property
    def waiting_count(self) -> int:
        """The number of waiting fetches."""
        return len(self._waiting)

    def of_group(self, group_id: str) -> list[ServedPartition]:
        return list(self._of_group.get(group_id, {}).values())

    def _forget(self, served: ServedPartition) -> None:
        key = served.key
        if self._served.get(key) is not served:
            return
        del self._served[key]
        of_group = self._of_group[key.group_id]
        del of_group[key]
        if not of_group:
            del self._of_group[key.group_id]

    # Fetches in progress

    def add_unanswered(self, fetch: UnansweredFetch) -> None:
        """Registers a fetch, until `remove_unanswered`."""
        self._unanswered[fetch] = None

    def remove_unanswered(self, fetch: UnansweredFetch) -> None:
        del self._unanswered[fetch]

    def add_waiting(self, waiter: Waiter) -> int | None:
        """Registers a waiting fetch, and returns its `wait_number`; None if too many wait."""
        if len(self._waiting) >= WAITING_FETCHES_LIMIT:
            return None
        self._waiting[waiter] = None
        self._last_wait_number += 1
        return self._last_wait_number

    def remove_waiting(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)

    # Catalog changes and stop

    def log_replaced(self, key: TopicPartition) -> None:
        """Drops the share-partitions of a log that has other records now; the next fetch loads their state again."""
        for served in list(self._served.values()):
            if served.key.topic_partition == key:
                served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {served.key} was truncated"))

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Drops share-partitions that this node may no longer serve; releases records held through gone gateways."""
        self._settings.forget_deleted(new)
        for served in list(self._served.values()):
            partition = new.partition(served.key.topic_partition)
            if partition is None:
                served.drop(KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"the topic of {served.key} was deleted"))
            elif (
                partition.leader_node_id != self._node_id
                or partition.leader_epoch != served.leader_epoch
                or partition.is_fenced
            ):
                text = f"{served.key} has another leader or leader epoch now, or is being moved"
                served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text))
            elif old.group_configs.get(served.key.group_id) != new.group_configs.get(served.key.group_id):
                served.settings_changed()
        if new.nodes is not old.nodes:
            self._release_gone_gateways(old, new)

    def _release_gone_gateways(self, old: CatalogView, new: CatalogView) -> None:
        """Their deliveries count, except those of fetches that are not answered yet: these reached no client."""
        here = dict.fromkeys(_gateways(new))
        gone = dict.fromkeys(gateway for gateway in _gateways(old) if gateway not in here)
        if not gone:
            return

        def is_gone(owner: Owner) -> bool:
            return (owner.gateway_id, owner.gateway_incarnation) in gone

        for fetch in [fetch for fetch in self._unanswered if is_gone(fetch.owner)]:
            fetch.give_back()
        self.fetch_sessions.forget_where(is_gone)
        for served in list(self._served.values()):
            served.release(is_gone)

    def _watch_for_idle(self) -> None:
        if self._idle_timer is None and not self._stopped:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(IDLE_CHECK_INTERVAL_MS / 1000, self._unload_idle)

    def _unload_idle(self) -> None:
        self._idle_timer = None
        self.fetch_sessions.keep_used(int(asyncio.get_running_loop().time() * 1000))
        for served in list(self._served.values()):
            if served.is_idle:
                served.drop(
                    KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{served.key} is unloaded because no member uses it")
                )
        if self._served:
            self._watch_for_idle()

    def stop(self) -> None:
        """Drops all share-partitions; waiting fetches get NOT_LEADER_OR_FOLLOWER."""
        self._stopped = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for served in list(self._served.values()):
            served.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this leader is stopping"))
        for waiter in list(self._waiting):
            waiter.end()

    def problems(self) -> list[str]:
        """The share-partitions that cannot store or load their state, at most PROBLEMS_LIMIT of them."""
        found = (served.problem for served in self._served.values())
        return [problem for problem in found if problem is not None][:PROBLEMS_LIMIT]


def _gateways(view: CatalogView) -> list[tuple[int, str]]:
    return [(node.node_id, node.incarnation) for node in view.nodes if node.role == coordinator_pb2.ROLE_GATEWAY]
