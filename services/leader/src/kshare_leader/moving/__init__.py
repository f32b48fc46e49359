"""Reassignments of topic partitions from and to this leader; the catalog decides them (kshare_coordinator,
partition_moves).

Reading order: `partition_moves` (the reassignments that a new view of the catalog starts and ends), then `receiver`
(one copy, from its first row to the switch), `sender`, and `rows` (what these do to the store).
"""
