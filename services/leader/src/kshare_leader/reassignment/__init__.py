"""Reassignments of topic partitions from and to this leader.

The catalog decides them (kshare_coordinator, partition_moves). Reading order: `partition_moves` (the reassignments that
a new view of the catalog starts and ends), then `receiver` (one copy, from its first row to the switch), `sender`, and
`rows` (their reads and writes of the store).
"""
