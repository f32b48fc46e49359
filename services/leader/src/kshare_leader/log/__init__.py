"""The embedded engine of topic logs: all logs of a node in one KeyValueStore.

Read first: `keys` (what lies where on disk), `partition_log` (one log: checks, offsets, reads), `stored_batches` (reads
from disk), `producers` (idempotent producers), `tail` (recent batches in memory), then `partition_logs` (all logs of
the node: group commit, the catalog).
"""
