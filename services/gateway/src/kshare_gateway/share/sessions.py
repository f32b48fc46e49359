"""Share sessions (KIP-932, "Share sessions"): a pure state machine without sockets or clock.

A session is identified by (group, member) and belongs to the connection that opened it. In front of an existing cluster
in mode proxy, a gateway is each of the cluster's brokers to its clients, so a member has a session at each of them.

- Epoch 0 opens a session with all partitions in full. It replaces a session of the same member, also one of an older
  connection; the end of the older connection then no longer affects the session (KAFKA-19950). Acknowledgements are not
  allowed with it. A full table gives SHARE_SESSION_LIMIT_REACHED.
- Epoch n continues the session: listed partitions are added, forgotten ones are removed, and the next request must
  carry n + 1. After 2^31 - 1 comes 1. Another epoch is INVALID_SHARE_SESSION_EPOCH; a missing session is
  SHARE_SESSION_NOT_FOUND.
- Epoch -1 closes the session. The caller processes the acknowledgements first and then calls `remove`, so that records
  which the same request accepts are not released before (KAFKA-17396).
- ShareAcknowledge never opens a session: epoch 0 is INVALID_SHARE_SESSION_EPOCH there.

A listed partition joins the session, also if it is listed with acknowledgements: the Java client sends one entry to
both add and acknowledge a partition, and forgets partitions that it only acknowledges. In ShareFetch v1 of other
clients it joins only without acknowledgements. librdkafka never forgets a partition that it only acknowledges, so
joining would send its records to a member that does not expect them (franz-go 1352). A partition that the same request
forgets is not in the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import TopicPartition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAXIMUM_EPOCH = (1 << 31) - 1


class ShareSessionKey(NamedTuple):
    """A member of a group, and the broker of an existing cluster to whose port it came; -1 where there are none."""

    group_id: str
    member_id: str
    broker_id: int = -1


class ListedPartition(NamedTuple):
    """A partition of a ShareFetch request; `joins`: it is listed to be fetched, not only to be acknowledged."""

    partition: TopicPartition
    joins: bool


_versions = count(1)


class ShareSession:
    """A share session: its partitions in the order of joining, and the epoch that the next request must carry."""

    __slots__ = (
        *("_topic_ids", "connection_id", "key", "next_epoch", "partitions"),
        *("rotation", "unnamed", "version"),
    )

    def __init__(self, key: ShareSessionKey, connection_id: int, partitions: dict[TopicPartition, None]) -> None:
        self.key = key
        self.connection_id = connection_id
        self.partitions = partitions
        self.next_epoch = 1
        self.rotation = 0
        self.version = next(_versions)
        """Another number after each change of `partitions`; no other session ever has it."""
        self.unnamed: dict[TopicPartition, None] = {}
        """Partitions that joined later or had an error: a response names them as soon as they are acquirable."""
        self._topic_ids: dict[bytes, None] | None = None

    @property
    def topic_ids(self) -> Mapping[bytes, None]:
        """The topics of its partitions; kept until these change, because each request needs them."""
        if self._topic_ids is None:
            self._topic_ids = dict.fromkeys(partition.topic_id for partition in self.partitions)
        return self._topic_ids

    def partitions_changed(self) -> None:
        self.version = next(_versions)
        self._topic_ids = None

    def rotated(self) -> list[TopicPartition]:
        """All partitions, starting with a different one at each call, so that each is tried first in turn."""
        partitions = list(self.partitions)
        if not partitions:
            return partitions
        start = self.rotation % len(partitions)
        self.rotation = start + 1
        return partitions[start:] + partitions[:start]


def next_epoch(epoch: int) -> int:
    """The epoch after `epoch`; 1 after 2^31 - 1, since 0 and negative ones mean something else."""
    return 1 if epoch >= MAXIMUM_EPOCH else epoch + 1


class ShareSessionTable:
    """The sessions of one gateway, at most `limit` (group.share.max.share.sessions).

    Each session has at most `partitions_limit` partitions (kshare.request.max.elements), because every ShareFetch
    covers all of them.
    """

    def __init__(self, limit: int, partitions_limit: int) -> None:
        self._limit = limit
        self._partitions_limit = partitions_limit
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        self._of_connection: dict[int, dict[ShareSessionKey, ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ShareSessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def open(
        self,
        key: ShareSessionKey,
        connection_id: int,
        listed: Sequence[ListedPartition],
        *,
        has_acknowledgements: bool,
    ) -> tuple[ShareSession, ShareSession | None]:
        """Opens a session (epoch 0); returns it and the session that it replaced, if any.

        INVALID_REQUEST with acknowledgements or too many partitions, SHARE_SESSION_LIMIT_REACHED if the table is full.
        """
        if has_acknowledgements:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "A ShareFetch that opens a session (epoch 0) cannot carry acknowledgements"
            )
        partitions = {entry.partition: None for entry in listed}
        self._check_size(len(partitions))
        replaced = self.remove(key)
        if len(self._sessions) >= self._limit:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"This gateway has {len(self._sessions)} share sessions, as many as group.share.max.share.sessions",
            )
        session = ShareSession(key, connection_id, partitions)
        self._insert(session)
        return session, replaced

    def update(
        self,
        key: ShareSessionKey,
        epoch: int,
        listed: Iterable[ListedPartition],
        forgotten: Iterable[TopicPartition],
        connection_id: int,
    ) -> ShareSession:
        """Updates the session by an incremental ShareFetch; the module docstring says which partitions join."""
        session = self._expect(key, epoch, connection_id)
        added = [entry.partition for entry in listed if entry.joins and entry.partition not in session.partitions]
        self._check_size(len(session.partitions) + len(added))
        for partition in added:
            session.partitions[partition] = session.unnamed[partition] = None
        removed = [partition for partition in forgotten if partition in session.partitions]
        for partition in removed:
            session.partitions.pop(partition, None)
            session.unnamed.pop(partition, None)
        if added or removed:
            session.partitions_changed()
        session.next_epoch = next_epoch(session.next_epoch)
        return session

    def acknowledge(self, key: ShareSessionKey, epoch: int, connection_id: int) -> ShareSession:
        """The session of a ShareAcknowledge that does not close it; its epoch advances as with a ShareFetch."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "A ShareAcknowledge cannot open a share session (epoch 0)"
            )
        session = self._expect(key, epoch, connection_id)
        session.next_epoch = next_epoch(session.next_epoch)
        return session

    def expect(self, key: ShareSessionKey, connection_id: int) -> ShareSession:
        """The session that a request with the final epoch closes; SHARE_SESSION_NOT_FOUND if it does not exist."""
        session = self._sessions.get(key)
        if session is None or session.connection_id != connection_id:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_NOT_FOUND,
                f"No share session of member {key.member_id} in group {key.group_id} on this connection",
            )
        return session

    def remove(self, key: ShareSessionKey) -> ShareSession | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            of_connection = self._of_connection[session.connection_id]
            del of_connection[key]
            if not of_connection:
                del self._of_connection[session.connection_id]
        return session

    def is_current(self, session: ShareSession) -> bool:
        """Whether the session was neither closed nor replaced."""
        return self._sessions.get(session.key) is session

    def connection_lost(self, connection_id: int) -> list[ShareSession]:
        """Removes and returns the sessions that still belong to the connection."""
        return [
            session
            for key in list(self._of_connection.get(connection_id, ()))
            if (session := self.remove(key)) is not None
        ]

    def _insert(self, session: ShareSession) -> None:
        self._sessions[session.key] = session
        self._of_connection.setdefault(session.connection_id, {})[session.key] = session

    def _expect(self, key: ShareSessionKey, epoch: int, connection_id: int) -> ShareSession:
        session = self.expect(key, connection_id)
        if session.next_epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"Share session of member {key.member_id} in group {key.group_id}: "
                f"expected epoch {session.next_epoch}, got {epoch}",
            )
        return session

    def _check_size(self, count: int) -> None:
        if count > self._partitions_limit:
            text = f"A share session of {count} partitions; kshare.request.max.elements allows {self._partitions_limit}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
