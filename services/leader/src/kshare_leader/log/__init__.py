"""The embedded engine of topic logs: all logs of a node in one KeyValueStore.

Read first: `keys` (what lies where on disk), `partition_log` (one log: checks, offsets, reads), `stored_batches` (reads
from disk), `tail` (recent batches in memory), then `partition_logs` (all logs of the node: group commit, the catalog).

Producers: `producer_state` (all that a log knows of them) with the rules of `producers` (sequences and epochs),
`transactions` (open, ended, aborted) and `verifications`; `transaction_verifier` asks the coordinator (KIP-890).

Getting shorter: `segments` (what goes as a whole), `retention`, `compaction`, and `housekeeping`, which runs them.
"""
