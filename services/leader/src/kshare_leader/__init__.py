"""The leader: topic logs on RocksDB, and share-partitions over them.

Read first: `ports` (what a log is to a share-partition), `machine/` (the pure state machines), then `node` (the shell).
"""
