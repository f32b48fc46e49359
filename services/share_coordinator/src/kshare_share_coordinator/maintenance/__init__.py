"""Maintenance of the store beside the five RPCs, and the operations of tools on it.

Read first: `opening` (how it is opened), `state_walk` (the background pass that verifies every row and writes snapshots
of cold share-partitions), `backup` (copies while the node serves), `exports` (state as lines of JSON), `verification`
(an offline store, row by row).
"""
