"""Committed offsets as values, and how records change them.

- `committed` is in force: what OffsetFetch answers.
- `pending` waits for the end of a transaction, by the producer id of that transaction.
- Every value has a `sequence` that grows with each commit. When a transaction ends, its offset replaces the committed
  one only if it was committed later; this is what the record's offset decides in Kafka.

A group exists here as long as it has an offset of either kind ("simple" groups, without members).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_records_pb2 as records_pb

OffsetCommitValue = records_pb.OffsetCommitValue


class PendingKey(NamedTuple):
    """Of an offset in a producer's transaction."""

    group_id: str
    partition: TopicPartition


@dataclass(slots=True)
class OffsetTable:
    """See the module docstring. `put_…` with None removes the row; only replay calls these methods."""

    committed: dict[str, dict[TopicPartition, OffsetCommitValue]] = field(default_factory=dict)
    """By group id."""
    pending: dict[int, dict[PendingKey, OffsetCommitValue]] = field(default_factory=dict)
    """By producer id."""
    open_producers: dict[str, dict[TopicPartition, dict[int, None]]] = field(default_factory=dict)
    """By group id: the producers whose transactions hold an offset of a partition. Derived from `pending`."""
    row_count: int = 0
    """Rows of both kinds."""
    last_sequence: int = field(default=0, compare=False)

    def has_group(self, group_id: str) -> bool:
        return group_id in self.committed or group_id in self.open_producers

    def group_ids(self) -> list[str]:
        """In order, each once."""
        return sorted({**self.committed, **self.open_producers})

    def group_count(self) -> int:
        return len(self.committed) + sum(group_id not in self.committed for group_id in self.open_producers)

    def get(self, group_id: str, partition: TopicPartition) -> OffsetCommitValue | None:
        return self.committed.get(group_id, {}).get(partition)

    def is_open(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a transaction that is not at its end holds an offset of the partition."""
        return partition in self.open_producers.get(group_id, {})

    def adds_committed(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a committed offset of the partition would be one more row, rather than replace one."""
        return self.get(group_id, partition) is None

    def adds_pending(self, producer_id: int, key: PendingKey) -> bool:
        """Whether an offset in a transaction counts as one more row.

        It does not if it replaces one of the same transaction, or if it is to replace a committed one at the end of the
        only transaction that holds the partition. So a group can make progress when there is no room for more rows, and
        there are never more pending rows that do not count than committed ones.
        """
        if key in self.pending.get(producer_id, {}):
            return False
        return self.get(*key) is None or self.is_open(*key)

    def rows_of_producer(self, producer_id: int) -> Iterator[tuple[PendingKey, OffsetCommitValue]]:
        return iter(self.pending.get(producer_id, {}).items())

    def put_committed(self, group_id: str, partition: TopicPartition, value: OffsetCommitValue | None) -> None:
        rows = self.committed.setdefault(group_id, {})
        self.row_count -= partition in rows
        if value is None:
            rows.pop(partition, None)
        else:
            rows[partition] = value
            self.row_count += 1
            self.last_sequence = max(self.last_sequence, value.sequence)
        if not rows:
            del self.committed[group_id]

    def put_pending(self, producer_id: int, key: PendingKey, value: OffsetCommitValue | None) -> None:
        rows = self.pending.setdefault(producer_id, {})
        self.row_count -= key in rows
        if value is None:
            rows.pop(key, None)
            self._close(producer_id, key)
        else:
            rows[key] = value
            self.row_count += 1
            self.last_sequence = max(self.last_sequence, value.sequence)
            partitions = self.open_producers.setdefault(key.group_id, {})
            partitions.setdefault(key.partition, {})[producer_id] = None
        if not rows:
            del self.pending[producer_id]

    def _close(self, producer_id: int, key: PendingKey) -> None:
        partitions = self.open_producers.get(key.group_id, {})
        producers = partitions.get(key.partition, {})
        producers.pop(producer_id, None)
        if key.partition in partitions and not producers:
            del partitions[key.partition]
            if not partitions:
                del self.open_producers[key.group_id]
