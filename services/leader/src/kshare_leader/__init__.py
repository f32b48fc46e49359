"""The leader: topic logs on RocksDB, and share-partitions over them.

Read first: `ports` (the log interface of a share-partition), `machine/` (the pure state machines), `node` (the shell).
"""
