"""Reassignments of state partitions from and to this node; the catalog decides them (kshare_coordinator,
state_partitions).

Read first: `state_partition_moves` (the effects of a new view of the catalog), then `receiver` (one copy, from its
first row to the switch), `sender`, and `rows` (their access to the store).
"""
