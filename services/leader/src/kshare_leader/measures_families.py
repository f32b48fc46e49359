"""The metrics of a leader: their names, labels and meaning. `measures_reading` fills them."""

from __future__ import annotations

from kshare_servicekit.measures import counter, gauge, histogram
from kshare_servicekit.store_measures import StoreFamilies

_SHARE = ("group", "topic", "partition")

SHARE_LAG = gauge(
    "leader_share_lag_records",
    "Records from the share-partition's start offset to the end of the log that are neither done nor given up (Kafka: "
    "share lag). Of a share-partition that nobody uses now, by its stored state.",
    *_SHARE,
)
SHARE_IN_FLIGHT = gauge(
    "leader_share_in_flight_records",
    "Records that were delivered and are not done, by state: acquired (held by a member), available (to be delivered "
    "again), archiving (their dead letters are not stored yet).",
    *_SHARE,
    "state",
)
SHARE_OLDEST_AGE = gauge(
    "leader_share_oldest_acquired_age_seconds",
    "For how long the record that is held longest has been held since it was acquired or its lock was renewed, in "
    "seconds; 0 where none is held.",
    *_SHARE,
)
SHARE_ACQUIRED = counter(
    "leader_share_acquired_records",
    "Records given to members, each delivery counted.",
    *_SHARE,
)
SHARE_TAKEN_BACK = counter(
    "leader_share_acquisitions_taken_back_records",
    "Of the acquired records, those whose answer no client saw: their delivery does not count.",
    *_SHARE,
)
SHARE_ACKNOWLEDGED = counter(
    "leader_share_acknowledged_records",
    "Records acknowledged by members, durable, by type: accept, release, reject, renew, gap (Kafka: "
    "RecordAcknowledgementsPerSec).",
    *_SHARE,
    "type",
)
SHARE_ARCHIVED = counter(
    "leader_share_archived_records",
    "Records given up, durable, by reason: delivery_limit (delivered as often as share.delivery.count.limit allows), "
    "rejected, gap (the client saw no record there).",
    *_SHARE,
    "reason",
)
SHARE_EXPIRED = counter(
    "leader_share_expired_locks_records", "Records whose acquisition lock ran out, durable.", *_SHARE
)
SHARE_SESSION_RELEASED = counter(
    "leader_share_session_released_records",
    "Records taken from members whose share session or gateway was gone, durable.",
    *_SHARE,
)
SHARE_DEAD_LETTERS = counter("leader_share_dead_letters", "Dead letters stored (KIP-1191).", *_SHARE)
SHARE_DEAD_LETTERS_GIVEN_UP = counter(
    "leader_share_dead_letters_given_up",
    "Records archived without a dead letter, because the configs forbid one; the log names them.",
    *_SHARE,
)
SHARE_TRUNCATED = counter(
    "leader_share_truncated_offsets",
    "Offsets whose stored state was dropped when the share-partition was loaded, because the log does not have the "
    "records that the state knew: its disk was lost or is an older copy, or an administrator set a start offset beyond "
    "the log's end. The log names them.",
    *_SHARE,
)
DELIVERY_COUNT = histogram(
    "leader_share_delivery_count",
    "The delivery counts of acquired records: above 1 is redelivery.",
    "group",
    "topic",
)
ACCEPT_AGE = histogram(
    "leader_share_append_to_accept_seconds",
    "From the append of a record to its durable acceptance, in seconds; of records appended since this leader opened "
    "the log. Of requests with many batches some stand for their neighbours.",
    "group",
    "topic",
)
FETCH_SECONDS = histogram(
    "leader_share_fetch_duration_seconds",
    "ShareFetch calls at the leader, in seconds; waited=true: there was not enough at first, and the wait is in it.",
    "group",
    "waited",
)
ACKNOWLEDGE_SECONDS = histogram(
    "leader_share_acknowledge_duration_seconds",
    "ShareAcknowledge calls at the leader until all is durable, in seconds.",
    "group",
)
SHARE_PARTITIONS = gauge("leader_share_partitions", "Share-partitions in memory.")
SHARE_PARTITIONS_LOADING = gauge(
    "leader_share_partitions_loading", "Share-partitions that wait for their state from a share coordinator."
)
WAITING_FETCHES = gauge("leader_waiting_share_fetches", "ShareFetch calls that wait for records now.")

TOPIC_RECORDS_IN = counter("leader_topic_records_in", "Offsets appended, durable (Kafka: MessagesInPerSec).", "topic")
TOPIC_BATCHES_IN = counter("leader_topic_batches_in", "Record batches appended, durable.", "topic")
TOPIC_BYTES_IN = counter("leader_topic_bytes_in", "Bytes of record batches appended (Kafka: BytesInPerSec).", "topic")
TOPIC_BYTES_OUT = counter(
    "leader_topic_bytes_out",
    "Bytes of record batches that left this leader, by call: fetch (consumers and the read-ahead of gateways), "
    "share_fetch (what the gateway did not have already).",
    "topic",
    "call",
)
TOPIC_RECORDS_OUT = counter(
    "leader_topic_records_out",
    "Offsets that left this leader, by call: fetch (of the batches sent, holes too), share_fetch (acquired records).",
    "topic",
    "call",
)
TOPIC_LOG_BYTES = gauge("leader_topic_log_bytes", "Size of the topic's segments here, in bytes (Kafka: Size).", "topic")
TOPIC_PARTITIONS = gauge("leader_topic_partitions", "Partitions of the topic that this node leads.", "topic")
OFFLINE_PARTITIONS = gauge("leader_offline_partitions", "Partitions placed here whose log cannot be opened.")
LOG_WRITE_SECONDS = histogram(
    "leader_log_write_duration_seconds", "One atomic write of all appends of a turn, with its fsync, in seconds."
)
LOG_WRITE_FAILURES = counter("leader_log_write_failures", "Writes of appends that the disk refused.")
HISTORY_EVENTS = counter(
    "leader_delivery_history_events",
    "Delivery events by what became of them: published (stored in __share_delivery_history), dropped (no room, see "
    "kshare.delivery.history.buffer.bytes, or the topic does not take them; readers see that numbers are missing).",
    "outcome",
)
HISTORY_BYTES = counter(
    "leader_delivery_history_bytes", "Record batches published to __share_delivery_history, compressed, in bytes."
)
HISTORY_BUFFER = gauge("leader_delivery_history_buffer_bytes", "Delivery events that wait to be published, in bytes.")
HISTORY_FAILURES = counter(
    "leader_delivery_history_failures", "Attempts to publish delivery events that are made again."
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
