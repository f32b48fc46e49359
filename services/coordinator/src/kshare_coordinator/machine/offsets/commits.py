"""Decisions about committed offsets (OffsetMetadataManager and KafkaApis of Kafka 4.3.1).

- Each partition of a request gets its own result. Partitions that are not in the catalog are rejected first: an unknown
  id with UNKNOWN_TOPIC_ID, an unknown name or partition with UNKNOWN_TOPIC_OR_PARTITION. If none is left, the group is
  not checked.
- An error of the group or the transaction is the result of every remaining partition.
- Permission to commit depends on the group's type, see `permissions`. A commit with an epoch below 0 creates a
  missing group as a "simple" one without members; any other epoch is invalid there.
- Retention of offsets also depends on the group's type and state. The expiry of offsets also removes empty classic
  groups without offsets.
- Transactional offsets are `pending` until the outcome of the transaction is decided (`records_at_transaction_end`, in
  that decision).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kshare_coordinator.machine import records
from kshare_coordinator.machine.commands import Effect, ExpireOffsets, OffsetCommit
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.offsets.permissions import (
    Committer,
    check_commit,
    is_subscribed,
    records_of_forgotten_group,
    retention_begin,
)
from kshare_coordinator.machine.offsets.table import OffsetCommitValue
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState
from kshare_coordinator.machine.visible_topics import visible_topic, visible_topic_named
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import ZERO_TOPIC_ID, TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb
from kshare_runtime.machine import Decision

GROUP_ID_NOT_FOUND_SINCE_VERSION = 9
"""The first version of OffsetCommit whose clients know this code."""
EXPIRED_AT_ONCE = 5_000
"""Offsets that one command removes: its records, each with the group's id, must fit into one append."""
MS_PER_MINUTE = 60_000
MAX_TIMESTAMP_MS = (1 << 63) - 1

OffsetDecision = Decision[Record, pb.OffsetCommitResponse, Effect]
Result = pb.OffsetCommitResponse.Result


@dataclass(frozen=True, slots=True)
class OffsetSettings:
    """Limits and times from the broker's configs."""

    max_metadata_length: int
    retention_ms: int
    max_groups: int
    max_offsets: int

    @classmethod
    def of(cls, configs: Configs) -> OffsetSettings:
        return cls(
            max_metadata_length=configs.integer("offset.metadata.max.bytes"),
            retention_ms=configs.integer("offsets.retention.minutes") * MS_PER_MINUTE,
            max_groups=configs.integer("kshare.max.groups"),
            max_offsets=configs.integer("kshare.max.committed.offsets"),
        )


@dataclass(slots=True)
class Commit:
    """A request's offsets, with the error so far and the resolved partition of each."""

    offsets: Sequence[pb.CommittedOffset]
    codes: list[ErrorCode]
    partitions: list[TopicPartition]

    @classmethod
    def of(cls, state: CoordinatorState, offsets: Sequence[pb.CommittedOffset]) -> Commit:
        """Looked up in the catalog."""
        commit = cls(offsets, [], [])
        for offset in offsets:
            code, partition = _resolved(state, offset)
            commit.codes.append(code)
            commit.partitions.append(partition)
        return commit

    @property
    def is_refused(self) -> bool:
        """Whether no offset is left to commit."""
        return all(self.codes)

    def refuse(self, code: ErrorCode) -> None:
        """Rejects all offsets that have no error yet."""
        self.codes = [known or code for known in self.codes]

    def refuse_partitions(self, refused: Container[TopicPartition], code: ErrorCode) -> None:
        """Rejects the offsets of these partitions that have no error yet."""
        each = zip(self.codes, self.partitions, strict=True)
        self.codes = [known or (code if partition in refused else known) for known, partition in each]

    def refuse_long_metadata(self, limit: int) -> None:
        for index, offset in enumerate(self.offsets):
            if not self.codes[index] and _java_length(offset.committed_metadata) > limit:
                self.codes[index] = ErrorCode.OFFSET_METADATA_TOO_LARGE

    def accepted(self) -> Iterable[tuple[TopicPartition, pb.CommittedOffset]]:
        for code, partition, offset in zip(self.codes, self.partitions, self.offsets, strict=True):
            if not code:
                yield partition, offset

    def answer(self) -> pb.OffsetCommitResponse:
        """A result for each offset, in the request's order."""
        return pb.OffsetCommitResponse(
            results=[
                Result(
                    topic_id=offset.topic_id,
                    topic_name=offset.topic_name,
                    partition=offset.partition,
                    error_code=code,
                )
                for offset, code in zip(self.offsets, self.codes, strict=True)
            ]
        )


def _resolved(state: CoordinatorState, offset: pb.CommittedOffset) -> tuple[ErrorCode, TopicPartition]:
    """The topic by its id where one is given, else by name."""
    topic = topic_of(state, offset.topic_id, offset.topic_name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if has_id(offset.topic_id) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return code, TopicPartition(ZERO_TOPIC_ID, offset.partition)
    exists = 0 <= offset.partition < len(topic.placements)
    code = ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return code, TopicPartition(topic.topic_id, offset.partition)


def has_id(topic_id: bytes) -> bool:
    return bool(topic_id)


def topic_of(state: CoordinatorState, topic_id: bytes, topic_name: str) -> records_pb.TopicRecord | None:
    """By id where one is given, else by name."""
    return visible_topic(state, topic_id) if has_id(topic_id) else visible_topic_named(state, topic_name)


def _java_length(text: str) -> int:
    """UTF-16 code units, which is what Kafka compares with offset.metadata.max.bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


@decides(OffsetCommit)
def decide_commit(
    state: CoordinatorState, command: OffsetCommit, settings: OffsetSettings, now_ms: int
) -> OffsetDecision:
    request = command.request
    commit = Commit.of(state, request.offsets)
    if commit.is_refused:
        return Decision((), commit.answer())
    is_new = request.api_version >= GROUP_ID_NOT_FOUND_SINCE_VERSION
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION
    verdict = check_commit(
        state,
        Committer(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            epoch=request.generation_id_or_member_epoch,
            api_version=request.api_version,
            partitions=[partition for partition, _ in commit.accepted()],
        ),
        settings.max_groups,
        unknown,
    )
    commit.refuse(verdict.code)
    expire_ms = _expire_ms(now_ms, request.retention_time_ms) if request.has_retention_time else 0

    def record(partition: TopicPartition, value: OffsetCommitValue) -> Record:
        value.expire_timestamp_ms = expire_ms
        return records.committed_offset(request.group_id, partition.topic_id, partition.partition, value)

    def adds_row(partition: TopicPartition) -> bool:
        return state.offsets.adds_committed(request.group_id, partition)

    return replace(committed(state, commit, settings, now_ms, record, adds_row), effects=verdict.effects)


def _expire_ms(now_ms: int, retention_time_ms: int) -> int:
    """Above 0, which means none, and in the range of the record's field."""
    return min(max(now_ms + retention_time_ms, 1), MAX_TIMESTAMP_MS)


def committed(
    state: CoordinatorState,
    commit: Commit,
    settings: OffsetSettings,
    now_ms: int,
    record: Callable[[TopicPartition, OffsetCommitValue], Record],
    adds_row: Callable[[TopicPartition], bool],
) -> OffsetDecision:
    """The decision that stores all offsets that are not refused, each in a record made by `record`.

    `adds_row` says whether an offset counts as one more row. Where these are too many, all of them are refused, and the
    others are stored: a consumer that gets one more partition goes on committing its progress in the former ones.
    """
    commit.refuse_long_metadata(settings.max_metadata_length)
    room = settings.max_offsets - state.offsets.row_count
    if len(commit.offsets) > room:
        added = {partition for partition, _ in commit.accepted() if adds_row(partition)}
        if added and len(added) > room:
            commit.refuse_partitions(added, ErrorCode.POLICY_VIOLATION)
    sequence = state.offsets.last_sequence + 1
    found = [
        record(
            partition,
            OffsetCommitValue(
                offset=offset.committed_offset,
                leader_epoch=offset.committed_leader_epoch,
                metadata=offset.committed_metadata,
                commit_timestamp_ms=now_ms,
                sequence=sequence,
            ),
        )
        for partition, offset in commit.accepted()
    ]
    return Decision(found, commit.answer())


def records_at_transaction_end(
    state: CoordinatorState,
    producer_id: int,
    committed: bool,
    now_ms: int,
    group_ids: frozenset[str] | None = None,
) -> list[Record]:
    """The records for the offsets in a transaction whose outcome is decided; empty if it has none.

    `group_ids` None: of all groups that are here.

    A committed offset takes the place of what is in force unless that was committed later, and counts for retention
    from now on, when it takes effect.
    """
    found: list[Record] = []
    for (group_id, key), pending in state.offsets.rows_of_producer(producer_id):
        if group_ids is not None and group_id not in group_ids:
            continue
        topic_id, partition = key
        found.append(records.pending_offset(producer_id, group_id, topic_id, partition, None))
        known = state.offsets.get(group_id, key)
        if committed and (known is None or known.sequence < pending.sequence):
            value = OffsetCommitValue()
            value.CopyFrom(pending)
            value.commit_timestamp_ms = now_ms
            found.append(records.committed_offset(group_id, topic_id, partition, value))
    return found


def records_at_topic_deletion(state: CoordinatorState, topic_ids: Iterable[bytes]) -> list[Record]:
    """All offsets of topics that are going away, those in open transactions too."""
    gone = frozenset(topic_ids)
    found = [
        records.committed_offset(group_id, key.topic_id, key.partition, None)
        for group_id, rows in state.offsets.committed.items()
        for key in rows
        if key.topic_id in gone
    ]
    found += [
        records.pending_offset(producer_id, key.group_id, *key.partition, None)
        for producer_id, rows_of_producer in state.offsets.pending.items()
        for key in rows_of_producer
        if key.partition.topic_id in gone
    ]
    return found


@decides(ExpireOffsets)
def decide_expire(
    state: CoordinatorState, command: ExpireOffsets, settings: OffsetSettings, now_ms: int
) -> Decision[Record, int, Effect]:
    """Offsets whose time is over, but for those of partitions with an offset in an open transaction, and those of
    topics that the group consumes. Answered with how many they are, at most EXPIRED_AT_ONCE: there may be more then."""
    found: list[Record] = []
    groups: list[Record] = []
    for group_id in command.group_ids:
        expired = list(islice(_expired(state, group_id, settings, now_ms), EXPIRED_AT_ONCE - len(found)))
        found.extend(records.committed_offset(group_id, *key, None) for key in expired)
        has_more = len(state.offsets.committed.get(group_id, {})) > len(expired)
        if not has_more and group_id not in state.offsets.open_producers:
            groups.extend(records_of_forgotten_group(state, group_id))
        if len(found) == EXPIRED_AT_ONCE:
            break
    return Decision([*found, *groups], len(found))


def _expired(state: CoordinatorState, group_id: str, settings: OffsetSettings, now_ms: int) -> Iterator[TopicPartition]:
    begin = retention_begin(state, group_id)
    if begin is None:
        return
    kept: dict[bytes, bool] = {}
    """By topic, whether the group consumes it."""
    for key, value in state.offsets.committed.get(group_id, {}).items():
        if now_ms < (value.expire_timestamp_ms or begin(value) + settings.retention_ms):
            continue
        if key.topic_id not in kept:
            topic = topic_of(state, key.topic_id, "")
            kept[key.topic_id] = topic is not None and is_subscribed(state, group_id, topic.name)
        if not kept[key.topic_id] and not state.offsets.is_open(group_id, key):
            yield key
