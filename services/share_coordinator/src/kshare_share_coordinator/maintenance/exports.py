"""Exports: state as lines of JSON, for operators and for `kshare state import`.

The first line names the origin. One line for each share-partition follows, with its whole state, however it was stored.
The last line has their number, so that a truncated file is detected:

    {"export": "kshare share-group state", "version": 1, "cluster_id": "…", "state_partitions": 50}
    {"group": "orders", "topic_id": "…", "partition": 0, "state_partition": 38, "snapshot_epoch": 3, …}
    {"share_partitions": 1, "left_out": 0}

A state batch is [first offset, last offset, delivery state by name, delivery count]. `leader_epochs` is the history of
the log that the state is about, each entry [leader epoch, start offset]; exports of older versions have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import error as StructError
from typing import Any

from kshare_core.errors import StorageFailure
from kshare_core.identifiers import SharePartitionKey, parse_topic_id, state_partition_of, topic_id_text
from kshare_core.leader_epochs import EpochEntry, decode_leader_epochs, encode_leader_epochs
from kshare_core.states import PERSISTED_STATES, RecordState
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import (
    STATE_BATCHES_PER_SHARE_PARTITION_LIMIT,
    batch_problem,
    key_problem,
)
from kshare_share_coordinator.machine.share_group_offset import (
    MAX_EPOCH,
    ShareGroupOffset,
    ShareSnapshot,
    apply,
)
from kshare_share_coordinator.machine.state_batches import StateBatch, is_canonical
from kshare_share_coordinator.state_store import FAMILY_PREFIX, StateStore, family_of

TITLE = "kshare share-group state"
VERSION = 1
SLICE_ROWS = 1_000
MAX_INT64 = (1 << 63) - 1
_NAMES = {int(state): state.name.capitalize() for state in RecordState if state in PERSISTED_STATES}
_STATES = {name: number for number, name in _NAMES.items()}


class BadExport(Exception):
    """A file that cannot be imported; the text names the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class ExportHead:
    """The origin of an export."""

    cluster_id: str | None
    state_partition_count: int


@dataclass(slots=True)
class Export:
    """A complete, validated export."""

    head: ExportHead
    snapshots: list[ShareSnapshot] = field(default_factory=list)
    left_out: int = 0
    """Share-partitions and state partitions that could not be read when the export was made."""


class StateExport:
    """Exports one store; after the last of `lines`, `problems` lists the parts that were left out."""

    def __init__(self, store: ChecksummedStore) -> None:
        self._store = store
        self._state_store = StateStore(store=store, state_partition_of=lambda key: state_partition_of(key, self._count))
        self._count = 0
        self.problems: list[str] = []
        self.share_partitions = 0

    def lines(self) -> Iterator[str]:
        """The lines without line ends; StorageFailure if the store has no metadata."""
        count = self._state_store.state_partition_count()
        if count is None:
            raise StorageFailure("the store was never used: it does not say how many state partitions there are")
        self._count = count
        cluster_id = self._state_store.cluster_id()
        yield json.dumps({"export": TITLE, "version": VERSION, "cluster_id": cluster_id, "state_partitions": count})
        for state_partition in state_partitions_of(self._store):
            yield from self._state_partition(state_partition)
        yield json.dumps({"share_partitions": self.share_partitions, "left_out": len(self.problems)})

    def _state_partition(self, state_partition: int) -> Iterator[str]:
        start: bytes | None = b""
        while start is not None:
            try:
                found, start = self._state_store.share_partitions(family_of(state_partition), start, SLICE_ROWS)
            except StorageFailure as failure:
                self.problems.append(f"state partition {state_partition}: {failure}")
                return
            for key, records, problem in found:
                state: ShareGroupOffset | None = None
                for record in records:
                    state = apply(state, record)
                if key is None or state is None:
                    self.problems.append(problem or "a share-partition whose key cannot be read")
                    continue
                self.share_partitions += 1
                yield json.dumps(_as_dict(key, state_partition, state), ensure_ascii=False)


def state_partitions_of(store: ChecksummedStore) -> list[int]:
    """The state partitions that have a family, in order."""
    numbers = [family.removeprefix(FAMILY_PREFIX) for family in store.families()]
    return sorted(int(number) for number in numbers if number.isdecimal())


def _as_dict(key: SharePartitionKey, state_partition: int, state: ShareGroupOffset) -> dict[str, Any]:
    return {
        "group": key.group_id,
        "topic_id": topic_id_text(key.topic_id),
        "partition": key.partition,
        "state_partition": state_partition,
        "snapshot_epoch": state.snapshot_epoch,
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
        "state_batches": [
            [first, last, _NAMES[delivery_state], delivery_count]
            for first, last, delivery_state, delivery_count in state.state_batches
        ],
        "leader_epochs": decode_leader_epochs(state.leader_epochs),
    }


def read_export(lines: Iterable[str], now_ms: int) -> Export:
    """Reads an export as snapshots that are written at `now_ms`; BadExport."""
    numbered = enumerate(lines, start=1)
    export = Export(_read_head(next(numbered, (1, ""))[1]))
    seen: dict[SharePartitionKey, None] = {}
    for number, line in numbered:
        try:
            found = _object(line)
            if "share_partitions" in found:
                _check_end(export, found)
                _check_nothing_follows(numbered)
                return export
            snapshot = _read_snapshot(found, now_ms)
            if snapshot.key in seen:
                raise BadExport(f"share-partition {snapshot.key} occurs twice")
            seen[snapshot.key] = None
            export.snapshots.append(snapshot)
        except BadExport as problem:
            raise BadExport(f"line {number}: {problem}") from None
    raise BadExport("the last line, which says how many share-partitions there are, is missing: the file is truncated")


def _read_head(line: str) -> ExportHead:
    try:
        found = _object(line)
        if found.get("export") != TITLE:
            raise BadExport(f'it is not an export of share-group state: "export" is not {TITLE!r}')
        if found.get("version") != VERSION:
            raise BadExport(f"it has version {found.get('version')!r}; known is {VERSION}")
        cluster_id = found.get("cluster_id")
        if cluster_id is not None and not isinstance(cluster_id, str):
            raise BadExport(f"the cluster_id is {cluster_id!r}")
        return ExportHead(cluster_id, _number(found, "state_partitions", 1, (1 << 31) - 1))
    except BadExport as problem:
        raise BadExport(f"line 1: {problem}") from None


def _check_end(export: Export, found: dict[str, Any]) -> None:
    count = _number(found, "share_partitions", 0, MAX_INT64)
    if count != len(export.snapshots):
        raise BadExport(f"it says that there are {count} share-partitions, but {len(export.snapshots)} are there")
    export.left_out = _number(found, "left_out", 0, MAX_INT64)


def _check_nothing_follows(numbered: Iterator[tuple[int, str]]) -> None:
    for number, line in numbered:
        if line.strip():
            raise BadExport(f"line {number} follows the last one")


def _read_snapshot(found: dict[str, Any], now_ms: int) -> ShareSnapshot:
    key = _read_key(found)
    batches = [_read_batch(batch) for batch in _list(found, "state_batches")]
    if not is_canonical(batches):
        raise BadExport(f"the state batches of {key} are out of order, overlap, or could be one")
    if len(batches) > STATE_BATCHES_PER_SHARE_PARTITION_LIMIT:
        raise BadExport(f"{key} has {len(batches)} state batches, more than {STATE_BATCHES_PER_SHARE_PARTITION_LIMIT}")
    return ShareSnapshot(
        key=key,
        snapshot_epoch=_number(found, "snapshot_epoch", 0, MAX_EPOCH),
        state_epoch=_number(found, "state_epoch", 0, MAX_EPOCH),
        leader_epoch=_number(found, "leader_epoch", 0, MAX_EPOCH),
        start_offset=_number(found, "start_offset", -1, MAX_INT64),
        delivery_complete_count=_number(found, "delivery_complete_count", -1, MAX_EPOCH),
        create_timestamp_ms=now_ms,
        write_timestamp_ms=now_ms,
        state_batches=batches,
        leader_epochs=_read_leader_epochs(found.get("leader_epochs", [])),
    )


def _read_leader_epochs(found: object) -> bytes:
    try:
        if not isinstance(found, list):
            raise ValueError("it is not a list")
        data = encode_leader_epochs([EpochEntry(*entry) for entry in found])
        decode_leader_epochs(data)
    except (ValueError, TypeError, StructError) as error:
        raise BadExport(f"the leader_epochs {found!r} cannot be read: {error}") from None
    return data


def _read_key(found: dict[str, Any]) -> SharePartitionKey:
    group_id, topic = found.get("group"), found.get("topic_id")
    if not isinstance(group_id, str) or not isinstance(topic, str):
        raise BadExport(f"the group is {group_id!r} and the topic_id {topic!r}; both must be texts")
    try:
        topic_id = parse_topic_id(topic)
        group_id.encode()
    except ValueError as error:
        raise BadExport(f"the topic_id {topic!r} or the group {group_id!r} cannot be read: {error}") from None
    key = SharePartitionKey(group_id, topic_id, _number(found, "partition", 0, (1 << 31) - 1))
    problem = key_problem(key)
    if problem:
        raise BadExport(problem)
    return key


def _read_batch(found: object) -> StateBatch:
    if not (isinstance(found, list) and len(found) == 4 and found[2] in _STATES):
        raise BadExport(
            f"{found!r} is not a state batch: [first offset, last offset, one of {', '.join(_STATES)}, count]"
        )
    if not all(type(found[index]) is int for index in (0, 1, 3)):
        raise BadExport(f"the state batch {found!r} has a value that is not a number")
    batch = StateBatch(found[0], found[1], _STATES[found[2]], found[3])
    problem = batch_problem(batch)
    if problem:
        raise BadExport(problem)
    return batch


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise BadExport(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadExport("it is not a JSON object")
    return found


def _number(found: dict[str, Any], name: str, low: int, high: int) -> int:
    value = found.get(name)
    if type(value) is not int or not low <= value <= high:
        raise BadExport(f"{name} is {value!r}; it must be a number from {low} to {high}")
    return value


def _list(found: dict[str, Any], name: str) -> Sequence[object]:
    value = found.get(name)
    if not isinstance(value, list):
        raise BadExport(f"{name} is {value!r}; it must be a list")
    return value
