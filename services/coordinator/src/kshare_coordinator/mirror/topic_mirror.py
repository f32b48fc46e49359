"""The mirror of the existing cluster's topics: polls, look-ups at once, and the command MirrorTopics.

The active coordinator polls all topics of the catalog, and names that groups need and the catalog lacks, each
`kshare.upstream.topics.refresh.interval.ms`. A look-up adds names to the next round, which begins at once. Rounds
follow each other, so the cluster gets one request at a time, however many clients ask.

Another coordinator has no catalog to change: it asks the active one for the names that its groups lack (LookUpTopics).

Failures of the cluster end a round, and the next one follows. Topics that are in the catalog stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Container, Iterable, Mapping, Sequence

from kshare_coordinator.core import Core
from kshare_coordinator.handlers.catalog import random_topic_id
from kshare_coordinator.machine.catalog.mirrored_topics import (
    ids_that_end,
    is_mirrored,
    is_other_cluster,
    topics_with_other_ids,
)
from kshare_coordinator.machine.commands import MirroredTopic, MirrorTopics
from kshare_coordinator.metadata.port import CATALOG
from kshare_coordinator.mirror.sightings import Sightings
from kshare_coordinator.mirror.wanted_topics import NAMES_LIMIT, missing_names, unknown_of
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import topic_id_text
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.methods import LOOK_UP_TOPICS
from kshare_rpc.network import CallFailed, Channel, Network
from kshare_upstream.cluster import METADATA
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.port import ClusterView, OpenedUpstream
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic

NAMES_PER_REQUEST = 1_000
"""So that one response is decoded in some milliseconds."""
LOOK_UP_TIMEOUT_MS = 1_500
"""How long a request of a client waits for names that it brings."""
LOG_INTERVAL_MS = 30_000
SHOWN_TOPICS = 5
HIDDEN_IN_MODE_PROXY = (
    ". Clients in mode proxy see the cluster's id, so its share consumers must connect to a kshare with "
    "kshare.upstream.mode=share"
)
UNREACHABLE = (ConnectionLost, NotServed, AuthenticationFailed)

log = logging.getLogger(__name__)


class TopicMirror:
    """Runs while the coordinator does; `close` ends its connections."""

    def __init__(
        self, *, upstream: OpenedUpstream, core: Core, network: Network, configs: Configs, source: random.Random
    ) -> None:
        self._upstream = upstream
        self._core = core
        self._network = network
        self._interval_ms = configs.integer("kshare.upstream.topics.refresh.interval.ms")
        self._prefix = configs.text("kshare.upstream.topic.prefix")
        self._is_proxy = configs.text("kshare.upstream.mode") == "proxy"
        self._has_history = configs.boolean("kshare.delivery.history.enable")
        self._sightings = Sightings(lambda: random_topic_id(source))
        self._asked: dict[str, None] = {}
        """Names that the next round looks up."""
        self._wake = asyncio.Event()
        self._next_round: asyncio.Future[None] | None = None
        """Done when the round after the current one has ended."""
        self._channels: dict[str, Channel] = {}
        self._logged_other_ids: dict[bytes, None] = {}
        """Topics whose id in the cluster is another one, and that the log has."""
        self._problem: str | None = None
        self._logged_at_ms: float = -LOG_INTERVAL_MS
        self._refused: dict[str, str] = {}
        """Topics that the catalog or the cluster refuses, with the reason."""

    def problems(self) -> list[str]:
        """Why topics of the cluster may be missing here, or be older than they are there."""
        found = [] if self._problem is None else [f"topics of the existing cluster are not known: {self._problem}"]
        shown = sorted(self._refused.items())[:SHOWN_TOPICS]
        return [*found, *(f"topic {name} cannot be used: {reason}" for name, reason in shown)]

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
        await self._upstream.close()

    async def look_up(self, names: Iterable[str]) -> None:
        """Returns when the catalog has those of the topics that exist, or after LOOK_UP_TIMEOUT_MS."""
        room = max(0, NAMES_LIMIT - len(self._asked))
        unknown = unknown_of(self._core.state, names, self._prefix)[:room]
        if not unknown:
            return
        self._asked.update(dict.fromkeys(unknown))
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        self._wake.set()
        await asyncio.wait([self._next_round], timeout=LOOK_UP_TIMEOUT_MS / 1000)

    async def run(self) -> None:
        """Endless; see the module's text."""
        loop = asyncio.get_running_loop()
        next_poll_at = loop.time()
        while True:
            is_poll = loop.time() >= next_poll_at
            if is_poll:
                next_poll_at = loop.time() + self._interval_ms / 1000
            asked, self._asked = list(self._asked), {}
            ending, self._next_round = self._next_round, None
            self._wake.clear()
            try:
                await self._round(asked, is_poll=is_poll)
                self._note_problem(None)
            except UNREACHABLE as problem:
                self._note_problem(str(problem))
            except (KafkaError, StorageFailure, CallFailed) as problem:
                self._note_problem(str(problem))
            finally:
                if ending is not None and not ending.done():
                    ending.set_result(None)
            delay_s = max(0.0, next_poll_at - loop.time())
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _round(self, asked: Sequence[str], *, is_poll: bool) -> None:
        state = self._core.state
        missing = missing_names(state, self._prefix, has_history=self._has_history) if is_poll else []
        names = dict.fromkeys([*asked, *missing])
        if not self._core.has_catalog():
            if names:
                await self._ask_active(list(names))
            return
        if is_poll:
            names |= dict.fromkeys(state.topic_ids)
            self._refused = {name: reason for name, reason in self._refused.items() if name in names}
        listed = list(names)
        for first in range(0, len(listed), NAMES_PER_REQUEST):
            await self._mirror(listed[first : first + NAMES_PER_REQUEST], is_poll=is_poll)
        if is_poll:
            self._log_other_ids()

    async def _mirror(self, names: Sequence[str], *, is_poll: bool) -> None:
        now_ms = asyncio.get_running_loop().time() * 1000
        view = await self._upstream.describe(names)
        state = self._core.state
        seen = self._sightings.see(view, state, now_ms, is_poll=is_poll)
        gone = await self._confirmed_by_brokers(seen.suspects, view) if seen.suspects else []
        self._sightings.judged(seen.suspects)
        topics = [topic for topic in seen.topics if not is_mirrored(state, topic)]
        if topics or gone or is_other_cluster(state, view.cluster_id or ""):
            replaced = ids_that_end(state, topics, gone)
            command = MirrorTopics(cluster_id=view.cluster_id or "", topics=tuple(topics), gone=tuple(gone))
            refused = await self._core.submit(command)
            self._sightings.replaced(replaced, now_ms)
            _log_changes(topics, gone, refused, self._refused)
        else:
            refused = {}
        for topic in seen.topics:
            self._refused.pop(topic.name, None)
        self._refused |= refused | {name: _reason(code) for name, code in seen.refused.items()}

    async def _confirmed_by_brokers(self, names: Sequence[str], view: ClusterView) -> list[str]:
        """Of absent topics those that no broker has, if more than half of the brokers answer."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        absent = dict.fromkeys(names)
        answers = 0
        for node_id in view.brokers:
            try:
                answer = await self._upstream.ask_broker(node_id, request, METADATA)
            except UNREACHABLE:
                continue
            answers += 1
            for topic in answer.topics:
                if topic.name is not None and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    absent.pop(topic.name, None)
        return list(absent) if 2 * answers > len(view.brokers) else []

    async def _ask_active(self, names: Sequence[str]) -> None:
        """Has the active coordinator look up names, and waits until its changes are here."""
        address = self._core.owner_address(CATALOG)
        if address is None:
            return
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._network.connect(address)
        request = pb.LookUpTopicsRequest(topic_names=names)
        answer, _ = await channel.call(LOOK_UP_TOPICS, request, timeout_ms=2 * LOOK_UP_TIMEOUT_MS)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.error_message)
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_MS / 1000):
                while self._core.state.version < answer.version:
                    await self._core.news.wait()
        except TimeoutError:
            pass

    def _log_other_ids(self) -> None:
        """Logs topics with another id in the cluster, once for each."""
        for topic in topics_with_other_ids(self._core.state):
            if topic.topic_id not in self._logged_other_ids:
                self._logged_other_ids[topic.topic_id] = None
                log.warning(
                    "topic %s has got the id %s in the existing cluster; its share groups go on with their state under "
                    "the id %s%s",
                    topic.name,
                    topic_id_text(topic.upstream_topic_id),
                    topic_id_text(topic.topic_id),
                    HIDDEN_IN_MODE_PROXY if self._is_proxy else "",
                )

    def _note_problem(self, problem: str | None) -> None:
        now_ms = asyncio.get_running_loop().time() * 1000
        if problem is None and self._problem is not None:
            log.info("the topics of the existing cluster are known again")
            self._logged_at_ms = -LOG_INTERVAL_MS
        elif problem is not None and now_ms >= self._logged_at_ms + LOG_INTERVAL_MS:
            log.warning("the topics of the existing cluster cannot be read, retrying: %s", problem)
            self._logged_at_ms = now_ms
        self._problem = problem


def _reason(code: int) -> str:
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return "the cluster does not let kshare's user Describe it; grant Describe and Read"
    return f"the cluster answers error {code} for it"


def _log_changes(
    topics: Sequence[MirroredTopic], gone: Sequence[str], refused: Mapping[str, str], logged: Container[str]
) -> None:
    for topic in topics:
        if topic.name in refused and topic.name not in logged:
            log.warning("topic %s of the existing cluster cannot be used: %s", topic.name, refused[topic.name])
        elif topic.name not in refused:
            log.info("topic %s of the existing cluster has %d partitions", topic.name, topic.partition_count)
    for name in gone:
        log.warning("topic %s is gone from the existing cluster; its share-group state is deleted", name)
