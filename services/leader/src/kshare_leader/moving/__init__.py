"""Moves of topic partitions from and to this leader; the catalog decides them (kshare_coordinator, partition_moves).

Read first: `partition_moves` (what a new view of the catalog starts and ends), then `receiver` (one copy, from its
first row to the switch), `sender`, and `rows` (what all of them do to the store).
"""
