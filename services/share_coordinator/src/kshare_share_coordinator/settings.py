"""Settings of a share coordinator node."""

from __future__ import annotations

from dataclasses import dataclass

from kshare_core.configs import Configs
from kshare_share_coordinator.state_log.pruning import PruningPolicy
from kshare_upstream.own_topics import STATE

MOVE_PIECE_BYTES = 256 * 1024
SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT = "share.coordinator.snapshot.update.records.per.snapshot"
COLD_PARTITION_SNAPSHOT_INTERVAL_MS = "share.coordinator.cold.partition.snapshot.interval.ms"
STATE_TOPIC_PRUNE_INTERVAL_MS = "share.coordinator.state.topic.prune.interval.ms"
DELETE_RETENTION_MS = "log.cleaner.delete.retention.ms"
ENGINE = "kshare.engine"
TOPIC_PREFIX = "kshare.upstream.topic.prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorSettings:
    """`listen` is where it serves gRPC ("host:port", port 0 picks one); `configs` has Kafka's broker configs."""

    node_id: int
    listen: str
    coordinator_address: str
    configs: Configs
    move_piece_bytes: int = MOVE_PIECE_BYTES
    """Bytes of rows that are requested at once when a state partition moves here. Each piece is written with one fsync,
    which blocks this node's answers for a few milliseconds."""

    @property
    def snapshot_update_records_per_snapshot(self) -> int:
        """ShareUpdates that may follow a ShareSnapshot before the next one."""
        return self.configs.integer(SNAPSHOT_UPDATE_RECORDS_PER_SNAPSHOT)

    @property
    def cold_partition_snapshot_interval_ms(self) -> int:
        """Time between two passes over all states; what was not written between them gets a ShareSnapshot."""
        return self.configs.integer(COLD_PARTITION_SNAPSHOT_INTERVAL_MS)

    @property
    def state_topic_prune_interval_ms(self) -> int:
        """Time between two scans for tombstones of `__share_group_state` that can be removed."""
        return self.configs.integer(STATE_TOPIC_PRUNE_INTERVAL_MS)

    @property
    def state_topic_delete_retention_ms(self) -> int:
        """How long tombstones of `__share_group_state` stay."""
        return self.configs.integer(DELETE_RETENTION_MS)

    @property
    def has_kafka_engine(self) -> bool:
        """Whether states are in an existing cluster; embedded where the configs are a broker's alone, as in tests."""
        return ENGINE in self.configs.table and self.configs.text(ENGINE) == "kafka"

    @property
    def state_topic(self) -> str:
        """The topic of the existing cluster that has the states."""
        return self.configs.text(TOPIC_PREFIX) + STATE

    @property
    def upstream_timeout_ms(self) -> int:
        """How long a request to the existing cluster is repeated."""
        return self.configs.integer("kshare.upstream.request.timeout.ms")

    @property
    def pruning_policy(self) -> PruningPolicy:
        """When a state log in the existing cluster is marked and shortened."""
        return PruningPolicy(
            mark_interval_ms=self.configs.integer("kshare.state.log.mark.interval.ms"),
            mark_interval_records=self.configs.integer("kshare.state.log.mark.interval.records"),
            minimum_records=self.configs.integer("kshare.state.log.min.records"),
        )
