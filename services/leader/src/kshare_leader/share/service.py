"""The share service of a leader: the RPCs ShareFetch, ShareAcknowledge and ReleaseShareSession.

Its parts: `directory` holds the served share-partitions; `served_partition` is one of them; `state_store` reads and
writes their state at the share coordinators; `current_catalog` waits for the newest configs; `handlers/share_*.py`
translate requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kshare_core.configs import Configs
from kshare_core.identifiers import TopicPartition
from kshare_core.tracing import current_traceparent
from kshare_leader.dead_letters.port import DeadLetterSender
from kshare_leader.handlers.share.describe_share_group_totals import ShareGroupTotals
from kshare_leader.handlers.share.describe_share_partitions import describe_share_partitions
from kshare_leader.handlers.share.drop_share_partitions import drop_share_partitions
from kshare_leader.handlers.share.end_acquisitions import end_acquisitions
from kshare_leader.handlers.share.session_fetch import SessionFetchCall
from kshare_leader.handlers.share.share_acknowledge import AcknowledgeCall, owner_of
from kshare_leader.handlers.share.share_fetch import ShareFetchCall
from kshare_leader.handlers.share.share_session import release_session
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.ports import TopicLogs
from kshare_leader.share.current_catalog import CurrentCatalog
from kshare_leader.share.directory import SharePartitionDirectory
from kshare_leader.share.group_settings import GroupSettingsSource
from kshare_leader.share.state_store import ShareStateStore
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.methods import (
    DESCRIBE_SHARE_GROUP_TOTALS,
    DESCRIBE_SHARE_PARTITIONS,
    DROP_SHARE_PARTITIONS,
    END_ACQUISITIONS,
    RELEASE_SHARE_SESSION,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
)
from kshare_rpc.network import Channel, Payload
from kshare_rpc.serving import answers
from kshare_runtime.ports import Environment


class ShareService:
    """See the module docstring. Created and used on one event loop.

    `logs` are the logs that this leader has open, `view` the newest catalog, `channel` returns the channel to a share
    coordinator's address, `coordinator` the one to the active coordinator. `wait_for_version(version, timeout ms)`
    returns whether the view reached a version in time. `configs` are the broker configs; `report` logs a sentence.
    `dead_letters` None: no group has dead letters; `history` None: no delivery history. `has_lease` returns whether no
    other node may lead this node's partitions yet.
    """

    def __init__(
        self,
        *,
        logs: TopicLogs,
        view: Callable[[], CatalogView],
        channel: Callable[[str], Channel],
        coordinator: Callable[[], Channel],
        wait_for_version: Callable[[int, int], Awaitable[bool]],
        node_id: int,
        configs: Configs,
        max_share_partitions: int,
        environment: Environment,
        report: Callable[[str], None],
        dead_letters: DeadLetterSender | None = None,
        metrics: LeaderMetrics | None = None,
        history: DeliveryHistory | None = None,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self._metrics = metrics or LeaderMetrics()
        self._dead_letters = dead_letters
        self._store = ShareStateStore(
            view=view,
            channel=channel,
            random=environment.random,
            report=report,
            write_timeout_ms=configs.integer("share.coordinator.write.timeout.ms"),
        )
        self._directory = SharePartitionDirectory(
            logs=logs,
            view=view,
            store=self._store,
            catalog=CurrentCatalog(
                coordinator=coordinator,
                wait_for_version=wait_for_version,
                random=environment.random,
                report=report,
            ),
            settings=GroupSettingsSource(view=view, configs=configs, report=report),
            node_id=node_id,
            wall_now_ms=environment.clock.now_ms,
            report=report,
            max_share_partitions=max_share_partitions,
            dead_letters=dead_letters,
            metrics=self._metrics,
            history=history,
            has_lease=has_lease,
        )
        self._totals = ShareGroupTotals(self._directory, view, f"{environment.random.getrandbits(64):016x}")
        if dead_letters is not None:
            dead_letters.attach(find=self._directory.find, load=self._directory.find_or_load)

    @property
    def directory(self) -> SharePartitionDirectory:
        """The served share-partitions."""
        return self._directory

    @answers(SHARE_FETCH)
    async def share_fetch(
        self, request: leader_pb2.ShareFetchRequest, payload: memoryview
    ) -> tuple[leader_pb2.ShareFetchResponse, Payload]:
        """Handler of SHARE_FETCH."""
        now = self._metrics.now
        started_at = now()
        call = self._fetch_call(request)
        if call is None:
            return leader_pb2.ShareFetchResponse(is_forgotten=True), ()
        answer = await call.run()
        counts = self._metrics.of_group(request.owner.group_id)
        durations = counts.fetch_waited_s if call.has_waited else counts.fetch_s
        duration_s = now() - started_at
        durations.observe(duration_s)
        traceparent = current_traceparent.get()
        if traceparent:
            durations.exemplify(duration_s, traceparent)
        return answer

    def _fetch_call(self, request: leader_pb2.ShareFetchRequest) -> ShareFetchCall | None:
        """None where the request's session is not remembered."""
        number = request.remembered_fetch_number
        if not number:
            return ShareFetchCall(self._directory, request)
        session = self._directory.fetch_sessions.find(request.owner.group_id, owner_of(request.owner), number)
        return None if session is None else SessionFetchCall(self._directory, request, session)

    @answers(SHARE_ACKNOWLEDGE)
    def share_acknowledge(
        self, request: leader_pb2.ShareAcknowledgeRequest, payload: memoryview
    ) -> asyncio.Future[leader_pb2.ShareAcknowledgeResponse]:
        """Handler of SHARE_ACKNOWLEDGE."""
        call = AcknowledgeCall(self._directory, request, self._metrics)
        call.begin()
        return call.answer

    @answers(RELEASE_SHARE_SESSION)
    async def release_share_session(
        self, request: leader_pb2.ReleaseShareSessionRequest, payload: memoryview
    ) -> leader_pb2.ReleaseShareSessionResponse:
        """Handler of RELEASE_SHARE_SESSION."""
        return await release_session(self._directory, request)

    @answers(DROP_SHARE_PARTITIONS)
    async def drop_share_partitions(
        self, request: leader_pb2.DropSharePartitionsRequest, payload: memoryview
    ) -> leader_pb2.DropSharePartitionsResponse:
        """Handler of DROP_SHARE_PARTITIONS."""
        return await drop_share_partitions(self._directory, request)

    @answers(DESCRIBE_SHARE_PARTITIONS)
    async def describe_share_partitions(
        self, request: leader_pb2.DescribeSharePartitionsRequest, payload: memoryview
    ) -> leader_pb2.DescribeSharePartitionsResponse:
        """Handler of DESCRIBE_SHARE_PARTITIONS."""
        return describe_share_partitions(self._directory, request)

    @answers(END_ACQUISITIONS)
    async def end_acquisitions(
        self, request: leader_pb2.EndAcquisitionsRequest, payload: memoryview
    ) -> leader_pb2.EndAcquisitionsResponse:
        """Handler of END_ACQUISITIONS."""
        return await end_acquisitions(self._directory, request)

    @answers(DESCRIBE_SHARE_GROUP_TOTALS)
    async def describe_share_group_totals(
        self, request: leader_pb2.DescribeShareGroupTotalsRequest, payload: memoryview
    ) -> leader_pb2.DescribeShareGroupTotalsResponse:
        """Handler of DESCRIBE_SHARE_GROUP_TOTALS."""
        return await self._totals.describe()

    def on_view(self, old: CatalogView, new: CatalogView) -> None:
        """Handles a new view of the catalog; called for each one, in order."""
        self._directory.on_view(old, new)
        if self._dead_letters is not None:
            self._dead_letters.on_view(old, new)

    def log_replaced(self, key: TopicPartition) -> None:
        """Handles a log that was truncated, and has or will have other records."""
        self._directory.log_replaced(key)

    async def stop(self, grace_ms: int = 0) -> None:
        """Stops serving: waiting fetches are answered; writes in flight get `grace_ms` to end, then are given up.

        So an acknowledgement is answered with its outcome.
        """
        if self._dead_letters is not None:
            await self._dead_letters.stop()
        self._directory.stop()
        await self._store.stop(grace_ms)

    def problems(self) -> list[str]:
        """The current problems; empty if healthy."""
        problems = self._directory.problems()
        return problems if self._dead_letters is None else [*problems, *self._dead_letters.problems()]
