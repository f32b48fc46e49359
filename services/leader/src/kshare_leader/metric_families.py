"""The metrics of a leader: their names, labels and meaning. `metric_reading` fills them."""

from __future__ import annotations

from kshare_servicekit.metric_families import counter, gauge, histogram
from kshare_servicekit.store_metrics import StoreFamilies

_SHARE = ("group", "topic", "partition")

SHARE_LAG = gauge(
    "leader_share_lag_records",
    "Records from the share-partition's start offset to the end of the log that are neither acknowledged nor archived "
    "(Kafka: share lag). For a share-partition that is not loaded, by its stored state.",
    *_SHARE,
)
SHARE_IN_FLIGHT = gauge(
    "leader_share_in_flight_records",
    "Records in flight, by state: acquired (locked by a member), available (to be delivered "
    "again), archiving (their dead letters are not stored yet).",
    *_SHARE,
    "state",
)
SHARE_OLDEST_AGE = gauge(
    "leader_share_oldest_acquired_age_seconds",
    "Age of the oldest acquisition lock since its acquisition or renewal, in seconds; 0 without locks.",
    *_SHARE,
)
SHARE_ACQUIRED = counter(
    "leader_share_acquired_records",
    "Records acquired by members; every delivery counts.",
    *_SHARE,
)
SHARE_TAKEN_BACK = counter(
    "leader_share_acquisitions_taken_back_records",
    "Acquired records whose response was lost before a client received it; their delivery is not counted.",
    *_SHARE,
)
SHARE_ACKNOWLEDGED = counter(
    "leader_share_acknowledged_records",
    "Records acknowledged by members, and released or rejected by administrators, durable, by type: accept, release, "
    "reject, renew, gap (Kafka: RecordAcknowledgementsPerSec).",
    *_SHARE,
    "type",
)
SHARE_ARCHIVED = counter(
    "leader_share_archived_records",
    "Records archived, durable, by reason: delivery_limit (share.delivery.count.limit was reached), rejected, gap (the "
    "client found no record at the offset).",
    *_SHARE,
    "reason",
)
SHARE_EXPIRED = counter(
    "leader_share_expired_locks_records", "Records whose acquisition lock expired, durable.", *_SHARE
)
SHARE_SESSION_RELEASED = counter(
    "leader_share_session_released_records",
    "Records released because the member's share session or its gateway ended, durable.",
    *_SHARE,
)
SHARE_DEAD_LETTERS = counter("leader_share_dead_letters", "Dead letters stored (KIP-1191).", *_SHARE)
SHARE_DEAD_LETTERS_GIVEN_UP = counter(
    "leader_share_dead_letters_given_up",
    "Records archived without a dead letter, because the configs forbid one; the service log lists them.",
    *_SHARE,
)
SHARE_TRUNCATED = counter(
    "leader_share_truncated_offsets",
    "Offsets whose stored state was dropped at loading, because the log does not have their records: the disk was lost "
    "or replaced by an older copy, or an administrator set a start offset beyond the log's end. The service log lists "
    "them.",
    *_SHARE,
)
DELIVERY_COUNT = histogram(
    "leader_share_delivery_count",
    "Delivery counts of acquired records; above 1 is a redelivery.",
    "group",
    "topic",
)
ACCEPT_AGE = histogram(
    "leader_share_append_to_accept_seconds",
    "Time from the append of a record to its durable acceptance, in seconds, for records appended since this leader "
    "opened the log. Requests with many batches are sampled.",
    "group",
    "topic",
)
FETCH_SECONDS = histogram(
    "leader_share_fetch_duration_seconds",
    "Duration of ShareFetch calls at the leader, in seconds. waited=true: too few records were available at first, and "
    "the wait is included.",
    "group",
    "waited",
)
ACKNOWLEDGE_SECONDS = histogram(
    "leader_share_acknowledge_duration_seconds",
    "Duration of ShareAcknowledge calls at the leader until all changes are durable, in seconds.",
    "group",
)
SHARE_PARTITIONS = gauge("leader_share_partitions", "Share-partitions loaded in memory.")
SHARE_PARTITIONS_LOADING = gauge(
    "leader_share_partitions_loading", "Share-partitions waiting for their state from a share coordinator."
)
WAITING_FETCHES = gauge("leader_waiting_share_fetches", "ShareFetch calls currently waiting for records.")

TOPIC_RECORDS_IN = counter("leader_topic_records_in", "Offsets appended, durable (Kafka: MessagesInPerSec).", "topic")
TOPIC_BATCHES_IN = counter("leader_topic_batches_in", "Record batches appended, durable.", "topic")
TOPIC_BYTES_IN = counter("leader_topic_bytes_in", "Bytes of record batches appended (Kafka: BytesInPerSec).", "topic")
TOPIC_BYTES_OUT = counter(
    "leader_topic_bytes_out",
    "Bytes of record batches that left this leader, by call: fetch (consumers and the read-ahead of gateways), "
    "share_fetch (batches that the gateway had not cached).",
    "topic",
    "call",
)
TOPIC_RECORDS_OUT = counter(
    "leader_topic_records_out",
    "Offsets that left this leader, by call: fetch (of whole batches, gaps included), share_fetch (acquired records).",
    "topic",
    "call",
)
TOPIC_LOG_BYTES = gauge(
    "leader_topic_log_bytes", "Size of the topic's segments at this leader, in bytes (Kafka: Size).", "topic"
)
TOPIC_PARTITIONS = gauge("leader_topic_partitions", "Partitions of the topic led by this node.", "topic")
OFFLINE_PARTITIONS = gauge("leader_offline_partitions", "Partitions placed here whose log cannot be opened.")
LOG_WRITE_SECONDS = histogram(
    "leader_log_write_duration_seconds",
    "Duration of one atomic write of all appends of a turn, with its fsync, in seconds.",
)
LOG_WRITE_FAILURES = counter("leader_log_write_failures", "Writes of appends that failed on disk.")
HISTORY_EVENTS = counter(
    "leader_delivery_history_events",
    "Delivery events by outcome: published (stored in __share_delivery_history), dropped (the buffer is full, see "
    "kshare.delivery.history.buffer.bytes, or the topic refused them; readers notice gaps in the sequence numbers).",
    "outcome",
)
HISTORY_BYTES = counter(
    "leader_delivery_history_bytes", "Record batches published to __share_delivery_history, compressed, in bytes."
)
HISTORY_BUFFER = gauge("leader_delivery_history_buffer_bytes", "Delivery events waiting to be published, in bytes.")
HISTORY_FAILURES = counter(
    "leader_delivery_history_failures", "Failed attempts to publish delivery events, which are retried."
)
STORE = StoreFamilies("leader")

FAMILIES = (
    *(SHARE_LAG, SHARE_IN_FLIGHT, SHARE_OLDEST_AGE, SHARE_ACQUIRED, SHARE_TAKEN_BACK, SHARE_ACKNOWLEDGED),
    *(SHARE_ARCHIVED, SHARE_EXPIRED, SHARE_SESSION_RELEASED, SHARE_DEAD_LETTERS, SHARE_DEAD_LETTERS_GIVEN_UP),
    SHARE_TRUNCATED,
    *(DELIVERY_COUNT, ACCEPT_AGE, FETCH_SECONDS, ACKNOWLEDGE_SECONDS),
    *(SHARE_PARTITIONS, SHARE_PARTITIONS_LOADING, WAITING_FETCHES),
    *(TOPIC_RECORDS_IN, TOPIC_BATCHES_IN, TOPIC_BYTES_IN, TOPIC_BYTES_OUT, TOPIC_RECORDS_OUT),
    *(TOPIC_LOG_BYTES, TOPIC_PARTITIONS),
    *(OFFLINE_PARTITIONS, LOG_WRITE_SECONDS, LOG_WRITE_FAILURES),
    *(HISTORY_EVENTS, HISTORY_BYTES, HISTORY_BUFFER, HISTORY_FAILURES),
    *STORE.families,
)
