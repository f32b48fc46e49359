"""The embedded storage engine of topic logs: all logs of a node in one KeyValueStore.

Reading order: `keys` (the layout on disk), `partition_log` (one log: checks, offsets, reads), `stored_batches` (reads
from disk), `tail` (recent batches in memory), then `partition_logs` (all logs of the node: group commit, the catalog).

Producers: `producers.state` (the producers of one log) with the rules of `producers.entries` (sequences and epochs),
`producers.transactions` (open, ended, aborted) and `producers.verifications`; `transaction_verifier` calls the
coordinator (KIP-890).

Topics that the catalog does not have, and their records: `deleted_topics`.

Deletion: `segments` (the units of retention), `retention`, `compaction`, and `housekeeping`, which runs both.
"""
