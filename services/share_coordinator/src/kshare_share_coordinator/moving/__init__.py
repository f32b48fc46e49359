"""Moves of state partitions from and to this node; the catalog decides them (kshare_coordinator, state_partitions).

Read first: `state_partition_moves` (what a new view of the catalog starts and ends), then `receiver` (one copy, from
its first row to the switch), `sender`, and `rows` (what all of them do to the store).
"""
