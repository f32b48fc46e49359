"""One member of a share group: heartbeats, one share session with each broker, acquire, acknowledge, renew (KIP-932).

Not thread-safe: `keeper` owns it. It reads only the acquired runs of a response, never the record bytes. The member id
is drawn once. When a connection breaks, the broker releases the records that were acquired through it. The member does
not anticipate that: the response to the next renewal or acknowledgement is INVALID_RECORD_STATE, and the run counts as
lost.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from kshare_core.errors import ErrorCode
from kshare_kafka_client.connection import ConnectionFailed, error_text
from kshare_spark.share_source.acknowledging import Acknowledging
from kshare_spark.share_source.cluster import (
    RETRIABLE,
    Cluster,
    ClusterError,
    TryAgain,
    bytes_of_id,
    check,
    text_of_id,
)
from kshare_spark.share_source.connection import Connection
from kshare_spark.share_source.runs import Place, Run, RunMap
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from kshare_wire.generated.requests.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest
from kshare_wire.generated.requests.share_group_heartbeat import ShareGroupHeartbeatRequest
from kshare_wire.generated.responses.share_acknowledge import ShareAcknowledgeResponse
from kshare_wire.generated.responses.share_fetch import PartitionData, ShareFetchResponse
from kshare_wire.generated.responses.share_group_heartbeat import Assignment, ShareGroupHeartbeatResponse

logger = logging.getLogger(__name__)

HEARTBEAT_VERSION = 1
SESSION_VERSIONS = (2, 1)
"""Versions of ShareFetch and ShareAcknowledge by preference: 2 has RENEW (KIP-1222) and acquire modes (KIP-1206)."""
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
OPEN_EPOCH, CLOSE_EPOCH = 0, -1
RECORD_LIMIT_MODE = 1
FETCH_RECORDS = 10_000
"""The maximum of records of one fetch; a partition has at most as many locks."""
ASSIGNMENT_WAIT_S = 10.0
"""The longest wait of a first fetch for the group's assignment."""
ASSIGNMENT_PAUSE_S = 0.05
WHOLE_ASSIGNMENT_WAIT_S = 2.0
ATTEMPTS = 20
"""Attempts of an acknowledgement whose leader moves or is unreachable, RETRY_PAUSE_S apart: 4 s plus requests."""
RETRY_PAUSE_S = 0.2
REFUSED_PAUSE_S = 1.0
"""The pause after a rejected heartbeat."""
_SessionRequest = ShareFetchRequest | ShareAcknowledgeRequest
_SESSION_GONE = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
_MEMBER_GONE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)


class AcknowledgeType(IntEnum):
    """The acknowledgement types of ShareAcknowledge."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass
class Acquired:
    """The result of one round of fetches: the runs, their bytes on the wire, and the earliest expiry of their locks."""

    runs: RunMap = field(default_factory=RunMap)
    bytes: int = 0
    lock_timeout_ms: int = 0
    is_whole: bool = True
    """Whether every leader responded; otherwise there may be more records."""


@dataclass
class _Session:
    """A share session with one broker. `epoch` is for the next request; `listed` has the fetched partitions."""

    connection: Connection
    version: int
    epoch: int = OPEN_EPOCH
    listed: tuple[tuple[str, int], ...] = ()


class Member:
    """A member of a share group; see the module's docstring. Methods raise ClusterError where a user has to act."""

    def __init__(
        self, cluster: Cluster, group_id: str, topics: Iterable[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.lock_timeout_ms = 0
        """The lock duration of the last response; 0 before the first one."""
        self.renews = True
        self._cluster = cluster
        self._group_id = group_id
        self._topics = tuple(topics)
        self._clock = clock
        self._epoch = JOIN_EPOCH
        self._next_beat: float | None = None
        self._failure = ""
        self._assigned: dict[tuple[str, int], str] = {}
        """Topic names by (topic id, partition)."""
        self._sessions: dict[int, _Session] = {}
        self._next_node = 0

    @property
    def next_beat(self) -> float | None:
        """The time of the next heartbeat; None before the first one, with which the member joins."""
        return self._next_beat

    def join(self) -> None:
        """Joins unless joined, and waits for the assignment. ClusterError, also for a missing topic."""
        if self._assigned:
            self.beat_if_due()
            return
        self._cluster.topics(self._topics)
        joined_by = self._clock() + self._cluster.properties.api_timeout_ms / 1000
        assigned_by = self._clock() + ASSIGNMENT_WAIT_S
        self.beat_if_due()
        while not self._assigned:
            now = self._clock()
            if self._epoch > JOIN_EPOCH and now >= assigned_by:
                return
            if self._epoch == JOIN_EPOCH and now >= joined_by:
                waited = self._cluster.properties.api_timeout_ms
                raise ClusterError(f"share group {self._group_id} cannot be joined in {waited} ms: {self._failure}")
            time.sleep(ASSIGNMENT_PAUSE_S)
            self.beat_if_due()

    def await_whole_assignment(self) -> None:
        """Waits briefly for all partitions of the topics, as a new group gets them one after the other.

        The wait is in vain if other members have some of them.
        """
        deadline = self._clock() + WHOLE_ASSIGNMENT_WAIT_S
        views = self._cluster.topics(self._topics).values()
        while len(self._assigned) < sum(len(view.leaders) for view in views) and self._clock() < deadline:
            time.sleep(ASSIGNMENT_PAUSE_S)
            self.beat_if_due()

    def beat_if_due(self) -> None:
        """Sends a heartbeat if one is due; the next call retries an unreachable coordinator."""
        if self._next_beat is not None and self._clock() < self._next_beat:
            return
        self._next_beat = self._clock() + REFUSED_PAUSE_S
        try:
            self._beat()
        except (ConnectionFailed, TryAgain) as error:
            logger.warning("share group %s: heartbeat: %s", self._group_id, error)
            self._failure = str(error)
            self._next_beat = self._clock() + RETRY_PAUSE_S

    def acquire(
        self,
        *,
        records: int | None,
        largest_fetch_bytes: int,
        wait_ms: int,
        without: Iterable[tuple[str, int]] = (),
    ) -> Acquired:
        """One fetch from every broker that leads assigned partitions, except `without` ((topic id, partition)).

        It acquires at most `records`, by default as many as the locks allow. Brokers wait up to `wait_ms` for the
        first record.
        """
        found = Acquired(lock_timeout_ms=self.lock_timeout_ms)
        places = self._by_node(without, found)
        if not places:
            time.sleep(min(wait_ms, 100) / 1000)
            return found
        # A record limit is for all brokers together, so one after the other is fetched from until one has records.
        rounds = [list(places)]
        if records is not None:
            self._next_node += 1
            nodes = list(places)
            rounds = [[nodes[(self._next_node + index) % len(nodes)]] for index in range(len(nodes))]
        for nodes in rounds:
            self._fetch_from(nodes, places, found, records, largest_fetch_bytes, wait_ms // len(rounds))
            if found.runs:
                break
        return found

    def acknowledge(self, runs: RunMap, kind: AcknowledgeType) -> tuple[RunMap, RunMap]:
        """(confirmed, lost): the runs that leaders confirmed, and those whose locks are gone.

        Runs without a response after ATTEMPTS failures (their leader is unreachable) count as lost too: a lock does not
        outlive its leader, and records that were in fact accepted are never delivered again.
        """
        work = Acknowledging(runs)
        failures = 0
        while not work.is_done and failures < ATTEMPTS:
            if not self._acknowledge_once(work, kind):
                failures += 1
                time.sleep(RETRY_PAUSE_S)
        work.give_up()
        return work.confirmed, work.lost

    def leave(self) -> None:
        """Closes the sessions, which releases all held records, and leaves the group. Never raises."""
        for node, session in list(self._sessions.items()):
            try:
                self._ask_session(node, session, ShareAcknowledgeRequest(), epoch=CLOSE_EPOCH)
            except (ConnectionFailed, TryAgain, ClusterError) as error:
                logger.warning("share group %s: closing a session: %s", self._group_id, error)
        self._sessions.clear()
        if self._epoch > JOIN_EPOCH:
            try:
                self._ask_heartbeat(LEAVE_EPOCH)
            except (ConnectionFailed, TryAgain, ClusterError) as error:
                logger.warning("share group %s: leaving: %s", self._group_id, error)
        self._cluster.close()

    # --- heartbeats ---------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        answer = self._ask_heartbeat(self._epoch)
        if answer.error_code in _MEMBER_GONE:
            logger.warning("share group %s: %s; joining again", self._group_id, error_text(answer.error_code))
            self._epoch = JOIN_EPOCH
            self._next_beat = 0.0
            return
        check(answer.error_code, f"share group {self._group_id}", answer.error_message)
        self._epoch = answer.member_epoch
        self._next_beat = self._clock() + answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self._assign(answer.assignment)

    def _ask_heartbeat(self, epoch: int) -> ShareGroupHeartbeatResponse:
        connection = self._cluster.coordinator(self._group_id)
        if not connection.serves(ApiKey.SHARE_GROUP_HEARTBEAT, HEARTBEAT_VERSION):
            raise ClusterError(
                f"broker {connection.name} serves no share groups (ShareGroupHeartbeat version 1, KIP-932)"
            )
        try:
            request = ShareGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=self.member_id,
                member_epoch=epoch,
                rack_id=self._cluster.properties.rack if epoch == JOIN_EPOCH else None,
                subscribed_topic_names=list(self._topics) if epoch == JOIN_EPOCH else None,
            )
            return connection.ask(request, HEARTBEAT_VERSION)
        except ConnectionFailed:
            self._drop(connection)
            raise

    def _assign(self, assignment: Assignment) -> None:
        names = {view.topic_id: name for name, view in self._cluster.topics(self._topics, fresh=True).items()}
        self._assigned = {
            (topic_id, partition): names[topic_id]
            for topic in assignment.topic_partitions
            for partition in topic.partitions
            if (topic_id := text_of_id(topic.topic_id)) in names
        }

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _fetch_from(
        self,
        nodes: list[int],
        places: dict[int, list[tuple[str, int]]],
        found: Acquired,
        records: int | None,
        largest_bytes: int,
        wait_ms: int,
    ) -> None:
        """One fetch from each of these brokers at the same time."""
        sent = [node for node in nodes if self._send_fetch(node, places[node], records, largest_bytes, wait_ms)]
        found.is_whole = found.is_whole and len(sent) == len(nodes)
        for node in sent:
            self._receive_fetch(node, wait_ms, found)

    def _by_node(self, without: Iterable[tuple[str, int]], outcome: Acquired) -> dict[int, list[tuple[str, int]]]:
        left_out = dict.fromkeys(without)
        found: dict[int, list[tuple[str, int]]] = {}
        for key, topic in self._assigned.items():
            if key in left_out:
                continue
            try:
                found.setdefault(self._cluster.leader(topic, key[1]), []).append(key)
            except (TryAgain, ConnectionFailed) as error:
                outcome.is_whole = False
                logger.warning("share group %s: %s", self._group_id, error)
        return found

    def _session(self, node: int) -> _Session:
        connection = self._cluster.node(node)
        session = self._sessions.get(node)
        if session is None or session.connection is not connection:
            version = next((one for one in SESSION_VERSIONS if connection.serves(ApiKey.SHARE_FETCH, one)), None)
            if version is None:
                raise ClusterError(f"broker {connection.name} serves no ShareFetch of versions 1 and 2 (KIP-932)")
            self.renews = version >= 2
            session = self._sessions[node] = _Session(connection, version)
        return session

    def _drop(self, connection: Connection) -> None:
        self._cluster.drop(connection)
        self._sessions = {node: kept for node, kept in self._sessions.items() if kept.connection is not connection}
        self._cluster.forget_leaders(self._topics)

    def _send_fetch(
        self, node: int, keys: list[tuple[str, int]], records: int | None, largest_bytes: int, wait_ms: int
    ) -> bool:
        try:
            session = self._session(node)
        except ConnectionFailed as error:
            logger.warning("share group %s: %s", self._group_id, error)
            self._cluster.forget_leaders(self._topics)
            return False
        listed = tuple(keys)
        new = [key for key in listed if key not in session.listed]
        gone = [key for key in session.listed if key not in listed]
        request = ShareFetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=largest_bytes,
            max_records=min(records or FETCH_RECORDS, FETCH_RECORDS),
            batch_size=FETCH_RECORDS,
            share_acquire_mode=RECORD_LIMIT_MODE if records is not None else 0,  # version 1 has none
            topics=[
                FetchTopic(
                    topic_id=bytes_of_id(topic_id),
                    partitions=[FetchPartition(partition_index=index) for index in indexes],
                )
                for topic_id, indexes in _by_topic(new).items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=bytes_of_id(topic_id), partitions=indexes)
                for topic_id, indexes in _by_topic(gone).items()
            ],
        )
        try:
            self._send_session(session, request)
        except ConnectionFailed as error:
            logger.warning("share group %s: %s", self._group_id, error)
            self._drop(session.connection)
            return False
        session.listed = listed
        return True

    def _receive_fetch(self, node: int, wait_ms: int, found: Acquired) -> None:
        session = self._sessions.get(node)
        if session is None:
            found.is_whole = False
            return
        try:
            answer = session.connection.receive(ShareFetchResponse, session.version, wait_ms=wait_ms)
            self._check_session(node, answer)
        except (ConnectionFailed, TryAgain) as error:
            found.is_whole = False
            logger.warning("share group %s: fetch: %s", self._group_id, error)
            if isinstance(error, ConnectionFailed):
                self._drop(session.connection)
            return
        timeout_ms = answer.acquisition_lock_timeout_ms
        if timeout_ms > 0:
            self.lock_timeout_ms = found.lock_timeout_ms = timeout_ms
        for topic in answer.responses:
            topic_id = text_of_id(topic.topic_id)
            for partition in topic.partitions:
                self._take_partition(topic_id, partition, found)

    def _take_partition(self, topic_id: str, partition: PartitionData, found: Acquired) -> None:
        index = partition.partition_index
        topic = self._assigned.get((topic_id, index))
        if topic is None:
            return
        if partition.error_code:
            text = error_text(partition.error_code, partition.error_message)
            if partition.error_code not in RETRIABLE:
                raise ClusterError(f"share group {self._group_id}, {topic}-{index}: {text}")
            logger.info("share group %s, %s-%d: %s", self._group_id, topic, index, text)
            self._cluster.forget_leaders([topic])
            found.is_whole = False
            return
        found.bytes += sum(map(len, partition.records or ()))
        runs = [Run(run.first_offset, run.last_offset, run.delivery_count) for run in partition.acquired_records]
        found.runs.add(Place(topic, topic_id, index), runs)

    def _send_session(self, session: _Session, request: _SessionRequest, *, epoch: int | None = None) -> None:
        """Sends the request with the session's names and epoch."""
        request.group_id, request.member_id = self._group_id, self.member_id
        request.share_session_epoch = session.epoch if epoch is None else epoch
        session.epoch = 1 if session.epoch == (1 << 31) - 1 else session.epoch + 1
        session.connection.send(request, session.version)

    def _ask_session(
        self, node: int, session: _Session, request: _SessionRequest, *, epoch: int | None = None
    ) -> ShareFetchResponse | ShareAcknowledgeResponse:
        try:
            self._send_session(session, request, epoch=epoch)
            answer = session.connection.receive(request.RESPONSE, session.version)
        except ConnectionFailed:
            self._drop(session.connection)
            raise
        self._check_session(node, answer)
        return answer

    def _check_session(self, node: int, answer: ShareFetchResponse | ShareAcknowledgeResponse) -> None:
        if answer.error_code in _SESSION_GONE:
            self._sessions.pop(node, None)
            raise TryAgain(error_text(answer.error_code, answer.error_message))
        if answer.error_code in _MEMBER_GONE:
            self._sessions.pop(node, None)
            self._epoch, self._next_beat = JOIN_EPOCH, 0.0
            raise TryAgain(error_text(answer.error_code, answer.error_message))
        if answer.error_code:
            self._sessions.pop(node, None)
        check(answer.error_code, f"share group {self._group_id}", answer.error_message)

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def _acknowledge_once(self, work: Acknowledging, kind: AcknowledgeType) -> bool:
        """Sends one request to every leader; returns whether all responded without an error."""
        by_node: dict[int, dict[Place, list[Run]]] = {}
        all_answered = True
        for place, runs in work.next_request().items():
            try:
                by_node.setdefault(self._cluster.leader(place.topic, place.partition), {})[place] = runs
            except (TryAgain, ConnectionFailed) as error:
                logger.info("share group %s: %s", self._group_id, error)
                all_answered = False
        for node, places in by_node.items():
            try:
                answered = self._acknowledge_at(node, places, kind, work)
            except (ConnectionFailed, TryAgain) as error:
                logger.info("share group %s: acknowledging: %s", self._group_id, error)
                self._cluster.forget_leaders(self._topics)
                answered = False
            all_answered = all_answered and answered
        return all_answered

    def _acknowledge_at(
        self, node: int, places: dict[Place, list[Run]], kind: AcknowledgeType, work: Acknowledging
    ) -> bool:
        session = self._session(node)
        if session.epoch == OPEN_EPOCH:
            # A session begins with a fetch; this one names no partitions, so it acquires nothing.
            self._ask_session(node, session, ShareFetchRequest(max_records=1, batch_size=1, max_bytes=1))
        by_key = {(place.topic_id, place.partition): place for place in places}
        topics = [
            AcknowledgeTopic(
                topic_id=bytes_of_id(topic_id),
                partitions=[
                    AcknowledgePartition(
                        partition_index=index,
                        acknowledgement_batches=_batches(places[by_key[topic_id, index]], kind),
                    )
                    for index in indexes
                ],
            )
            for topic_id, indexes in _by_topic(by_key).items()
        ]
        request = ShareAcknowledgeRequest(topics=topics, is_renew_ack=kind is AcknowledgeType.RENEW)
        answer = self._ask_session(node, session, request)
        answered = True
        for topic in answer.responses:
            for partition in topic.partitions:
                place = by_key[text_of_id(topic.topic_id), partition.partition_index]
                answered = self._take_outcome(place, partition.error_code, work) and answered
        return answered

    def _take_outcome(self, place: Place, code: int, work: Acknowledging) -> bool:
        if code == ErrorCode.NONE:
            work.confirm(place)
        elif code == ErrorCode.INVALID_RECORD_STATE:
            work.refuse(place)
        elif code in RETRIABLE and code != ErrorCode.UNKNOWN_TOPIC_ID:
            self._cluster.forget_leaders([place.topic])
            return False
        else:
            logger.warning("share group %s, %s-%d: %s", self._group_id, place.topic, place.partition, error_text(code))
            work.lose(place)
        return True


def _by_topic(keys: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, partition in keys:
        found.setdefault(topic_id, []).append(partition)
    return found


def _batches(runs: list[Run], kind: AcknowledgeType) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=run.first, last_offset=run.last, acknowledge_types=[kind]) for run in runs
    ]
