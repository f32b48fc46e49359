"""What keeps the store healthy beside the five RPCs, and what tools do with it.

Read first: `opening` (how it is opened), `state_walk` (the background pass that verifies every row and writes snapshots
of cold share-partitions), `backup` (copies while the node serves), `exports` (state as lines of JSON), `verification`
(a store that nobody serves, row by row).
"""
